"""Tests of a rate search that survives its process, and of the conditions for a rate."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.run.outcome import RunOutcome
from bench.run.rate_search import LEDGER, Bounds, RateFolder, explain_failure, open_search
from bench.run.run_directory import RunDirectory
from bench.run.series import manifest_in
from brokerd.errors import ConfigError
from pubsubctl.runs.rate_limit import _judge

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
        run = Path(f"20261124T000000Z-{len(folder.tried):06x}")
        outcome = PASSES if probe.rate <= capacity else FAILS
        folder.note(probe, replace(outcome, run_directory=run), 50_000)
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


_LINE = {
    "rate": 100, "stage": "bracket", "run_id": "20261124T000000Z-000000", "why_not": "",
    "p50_us": 1.0, "p99_us": 2.0, "delivered_per_s": 3.0, "cpu_us": 4.0, "limited_by": "rate",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"rate": float("nan")}, "NaN"),
        ({"rate": "100"}, "rate = '100'"),
        ({"rate": True}, "rate = True"),
        ({"rate": 120}, "bracket at 120/s: the search has bracket at 100"),
        ({"stage": "knee"}, "knee at 100/s: the search has bracket at 100"),
        ({"run_id": "../../x"}, "run_id = '../../x'"),
        ({"why_not": None}, "why_not = None"),
        ({"p99_us": -1.0}, "p99_us = -1.0"),
        ({"p50_us": 2**70}, "line 1"),
        ({"verdict": "VALID"}, "verdict: no such key"),
        (None, "not a JSON object"),
    ],
)
def test_a_line_of_no_probe_ends_a_search_by_name(
    tmp_path: Path, changes: dict[str, object] | None, says: str
) -> None:
    ledger = opened(tmp_path).path / LEDGER
    line = [] if changes is None else {**_LINE, **changes}
    ledger.write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path)
    assert str(ledger) in str(caught.value)
    assert says in str(caught.value)


def test_one_run_is_no_second_probe(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    go_on(folder, 500, 1)
    probe = folder.search.next()
    assert probe is not None
    second = {**_LINE, "rate": probe.rate, "stage": probe.stage}
    with (folder.path / LEDGER).open("a") as ledger:
        ledger.write(json.dumps(second) + "\n")
    with pytest.raises(ConfigError, match="not the run of this probe"):
        opened(tmp_path)


def test_another_plan_is_another_search(tmp_path: Path) -> None:
    assert opened(tmp_path, seed=1).path != opened(tmp_path, seed=2).path


@pytest.mark.parametrize("repeats", [0, 1, 2])
def test_the_last_run_at_the_highest_rate_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    """A rate that failed by chance has passed in a later run."""
    folder = open_search(tmp_path, "story-max", {"seed": 1}, BOUNDS, hosts=HOSTS)
    go_on(folder, 600, 99)
    highest = folder.search.highest
    assert highest is not None
    passed = next(each for each in folder.tried if each.rate == highest)
    runs = [f"run-{number}" for number in range(repeats + 1)]
    folder.tried[:] = [replace(passed, run_id=run_id) for run_id in runs]
    judged: list[str] = []

    def judge(_spark: object, run: Path, _progress: object) -> object:
        judged.append(run.name)
        return SimpleNamespace(verdict="VALID", because=[])

    monkeypatch.setattr("pubsubctl.runs.verdicts.judge_with", judge)
    monkeypatch.setattr("results.checker.spark.spark_session", lambda *_: nullcontext())
    monkeypatch.setattr("results.figures.catalogue.draw", lambda *_: None)
    spec: Any = SimpleNamespace(publisher_plans=list)
    progress: Any = SimpleNamespace(phase=lambda _: None)
    summary, because = _judge(folder, spec, 50_000, progress, "local[1]")
    assert (judged, summary["verdict"], because) == (runs[-1:], "VALID", [])
