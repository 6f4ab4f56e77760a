"""Tests of the numbers of a run, against record files with given rows."""

from array import array
from pathlib import Path
from random import Random

import pytest

from bench.load.records import delivery_rows, publication_rows
from bench.run import outcome, run_statistics
from bench.run.outcome import measure
from bench.run.run_statistics import STRETCHES, Stretch, describe_subscriptions, fault_edges
from brokerd.history.records import (
    ACKNOWLEDGED,
    ACKS,
    DELIVERIES,
    PUBLICATIONS,
    REJECTED,
    ROW_BYTES,
    WIRE,
)
from brokerd.history.writer import RecordWriter
from brokerd.quantiles import percentiles_us

MS = 1_000_000


def write_run(raw: Path) -> None:
    """Write a run: two publishers publish a fence at 0, then every 10 ms from 10 ms on, 100 times.

    Publications of the first are sent at once and take 2 ms; those of the second are sent 5 ms late
    and take 3 ms more. One subscriber receives all, the other only those of the first publisher.
    """
    for folder in (raw / "h" / "pub", raw / "h" / "sub"):
        folder.mkdir(parents=True)
    publications = RecordWriter(raw / "h" / "pub", PUBLICATIONS, "run")
    deliveries = RecordWriter(raw / "h" / "sub", DELIVERIES, "run")
    for publisher, late_ms in ((0, 0), (1, 5)):
        publications.append(publication_rows(range(1, 2), array("q", [0]), 0, publisher, 1, [2]))
        for sequence in range(2, 102):
            at = (sequence - 1) * 10 * MS
            sent = at + late_ms * MS
            row = publication_rows(
                range(sequence, sequence + 1), array("q", [at]), sent, publisher, 1, [0]
            )
            publications.append(row)
    received = []
    for sequence in range(1, 102):
        fences = (0,) if sequence == 1 else ()
        for publisher, after_ms, subscriptions in ((0, 2, (0, 1)), (1, 8, (0,))):
            at = ((sequence - 1) * 10 + after_ms) * MS
            received += [(at, s, sequence, publisher, fences) for s in subscriptions]
    for at, subscription, sequence, publisher, fences in sorted(received):
        digest = array("I", [0])
        row = delivery_rows([sequence], at, digest, subscription, publisher, 1, fences)
        deliveries.append(row)
        if sequence == 50:
            deliveries.append(
                delivery_rows([sequence], at, digest, subscription, publisher, 1, (), WIRE)
            )
    publishers = ["p1/1", "p1/2"]
    publications.close({"publishers": publishers, "attribute_sets": [{}, {}, {"fence": "run"}]})
    deliveries.close({"publishers": publishers, "subscriptions": ["a/1", "b/1"], "partitions": []})


def test_a_phase_is_counted_by_intended_and_received_time(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = measure(tmp_path, 200 * MS, 700 * MS)
    assert found.published == 100
    assert found.delivered == 50 * 3  # those on the way at its start and its end are equally many
    assert found.earlier == 0
    assert found.response_us == {
        "p50": 2000.0, "p90": 8000.0, "p99": 8000.0, "p999": 8000.0, "max": 8000.0,
    }  # fmt: skip
    assert found.service_us["max"] == 3000.0


def test_the_backlog_of_the_warm_up_is_counted_apart(tmp_path: Path) -> None:
    """10 of 100 publications are due in the phase, and 60 earlier ones arrive in the phase too."""
    folder = tmp_path / "h" / "load"
    folder.mkdir(parents=True)
    publications = RecordWriter(folder, PUBLICATIONS, "run")
    deliveries = RecordWriter(folder, DELIVERIES, "run")
    for sequence in range(1, 101):
        due = array("q", [sequence * 10 * MS])
        publications.append(publication_rows(range(sequence, sequence + 1), due, due[0], 0, 1, [0]))
    for sequence in range(1, 71):
        at = (600 + sequence) * MS if sequence <= 60 else (sequence * 10 + 2) * MS
        row = delivery_rows([sequence], at, array("I", [0]), 0, 0, 1, ())
        deliveries.append(row)
    publications.close({"publishers": ["p1/1"], "attribute_sets": [{}, {"fence": "run"}]})
    deliveries.close({"publishers": ["p1/1"], "subscriptions": ["a/1"], "partitions": []})
    found = measure(tmp_path, 601 * MS, 705 * MS)
    assert (found.published, found.delivered, found.earlier) == (10, 70, 60)
    assert found.delivered - found.earlier <= found.published


def test_publishers_wait_for_acknowledgements_from_when_it_was_due(tmp_path: Path) -> None:
    """All acknowledgements to the first publisher take 4 ms; the second's stop half way."""
    write_run(tmp_path)
    acks = RecordWriter(tmp_path / "h" / "pub", ACKS, "run")
    for publisher, last in ((0, 101), (1, 51)):
        for sequence in range(1, last + 1):
            at = ((sequence - 1) * 10 + 4) * MS
            row = ACKS.row.pack(sequence, sequence, at, publisher, 1, ACKNOWLEDGED)
            acks.append(row)
    acks.append(ACKS.row.pack(52, 101, 990 * MS, 1, 1, REJECTED))
    acks.close({"publishers": ["p1/1", "p1/2"]})
    found = measure(tmp_path, 200 * MS, 700 * MS)
    assert set(found.acknowledged_us.values()) == {4000.0}
    assert not found.kept_up
    assert measure(tmp_path, 200 * MS, 500 * MS).kept_up


def test_a_sample_has_the_percentiles_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    everything = measure(tmp_path, 0, 10_000 * MS)
    monkeypatch.setattr(outcome, "LARGEST_SAMPLE", 70)
    assert measure(tmp_path, 0, 10_000 * MS) == everything


@pytest.mark.parametrize("numbers", [1, 7, 101])
def test_a_sample_of_acknowledgements_does_not_depend_on_their_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    write_run(tmp_path)
    acks = RecordWriter(tmp_path / "h" / "pub", ACKS, "run")
    for first in range(1, 102, numbers):
        last = min(first + numbers - 1, 101)
        acks.append(ACKS.row.pack(first, last, 2_000 * MS, 0, 1, ACKNOWLEDGED))
    acks.close({"publishers": ["p1/1", "p1/2"]})
    times = {("p1/1", 1): (array("q", range(102)), array("q"))}
    monkeypatch.setattr(run_statistics, "LARGEST_SAMPLE", 10)
    found = run_statistics.acknowledgements(tmp_path, times, 1, 3_000 * MS)
    assert found.done == 101
    sampled = [number for number in range(1, 102) if not number % 11]
    assert sorted(found.waits_ns) == sorted(2_000 * MS - number for number in sampled)


def test_a_torn_row_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path)
    before = measure(tmp_path, 0, 10_000 * MS)
    with (tmp_path / "h" / "sub" / "deliveries.rec").open("ab") as stream:
        stream.write(b"\1" * 17)
    assert measure(tmp_path, 0, 10_000 * MS) == before


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles_us([1000 * n for n in range(1, 101)]) == {
        "p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 100.0, "max": 100.0,
    }  # fmt: skip
    assert percentiles_us([]) == {}
    assert percentiles_us([7000])["p50"] == 7.0


def test_nothing_was_measured_where_nothing_was_logged(tmp_path: Path) -> None:
    found = measure(tmp_path, 0, 1)
    assert (found.published, found.delivered, found.response_us) == (0, 0, {})


def test_a_run_with_faults_reports_latencies_around_the_faults_per_subscription(
    tmp_path: Path,
) -> None:
    write_run(tmp_path)
    rows = [
        {"t_applied_ns": 300 * MS, "t_healed_ns": 400 * MS},
        {"t_applied_ns": 350 * MS, "t_healed_ns": 500 * MS},
        {"t_applied_ns": None, "t_healed_ns": None},
    ]
    edges = fault_edges(rows, (200 * MS, 700 * MS))
    assert edges == (200 * MS, 300 * MS, 500 * MS, 700 * MS)
    around = measure(tmp_path, 200 * MS, 700 * MS, edges).around_faults
    assert around == {
        "a/1": dict.fromkeys(STRETCHES, Stretch(200.0, 2000.0, 8000.0)),
        "b/1": dict.fromkeys(STRETCHES, Stretch(100.0, 2000.0, 2000.0)),
    }
    assert describe_subscriptions(around)[1].startswith(
        "b/1: before 100/s, p50 2.00 ms, p99 2.00 ms · during"
    )


def test_a_sample_of_many_rows_has_the_rates_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    edges = (200 * MS, 400 * MS, 500 * MS, 700 * MS)
    whole = measure(tmp_path, 200 * MS, 700 * MS, edges).around_faults
    rows = sum(path.stat().st_size for path in tmp_path.glob("*/*/deliveries.rec")) // ROW_BYTES
    monkeypatch.setattr(run_statistics, "_MOST_ROWS", rows)
    sampled = measure(tmp_path, 200 * MS, 700 * MS, edges).around_faults
    assert sampled != whole, "a part of the rows is read"
    for name, stretches in whole.items():
        before, found = stretches["before"].per_s, sampled[name]["before"].per_s
        assert before / 1.5 <= found <= before * 1.5


def test_fault_edges_omit_phases_without_a_fault(tmp_path: Path) -> None:
    assert fault_edges([], (200, 700)) is None
    assert fault_edges([{"t_applied_ns": 900, "t_healed_ns": None}], (200, 700)) is None
    edges = fault_edges([{"t_applied_ns": 300, "t_healed_ns": None}], (200, 700))
    assert edges == (200, 300, 700, 700)
    write_run(tmp_path)
    edges = (200 * MS, 300 * MS, 700 * MS, 700 * MS)
    around = measure(tmp_path, 200 * MS, 700 * MS, edges).around_faults
    assert [*around["a/1"]] == ["before", "during"]


@pytest.mark.parametrize("seed", range(300))
def test_a_fault_holds_in_the_middle_stretch_only_and_at_both_of_its_ends(seed: int) -> None:
    """Several faults, healed or not, lie within or after the phase 10..40; a slow twin checks."""
    random = Random(seed)
    rows: list[dict[str, int | None]] = [{"t_applied_ns": None, "t_healed_ns": None}]
    for _ in range(random.randrange(1, 5)):
        applied = random.randrange(11, 44)
        healed = random.choice((None, applied + random.randrange(1, 30)))
        rows.append({"t_applied_ns": applied, "t_healed_ns": healed})
    holding = [
        instant
        for instant in range(10, 40)
        for row in rows
        if row["t_applied_ns"] is not None
        and row["t_applied_ns"] <= instant < (row["t_healed_ns"] or 40)
    ]
    edges = fault_edges(rows, (10, 40))
    assert edges == ((10, min(holding), max(holding) + 1, 40) if holding else None), rows
