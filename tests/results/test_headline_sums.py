"""Tests of a headline's sums over brokers: the writer and the witness, against a plain sum."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.run.run_statistics import statistics_of
from results.witnesses.folder import RunFolder
from results.witnesses.headline import LAST_COUNTERS, _sum_statistics

LOST = "broker_sessions_lost"


def write_statistics(folder: Path, lives: list[list[int]], rest: Random) -> dict[str, int]:
    """Write the statistics of a broker that restarts; return its last totals.

    Args:
        lives: the number of lost sessions in each line of each process.
    """
    folder.mkdir(parents=True)
    rows = []
    for life in lives:
        totals = dict.fromkeys(LAST_COUNTERS, 0)
        for count in life:
            totals = {name: n + rest.randrange(3) for name, n in totals.items()}
            rows.append({"t_ns": len(rows), LOST: count, **totals})
    (folder / "stats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return {name: rows[-1][name] for name in LAST_COUNTERS} if rows else {}


@pytest.mark.parametrize("seed", range(12))
def test_lost_sessions_are_summed_over_restarts_and_other_totals_are_the_last(
    tmp_path: Path, seed: int
) -> None:
    """A restarted process counts from 0; lost sessions of former processes remain."""
    random = Random(seed)
    wanted = dict.fromkeys(("sessions_lost", *LAST_COUNTERS), 0)
    for number in range(random.randrange(1, 4)):
        lives = [
            sorted(random.randrange(9) for _ in range(random.randrange(1, 4)))
            for _ in range(random.randrange(3))
        ]
        before = None
        for life in lives:
            for count in life:
                if before is not None:
                    wanted["sessions_lost"] += count - before if count > before else 0
                before = count
        path = tmp_path / "raw" / "h1" / f"b{number}"
        for name, total in write_statistics(path, lives, random).items():
            wanted[name] += total
    (tmp_path / "manifest.json").write_text("{}")
    timeline: Any = None  # no stamp is read
    found = statistics_of(tmp_path / "raw")
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert _sum_statistics(RunFolder(tmp_path, timeline)) == wanted
