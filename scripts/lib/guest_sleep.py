#!/usr/bin/env python3
"""Watches a guest of QEMU: notes how many writes its disk had seen when it said something, and when it slept; and
wakes it up.

    guest_sleep.py DIRECTORY

DIRECTORY has `console.log`, `writes.log` and QEMU's socket `qmp`. A line `check: mark NAME STEP` of the console
means that all steps up to this one are to be there from now on; so does `check: sleeping NAME STEP`, from when the
guest sleeps, and `check: off NAME STEP`, from when it is off. What was noted is in `marks.json` when the guest is off.
"""
import json
import os
import re
import socket
import sys
import time

import write_log

SAID = re.compile(r"^check: (mark|sleeping|off) (\S+) (\d+)\r*$")
# So long the guest lies asleep.
ASLEEP_S = 3


class Monitor:
    """QEMU's machine protocol: a line each way."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.socket.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.2)
        self.rest = b""
        self.socket.settimeout(0.2)
        self.send("qmp_capabilities")

    def send(self, command):
        self.socket.sendall(json.dumps({"execute": command}).encode() + b"\n")

    def events(self):
        """Names of what has happened; None: QEMU has ended."""
        try:
            more = self.socket.recv(65536)
        except TimeoutError:
            return []
        except ConnectionResetError:
            return None
        if not more:
            return None
        *lines, self.rest = (self.rest + more).split(b"\n")
        return [json.loads(line).get("event") for line in lines if line.strip()]


class Console:
    """What the guest says, as far as it matters here."""

    def __init__(self, path):
        self.file, self.rest = open(path, encoding="utf-8", errors="replace"), ""

    def said(self):
        *lines, self.rest = (self.rest + self.file.read()).split("\n")
        found = (SAID.match(line) for line in lines)
        return [(match[1], match[2], int(match[3])) for match in found if match]


def main():
    directory = sys.argv[1]
    log = os.path.join(directory, "writes.log")
    console = Console(os.path.join(directory, "console.log"))
    monitor = Monitor(os.path.join(directory, "qmp"))
    marks, later = [], {}

    def note(name, step):
        marks.append({"name": name, "step": step, "writes": len(write_log.entries(log))})

    def hear():
        for kind, name, step in console.said():
            if kind == "mark":
                note(name, step)
            else:
                later[kind] = (name, step)

    while (events := monitor.events()) is not None:
        hear()
        if "SUSPEND" in events:
            time.sleep(ASLEEP_S)
            name, step = later["sleeping"]
            note(f"asleep-{name}", step)
            monitor.send("system_wakeup")
    hear()
    if "off" in later:
        note(*later["off"])
    with open(os.path.join(directory, "marks.json"), "w", encoding="utf-8") as file:
        json.dump(marks, file, indent=1)


if __name__ == "__main__":
    main()
