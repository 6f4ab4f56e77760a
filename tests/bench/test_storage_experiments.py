"""Tests of storage variants: all return the stored data, and all are counted alike."""

import json

import pytest

from bench.papers.ds03.storage_experiments import StorageExperiment, measure
from bench.papers.ds03.storage_methods import WAYS, Matches
from bench.papers.experiments import NoProgress, load_figure_experiment, run_figure_experiment

SMALL = StorageExperiment(
    schema_="pubsubctl/storage-experiment/1",
    name="small", figure="ds03.pfs",
    seconds=7, events_per_s=8, subscribers=6, kinds=2, event_bytes=50, kept_s=2, repetitions=1,
)  # fmt: skip


class Phases(NoProgress):
    """A display that records its phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """Record a phase."""
        self.phases.append(name)


def test_every_variant_is_measured_at_the_same_work(tmp_path) -> None:
    progress = Phases()
    folder = run_figure_experiment(SMALL, tmp_path, progress)
    (table,) = folder.glob("raw/*/*/stored.jsonl")
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert [row["way"] for row in rows] == [*WAYS]
    assert {(row["events"], row["matches"]) for row in rows} == {(56, 56 * 3)}
    assert all(row["syncs"] >= SMALL.seconds and row["wall_s"] > 0 for row in rows)
    assert progress.phases[0] == "matches, 1 of 1"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".storage")] == []
    by_way = {row["way"]: row["written_bytes"] for row in rows}
    assert by_way["events_per_subscriber"] > 56 * 3 * 50
    assert 56 * (8 + 16 * 3) < by_way["matches"] < by_way["events_per_subscriber"]


@pytest.mark.parametrize("name", [*WAYS])
def test_an_incomplete_read_fails_the_storage_experiment(name, tmp_path, monkeypatch) -> None:
    way = WAYS[name]
    missed = way.missed
    monkeypatch.setattr(way, "missed", lambda *asked: missed(*asked)[1:])
    with pytest.raises(AssertionError, match=f"{way.__name__}: 7 for 1, not 8"):
        measure(SMALL, way, tmp_path)


def test_the_experiment_of_the_paper_has_its_numbers() -> None:
    experiment = load_figure_experiment("ds03.pfs")
    assert experiment.scale() == {
        "events": 80_000, "subscribers": 100, "for_each": 25, "event_bytes": 418, "repetitions": 3,
    }  # fmt: skip


def test_a_second_of_the_paper_in_matches_is_a_small_part_of_events_for_each(tmp_path) -> None:
    """[DS03] §5.1.2; other writes of this process count as well, so the ratio exceeds a 25th."""
    one_second = SMALL.model_copy(
        update={"seconds": 1, "events_per_s": 800, "subscribers": 100, "kinds": 4}
    )
    written = measure(one_second, Matches, tmp_path)["written_bytes"]
    assert 800 * 408 < written < 800 * 25 * 418 / 20
