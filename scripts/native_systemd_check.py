#!/usr/bin/env python3
"""Power cuts of what scripts/native-systemd.sh has recorded: some at each moment that the guest or the host has
noted, and CUTS at random ones.

    native_systemd_check.py DIRECTORY CUTS SEED

After each the directory `app` has to be as it was after one of the writer's steps, and not before the one that the
last noted moment names. Nothing has committed before the sleeps that are called `control`: after one of them something has
to be missing, otherwise the others could not show that it is not.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import native_order  # noqa: E402
import write_log  # noqa: E402

CUTS_OF_A_MARK = 6
# What is noted of sleeps before which nothing commits.
CONTROL = "asleep-control"


def moment_of(image):
    """How many steps there are, and what is not as it was after them."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-o", "loop,data=journal", image, place], check=True)
        try:
            return native_order.differences(native_order.read_state(os.path.join(place, "app")))
        finally:
            subprocess.run(["umount", place], check=True)


def planned(marks, count, cuts, chance):
    """Places in the log, in order, and which mark was the last before each."""
    places = [(mark["writes"], mark) for mark in marks for _ in range(CUTS_OF_A_MARK)]
    for _ in range(cuts):
        place = chance.randrange(marks[0]["writes"], count + 1)
        places.append((place, [mark for mark in marks if mark["writes"] <= place][-1]))
    return sorted(places, key=lambda one: one[0])


def main():
    directory, cuts, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    with open(os.path.join(directory, "marks.json"), encoding="utf-8") as file:
        marks = json.load(file)
    bound = 0
    for mark in marks:
        is_control = mark["name"].startswith(CONTROL)
        bound = mark["least"] = bound if is_control else max(bound, mark["step"])
    failures, missing = [], {}
    with tempfile.TemporaryDirectory(dir=directory) as work:
        before, log = os.path.join(directory, "before.img"), os.path.join(directory, "writes.log")
        states = write_log.Cuts(before, log, work, chance)
        places = planned(marks, len(states.entries), cuts, chance)
        for place, mark in places:
            image = states.at(place, native_order.PAGE)
            moment, differing = moment_of(image)
            lag = mark["step"] - moment
            missing[mark["name"]] = max(lag, missing.get(mark["name"], lag))
            if differing or moment < mark["least"]:
                failures.append(
                    f"cut {place}, after {mark['name']}: step {moment} of at least {mark['least']}, differing: {differing[:8]}"
                )
                if len(failures) == 1:
                    shutil.copyfile(image, os.path.join(directory, "failed.img"))
    for mark in marks:
        print(f"{mark['name']}: step {mark['step']} named, {max(missing[mark['name']], 0)} missing at the most")
    for failure in failures[:20]:
        print(failure)
    print(f"native-systemd: {len(places)} cuts of {len(states.entries)} writes, {len(failures)} failures")
    controls = [missing[mark["name"]] for mark in marks if mark["name"].startswith(CONTROL)]
    if controls and max(controls) <= 0:
        sys.exit("native-systemd: nothing was missing after the sleep before which nothing commits, so this shows nothing")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
