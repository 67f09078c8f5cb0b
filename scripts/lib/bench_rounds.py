"""Cases of a bench in several places, in turns, and what the samples say."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lib import bench_cases
from lib.bench_cases import Case
from lib.flash_device import FlashDevice, Spent
from lib.process import say
from lib.report import human_bytes, human_count


@dataclass
class Place:
    """One column of the table."""

    name: str
    directory: Path
    env: dict[str, str] = field(default_factory=dict)
    # Brings everything to the disk.
    sync: Callable[[], None] = lambda: None
    # Programs are started by these words.
    prefix: tuple[str, ...] = ()
    flash: FlashDevice | None = None


@dataclass
class Sample:
    """One run of one case in one place."""

    value: float
    operations: float
    spent: Spent | None


def run_once(case: Case, place: Place, directory: Path) -> Sample | None:
    if not bench_cases.prepare(case, directory, place.env, place.prefix):
        return None
    if place.flash is None:
        return Sample(*bench_cases.measure(case, directory, place.env, place.prefix), None)
    place.sync()
    place.flash.wait_until_idle()
    before = place.flash.spent()
    value, operations = bench_cases.measure(case, directory, place.env, place.prefix)
    place.sync()
    # What the device moves later is of this sample, too.
    place.flash.wait_until_idle()
    return Sample(value, operations, place.flash.spent() - before)


def run_case(case: Case, where: list[Place], rounds: int) -> dict[str, list[Sample]]:
    """All places in turn, round after round, each time in a fresh directory."""
    samples: dict[str, list[Sample]] = {}
    for round_number in range(rounds):
        for place in where:
            directory = place.directory / f"run-{round_number}"
            sample = run_once(case, place, directory)
            shutil.rmtree(directory, ignore_errors=True)
            if sample is None:
                continue
            if place.flash is not None:
                # The cost of the removal is not charged to the next sample.
                place.sync()
            samples.setdefault(place.name, []).append(sample)
            say(f"    {place.name:28} {human_count(sample.value):>12} {case.unit}")
    return samples


def summary(case: Case, samples: dict[str, list[Sample]], bare: str) -> dict[str, Any]:
    medians = {
        name: statistics.median(sample.value for sample in of_place)
        for name, of_place in samples.items()
    }
    return {
        "case": case.name,
        "unit": case.unit,
        "median": medians,
        "samples": {name: [asdict(one) for one in of_place] for name, of_place in samples.items()},
        "ratio_to_bare": {name: value / medians[bare] for name, value in medians.items()},
    }


SPENT_HEADER = ["until all is synced", "where", "sent to it", "programmed", "energy", "erases"]


def spent_rows(results: list[dict[str, Any]], names: list[str]) -> list[list[str]]:
    """For each case and place: bytes programmed, energy and erases, by operation where
    the case counts operations."""
    rows = []
    for result in results:
        for name in names:
            of_place = [one for one in result["samples"].get(name, []) if one["spent"]]
            if not of_place:
                continue
            operations = sum(one["operations"] for one in of_place)
            per, unit = (operations, "") if operations else (len(of_place), " a run")
            total = {
                key: sum(one["spent"][key] for one in of_place)
                for key in ("programmed_bytes", "host_bytes", "energy_mj", "erases")
            }
            rows.append([
                result["case"],
                name,
                human_bytes(total["host_bytes"] / per) + unit,
                human_bytes(total["programmed_bytes"] / per) + unit,
                f"{total['energy_mj'] / per:.3g} mJ{unit}",
                str(total["erases"]),
            ])  # fmt: skip
    return rows
