"""Tests of runs on busy machines: a late delivery is a doubt, a lost delivery is a loss."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from results.reference import verdict as reference
from results.rules import verdicts
from results.rules.terms import Counts, Guarantee
from results.tables.seals import seal
from tests.helpers.forged_folders import FAR, LAST, NEAR, S1, S2, RunFolder, write_honest_run
from tests.helpers.judged_folders import FolderVerdict, by_reference, histories_of, on_spark
from tests.helpers.runs import ORIGIN_NS, SECOND, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Change = Callable[[RunFolder], None]


@dataclass(frozen=True)
class Case:
    """A row of the table: the changes of an honest run with faults, and the outcome."""

    changes: tuple[Change, ...]
    outcome: str
    says: str
    gated: bool = False


def drained(ended_by: str) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            manifest["drain"] = {"ended_by": ended_by, "took_s": 2.5, "waiting_for": ""}

    return change


def late(run: RunFolder) -> None:
    """Remove the last publications of every source and the closing fences from the log of s1."""
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1) & (rows.all["sequence"] > LAST - 4))


def lost_in_the_middle(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        rows.drop(rows.of(subscription=S1, publisher=0, sequence=20))


def lost_before_the_fence(run: RunFolder) -> None:
    """Remove the last publications before the fence, but not the fence."""
    with run.records(NEAR, "deliveries") as rows:
        gone = (rows.all["sequence"] > LAST - 4) & (rows.all["sequence"] < LAST)
        rows.drop(rows.of(subscription=S1) & gone)


def twice(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        (place,) = rows.places(subscription=S1, publisher=0, sequence=20)
        rows.insert(place + 1, rows.all[place])


def swapped(run: RunFolder) -> None:
    with run.records(NEAR, "deliveries") as rows:
        a, b = rows.places(subscription=S1, publisher=0)[10:12]
        stamps = rows.all["received_ns"][[a, b]]
        rows.all[[a, b]] = rows.all[[b, a]]
        rows.all["received_ns"][[a, b]] = stamps


def silent_client(at_s: float = 2.5, broker: str = "s1") -> Change:
    def change(run: RunFolder) -> None:
        at_ns = ORIGIN_NS + round(at_s * SECOND)
        session = {"client": "s1-sub-1", "broker": broker, "session": 1}
        up = {"t_ns": ORIGIN_NS - 4 * SECOND, **session, "event": "up"}
        down = {"t_ns": at_ns, **session, "event": "down", "reason": "silent"}
        write_lines(run.path(f"raw/{NEAR}/sessions.jsonl"), [up, down])

    return change


def session_lost(broker: str, peer: str, at_s: float, reason: str = "silent") -> Change:
    def change(run: RunFolder) -> None:
        host = {"p": "local1", "b": "local2", "s": "local3"}[broker[0]]
        line = {
            "t_ns": ORIGIN_NS + round(at_s * SECOND), "event": "session_lost", "peer": peer,
            "session": 1, "reason": reason,
        }  # fmt: skip
        path = run.path(f"raw/{host}/{broker}/events.jsonl")
        rows = [json.loads(text) for text in path.read_text().splitlines()]
        write_lines(path, [*rows, line])

    return change


def statistics_pause(process: str) -> Change:
    """Return a change that removes the samples between the first and a sample six seconds later."""

    def change(run: RunFolder) -> None:
        with run.lines(f"raw/{process}/stats.jsonl") as rows:
            for row in rows[1:]:
                row["t_ns"] += 5 * SECOND

    return change


def waited(who: str, share: float) -> Change:
    def change(run: RunFolder) -> None:
        with run.document("manifest.json") as manifest:
            manifest["waited_share"] = {who: share, "b3": 0.1}

    return change


def gate_without_fault(run: RunFolder) -> None:
    """Remove the faults of a run in which s1 received notices of withheld publications."""
    for name in ("faults", "plan"):
        with run.lines(f"faults/{name}.jsonl") as rows:
            del rows[3:]


def interrupted(run: RunFolder) -> None:
    with run.document("manifest.json") as manifest:
        manifest.update(state="partial", reasons=["interrupted"])
        manifest.pop("drain", None)


SILENCE = drained("silence")
EVIDENCE = drained("evidence")
CASES = {
    "nothing missing on a busy machine": Case((SILENCE, silent_client()), "VALID", ""),
    "late, and a client heard nothing": Case(
        (SILENCE, late, silent_client()), "doubt", "sessions.jsonl: the session of s1-sub-1 with s1"
    ),
    "late, and two brokers heard nothing": Case(
        (SILENCE, late, session_lost("s3", "b3", 1.0)),
        "doubt",
        "s3/events.jsonl: the session of s3 with b3",
    ),
    "late, and a broker took no sample": Case(
        (SILENCE, late, statistics_pause("local3/s4")),
        "doubt",
        "s4/stats.jsonl: s4 recorded no sample for 6.0 s",
    ),
    "late, and a load generator took no sample": Case(
        (SILENCE, late, statistics_pause("local1/load-publishers")), "doubt", "recorded no sample"
    ),
    "late, and a broker waited for a processor": Case(
        (SILENCE, late, waited("s3", 0.7)), "doubt", "s3 waited for a processor in 70%"
    ),
    "late, and deliveries are named": Case(
        (SILENCE, late, silent_client()), "doubt", "16 owed deliveries were outstanding"
    ),
    "late, and nothing was busy": Case((SILENCE, late), "violation", "missing"),
    "late, and a broker waited little": Case(
        (SILENCE, late, waited("s3", 0.3)), "violation", "missing"
    ),
    "late, and the broker that waited was struck": Case(
        (SILENCE, late, waited("b1", 0.9)), "violation", "missing"
    ),
    "late, and a fault explains the silence": Case(
        (SILENCE, late, session_lost("s1", "b1", 1.5)), "violation", "missing"
    ),
    "late, and the session was reset": Case(
        (SILENCE, late, session_lost("s3", "b3", 1.0, "reset")), "violation", "missing"
    ),
    "late, and the drain says that all came": Case(
        (drained("evidence"), late, silent_client()), "violation", "missing"
    ),
    "late, and nobody speaks of a drain": Case((late, silent_client()), "violation", "missing"),
    "late, and the run was interrupted": Case((interrupted, late), "doubt", "the run is partial"),
    "interrupted, and lost in the middle": Case(
        (interrupted, lost_in_the_middle), "violation", "missing"
    ),
    "lost in the middle": Case(
        (SILENCE, lost_in_the_middle, silent_client()), "violation", "missing"
    ),
    "lost in the middle and late": Case(
        (SILENCE, late, lost_in_the_middle, silent_client()), "violation", "missing"
    ),
    "lost before the fence": Case(
        (SILENCE, lost_before_the_fence, silent_client()), "violation", "missing"
    ),
    "late and twice": Case((SILENCE, late, twice, silent_client()), "violation", "duplicate"),
    "withheld, and a broker heard nothing": Case(
        (EVIDENCE, gate_without_fault, session_lost("s3", "b3", 1.0)),
        "doubt",
        "60 publications were announced as withheld",
        gated=True,
    ),
    "withheld, and the sign is named": Case(
        (EVIDENCE, gate_without_fault, waited("s3", 0.7)),
        "doubt",
        "s3 waited for a processor in 70%",
        gated=True,
    ),
    "withheld, and nothing was busy": Case(
        (EVIDENCE, gate_without_fault), "violation", "withheld_unjustified", gated=True
    ),
    "withheld and twice": Case(
        (EVIDENCE, gate_without_fault, waited("s3", 0.7), twice),
        "violation",
        "duplicate",
        gated=True,
    ),
    "withheld and late": Case(
        (SILENCE, gate_without_fault, waited("s3", 0.7), late), "doubt", "outstanding", gated=True
    ),
    "late and swapped": Case((SILENCE, late, swapped, silent_client()), "violation", "reordered"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("busy")
    found = {}
    for number, (name, case) in enumerate(CASES.items()):
        found[name] = write_honest_run(folder, f"busy-{number}", gated=case.gated)
        for change in case.changes:
            change(RunFolder(found[name]))
        seal(found[name])
    return found


def wrong(judged: dict[str, FolderVerdict]) -> dict[str, FolderVerdict]:
    return {
        name: found
        for name, found in judged.items()
        if found.outcome != CASES[name].outcome
        or not (found.names(CASES[name].says) or not CASES[name].says)
    }


def test_late_deliveries_on_a_busy_machine_are_not_judged_as_losses(
    folders: dict[str, Path],
) -> None:
    assert wrong({name: by_reference(h) for name, h in histories_of(folders).items()}) == {}


@pytest.mark.spark
def test_spark_agrees_about_late_deliveries_on_a_busy_machine(
    spark: "SparkSession", folders: dict[str, Path]
) -> None:
    assert wrong(on_spark(spark, folders, histories_of(folders))) == {}


@pytest.mark.parametrize("decide", [verdicts.decide, reference.decide])
def test_signs_excuse_outstanding_deliveries_only(
    decide: Callable[..., tuple[str, object, object]],
) -> None:
    counts = Counts(
        1, 10, 8, 1, 1, {"missing": 2, "fence_missing": 1}, least_owed=("s", "a/0", 10),
        outstanding=3,
    )  # fmt: skip
    for changes, verdict in (
        ({}, "UNKNOWN"),
        ({"outstanding": 2}, "INVALID"),
        ({"violations": {"missing": 2, "fence_missing": 1, "duplicate": 1}}, "INVALID"),
        ({"violations": {"missing": 2, "left_out": 1}}, "INVALID"),
        ({"violations": {"missing": 2, "fence_missing": 1, "withheld_unjustified": 4}}, "UNKNOWN"),
    ):
        changed = replace(counts, **changes)  # type: ignore[arg-type]
        assert decide(changed, (), Guarantee(), False, 1, ("busy",), True)[0] == verdict, changes
        assert decide(changed, (), Guarantee(), False, 1, ("busy",))[0] == "INVALID", changes
        assert decide(changed, (), Guarantee(), False, 1)[0] == "INVALID", changes
    unasked = replace(counts, violations={**counts.violations, "reordered": 4})
    asked = Guarantee(order="none")
    assert decide(unasked, (), asked, False, 1, ("busy",), True)[0] == "UNKNOWN"
    assert decide(unasked, (), Guarantee(), False, 1, ("busy",), True)[0] == "INVALID"


@pytest.mark.parametrize("decide", [verdicts.decide, reference.decide])
def test_signs_leave_open_losses_of_a_protocol_that_may_lose(
    decide: Callable[..., tuple[str, object, Sequence[str]]],
) -> None:
    counts = Counts(1, 10, 8, 1, 1, {"missing": 2, "fence_missing": 1}, least_owed=("s", "a/0", 10))
    verdict, _, doubts = decide(counts, (), Guarantee(), False, 1, ("a sign",), False, True)
    assert (verdict, *doubts[1:]) == ("UNKNOWN", "a sign")
    assert doubts[0].startswith("3 owed deliveries never arrived, and the protocol may lose")
    for busy, may_lose in (((), True), (("a sign",), False)):
        assert decide(counts, (), Guarantee(), False, 1, busy, False, may_lose)[0] == "INVALID"
    repeated = replace(counts, violations={"missing": 2, "duplicate": 1})
    assert decide(repeated, (), Guarantee(), False, 1, ("a sign",), False, True)[0] == "INVALID"


def test_no_sign_is_named_more_than_a_few_times(tmp_path: Path) -> None:
    run = write_honest_run(tmp_path, "many")
    folder = RunFolder(run)
    for change in (SILENCE, late, *(session_lost(f"s{n}", "b3", 0.5 * n) for n in (3, 4, 5, 3))):
        change(folder)
    seal(run)
    (history,) = histories_of({"many": run}).values()
    judged = by_reference(history)
    assert sum("ended in silence" in said for said in judged.said) == 3


@pytest.mark.parametrize(
    "name",
    [
        *("lost before the fence", "late, and a client heard nothing"),
        *("late, and the run was interrupted", "interrupted, and lost in the middle"),
    ],
)
def test_a_gap_is_a_loss_but_a_truncated_end_is_not(tmp_path: Path, name: str) -> None:
    run = write_honest_run(tmp_path, "one")
    for change in CASES[name].changes:
        change(RunFolder(run))
    seal(run)
    (history,) = histories_of({name: run}).values()
    assert wrong({name: by_reference(history)}) == {}


def test_the_constants_name_the_expected_generators_and_subscriptions() -> None:
    assert (NEAR, FAR, S1, S2) == ("local2/load-local2", "local3/load-local3", 0, 1)
