"""Tests of the comparison of duplicate checks: equal schedules, correct rows, measured costs."""

import pytest

from bench.papers.dft11.duplicate_detection import (
    CLASSES,
    VARIANTS,
    Job,
    Outcome,
    _plan,
    _seeds,
    measure_costs,
    run_job,
    tabulate,
)
from brokerd.simulator.search.moves import FaultInjection
from brokerd.simulator.world.faults import BROKER_KINDS


def test_every_variant_gets_the_same_schedules() -> None:
    (seed,) = _seeds(CLASSES[1], 1)
    plans = [_plan(CLASSES[1], seed, variant) for variant in VARIANTS.values()]
    assert len({plan.moves for plan in plans}) == 1
    assert len({plan.chance for plan in plans}) == 1
    assert len({plan.parameters for plan in plans}) > 3


@pytest.mark.parametrize("schedule_class", CLASSES)
def test_a_class_has_the_failures_that_it_is_about(schedule_class: str) -> None:
    for seed in _seeds(schedule_class, 5):
        kinds = [
            move.kind for move in _plan(schedule_class, seed).moves if type(move) is FaultInjection
        ]
        assert kinds
        assert any(kind in BROKER_KINDS for kind in kinds) == ("crashes" in schedule_class)


def test_a_schedule_reports_its_duplicates_deliveries_and_wire_bytes() -> None:
    (seed,) = _seeds(CLASSES[0], 1)
    source, drained, vector = (
        run_job(Job(variant, CLASSES[0], seed))
        for variant in ("source", "source, drain", "vector 2δ+1, hold")
    )
    assert [outcome.kind for outcome in (source, drained, vector)] == [""] * 3
    assert source.duplicates > drained.duplicates
    assert vector.wire_bytes > 0
    assert source.deliveries > 0


def test_violations_are_counted_by_kind_and_their_traffic_is_not() -> None:
    job = Job("source", CLASSES[0], 0)
    outcomes = [
        Outcome(job, "", 100, 20, 10, 0, 5_000),
        Outcome(job, "DUP", 7, 7, 7, 0, 7),
        Outcome(job, "LOSS", 7, 7, 7, 0, 7),
        Outcome(job, "DUP", 7, 7, 7, 0, 7),
    ]
    (row,) = tabulate(outcomes)
    assert (row.schedules, row.violated, row.kinds) == (4, 3, {"DUP": 2, "LOSS": 1})
    assert (row.deliveries, row.duplicates, row.wire_bytes) == (100, 20, 5_000)
    assert row.must_hold


def test_the_state_of_vectors_does_not_grow_with_publishers_and_that_of_sources_does() -> None:
    costs = {(c.dedupe, c.publishers): c for c in measure_costs((1,), (5, 50))}
    assert costs["vector", 5].state_bytes == costs["vector", 50].state_bytes
    assert costs["source", 50].state_bytes > 5 * costs["source", 5].state_bytes
    assert all(added == 0 for added in costs["source", 5].header_bytes.values())
    added = costs["vector", 5].header_bytes
    assert 0 < added[256] < added[16] < added[1]
