#!/usr/bin/env python3
"""Power cuts of what scripts/native-guest.sh has recorded: for each, a device with all that was flushed and a
random part of what was not, its filesystem mounted as after a cut, and its files compared.

    native_guest_check.py IMAGE LOG MARK CUTS SEED

IMAGE is the device before the first write, LOG the writes, MARK how many there were when both writers began.
What lies in `app` has to be one moment; what lies in `plain`, which was written without order, must be seen
out of order at some cut: otherwise these cuts could not show anything.
"""
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import native_order  # noqa: E402
import write_log  # noqa: E402


class Tally:
    def __init__(self):
        self.failures, self.control, self.moments = [], 0, set()


def look(image, cut, tally):
    """Mounts a state and compares."""
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(
            ["mount", "-o", "loop,nodelalloc", image, place], capture_output=True, text=True, check=False
        )
        if mounted.returncode != 0:
            tally.failures.append(f"cut {cut}: not mounted: {mounted.stderr.strip()}")
            return
        try:
            found = native_order.read_state(os.path.join(place, "app"))
            moment, differing = native_order.differences(found)
            tally.moments.add(moment)
            if differing:
                tally.failures.append(f"cut {cut}: not the state after {moment} steps: {differing[:8]}")
            lost = native_order.lost_claims(found, os.path.join(place, "media/records"))
            if lost:
                tally.failures.append(f"cut {cut}: fsync had returned for records {lost}, which are lost")
            plain = native_order.read_state(os.path.join(place, "plain"))
            tally.control += bool(native_order.differences(plain)[1])
        finally:
            subprocess.run(["umount", place], check=True)


def main():
    image, log, mark, cuts, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    chance = random.Random(seed)
    entries = write_log.entries(log)
    if mark < 1 or len(entries) - mark < 100:
        sys.exit(f"native-guest: only {len(entries)} writes were recorded, {mark} of them before the writers began")
    places = sorted(chance.randrange(mark, len(entries) + 1) for _ in range(cuts))
    work = tempfile.mkdtemp(dir=os.path.dirname(os.path.abspath(image)))
    states, tally = write_log.Cuts(image, log, work, chance), Tally()
    for place in places:
        state = states.at(place, native_order.PAGE)
        before = len(tally.failures)
        look(state, place, tally)
        if len(tally.failures) > before and before == 0:
            shutil.copyfile(state, os.path.join(os.path.dirname(work), "failed.img"))
    shutil.rmtree(work)
    for failure in tally.failures[:20]:
        print(failure)
    print(
        f"native-guest: {cuts} cuts of {len(entries) - mark} writes, {len(tally.moments)} different moments, "
        f"{len(tally.failures)} failures; without steering {tally.control} cuts were out of order"
    )
    if tally.control == 0:
        sys.exit("native-guest: no cut has put the control out of order, so this shows nothing")
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
