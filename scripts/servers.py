#!/usr/bin/env python3
"""Database servers on a mount: daemons killed under them, unmounts, power cuts.

Clients insert numbered rows, each in a transaction of its own. Daemons that are killed cost
nothing and cause no error. After a power cut the server starts again by its own means, its own
check finds nothing, and of each client the first so many rows are there: in a durable app all
that were acknowledged, in a relaxed one as many as were there at one moment for all clients.

  servers.py [--kills N] [--cuts N] [--seed N] [--flash] [--only WORD]

Servers that are not installed are skipped (Debian's packages: postgresql, mariadb-server,
redis-server, etcd-server). With --flash the mount lies over ext4 on the modelled eMMC, whose power is cut.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from lib.disk import scratch_dir
from lib.flash_device import FlashDevice
from lib.mount import MobiMount
from lib.process import Cleanup, Failed, find_tool, is_root, main_guard, say
from lib.servers import PATIENCE_S, Rows, Server, available

CONFIG = """
[defaults]
age_max_ms = 400
[[app]]
match = "*-durable"
class = "durable"
"""
CLIENTS = 3
WORK_MAX_S = 2.0
FLASH_MEBIBYTES = 1536
# Cuts come while the device works; its full latency would only lengthen the run.
FLASH_SCALE = 0.25


class Client(threading.Thread):
    """Inserts rows until it is stopped or something fails."""

    def __init__(self, server: Server, number: int, last: int) -> None:
        super().__init__(daemon=True)
        self.server, self.number, self.last = server, number, last
        # When each row was begun, and when it was acknowledged.
        self.begun: dict[int, float] = {}
        self.acknowledged: dict[int, float] = {}
        self.is_over = False
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            insert, end = self.server.insert(self.number)
            try:
                while not self.is_over:
                    row = self.last + 1
                    self.begun[row] = time.monotonic()
                    insert(row)
                    self.acknowledged[row] = time.monotonic()
                    self.last = row
            finally:
                end()
        except (Failed, OSError, ValueError) as problem:
            self.problem = problem


def judge(clients: list[Client], rows: Rows, is_durable: bool) -> int:
    """How many acknowledged rows are not there, which only a relaxed app may miss."""
    missing = 0
    last_begun_there, first_acknowledged_absent = 0.0, float("inf")
    for client in clients:
        there = rows.get(client.number, set())
        count = max(there, default=0)
        if there != set(range(1, count + 1)):
            raise Failed(f"client {client.number}: rows before {count} are missing")
        if count > client.last + 1:
            raise Failed(f"client {client.number}: row {count} is there, {client.last} was last")
        if is_durable and count < client.last:
            raise Failed(f"client {client.number}: {client.last} acknowledged, {count} there")
        missing += max(0, client.last - count)
        for row, moment in client.begun.items():
            if row in there:
                last_begun_there = max(last_begun_there, moment)
        for row, moment in client.acknowledged.items():
            if row not in there:
                first_acknowledged_absent = min(first_acknowledged_absent, moment)
    if last_begun_there > first_acknowledged_absent:
        raise Failed("a row is there that was begun after one was acknowledged that is not")
    return missing


class Trial:
    """One server in one app."""

    def __init__(self, mount: MobiMount, flash: FlashDevice | None, server: Server,
                 chance: random.Random) -> None:  # fmt: skip
        self.mount, self.flash, self.server, self.chance = mount, flash, server, chance
        self.at: dict[int, int] = {}

    def start_clients(self) -> list[Client]:
        clients = [Client(self.server, n, self.at.get(n, 0)) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        return clients

    def stop_clients(self, clients: list[Client], may_fail: bool) -> None:
        for client in clients:
            client.is_over = True
        for client in clients:
            client.join(PATIENCE_S)
            if client.is_alive():
                raise Failed(f"client {client.number} hangs")
            if client.problem is not None and not may_fail:
                raise Failed(f"client {client.number}: {client.problem}")

    def look(self, clients: list[Client], is_durable: bool) -> int:
        rows = self.server.rows()
        missing = judge(clients, rows, is_durable)
        self.server.check()
        self.at = {client.number: len(rows.get(client.number, ())) for client in clients}
        return missing

    def kills(self, count: int) -> None:
        clients = self.start_clients()
        for _ in range(count):
            time.sleep(self.chance.uniform(0.1, 0.6))
            os.kill(self.mount.status()["daemon_pid"], signal.SIGKILL)
        time.sleep(0.5)
        self.stop_clients(clients, may_fail=False)
        self.look(clients, is_durable=True)
        self.server.stop()
        self.mount.umount()
        self.mount.mount()
        self.server.start()
        self.look(clients, is_durable=True)
        say(f"  {count} daemons killed: {sum(self.at.values()):,} rows, all there, also after "
            "an unmount")  # fmt: skip

    def cut(self, is_durable: bool) -> int:
        clients = self.start_clients()
        time.sleep(self.chance.uniform(0.2, WORK_MAX_S))
        failed = [client.problem for client in clients if client.problem is not None]
        if failed:
            raise Failed(f"before the cut: {failed}")
        if self.flash is None:
            self.mount.cut_power()
        else:
            # The daemon may not answer any more once the device does not.
            processes = self.mount.processes()
            self.flash.cut(self.chance.randrange(1 << 32))
            self.mount.kill(processes)
        self.server.crash()
        self.stop_clients(clients, may_fail=True)
        if self.flash is not None:
            self.flash.power_on()
        self.mount.mount()
        self.server.start()
        return self.look(clients, is_durable)

    def run(self, kills: int, cuts: int, is_durable: bool) -> None:
        self.server.directory.mkdir()
        self.server.prepare()
        self.server.start()
        try:
            self.kills(kills)
            missing = [self.cut(is_durable) for _ in range(cuts)]
            self.server.stop()
        except Failed as failure:
            raise Failed(f"{failure}\n{self.server.last_words()}") from failure
        finally:
            self.server.crash()
        rows = sum(self.at.values())
        say(f"  {cuts} power cuts: intact each time, {rows:,} rows in the end; "
            f"{sum(missing):,} acknowledged ones gone")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--cuts", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if not is_root():
        say("servers: SKIPPED, not root")
        return 0
    if arguments.flash and find_tool("mkfs.ext4") is None:
        raise Failed("mkfs.ext4 is not installed; run `make setup`")
    servers, absent = available()
    for line in absent:
        say(line)
    tried = 0
    for kind in (kind for kind in servers if arguments.only in kind.name):
        for is_durable in (False, True):
            app = kind.name + ("-durable" if is_durable else "")
            say(f"{app}:")
            with Cleanup() as cleanup:
                scratch = scratch_dir(cleanup, "servers")
                flash = None
                if arguments.flash:
                    flash = FlashDevice(cleanup, scratch, "emmc51", FLASH_MEBIBYTES, FLASH_SCALE)
                below = scratch if flash is None else flash.mountpoint
                mount = MobiMount(cleanup, below / "store", scratch / "mount", CONFIG)
                mount.mount()
                server = kind(mount.mountpoint / app, scratch / "said")
                chance = random.Random(f"{arguments.seed} {app}")
                trial = Trial(mount, flash, server, chance)
                trial.run(arguments.kills, arguments.cuts, is_durable)
                tried += 1
    say(f"servers: {tried} trials, no violation")
    return 0


if __name__ == "__main__":
    main_guard(main)
