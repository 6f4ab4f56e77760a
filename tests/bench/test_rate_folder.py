"""Tests of a rate search that survives its process, and of the conditions for a rate."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.run.outcome import RunOutcome
from bench.run.rate_search import LEDGER, Bounds, RateFolder, explain_failure, open_search
from bench.run.run_directory import RunDirectory
from bench.run.series import manifest_in

BOUNDS = Bounds(start=100, limit=1_000)
PASSES = RunOutcome(
    run_directory=Path("20261124T000000Z-abcdef"),
    state="complete",
    limited_by="rate",
    response_us={"p50": 900.0, "p99": 4_000.0},
    online={"owed": 10, "delivered": 10, "missing": 0, "duplicate": 0},
)
HOSTS = {"n1": {"cores": "share"}}
FAILS = replace(PASSES, limited_by="broker b1: 97% of a core")


def opened(runs: Path, **plan: int) -> RateFolder:
    folder = open_search(runs, "story-max", {"seed": 1, **plan}, BOUNDS, hosts=HOSTS)
    folder.directory.leave()  # as a process that is killed does
    return folder


def go_on(folder: RateFolder, capacity: float, most: int) -> list[float]:
    rates: list[float] = []
    while len(rates) < most and (probe := folder.search.next()) is not None:
        rates.append(probe.rate)
        folder.note(probe, PASSES if probe.rate <= capacity else FAILS, 50_000)
    return rates


@pytest.mark.parametrize(
    "outcome, why",
    [
        (PASSES, ""),
        (replace(PASSES, state="partial", reasons=("too slow",)), "too slow"),
        (replace(PASSES, online={"missing": 3}), "3 missing"),
        (replace(PASSES, online={"duplicate": 1}), "1 duplicate"),
        (FAILS, "publications piled up: limited by broker b1: 97% of a core"),
        (replace(PASSES, response_us={"p50": 1.0, "p99": 50_001.0}), "p99 50.0 ms"),
        (replace(PASSES, response_us={}), "nothing was delivered"),
    ],
)
def test_a_rate_passes_only_with_complete_and_timely_delivery(
    outcome: RunOutcome, why: str
) -> None:
    assert explain_failure(outcome, 50_000) == why


def test_a_resumed_search_tries_no_rate_twice(tmp_path: Path) -> None:
    whole = go_on(opened(tmp_path / "whole"), 500, 100)
    parts = []
    for _ in range(100):
        folder = opened(tmp_path / "parts")
        with (folder.path / LEDGER).open("a") as ledger:
            ledger.write('{"rate": 12')  # the moment of a kill
        folder = opened(tmp_path / "parts")
        parts += go_on(folder, 500, 2)
        if folder.search.next() is None:
            break
    assert parts == whole
    assert folder.first_limit() == "broker b1: 97% of a core"
    folder.directory = RunDirectory(folder.path)
    folder.directory.manifest = manifest_in(folder.path)
    folder.close({"highest_passed": folder.search.highest})
    assert opened(tmp_path / "parts").path != folder.path, "one that has ended stays as it is"


def test_another_plan_is_another_search(tmp_path: Path) -> None:
    assert opened(tmp_path, seed=1).path != opened(tmp_path, seed=2).path
