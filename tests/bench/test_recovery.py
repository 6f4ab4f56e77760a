"""Tests of recovery times, against record files with given latencies."""

from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.load.records import delivery_rows, publication_rows
from bench.run.expectations import Expectation
from bench.run.outcome import measure
from bench.run.recovery import Recovery, Trigger, trigger_of
from brokerd.history.records import DATA, DELIVERIES, PUBLICATIONS
from brokerd.history.writer import RecordWriter
from results.witnesses.recovery import recovery_of_records

MS = 1_000_000
S = 1_000 * MS
ORIGIN_NS = 100 * S
TRIGGER = Trigger(ORIGIN_NS, ORIGIN_NS + 5 * S, ORIGIN_NS + 8 * S, ORIGIN_NS + 20 * S)
SHAPE = ((10 * S, 100, 1), (2 * S, 500, 1), (8 * S, 100, 1))


def write_run(raw: Path, late_ms: Callable[[float], float | None]) -> None:
    """Write 100 publications per second for 20 s; `late_ms` of an intended time in s, or lost."""
    folder = raw / "h" / "load"
    folder.mkdir(parents=True)
    publications = RecordWriter(folder, PUBLICATIONS, "run")
    deliveries = RecordWriter(folder, DELIVERIES, "run")
    received = []
    for sequence in range(1, 2_001):
        at = ORIGIN_NS + (sequence - 1) * 10 * MS
        row = publication_rows(range(sequence, sequence + 1), array("q", [at]), at, 0, 1, [0])
        publications.append(row)
        late = late_ms((at - ORIGIN_NS) / S)
        if late is not None:
            received.append((at + int(late * MS), sequence))
    for at, sequence in sorted(received):
        deliveries.append(delivery_rows([sequence], at, array("I", [0]), 0, 0, 1, ()))
    publications.close({"publishers": ["p1/1"], "attribute_sets": [{}, {"fence": "run"}]})
    deliveries.close({"publishers": ["p1/1"], "subscriptions": ["a/1"], "partitions": []})


def recovered(raw: Path, late_ms: Callable[[float], float | None]) -> Recovery | None:
    """Return the recovery of a run; the second witness must agree."""
    write_run(raw, late_ms)
    found = measure(raw, ORIGIN_NS, ORIGIN_NS + 20 * S, None, TRIGGER).recovery
    edges = TRIGGER.from_ns, TRIGGER.begin_ns, TRIGGER.end_ns, TRIGGER.to_ns
    other = recovery_of_records(raw, edges)
    assert other == (None if found is None else (found.us, found.is_over))
    return found


def test_a_run_that_is_slow_for_two_seconds_recovers_after_two_seconds(tmp_path: Path) -> None:
    found = recovered(tmp_path, lambda at: 50 if 5 <= at < 10 else 2)
    assert found == Recovery(2e6, True, 5e3)


def test_a_run_that_is_at_once_as_before_recovers_after_no_time(tmp_path: Path) -> None:
    found = recovered(tmp_path, lambda at: 900 if 5 <= at < 8 else 2)
    assert found is not None
    assert (found.us, found.is_over) == (0.0, True)


def test_a_run_that_stays_slow_has_not_recovered(tmp_path: Path) -> None:
    found = recovered(tmp_path, lambda at: 6 if at >= 5 else 2)
    assert found is not None
    assert (found.us, found.is_over) == (12e6, False)


def test_a_run_that_is_slow_again_recovers_after_the_second_time(tmp_path: Path) -> None:
    found = recovered(tmp_path, lambda at: 50 if 5 <= at < 9 or 12 <= at < 13 else 2)
    assert found is not None
    assert (found.us, found.is_over) == (5e6, True)


def test_a_run_that_loses_publications_has_not_recovered_before_they_arrive_again(
    tmp_path: Path,
) -> None:
    found = recovered(tmp_path, lambda at: None if 5 <= at < 11 and round(100 * at) % 4 else 2)
    assert found is not None
    assert (found.us, found.is_over) == (3e6, True)


def test_latencies_within_the_band_of_before_are_as_before(tmp_path: Path) -> None:
    found = recovered(tmp_path, lambda at: 4.9 if at >= 5 else 2)
    assert found == Recovery(0.0, True, 5e3)


def test_a_run_without_deliveries_before_the_faults_measures_no_recovery(tmp_path: Path) -> None:
    assert recovered(tmp_path, lambda at: None if at < 5 else 2) is None


def write_any_run(raw: Path, random: Random, edges: tuple[int, ...]) -> None:
    """Write three seconds of a run with rows of all kinds, some at an edge of the trigger."""
    folder = raw / "h" / "load"
    folder.mkdir(parents=True)
    publications = RecordWriter(folder, PUBLICATIONS, "run")
    deliveries = RecordWriter(folder, DELIVERIES, "run")
    slow_ms = random.choice((1, 3, 30))
    for number in range(1, 1_001):
        at = ORIGIN_NS + (number - 1) * 3 * MS
        if random.random() < 0.05:
            at = random.choice(edges) + random.choice((-1, 0, 1))
        intended = 0 if random.random() < 0.03 else at
        fence = int(number in (1, 1_000))
        publications.append(PUBLICATIONS.row.pack(number, intended, at, 0, 1, fence))
        for _ in range(random.choice((0, 1, 1, 1, 2))):
            wait = random.choice((1, 2)) * MS
            if edges[1] <= at < edges[2] + random.choice((0, S // 2)):
                wait *= slow_ms
            kind, layer = random.choice((*[DATA] * 10, 1, 2)), random.random() < 0.95
            if kind != DATA or not layer:
                wait = S  # would be late if it counted
            sequence = random.choice((*[number] * 20, 0, 1_001))
            deliveries.append(
                DELIVERIES.row.pack(sequence, at + wait, 0, 0, 0, 1, kind, int(layer), 0)
            )
    publications.close({"publishers": ["p1/1"], "attribute_sets": [{}, {"fence": "run"}]})
    deliveries.close({"publishers": ["p1/1"], "subscriptions": ["a/1"], "partitions": []})


@pytest.mark.parametrize("seed", range(20))
def test_both_witnesses_find_the_same_recovery_in_rows_of_all_kinds(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    begin_ns = ORIGIN_NS + random.choice((400, 500, 600, 1_000)) * MS
    end_ns = begin_ns + random.choice((0, 300, 1_000)) * MS
    to_ns = end_ns + random.choice((400, 500, 600, 1_500)) * MS
    trigger = Trigger(ORIGIN_NS, begin_ns, end_ns, to_ns)
    edges = ORIGIN_NS, begin_ns, end_ns, to_ns
    write_any_run(tmp_path, random, edges)
    found = measure(tmp_path, ORIGIN_NS, to_ns, None, trigger).recovery
    other = recovery_of_records(tmp_path, edges)
    assert other == (None if found is None else (found.us, found.is_over))


def fault(applied_ns: int | None, healed_ns: int | None = None) -> dict[str, Any]:
    return {"t_applied_ns": applied_ns, "t_healed_ns": healed_ns}


@pytest.mark.parametrize(
    "faults, expected",
    [
        ([fault(5 * S, 8 * S)], (5, 8)),
        ([fault(5 * S, 6 * S), fault(7 * S)], (5, 7)),
        ([fault(5 * S), fault(None), fault(9 * S)], (5, 9)),
        ([fault(5 * S, 15 * S), fault(6 * S, 7 * S)], (5, 15)),
        ([fault(6 * S, 7 * S), fault(5 * S, 6 * S)], (5, 7)),
        ([fault(25 * S)], None),
        ([fault(0, 3 * S)], None),
        ([], None),
    ],
)
def test_a_trigger_begins_with_the_first_fault_and_ends_with_the_last_change(
    faults: list[dict[str, Any]], expected: tuple[int, int] | None
) -> None:
    found = trigger_of(faults, (), (0, 20 * S))
    wanted = None if expected is None else tuple(expected)
    assert wanted == (found and (found.begin_ns // S, found.end_ns // S))


def test_a_burst_of_the_load_is_a_trigger_and_a_pause_is_none() -> None:
    found = trigger_of((), [SHAPE], (S, 21 * S))
    assert found == Trigger(S, 11 * S, 13 * S, 21 * S)
    pause = ((10 * S, 100, 1), (2 * S, 0, 1), (8 * S, 100, 1))
    assert trigger_of((), [pause], (0, 20 * S)) is None
    both = trigger_of([fault(12 * S, 15 * S)], [SHAPE], (0, 20 * S))
    assert both == Trigger(0, 10 * S, 15 * S, 20 * S)


@pytest.mark.parametrize(
    "recovery, holds",
    [
        ({"us": 2e6, "is_over": True}, True),
        ({"us": 6e6, "is_over": True}, False),
        ({"us": 6e6, "is_over": False}, False),
        ({"us": 2e6, "is_over": False}, None),
        (None, None),
    ],
)
def test_an_unfinished_recovery_fails_a_bound_and_never_meets_one(
    recovery: Mapping[str, Any] | None, holds: bool | None
) -> None:
    judged = Expectation.of("recovery.time", "<= 5s").judge({"recovery": recovery})
    assert judged.holds is holds
