"""Tests of the measurement of group commit, on a small scale."""

from pathlib import Path
from typing import Any

import pytest

from bench import group_commit


def test_publishers_share_the_syncs_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group_commit, "PUBLISHERS", (1, 20))
    monkeypatch.setattr(group_commit, "DELAYS_MS", (1.0,))
    assert group_commit.main(["--seconds", "0.05", "--folder", str(tmp_path)]) == 0
    _, header, *rows = capsys.readouterr().out.splitlines()
    place = header.split().index("per") - 2  # "delay ms" and "wait ms" before it are of two words
    alone, together = (float(row.split()[place]) for row in rows)
    assert alone <= 1
    assert together > 5
    assert not list(tmp_path.iterdir())


def row(publishers: int, wait_ms: float, syncs: float, acknowledged: float, p50_ms: float) -> Any:
    return group_commit.Measurement(publishers, 0.0, wait_ms, syncs, acknowledged, p50_ms, p50_ms)


def test_the_claims_about_commit_waits_are_checked() -> None:
    none, lone = row(20, 0.0, 100, 2_000, 10.0), row(1, 0.0, 100, 100, 10.0)
    waits = [row(20, 10.0, 50, 2_050, 20.0), row(1, 10.0, 50, 50, 20.0)]
    assert [holds for _, holds in group_commit.claims([none, lone, *waits])] == [True] * 3
    better = [row(20, 10.0, 50, 2_150, 20.0), row(1, 10.0, 60, 50, 18.0)]
    assert [holds for _, holds in group_commit.claims([none, lone, *better])] == [False] * 3


def test_waits_are_measured_beside_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group_commit, "PUBLISHERS", (1,))
    monkeypatch.setattr(group_commit, "WAITING_DELAYS_MS", (0.0,))
    monkeypatch.setattr(group_commit, "WAITS_MS", (0.0, 0.5))
    group_commit.main(["--wait", "--seconds", "0.05", "--folder", str(tmp_path)])
    _, _, at_once, waits, *claimed = capsys.readouterr().out.splitlines()
    assert (at_once.split()[2], waits.split()[2], len(claimed)) == ("0", "0.5", 3)
