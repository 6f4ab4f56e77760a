"""Tests of the page over all runs: numbers and pictures from the small files of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from results.report.index_page import (
    HEIGHT,
    WIDTH,
    IndexEntry,
    numbers_of,
    picture_of,
    render_index,
)

SECOND_NS = 1_000_000_000


def make_run(folder: Path, delivered: list[int], **about: Any) -> Path:
    """Write a run of one load generator with a counter per second, from second 100 on."""
    phases = [
        {"phase": "warmup", "t0_ns": 100 * SECOND_NS, "t1_ns": 102 * SECOND_NS},
        {"phase": "measure", "t0_ns": 102 * SECOND_NS, "t1_ns": 110 * SECOND_NS},
    ]
    (folder / "manifest.json").write_text(json.dumps({"phases": phases, **about}))
    process = folder / "raw" / "h1" / "load-sub"
    process.mkdir(parents=True)
    rows = [
        {"t_ns": (100 + n) * SECOND_NS, "proc_id": "load-sub", "offered": 0, "delivered": each}
        for n, each in enumerate(delivered)
    ]
    (process / "stats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def heights(line: str) -> list[float]:
    return [HEIGHT - 2 - float(point.partition(",")[2]) for point in line.split()]


def test_a_picture_shows_the_rate_of_deliveries(tmp_path: Path) -> None:
    counters = [0, 100, 200, 300, 300, 300, 700, 800, 900, 1000, 1100]
    picture = picture_of(make_run(tmp_path, counters))
    assert picture is not None
    assert (round(picture.highest), picture.seconds) == (400, 10)
    assert [round(each / (HEIGHT - 6) * 400) for each in heights(picture.line)] == [
        *(100, 100, 100, 0, 0, 400, 100, 100, 100, 100)
    ]


def test_a_steady_rate_has_no_dip_at_its_ends(tmp_path: Path) -> None:
    """Samples that cross the ends of the load, or follow it, do not lower the picture there."""
    run = make_run(tmp_path, [])
    phases = json.loads((run / "manifest.json").read_text())["phases"]
    drain = {"phase": "drain", "t0_ns": 110 * SECOND_NS, "t1_ns": 113 * SECOND_NS}
    (run / "manifest.json").write_text(json.dumps({"phases": [*phases, drain]}))
    rows = [
        {
            "t_ns": round((99.5 + n) * SECOND_NS),
            "proc_id": "load-sub",
            "offered": 0,
            "delivered": min(max(0, 100 * n - 50), 1000),
        }
        for n in range(15)
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (run / "raw" / "h1" / "load-sub" / "stats.jsonl").write_text(lines)
    picture = picture_of(run)
    assert picture is not None
    assert picture.seconds == 10
    assert {round(each / (HEIGHT - 6), 2) for each in heights(picture.line)} == {1}


def test_faults_are_shaded_within_the_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path, [0, 100, 200])
    (run / "faults").mkdir()
    faults = (("cut", "a-b", 105, 106), ("kill", "b1", 109, 200), ("freeze", "b1", None, None))
    rows = [
        {
            "verb": verb,
            "target": target,
            "t_applied_ns": applied_s and applied_s * SECOND_NS,
            "t_healed_ns": healed_s and healed_s * SECOND_NS,
        }
        for verb, target, applied_s, healed_s in faults
    ]
    (run / "faults" / "faults.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    picture = picture_of(run)
    assert picture is not None
    tenth = WIDTH / 10
    assert picture.faults == [(5 * tenth, tenth, "cut a-b"), (9 * tenth, tenth, "kill b1")]


@pytest.mark.parametrize("counters", [[], [0, 0, 0]])
def test_a_run_without_deliveries_has_no_picture(tmp_path: Path, counters: list[int]) -> None:
    assert picture_of(make_run(tmp_path, counters)) is None


def test_numbers_come_from_the_verdict_and_the_manifest(tmp_path: Path) -> None:
    headline = {"delivered_per_s": 285.6, "response_us": {"p50": 1500.0, "p99": 2_000_000.0}}
    run = make_run(tmp_path, [0], headline=headline)
    assert numbers_of(run) == [
        ("delivered per second", "286"), ("latency p50", "1.50 ms"), ("latency p99", "2.00 s"),
    ]  # fmt: skip
    counts = {"owed": 1200, "delivered": 1198, "violations": {"missing": 2}}
    verdict = {"counts": counts, "exercised": {"at_risk_deliveries": 9, "recovered": 7}}
    (run / "verdict.json").write_text(json.dumps(verdict))
    assert numbers_of(run)[:3] == [
        ("delivered of owed", "1,198 of 1,200"),
        ("missing", "2"),
        ("recovered of at risk", "7 of 9"),
    ]
    (run / "verdict.json").write_text("{torn")
    assert numbers_of(run)[0] == ("delivered per second", "286")


def test_the_newest_run_is_first_on_the_page_and_in_its_experiment(tmp_path: Path) -> None:
    ids = [f"2026112{day}T000000Z-{day}" for day in (3, 7, 1, 5)]
    entries = []
    for place, run_id in enumerate(ids):
        folder = tmp_path / "demo" / run_id
        folder.mkdir(parents=True)
        verdict = ("VALID", "INVALID", "", "UNKNOWN")[place]
        began = f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}T00:00:00Z"
        entries.append(
            IndexEntry(
                folder=folder, experiment="demo", kind="run", state="complete", protocol="ges",
                verdict=verdict, started_utc=began,
            )
        )  # fmt: skip
    page = render_index(entries, tmp_path, left_out=2)
    assert "The newest run began at 2026-11-27 00:00 UTC. 2 older runs are not shown" in page
    places = [page.index(f'href="demo/{run_id}/"') for run_id in sorted(ids, reverse=True)]
    assert places == sorted(places)
    assert "4 runs" in page
    assert "report on demo" not in page
    (tmp_path / "demo" / "report.html").write_text(f"of {ids[0]}")
    assert render_index(entries, tmp_path, left_out=0).count("report on demo") == 2
