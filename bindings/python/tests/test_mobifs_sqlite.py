"""The package as its users have it: installed from the wheel."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import mobifs_sqlite
from mobifs_sqlite import _uri


class WithDirectory(unittest.TestCase):
    def setUp(self) -> None:
        # Not on tmpfs: what "durable" means is meant of a disk.
        directory = tempfile.TemporaryDirectory(dir="/var/tmp")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.path = self.directory / "app.db"

    def files(self) -> list[str]:
        """Names of the databases; what MobiFS keeps beside each is in a directory."""
        return sorted(one.name for one in self.directory.iterdir() if one.is_file())

    def count(self, path: Path) -> int:
        """Rows of `t`, as a program without MobiFS sees them."""
        plain = sqlite3.connect(f"file:{path}?vfs=unix", uri=True)
        try:
            self.assertEqual(plain.execute("PRAGMA integrity_check").fetchone(), ("ok",))
            return plain.execute("SELECT count(*) FROM t").fetchone()[0]
        finally:
            plain.close()


class Connecting(WithDirectory):
    def test_a_connection_is_an_ordinary_one(self) -> None:
        connection = mobifs_sqlite.connect(self.path)
        self.assertIs(type(connection), sqlite3.Connection)
        with connection:
            connection.execute("CREATE TABLE t(a)")
            connection.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
        connection.close()
        self.assertEqual(self.count(self.path), 2)
        self.assertEqual(self.files(), ["app.db"])

    def test_arguments_of_sqlite3_go_to_it(self) -> None:
        class Mine(sqlite3.Connection):
            pass

        connection = mobifs_sqlite.connect(self.path, factory=Mine, isolation_level=None)
        self.assertIs(type(connection), Mine)
        self.assertIsNone(connection.isolation_level)
        connection.close()
        with self.assertRaises(TypeError):
            mobifs_sqlite.connect(self.path, colour="red")
        with self.assertRaises(TypeError):
            mobifs_sqlite.connect(self.path, uri=False)

    def test_every_path_names_its_own_file(self) -> None:
        names = [
            "with space", "q?x=1", "frag#ment", "100%25", "a&b=c;d", "späße", "-", "+plus",
            ".hidden", "file:x", "back\\slash", "new\nline", "quote'\"",
        ]  # fmt: skip
        for name in names:
            with self.subTest(name=name):
                path = self.directory / name
                connection = mobifs_sqlite.connect(path)
                with connection:
                    connection.execute("CREATE TABLE t(a)")
                connection.close()
                self.assertTrue(path.is_file())
        self.assertEqual(self.files(), sorted(names))

    def test_paths_may_be_text_bytes_or_relative(self) -> None:
        before = Path.cwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.directory)
        for path in ("relative.db", b"bytes.db", Path("path.db")):
            mobifs_sqlite.connect(path).close()
        self.assertEqual(self.files(), ["bytes.db", "path.db", "relative.db"])

    def test_what_is_no_file_is_refused(self) -> None:
        for path in ("", ":memory:", "a\0b"):
            with self.subTest(path=path), self.assertRaises(ValueError):
                mobifs_sqlite.connect(path)

    def test_threads_have_connections_of_their_own(self) -> None:
        def work(number: int) -> None:
            connection = mobifs_sqlite.connect(self.path, timeout=60)
            for _ in range(50):
                with connection:
                    connection.execute("INSERT INTO t VALUES (?)", (number,))
            connection.close()

        first = mobifs_sqlite.connect(self.path)
        with first:
            first.execute("CREATE TABLE t(a)")
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(first.execute("SELECT count(*) FROM t").fetchone(), (200,))
        first.close()
        self.assertEqual(self.count(self.path), 200)


class Errors(WithDirectory):
    def test_an_error_says_why(self) -> None:
        self.path.write_bytes(b"this is no database, and never was one" * 10)
        # Twice: the second time the reason is the same.
        for _ in range(2):
            with self.assertRaisesRegex(sqlite3.OperationalError, "does not begin like a database"):
                mobifs_sqlite.connect(self.path)
        self.assertIn("does not begin like a database", mobifs_sqlite.last_error() or "")

    def test_a_wrong_parameter_is_named(self) -> None:
        with self.assertRaisesRegex(sqlite3.OperationalError, "class"):
            mobifs_sqlite.connect(self.path, class_="sometimes")
        with self.assertRaisesRegex(sqlite3.OperationalError, "memory_budget_bytes"):
            mobifs_sqlite.connect(self.path, memory_budget_bytes="many")
        self.assertFalse(self.path.exists() and self.path.stat().st_size)

    def test_a_reason_of_the_past_is_not_told(self) -> None:
        with self.assertRaisesRegex(sqlite3.OperationalError, "class"):
            mobifs_sqlite.connect(self.path, class_="sometimes")
        missing = self.directory / "missing" / "app.db"
        with self.assertRaises(sqlite3.OperationalError) as caught:
            mobifs_sqlite.connect(missing)
        self.assertNotIn("class", str(caught.exception))

    def test_a_database_of_another_process_is_busy(self) -> None:
        program = (
            "import mobifs_sqlite, sys\n"
            "mobifs_sqlite.connect(sys.argv[1]).execute('CREATE TABLE t(a)')\n"
            "c = mobifs_sqlite.connect(sys.argv[1])\n"
            "print('ready', flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, self.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as other:  # fmt: skip
            self.assertEqual(other.stdout.readline(), "ready\n")
            # Opening succeeds, as in SQLite itself; the first access is refused.
            late = mobifs_sqlite.connect(self.path, timeout=0.1)
            with self.assertRaisesRegex(sqlite3.OperationalError, "locked"):
                late.execute("SELECT count(*) FROM t")
            self.assertIn(f"in process {other.pid};", mobifs_sqlite.last_error() or "")
            other.stdin.close()
            self.assertEqual(other.wait(), 0)
        self.assertEqual(late.execute("SELECT count(*) FROM t").fetchone(), (0,))
        late.close()


class Asking(WithDirectory):
    def test_status_and_checkpoint(self) -> None:
        connection = mobifs_sqlite.connect(self.path, age_max_ms=3_600_000)
        connection.row_factory = sqlite3.Row
        with connection:
            connection.execute("CREATE TABLE t(a)")
        before = mobifs_sqlite.status(connection)
        self.assertEqual(before["class"], "relaxed")
        self.assertGreater(before["bytes_at_risk"], 0)
        mobifs_sqlite.checkpoint(connection)
        after = mobifs_sqlite.status(connection)
        self.assertEqual(after["bytes_at_risk"], 0)
        self.assertGreater(after["checkpoints"], before["checkpoints"])
        connection.close()

    def test_a_durable_commit_leaves_nothing_at_risk(self) -> None:
        connection = mobifs_sqlite.connect(self.path, class_="durable")
        with connection:
            connection.execute("CREATE TABLE t(a)")
        status = mobifs_sqlite.status(connection)
        self.assertEqual(status["class"], "durable")
        self.assertGreater(status["checkpoints"], 0)
        connection.close()

    def test_names_that_are_no_parameter_are_refused(self) -> None:
        for name in ("clas", "agemax", "vfs", ""):
            with self.assertRaisesRegex(ValueError, "no parameter is called"):
                mobifs_sqlite.connect(self.path, parameters={name: "durable"})
        self.assertFalse(os.path.exists(self.path))

    def test_a_class_among_the_parameters_holds(self) -> None:
        connection = mobifs_sqlite.connect(self.path, parameters={"class": "durable"})
        self.assertEqual(mobifs_sqlite.status(connection)["class"], "durable")
        connection.close()
        with self.assertRaisesRegex(TypeError, "class"):
            mobifs_sqlite.connect(self.path, class_="relaxed", parameters={"class": "durable"})

    def test_the_extension_knows_every_parameter(self) -> None:
        for name in sorted(_uri.PARAMETERS - {"arena"}):
            with self.assertRaisesRegex(sqlite3.OperationalError, name):
                mobifs_sqlite.connect(self.path, parameters={name: "no such value"}).execute(
                    "SELECT * FROM sqlite_master"
                )

    def test_parameters_reach_the_database(self) -> None:
        connection = mobifs_sqlite.connect(
            self.path,
            memory_budget_bytes="16MiB",
            arena=self.directory,
            parameters={"apply_idle_ms": 50},
        )
        self.assertEqual(mobifs_sqlite.status(connection)["memory_budget_bytes"], 16 << 20)
        connection.close()

    def test_other_connections_have_no_status(self) -> None:
        with self.assertRaises(sqlite3.ProgrammingError):
            mobifs_sqlite.status(sqlite3.connect(":memory:"))


class Killed(WithDirectory):
    def test_nothing_is_lost(self) -> None:
        program = (
            "import mobifs_sqlite, os, signal, sys\n"
            "c = mobifs_sqlite.connect(sys.argv[1], age_max_ms=3600000)\n"
            "c.execute('CREATE TABLE t(a)')\n"
            "for n in range(100):\n"
            "    with c: c.execute('INSERT INTO t VALUES (?)', (n,))\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", program, self.path])
        self.assertEqual(done.returncode, -signal.SIGKILL)
        with self.assertRaises(sqlite3.DatabaseError):
            self.count(self.path)
        connection = mobifs_sqlite.connect(self.path)
        self.assertEqual(connection.execute("SELECT count(*) FROM t").fetchone(), (100,))
        connection.close()
        self.assertEqual(self.count(self.path), 100)

    def test_a_process_that_forgets_to_close_loses_nothing(self) -> None:
        program = (
            "import mobifs_sqlite, os, sys\n"
            "c = mobifs_sqlite.connect(sys.argv[1])\n"
            "c.execute('CREATE TABLE t(a)')\n"
            "with c: c.execute('INSERT INTO t VALUES (1)')\n"
            "os._exit(0)\n"
        )
        subprocess.run([sys.executable, "-c", program, self.path], check=True)
        connection = mobifs_sqlite.connect(self.path)
        self.assertEqual(connection.execute("SELECT count(*) FROM t").fetchone(), (1,))
        connection.close()


class Registering(WithDirectory):
    def test_as_the_default_it_opens_every_database(self) -> None:
        program = (
            "import mobifs_sqlite, sqlite3, sys\n"
            "mobifs_sqlite.register(default=True)\n"
            "c = sqlite3.connect(sys.argv[1])\n"
            "print(mobifs_sqlite.status(c)['class'])\n"
            "c.close()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, self.path], capture_output=True, text=True
        )
        self.assertEqual((done.stdout, done.stderr), ("relaxed\n", ""))


if __name__ == "__main__":
    unittest.main()
