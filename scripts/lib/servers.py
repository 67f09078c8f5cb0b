"""Database servers of others, each with clients that insert numbered rows."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.process import Failed, find_tool, run

# A server that takes longer to answer, or to end, hangs.
PATIENCE_S = 120.0
PAUSE_S = 0.05
# Rows by client: which numbers are there.
Rows = dict[int, set[int]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def as_user(user: str, *command: str | Path) -> list[str | Path]:
    return ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *command]


def filler_length(number: int) -> int:
    """Rows are not all equally long, and which is how long is known."""
    return number * 37 % 900


class Session:
    """A client program that reads commands line by line, and prints a line when one is done."""

    def __init__(self, command: list[str | Path], said: Path) -> None:
        with open(said, "ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def ask(self, statements: str, last: str) -> list[str]:
        """The lines said until `last`."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None  # asked for above
        stdin.write(statements + "\n")
        stdin.flush()
        lines = []
        while (line := stdout.readline()) != last + "\n":
            if not line:
                raise Failed(f"the client ended: {self.process.args}")
            lines.append(line.rstrip("\n"))
        return lines

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Server:
    """A server with its data in `directory`, which is on the mount."""

    name = ""
    # Commands without which it cannot run.
    needs: tuple[str, ...] = ()

    def __init__(self, directory: Path, said: Path) -> None:
        self.directory = directory
        self.said = said
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Makes what `command` needs, once."""

    def command(self) -> list[str | Path]:
        raise NotImplementedError

    def insert(self, client: int) -> tuple[Callable[[int], None], Callable[[], None]]:
        """What inserts a row and returns when it is committed, and what ends that."""
        raise NotImplementedError

    def rows(self) -> Rows:
        raise NotImplementedError

    def begin(self) -> None:
        """Called whenever the server has come up."""

    def check(self) -> None:
        """The server's own check of its data."""

    def start(self) -> None:
        with open(self.said, "ab") as said:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/"
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"{self.name} does not come up:\n{self.last_words()}")
            try:
                return self.begin()
            except (Failed, OSError):
                time.sleep(PAUSE_S)

    def last_words(self) -> str:
        return self.said.read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT if self.name == "postgresql" else signal.SIGTERM)
            self.process.wait(PATIENCE_S)
            self.process = None

    def crash(self) -> None:
        """The machine loses power: nothing of it runs on."""
        if self.process is None:
            return
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        processes = [int(pid) for pid in children.read_text().split()]
        self.process.kill()
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.process = None


class Sql(Server):
    """What those with SQL have in common."""

    table = ""
    client_option = ""

    def client(self) -> list[str | Path]:
        raise NotImplementedError

    def marker(self) -> str:
        """A statement whose whole output is `done`."""
        raise NotImplementedError

    def ask(self, statements: str) -> list[str]:
        session = Session(self.client(), self.said)
        try:
            return session.ask(statements + self.marker(), "done")
        finally:
            session.end()

    def insert(self, client: int) -> tuple[Callable[[int], None], Callable[[], None]]:
        session = Session(self.client(), self.said)

        def step(number: int) -> None:
            filler = "x" * filler_length(number)
            row = f"insert into {self.table} values ({client}, {number}, '{filler}');"
            session.ask(row + self.marker(), "done")

        return step, session.end

    def rows(self) -> Rows:
        found: Rows = defaultdict(set)
        for line in self.ask(f"select client, number, length(filler) from {self.table};"):
            client, number, length = map(int, line.replace("|", "\t").split("\t"))
            if length != filler_length(number):
                raise Failed(f"{self.name}: row {number} of client {client} is damaged")
            found[client].add(number)
        return found


class Postgres(Sql):
    name = "postgresql"
    table = "rows"
    needs = ("psql", "setpriv")

    @staticmethod
    def programs() -> Path | None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        return found[-1].parent if found else None

    def prepare(self) -> None:
        self.data = self.directory / "data"
        self.data.mkdir(mode=0o700)
        shutil.chown(self.data, "postgres", "postgres")
        programs = self.programs()
        assert programs is not None  # checked before the server was chosen
        self.bin = programs
        run(*as_user("postgres", self.bin / "initdb", "-k", "-A", "trust", "-D", self.data),
            cwd=Path("/"))  # fmt: skip
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as settings:
            settings.write("shared_buffers = 16MB\nmax_wal_size = 64MB\n")

    def command(self) -> list[str | Path]:
        settings = ["-c", "unix_socket_directories=", "-c", "listen_addresses=127.0.0.1"]
        program = [self.bin / "postgres", "-D", self.data, "-p", str(self.port), *settings]
        return as_user("postgres", *program)

    def client(self) -> list[str | Path]:
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "postgres"]
        return ["psql", "-qAtX", "-v", "ON_ERROR_STOP=1", *address]

    def marker(self) -> str:
        return "\n\\echo done"

    def begin(self) -> None:
        self.ask(
            "set client_min_messages = warning; create table if not exists rows "
            "(client int, number int, filler text, primary key (client, number));"
        )

    def check(self) -> None:
        found = self.ask(
            "set client_min_messages = warning; create extension if not exists amcheck;"
            "select bt_index_parent_check('rows_pkey', true); select * from verify_heapam('rows');"
        )
        if any(found):
            raise Failed(f"{self.name}: {found}")

    def stop(self) -> None:
        super().stop()
        run(*as_user("postgres", self.bin / "pg_checksums", "--check", "-D", self.data),
            cwd=Path("/"))  # fmt: skip


class MariaDb(Sql):
    name = "mariadb"
    table = "test.rows_"
    needs = ("mariadbd", "mariadb-install-db", "mariadb")

    def prepare(self) -> None:
        self.data = self.directory / "data"
        self.data.mkdir()
        for path in (self.directory, self.data):
            shutil.chown(path, "mysql", "mysql")
        install = find_tool("mariadb-install-db")
        assert install is not None  # checked before the server was chosen
        run(install, "--no-defaults", f"--datadir={self.data}", "--user=mysql",
            "--auth-root-authentication-method=normal")  # fmt: skip

    def command(self) -> list[str | Path]:
        server = find_tool("mariadbd")
        assert server is not None  # checked before the server was chosen
        return [
            server, "--no-defaults", "--user=mysql", f"--datadir={self.data}",
            f"--port={self.port}", "--bind-address=127.0.0.1",
            f"--socket={self.data}/socket", f"--pid-file={self.data}/pid",
            "--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=O_DIRECT",
            "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M",
        ]  # fmt: skip

    def client(self) -> list[str | Path]:
        address = ["-h127.0.0.1", f"-P{self.port}", "-uroot"]
        return ["mariadb", "--no-defaults", "-N", "-B", "-n", *address]

    def marker(self) -> str:
        return "\nselect 'done';"

    def begin(self) -> None:
        self.ask(
            "create database if not exists test; create table if not exists test.rows_ "
            "(client int, number int, filler text, primary key (client, number)) engine=innodb;"
        )

    def check(self) -> None:
        found = self.ask("check table test.rows_ extended;")
        if not found[-1].endswith("OK"):
            raise Failed(f"{self.name}: {found}")


class Redis(Server):
    """Each command is appended to a file and synced; the file is rewritten now and then."""

    name = "redis"
    needs = ("redis-server",)

    def command(self) -> list[str | Path]:
        rewrite = ["--auto-aof-rewrite-min-size", "50kb"]
        return [
            "redis-server", "--port", str(self.port), "--bind", "127.0.0.1",
            "--dir", self.directory, "--save", "", "--appendonly", "yes",
            "--appendfsync", "always", *rewrite,
        ]  # fmt: skip

    def connection(self) -> tuple[Callable[[str], list[str]], Callable[[], None]]:
        """The protocol is lines; only what is asked for here is understood."""
        stream = socket.create_connection(("127.0.0.1", self.port))
        lines = stream.makefile("r", encoding="ascii", newline="\r\n")

        def line() -> str:
            text = lines.readline().rstrip("\r\n")
            if not text or text.startswith("-"):
                raise Failed(f"redis: {text!r}")
            return text

        def ask(command: str) -> list[str]:
            stream.sendall(command.encode() + b"\r\n")
            first = line()
            if not first.startswith("*"):
                return [first[1:]]
            # Each element is its length and itself.
            return [(line(), line())[1] for _ in range(int(first[1:]))]

        def close() -> None:
            lines.close()
            stream.close()

        return ask, close

    def begin(self) -> None:
        ask, close = self.connection()
        try:
            ask("PING")
        finally:
            close()

    def insert(self, client: int) -> tuple[Callable[[int], None], Callable[[], None]]:
        ask, close = self.connection()
        return (lambda number: ask(f"RPUSH client{client} {number}") and None), close

    def rows(self) -> Rows:
        ask, close = self.connection()
        try:
            keys = ask("KEYS client*")
            listed = {key: ask(f"LRANGE {key} 0 -1") for key in keys}
        finally:
            close()
        return {int(key[len("client") :]): set(map(int, all_)) for key, all_ in listed.items()}


class Etcd(Server):
    """Each write is appended to a log and synced (fdatasync) before it is acknowledged."""

    name = "etcd"
    needs = ("etcd",)

    def prepare(self) -> None:
        self.peer_port = free_port()

    def command(self) -> list[str | Path]:
        address, peer = (f"http://127.0.0.1:{port}" for port in (self.port, self.peer_port))
        return [
            "etcd", "--data-dir", self.directory / "data", "--log-level", "error",
            "--snapshot-count", "2000", "--listen-client-urls", address,
            "--advertise-client-urls", address, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip

    def connection(self) -> tuple[Callable[[str, Any], Any], Callable[[], None]]:
        """Its JSON over HTTP; keys and values are base64."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(what: str, about: Any) -> Any:
            try:
                connection.request("POST", f"/v3/{what}", json.dumps(about))
                response = connection.getresponse()
                answer = response.read()
            except http.client.HTTPException as problem:
                raise Failed(f"etcd: {problem!r}") from problem
            if response.status != 200:
                raise Failed(f"etcd: {response.status} {answer!r}")
            return json.loads(answer)

        return ask, connection.close

    def begin(self) -> None:
        ask, close = self.connection()
        try:
            # Answered by a quorum only.
            ask("kv/range", {"key": as_base64("client")})
        finally:
            close()

    def insert(self, client: int) -> tuple[Callable[[int], None], Callable[[], None]]:
        ask, close = self.connection()

        def step(number: int) -> None:
            value = as_base64("x" * filler_length(number))
            ask("kv/put", {"key": as_base64(f"client {client} {number}"), "value": value})

        return step, close

    def rows(self) -> Rows:
        ask, close = self.connection()
        try:
            # All keys from the first one on.
            found = ask("kv/range", {"key": as_base64("client"), "range_end": as_base64("\0")})
        finally:
            close()
        rows: Rows = defaultdict(set)
        for pair in found.get("kvs", []):
            _, client, number = base64.b64decode(pair["key"]).decode().split()
            value = base64.b64decode(pair.get("value", ""))
            if len(value) != filler_length(int(number)):
                raise Failed(f"etcd: row {number} of client {client} is damaged")
            rows[int(client)].add(int(number))
        return rows


def as_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def available() -> tuple[list[type[Server]], list[str]]:
    """Those that are installed, and what to say of the others."""
    found: list[type[Server]] = []
    absent = []
    for server in (Postgres, MariaDb, Redis, Etcd):
        missing = [name for name in server.needs if find_tool(name) is None]
        if server is Postgres and Postgres.programs() is None:
            missing.append("initdb")
        if missing:
            absent.append(f"{server.name}: SKIPPED, {', '.join(missing)} not installed")
        else:
            found.append(server)
    return found, absent
