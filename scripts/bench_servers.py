#!/usr/bin/env python3
"""Database servers that make each transaction durable, on ext4 and on a mount.

  postgresql   pgbench, its TPC-B-like transactions, scale 5; synchronous_commit as it is, on;
  redis        redis-benchmark, SET; appendonly, appendfsync always;
  etcd         writes of 0 to 900 bytes by its JSON interface, which syncs its log for each.

Each with one client and with four. All places are on one ext4 (an image on a loop device, or with
--flash on a modelled device): a plain directory, and mounts whose apps are durable and relaxed; in
turns, so that what else the machine does hits all. Before each turn everything is brought to the
disk, and a modelled device has done its work in the background. Shown are medians of the rounds,
transactions a second.

  bench_servers.py [--seconds N] [--rounds N] [--only WORD] [--clients 1,4] [--flash PRESET]

Servers that are not installed are skipped (Debian's packages: postgresql with postgresql-contrib's
pgbench, redis-server with redis-tools, etcd-server).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import threading
import time
from pathlib import Path

from lib import machine
from lib.disk import LoopImage, loop_devices_work, scratch_dir
from lib.flash_device import FlashDevice, ext4_disk
from lib.mount import MobiMount
from lib.process import ROOT, Cleanup, Failed, find_tool, is_root, main_guard, run, say
from lib.report import human_count, ratio, table
from lib.servers import Etcd, Postgres, Redis, as_user, available

IMAGE_MEBIBYTES = 2048
PLACES = ("ext4", "durable", "relaxed")
SCALE = 5


class BenchedPostgres(Postgres):
    def begin(self) -> None:
        self.ask("select 1;")

    def fill(self) -> None:
        self.pgbench("-i", "-q", "-s", str(SCALE))

    def pgbench(self, *options: str) -> str:
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        program = self.bin / "pgbench"
        return run(*as_user("postgres", program, *address, *options, "postgres"), cwd=Path("/"))

    def rate(self, clients: int, seconds: int) -> float:
        said = self.pgbench("-c", str(clients), "-j", "2", "-T", str(seconds), "-n")
        found = re.search(r"^tps = ([0-9.]+)", said, re.MULTILINE)
        if found is None or "number of failed transactions: 0 " not in said:
            raise Failed(f"pgbench: {said}")
        return float(found[1])


class BenchedRedis(Redis):
    needs = ("redis-server", "redis-benchmark")

    def rate(self, clients: int, seconds: int) -> float:
        """As many requests as take about that long."""
        requests = 2000
        while True:
            began = time.monotonic()
            said = run("redis-benchmark", "-p", str(self.port), "-t", "set", "-c", str(clients),
                       "-d", "100", "-r", "100000", "-n", str(requests), "--csv")  # fmt: skip
            took = time.monotonic() - began
            found = re.search(r'^"SET","([0-9.]+)"', said, re.MULTILINE)
            if found is None:
                raise Failed(f"redis-benchmark: {said}")
            if took >= seconds * 0.7:
                return float(found[1])
            requests = int(requests * min(8.0, seconds / max(took, 0.01)))


class BenchedEtcd(Etcd):
    def rate(self, clients: int, seconds: int) -> float:
        counts = [0] * clients
        problems: list[Exception] = []
        deadline = time.monotonic() + seconds

        def work(client: int) -> None:
            try:
                step, end = self.insert(client)
                while time.monotonic() < deadline:
                    counts[client] += 1
                    step(counts[client])
                end()
            except (Failed, OSError) as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return sum(counts) / (time.monotonic() - began)


Benched = BenchedPostgres | BenchedRedis | BenchedEtcd


def kinds(word: str) -> list[type[Benched]]:
    installed, absent = available()
    for line in absent:
        say(line)
    ours: list[type[Benched]] = [BenchedPostgres, BenchedRedis, BenchedEtcd]
    names = {kind.name for kind in installed}
    found = []
    for kind in ours:
        missing = [name for name in kind.needs if find_tool(name) is None]
        if kind.name in names and missing:
            say(f"{kind.name}: SKIPPED, {', '.join(missing)} not installed")
        elif kind.name in names and word in kind.name:
            found.append(kind)
    return found


class Places:
    """Directories on one ext4: bare, and mounts whose stores are there."""

    def __init__(self, cleanup: Cleanup, disk: FlashDevice | LoopImage) -> None:
        self.disk = disk
        self.directories = {"ext4": disk.mountpoint / "bare"}
        self.directories["ext4"].mkdir()
        self.mounts = []
        for name in PLACES[1:]:
            config = f'[[app]]\nmatch = "*"\nclass = "{name}"\n'
            store, mountpoint = disk.mountpoint / f"store-{name}", disk.mountpoint / f"mount-{name}"
            mount = MobiMount(cleanup, store, mountpoint, config)
            mount.mount()
            self.mounts.append(mount)
            self.directories[name] = mountpoint

    def wait_until_idle(self) -> None:
        """So that a turn does not pay for the one before."""
        for mount in self.mounts:
            mount.sync()
        self.disk.wait_until_idle()


def started(kind: type[Benched], place: Path, scratch: Path) -> Benched:
    directory = place / kind.name
    directory.mkdir()
    server = kind(directory, scratch / f"{kind.name}-{place.name}")
    server.prepare()
    server.start()
    if isinstance(server, BenchedPostgres):
        server.fill()
    return server


def measure(kind: type[Benched], where: Places, scratch: Path,
            options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:  # fmt: skip
    """Rates by clients, by place."""
    servers: dict[str, Benched] = {}
    rates: dict[str, dict[str, list[float]]] = {}
    try:
        for name, place in where.directories.items():
            servers[name] = started(kind, place, scratch)
        for clients in map(int, options.clients.split(",")):
            of_load: dict[str, list[float]] = {name: [] for name in where.directories}
            for _ in range(options.rounds):
                for name, server in servers.items():
                    where.wait_until_idle()
                    of_load[name].append(server.rate(clients, options.seconds))
            load = f"{kind.name}, {clients} client{'s' if clients > 1 else ''}"
            rates[load] = of_load
            say(f"  {load}: " + ", ".join(
                f"{name} {human_count(statistics.median(of))}" for name, of in of_load.items()
            ))  # fmt: skip
        for server in servers.values():
            server.stop()
    finally:
        for server in servers.values():
            server.crash()
    for place in where.directories.values():
        shutil.rmtree(place / kind.name)
    return rates


def show(rates: dict[str, dict[str, list[float]]]) -> str:
    header = ["transactions/s", *PLACES, *(f"{name}/ext4" for name in PLACES[1:])]
    rows = []
    for load, of_load in rates.items():
        medians = {name: statistics.median(of_load[name]) for name in PLACES}
        row = [load, *(human_count(medians[name]) for name in PLACES)]
        rows.append(row + [ratio(medians[name], medians["ext4"]) for name in PLACES[1:]])
    return table(header, rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=5, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", default="1,4")
    parser.add_argument("--only", default="", help="servers whose name contains this")
    parser.add_argument("--flash", metavar="PRESET", help="on a modelled device: emmc51, …")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if not is_root():
        raise Failed("only root can start servers as their own users")
    reason = loop_devices_work()
    if reason is not None:
        raise Failed(f"the places are on an ext4 of their own: {reason}")
    rates: dict[str, dict[str, list[float]]] = {}
    with Cleanup() as cleanup:
        scratch = scratch_dir(cleanup, "servers")
        disk = ext4_disk(cleanup, scratch, options.flash, IMAGE_MEBIBYTES)
        about = machine.one_line(machine.describe(disk.mountpoint))
        where = Places(cleanup, disk)
        for kind in kinds(options.only):
            rates |= measure(kind, where, scratch, options)
    if not rates:
        raise Failed("none of the servers is installed")
    out = ROOT / "target" / "bench-servers.json"
    out.write_text(json.dumps(rates, indent=2) + os.linesep)
    say(f"\n{about}, median of {options.rounds}\n\n{show(rates)}")


if __name__ == "__main__":
    main_guard(main)
