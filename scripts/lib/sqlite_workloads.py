"""Workloads of SQLite for `bench_sqlite_vfs.py`, run in a process of their own.

    sqlite_workloads.py JSON     (a dict: see `Job`)

Prepares, prints `ready`, waits for a line, works, and prints one JSON object: operations, seconds,
processor seconds, the 99th percentile of an operation's time, and for `rl` the seconds of each of
its parts.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TEXT = "x" * 100
BLOB_BYTES = 256 << 10
# Each transaction of `rl` in the manner of the benchmark that phones are compared with: what
# is done with 25,000 rows there is done with so many here.
RL_ROWS = 5000


@dataclass
class Job:
    """What to do, where."""

    uri: str
    workload: str
    journal: str
    synchronous: str
    seconds: float
    threads: int
    rows: int


Work = Callable[[sqlite3.Connection, random.Random, int], None]


def connect(job: Job) -> sqlite3.Connection:
    connection = sqlite3.connect(job.uri, uri=True, isolation_level=None, timeout=60)
    connection.execute(f"PRAGMA journal_mode={job.journal}")
    connection.execute(f"PRAGMA synchronous={job.synchronous}")
    return connection


def prepare(job: Job, connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, stamp INTEGER, body TEXT)")
    connection.execute("CREATE INDEX item_stamp ON item(stamp)")
    if job.workload in ("update", "delete", "read-mostly"):
        rows = ((number, TEXT) for number in range(job.rows))
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO item(stamp, body) VALUES (?, ?)", rows)
        connection.execute("COMMIT")


def insert(connection: sqlite3.Connection, _chance: random.Random, number: int) -> None:
    connection.execute("INSERT INTO item(stamp, body) VALUES (?, ?)", (number, TEXT))


def updater(rows: int) -> Work:
    def update(connection: sqlite3.Connection, chance: random.Random, number: int) -> None:
        chosen = chance.randrange(1, rows + 1)
        connection.execute("UPDATE item SET stamp=?, body=? WHERE id=?", (number, TEXT, chosen))

    return update


def deleter(rows: int) -> Work:
    doomed = list(range(1, rows + 1))
    random.Random(7).shuffle(doomed)

    def delete(connection: sqlite3.Connection, _chance: random.Random, _number: int) -> None:
        if not doomed:
            raise StopIteration
        connection.execute("DELETE FROM item WHERE id=?", (doomed.pop(),))

    return delete


def reader(rows: int) -> Work:
    update = updater(rows)

    def read(connection: sqlite3.Connection, chance: random.Random, number: int) -> None:
        if number % 20 == 0:
            update(connection, chance, number)
        else:
            chosen = (chance.randrange(1, rows + 1),)
            connection.execute("SELECT body FROM item WHERE id=?", chosen).fetchone()

    return read


def blob_putter() -> Work:
    # Made beforehand: that takes longer than to write them.
    blobs = [random.Random(number).randbytes(BLOB_BYTES) for number in range(7)]

    def put(connection: sqlite3.Connection, _chance: random.Random, number: int) -> None:
        # Twenty of them, written again and again: an app's pictures and not a growing archive.
        row = (number % 20, blobs[number % len(blobs)])
        connection.execute("INSERT OR REPLACE INTO item VALUES (?, 0, ?)", row)

    return put


def work_of(job: Job) -> Work:
    makers: dict[str, Callable[[], Work]] = {
        "insert": lambda: insert,
        "update": lambda: updater(job.rows),
        "delete": lambda: deleter(job.rows),
        "read-mostly": lambda: reader(job.rows),
        "blobs": blob_putter,
    }
    return makers[job.workload]()


def repeat(connection: sqlite3.Connection, work: Work, seconds: float, seed: int) -> list[float]:
    """Times of the operations done in so many seconds."""
    chance = random.Random(seed)
    times = []
    number = 0
    clock = time.perf_counter
    end = clock() + seconds
    before = clock()
    while before < end:
        number += 1
        try:
            work(connection, chance, number)
        except StopIteration:
            break
        after = clock()
        times.append(after - before)
        before = after
    return times


def rl_parts(connection: sqlite3.Connection) -> dict[str, float]:
    """The thirteen, and the seconds of each."""
    chance = random.Random(13)
    few, many = RL_ROWS // 25, RL_ROWS

    def row() -> tuple[int, str]:
        number = chance.randrange(100_000)
        return number, f"number {number}"

    def at_once(statement: str, arguments: list[tuple[object, ...]]) -> None:
        connection.execute("BEGIN")
        connection.executemany(statement, arguments)
        connection.execute("COMMIT")

    def each(statement: str, arguments: list[tuple[object, ...]]) -> None:
        for one in arguments:
            connection.execute(statement, one).fetchall()

    for table in ("t1", "t2", "t3"):
        connection.execute(f"CREATE TABLE {table}(a INTEGER, b INTEGER, c TEXT)")
    connection.execute("CREATE INDEX i3 ON t3(b)")
    ranges = [(100 * number, 100 * number + 1000) for number in range(few // 10)]
    narrow = [(100 * number, 100 * number + 100) for number in range(many // 5)]
    parts: dict[str, Callable[[], object]] = {
        "inserts, a transaction each": lambda: each(
            "INSERT INTO t1 VALUES (1, ?, ?)", [row() for _ in range(few)]),
        "inserts in one transaction": lambda: at_once(
            "INSERT INTO t2 VALUES (1, ?, ?)", [row() for _ in range(many)]),
        "inserts into an indexed table": lambda: at_once(
            "INSERT INTO t3 VALUES (1, ?, ?)", [row() for _ in range(many)]),
        "selects without an index": lambda: each(
            "SELECT count(*), avg(b) FROM t2 WHERE b >= ? AND b < ?", ranges),
        "selects by text": lambda: each(
            "SELECT count(*) FROM t2 WHERE c LIKE ?", [(f"%{n}%",) for n in range(few // 10)]),
        "making an index": lambda: connection.execute("CREATE INDEX i2 ON t2(b)"),
        "selects with an index": lambda: each(
            "SELECT count(*), avg(b) FROM t2 WHERE b >= ? AND b < ?", narrow),
        "updates without an index": lambda: at_once(
            "UPDATE t1 SET b = b * 2 WHERE a >= ? AND a < ?", [(n, n + 10) for n in range(few)]),
        "updates with an index": lambda: at_once(
            "UPDATE t2 SET c = ? WHERE b = ?", [(row()[1], row()[0]) for _ in range(many)]),
        "insert from a select": lambda: connection.execute(
            "INSERT INTO t1 SELECT * FROM t2"),
        "delete without an index": lambda: connection.execute(
            "DELETE FROM t2 WHERE c LIKE '%50%'"),
        "delete with an index": lambda: connection.execute(
            "DELETE FROM t2 WHERE b > 10 AND b < 20000"),
        "dropping a table": lambda: connection.execute("DROP TABLE t3"),
    }  # fmt: skip
    seconds = {}
    for name, part in parts.items():
        before = time.perf_counter()
        part()
        seconds[name] = time.perf_counter() - before
    return seconds


def rl_runs(connection: sqlite3.Connection, seconds: float) -> list[dict[str, float]]:
    """As many runs as fit, each on tables of its own: one alone is over before it is warm."""
    end = time.perf_counter() + seconds
    runs = [rl_parts(connection)]
    while time.perf_counter() < end:
        connection.execute("DROP TABLE t1")
        connection.execute("DROP TABLE t2")
        runs.append(rl_parts(connection))
    return runs


def in_threads(job: Job, first: sqlite3.Connection, work: Work) -> list[float]:
    if job.threads == 1:
        return repeat(first, work, job.seconds, 1)
    times: list[float] = []

    def run(seed: int) -> None:
        connection = connect(job)
        times.extend(repeat(connection, work, job.seconds, seed))
        connection.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(job.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    if "vfs=mobifs" in job.uri:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bindings" / "python" / "src"))
        import mobifs_sqlite

        mobifs_sqlite.register()
    connection = connect(job)
    prepare(job, connection)
    work = None if job.workload == "rl" else work_of(job)
    print("ready", flush=True)
    sys.stdin.readline()
    processor, before = processor_seconds(), time.perf_counter()
    answer: dict[str, object] = {}
    if work is None:
        runs = rl_runs(connection, job.seconds)
        answer["parts"] = {name: sum(run[name] for run in runs) for name in runs[0]}
        times = sorted(sum(run.values()) for run in runs)
    else:
        times = sorted(in_threads(job, connection, work))
    answer |= {
        "operations": len(times),
        "seconds": time.perf_counter() - before,
        "processor_seconds": processor_seconds() - processor,
        "p99_seconds": times[int(len(times) * 0.99)],
    }
    connection.close()
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
