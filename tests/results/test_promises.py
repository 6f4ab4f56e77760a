"""Tests of judging by promises of protocols: order, announced gaps and redelivery."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from brokerd.model.losses import LAST_LINEAGE
from brokerd.text import toml_text
from results.checker.checks import Verdict, check_runs
from results.reference.files import FileRefusal
from results.reference.history import History
from results.reference.history_reader import judge_folder, read_history
from results.reference.rule import check
from results.rules.absences import with_absences
from results.rules.announcements import AnnouncedRange, _objections
from results.rules.losses import promises_with_losses
from results.rules.retentions import promises_with_retentions
from results.rules.terms import NEVER_NS, STATE_LOST, Commit, Promises
from results.tables.frames import FIRST_KEY, LAST_KEY
from results.tables.json_files import IntegrityError
from results.tables.logs import commits_of, gaps_of, read_logs
from results.tables.manifest import read_run
from results.tables.seals import seal
from tests.helpers.forged_folders import DURATION, NEAR, S1, RunFolder, write_honest_run
from tests.helpers.histories import random_history
from tests.helpers.history_tables import judge_on_spark
from tests.helpers.promised_histories import CASES, RELEASED, promised_history, with_noise
from tests.helpers.runs import (
    DEMO_TOPOLOGY,
    ORIGIN_NS,
    SECOND,
    Scenario,
    write_demo_run,
    write_lines,
)
from tests.helpers.withheld_histories import barrier_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = range(12)


def histories(name: str) -> list[History]:
    case = CASES[name]
    found = []
    for seed in SEEDS:
        rng = Random(seed)
        found.append(case.change(promised_history(rng, case.promises), rng))
    return found


# --- The plain checker ------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_only_broken_promises_are_reported_as_violations(name: str) -> None:
    seen: set[str] = set()
    for seed, history in enumerate(histories(name)):
        judgement = check(history)
        found = {*judgement.counts.violations}
        wanted = "INVALID" if CASES[name].kinds else "VALID"
        assert judgement.verdict == wanted, f"seed {seed}: {found}, {judgement.because}"
        seen |= found
    assert seen == CASES[name].kinds


def test_publications_in_a_promised_gap_are_announced_and_not_owed() -> None:
    for history in histories("a_gap_is_announced_for_a_promised_reason"):
        counts = check(history).counts
        assert counts.announced == {RELEASED: 3}
        assert counts.owed == counts.delivered
        assert counts.missing == 0


def test_redelivered_publications_are_counted() -> None:
    for history in histories("what_was_not_committed_comes_again"):
        counts = check(history).counts
        assert counts.redelivered == 3
        assert counts.owed == counts.delivered


# --- Spark ------------------------------------------------------------------------------------


def agree(
    spark: "SparkSession", counted: dict[str, History], more: dict[str, History]
) -> Counter[str]:
    """Check that both judges agree; return how many of `counted` have each kind of violation."""
    found = judge_on_spark(spark, counted | more)
    seen: Counter[str] = Counter()
    for name, history in (counted | more).items():
        plain = check(history)
        verdict, doubts, findings = found[name]
        assert findings.counts == plain.counts, name
        assert (verdict, doubts) == (plain.verdict, {*plain.doubts}), name
        if name in counted:
            seen.update(plain.counts.violations.keys())
            seen["announced"] += bool(plain.counts.announced)
            seen["redelivered"] += bool(plain.counts.redelivered)
    return seen


@pytest.mark.spark
def test_both_agree_on_whatever_may_be_promised_and_happen(spark: "SparkSession") -> None:
    """All cases and random histories are judged in the same Spark jobs."""
    of = {}
    for seed in range(400):
        rng = Random(seed)
        made = (random_history, barrier_history)[seed % 5 == 0](rng, f"run-{seed}")
        of[f"seed {seed}"] = with_noise(made, rng)
    of_cases = {
        f"{name}, seed {seed}": history
        for name in CASES
        for seed, history in enumerate(histories(name))
    }
    seen = agree(spark, of, of_cases)
    for kind in ("order_differs", "reordered", "duplicate", "gap_unpromised", "gap_delivered",
                 "gap_early", "announced", "redelivered", "missing"):  # fmt: skip
        assert seen[kind] >= 10, seen


# --- Whole runs -------------------------------------------------------------------------------

SUBSCRIPTION, SOURCE = "s1-sub-1/1", "p1/0"
LOST = "early release"
MONTH_NS = 30 * 24 * 3_600 * SECOND
CELLS = {"bundles": DEMO_TOPOLOGY["links"]}


def run_with_gap(
    folder: Path, name: str = "gap", *, max_retain_ns: int = 10**7, told_after_s: float = 0.2,
    away: bool = True, sessions: Sequence[tuple[float, str, str]] = (),
    parameters: Mapping[str, int] | None = None, **changes: Any,
) -> Path:  # fmt: skip
    """Write a run with a gap: s1 missed three publications and received a notice."""
    calm = {"calm": True}
    scenario = Scenario(run_id=name, bars=2, protocol="durable", workload=calm, **DURATION)
    run = RunFolder(write_demo_run(folder, scenario))
    for faults in ("faults", "plan"):  # which this protocol would not have got around
        run.path(f"faults/{faults}.jsonl").unlink()
    topology = {
        **DEMO_TOPOLOGY, "kind": ["tree", "cells"], "cells": CELLS,
        "parameters": {"durable": parameters or {"max_retain_ns": max_retain_ns}},
    }  # fmt: skip
    run.path("spec/topology.toml").write_text(toml_text(topology))
    with run.records(NEAR, "deliveries") as rows:
        publisher = rows.sidecar["tables"]["publishers"].index(SOURCE)
        assert rows.sidecar["tables"]["subscriptions"][S1] == SUBSCRIPTION
        gone = rows.places(subscription=S1, publisher=publisher)[5:8]
        first, last = int(rows.all["sequence"][gone[0]]), int(rows.all["sequence"][gone[-1]])
        incarnation = int(rows.all["incarnation"][gone[0]])
        told_ns = int(rows.all["received_ns"][gone[-1]] + told_after_s * SECOND)
        mask = rows.of()
        mask[:] = False
        mask[gone] = True
        rows.drop(mask)
    line = {
        "t_ns": told_ns, "sub_id": SUBSCRIPTION, "source": SOURCE, "incarnation": incarnation,
        "first": first, "last": last, "place": int(gone[0]),
    }  # fmt: skip
    write_lines(run.path(f"raw/{NEAR}/gaps.jsonl"), [{**line, "reason": LOST, **changes}])
    write_lines(run.path(f"raw/{NEAR}/commits.jsonl"), [{**line, "first": 1}])
    if away:
        absence = {
            "subscriber": "s1-sub-1", "t_left_ns": told_ns - 2_000_000,
            "t_back_ns": told_ns - 1_000_000,
        }  # fmt: skip
        write_lines(run.path(f"raw/{NEAR}/absences.jsonl"), [absence])
    if sessions:
        lines = [
            {"t_ns": told_ns + int(at_s * SECOND), "client": "s1-sub-1", "broker": broker,
             "session": number, "event": event, "reason": "closed_by_peer"}
            for number, (at_s, event, broker) in enumerate(sessions)
        ]  # fmt: skip
        for number, line in enumerate(lines):
            if line["event"] == "down":  # of the last session at its broker
                ups = [each for each in lines[:number] if each["broker"] == line["broker"]]
                line["session"] = ups[-1]["session"]
        write_lines(run.path(f"raw/{NEAR}/sessions.jsonl"), lines)
    seal(run.folder)
    return run.folder


LINGER = {"client_linger_ns": 3 * SECOND}
"""Parameters that permit no gaps: a hold lasts longer than any run."""
ABSENCES: Mapping[str, Sequence[tuple[float, str, str]]] = {
    "returned to its broker": ((-9, "up", "s1"), (-4, "down", "s1"), (0, "up", "s1")),
    "moved from its broker": (
        (-9, "up", "s1"), (-4, "down", "s1"), (-3.9, "up", "s2"), (-0.1, "down", "s2"),
        (0, "up", "s2"),
    ),
    "returned twice": (
        (-9, "up", "s1"), (-8, "down", "s1"), (-4, "up", "s1"), (-3, "down", "s1"), (0, "up", "s1"),
    ),
}  # fmt: skip
NO_ABSENCES: Mapping[str, Sequence[tuple[float, str, str]]] = {
    "never away": ((-9, "up", "s1"),),
    "back in time": ((-9, "up", "s1"), (-1.9, "down", "s1"), (0, "up", "s1")),
    "two sessions at its broker": (
        (-9, "up", "s1"), (-8, "up", "s1"), (-7, "down", "s1"), (-1, "down", "s1"), (0, "up", "s1"),
    ),
    "away before, and back in time": ((-9, "up", "s1"), (-8, "down", "s1"), (-7, "up", "s1")),
    "away later": ((-9, "up", "s1"), (1, "down", "s1"), (6, "up", "s1")),
    "moved in time": ((-9, "up", "s1"), (-1.5, "down", "s1"), (-1, "up", "s2")),
}  # fmt: skip


def run_after_absence(folder: Path, number: int, sessions: Sequence[Any], **changes: Any) -> Path:
    parameters = {**LINGER, "hold_lease_ns": MONTH_NS}
    return run_with_gap(
        folder, f"away-{number}", sessions=sessions, parameters=parameters, away=False, **changes
    )


def test_a_gap_after_an_absence_beyond_the_linger_is_permitted(tmp_path: Path) -> None:
    runs = [
        *(run_after_absence(tmp_path, n, each) for n, each in enumerate(ABSENCES.values())),
        *(run_after_absence(tmp_path, 9 + n, each) for n, each in enumerate(NO_ABSENCES.values())),
    ]
    found = [judge_folder(each) for each in runs]
    violations = [dict(each.counts.violations) for each in found]
    unpromised = {"gap_unpromised": 1, "missing": 3}
    assert violations == [{}] * len(ABSENCES) + [unpromised] * len(NO_ABSENCES)
    for path in runs:
        run, history = read_run(path), read_history(path)
        assert run.promises.gaps == ()
        logs = read_logs(run)
        (gaps,) = with_absences(gaps_of(logs, run.to_timeline), run, logs).values()
        plain = [gap for each in history.subscriptions for gap in each.gaps]
        assert [each.absent_until_ns for each in gaps] == [each.absent_until_ns for each in plain]


def test_a_gap_after_an_absence_for_another_reason_is_a_violation(tmp_path: Path) -> None:
    sessions = ABSENCES["returned to its broker"]
    judgement = judge_folder(run_after_absence(tmp_path, 0, sessions, reason="tired"))
    assert judgement.counts.violations == {"gap_unpromised": 1, "missing": 3}


@pytest.fixture(scope="module")
def verdicts(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Verdict]]:
    """Return the verdicts of both judges on runs of three kinds.

    Spark judges a few runs of every kind; other tests show that both judges read the others alike.
    """
    folder = tmp_path_factory.mktemp("runs")
    kinds = {
        "absences": [
            run_after_absence(folder, 0, ABSENCES["moved from its broker"]),
            run_after_absence(folder, 1, NO_ABSENCES["away later"]),
        ],
        "losses": [
            run_with_loss(folder, "accepted", {}),
            *(run_with_loss(folder, name, NO_ACTS[name]) for name in ("none", "later")),
            run_with_lost_stream(folder, "stream", None),
        ],
        "gaps": [
            run_with_gap(folder, "gap"),
            run_with_gap(folder, "early", max_retain_ns=3_600 * 10**9),
            run_with_gap(folder, "tired", reason="tired"),
        ],
    }
    judged = iter(check_runs(spark, [run for runs in kinds.values() for run in runs]))
    return {kind: [next(judged) for _ in runs] for kind, runs in kinds.items()}


@pytest.mark.spark
def test_both_judges_permit_the_same_gaps_after_absences(
    verdicts: dict[str, list[Verdict]],
) -> None:
    found = [each.document["counts"]["violations"] for each in verdicts["absences"]]
    assert found == [{}, {"gap_unpromised": 1, "missing": 3}]


def test_both_readers_find_promises_gaps_and_commits(tmp_path: Path) -> None:
    folder = run_with_gap(tmp_path)
    run, history = read_run(folder), read_history(folder)
    assert (
        run.promises
        == history.promises
        == Promises(
            "publisher", (LOST,), gap_age_ns=10**7, absence_gaps=(LOST,), absence_ns=MONTH_NS
        )
    )
    logs = read_logs(run)
    ((pair, (gap,)),) = gaps_of(logs, run.to_timeline).items()
    assert pair == (SUBSCRIPTION, SOURCE)
    ((_, (commit,)),) = commits_of(logs).items()
    assert commit == Commit(SOURCE, gap.incarnation, 1, gap.last, gap.place)
    (log,) = [s for s in history.subscriptions if s.subscription == SUBSCRIPTION]
    (plain,) = log.gaps
    # A place counts the rows of its file, or those of its subscription.
    assert plain == replace(gap, place=plain.place)
    assert (gap.source, gap.reason) == (SOURCE, LOST)
    assert log.delivered[plain.place].received_ns >= log.delivered[plain.place - 1].received_ns
    assert [c.last for c in log.commits] == [gap.last]
    of_source = [row.sequence for row in log.delivered[: plain.place] if row.source == SOURCE]
    assert of_source[-1] == gap.first - 1


def test_a_run_without_promises_defaults_to_publisher_order(tmp_path: Path) -> None:
    folder = write_honest_run(tmp_path, "old", gated=False)
    assert "promises" not in json.loads((folder / "manifest.json").read_text())
    assert read_run(folder).promises == read_history(folder).promises == Promises()


@pytest.mark.parametrize(
    "promises",
    [
        {"order": "causal"},
        {"order": "publisher", "gaps": [LOST], "redelivers": False},
        {"order": "publisher", "gaps": [], "redelivers": 1},
        {"order": "publisher", "gaps": [], "redelivers": False, "gap_age_ns": 1},
        [1],
    ],
)
def test_promises_of_the_manifest_are_a_witness_only(tmp_path: Path, promises: Any) -> None:
    run = RunFolder(write_honest_run(tmp_path, "run"))
    with run.document("manifest.json") as manifest:
        manifest["promises"] = promises
    seal(run.folder)
    assert read_run(run.folder).promises == Promises()
    judgement = judge_folder(run.folder)
    assert judgement.verdict == "UNKNOWN"
    assert any("promises" in each for each in judgement.doubts)


@pytest.mark.parametrize(
    "changes",
    [{"first": 0}, {"last": 0}, {"place": -1}, {"incarnation": 1 << 16}, {"reason": None},
     {"first": "1"}, {"sub_id": 7}, {"t_ns": "1"}],
)  # fmt: skip
def test_gaps_of_no_sense_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = run_with_gap(tmp_path, **changes)
    run = read_run(folder)
    with pytest.raises(IntegrityError):
        gaps_of(read_logs(run), run.to_timeline)
    with pytest.raises(FileRefusal):
        read_history(folder)


ACT = {"event": "loss_accepted", "cause": "b2 proves it", "loss": 7, "signature": "0a" * 64}


def run_with_loss(folder: Path, name: str, act: dict[str, Any] | None = None) -> Path:
    """Write a run with a gap for lost state, and optionally an act in a broker's event log."""
    told_ns = ORIGIN_NS + 2 * SECOND
    path = run_with_gap(folder, name, reason=STATE_LOST, t_ns=told_ns)
    if act is not None:
        (log,) = path.glob("raw/*/b1/events.jsonl")
        line = {"t_ns": told_ns - SECOND, **ACT, **act}
        log.write_text(log.read_text() + json.dumps(line) + "\n")
        seal(path)
    return path


NO_ACTS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "another event": {"event": "loss_announced"},
    "unsigned": {"signature": ""},
    "no signature": {"signature": "x" * 128},
    "of no loss": {"loss": None},
    "later": {"t_ns": ORIGIN_NS + 3 * SECOND},
}


def test_a_gap_for_lost_state_needs_an_operators_act(tmp_path: Path) -> None:
    def found(path: Path) -> tuple[str, Any]:
        judgement = judge_folder(path)
        return judgement.verdict, dict(judgement.counts.violations)

    accepted = run_with_loss(tmp_path, "accepted", {})
    assert found(accepted) == ("VALID", {})
    runs = [run_with_loss(tmp_path, f"{n}", act) for n, act in enumerate(NO_ACTS.values())]
    for path, act in zip(runs, NO_ACTS.values(), strict=True):
        assert found(path) == ("INVALID", {"gap_unpromised": 1, "missing": 3}), act
    for path in (accepted, *runs):
        run, history = read_run(path), read_history(path)
        assert promises_with_losses(run, read_logs(run)) == history.promises


CHANGE = {"event": "retention_changed", "pubend": 0, "pubends": 4, "policy": "age=10ms",
          "reason": LOST, "gap_age_ns": 10**7, "t_ns": ORIGIN_NS - SECOND}  # fmt: skip
NO_CHANGES: dict[str, dict[str, Any]] = {
    "another stream": {"pubend": 1},
    "no gaps": {"gap_age_ns": None},
    "another reason": {"reason": "tired"},
    "later": {"t_ns": ORIGIN_NS + 3_600 * SECOND},
    "no stream": {"pubend": 4},
    "no age": {"gap_age_ns": -1},
    "no number": {"pubends": "4"},
}


def run_with_change(folder: Path, name: str, **change: Any) -> Path:
    """Write a run with a gap that the topology does not permit, and a change of retention."""
    path = run_with_gap(folder, name, parameters={"client_linger_ns": MONTH_NS})
    (log,) = path.glob("raw/*/p1/events.jsonl")
    log.write_text(log.read_text() + json.dumps({**CHANGE, **change}) + "\n")
    seal(path)
    return path


def test_a_gap_is_permitted_by_a_retention_that_a_broker_logged(tmp_path: Path) -> None:
    permitted = run_with_change(tmp_path, "changed")
    young = run_with_change(tmp_path, "young", gap_age_ns=3_600 * SECOND)
    runs = [run_with_change(tmp_path, f"{n}", **each) for n, each in enumerate(NO_CHANGES.values())]
    found = [dict(judge_folder(each).counts.violations) for each in (permitted, young, *runs)]
    assert found[:2] == [{}, {"gap_early": 3}]
    assert found[2:] == [{"gap_unpromised": 1, "missing": 3}] * len(runs)
    for path in (permitted, young, *runs):
        run, history = read_run(path), read_history(path)
        assert promises_with_retentions(run.promises, run, read_logs(run)) == history.promises


def test_a_publication_may_be_in_a_gap_from_the_very_age_that_the_broker_logged(
    tmp_path: Path,
) -> None:
    history = read_history(run_with_change(tmp_path, "any"))
    error_ns = history.clock_errors.get((SUBSCRIPTION, SOURCE), 0)
    assert error_ns is not None
    [gap] = next(each.gaps for each in history.subscriptions if each.gaps)
    sent_ns = [
        row.sent_ns
        for log in history.publishers
        for row in log.published
        if log.source == SOURCE and gap.first <= row.sequence <= gap.last
    ]
    youngest_ns = gap.received_ns - max(sent_ns) + error_ns
    for more_ns, found in ((0, {}), (1, {"gap_early": 1})):
        path = run_with_change(tmp_path, f"{more_ns}", gap_age_ns=youngest_ns + more_ns)
        assert dict(judge_folder(path).counts.violations) == found


STREAM = {"source": "b1/1782579199999999", "incarnation": LAST_LINEAGE}
"""A loss in a stream of a broker. The incarnation is the last possible time, of the year 2106."""


def run_with_lost_stream(folder: Path, name: str, act: dict[str, Any] | None) -> Path:
    """Write a run with a gap in a stream without a publisher, for which nothing is missing."""
    path = run_with_loss(folder, name, act)
    (log,) = path.glob("raw/*/*/gaps.jsonl")
    said = [json.loads(line) for line in log.read_text().splitlines()]
    more = [{**line, **STREAM, "first": 1, "last": 1} for line in said]
    log.write_text("".join(json.dumps(line) + "\n" for line in [*said, *more]))
    seal(path)
    return path


def test_a_gap_of_a_stream_without_a_publisher_needs_an_operators_act(tmp_path: Path) -> None:
    """The gap alone excuses nothing."""
    accepted = run_with_lost_stream(tmp_path, "accepted", {})
    assert dict(judge_folder(accepted).counts.violations) == {}
    run, history = read_run(accepted), read_history(accepted)
    assert (SUBSCRIPTION, STREAM["source"]) in gaps_of(read_logs(run), run.to_timeline)
    assert [len(each.gaps) for each in history.subscriptions if each.gaps] == [2]
    for number, act in enumerate(NO_ACTS.values()):
        judgement = judge_folder(run_with_lost_stream(tmp_path, f"{number}", act))
        assert dict(judgement.counts.violations) == {"gap_unpromised": 2, "missing": 3}, act


@pytest.mark.spark
def test_both_judges_want_an_act_for_lost_state(verdicts: dict[str, list[Verdict]]) -> None:
    accepted, *others = verdicts["losses"]
    assert others[-1].document["counts"]["violations"] == {"gap_unpromised": 2, "missing": 3}
    assert accepted.verdict == "VALID", accepted.document["because"]
    assert accepted.document["counts"]["announced_by"] == {STATE_LOST: 3}
    assert {each.verdict for each in others} == {"INVALID"}


@pytest.mark.spark
def test_a_run_with_a_gap_is_judged_by_what_its_protocol_promises(
    verdicts: dict[str, list[Verdict]],
) -> None:
    """Both checkers read the files."""
    released, early, unpromised = verdicts["gaps"]
    counts = released.document["counts"]
    assert released.verdict == "VALID", released.document["because"]
    assert (counts["announced_by"], counts["missing"]) == ({LOST: 3}, 0)
    assert f"3 in announced gaps (3 {LOST})" in released.lines()[0]

    assert early.verdict == "INVALID"
    assert early.document["counts"]["violations"] == {"gap_early": 3}

    assert unpromised.verdict == "INVALID"
    assert unpromised.document["counts"]["violations"] == {"gap_unpromised": 1, "missing": 3}
    evidence = (unpromised.derived / "evidence" / "delivery.jsonl").read_text().splitlines()
    assert "gap_unpromised" in {json.loads(line)["kind"] for line in evidence}


@pytest.mark.parametrize(
    "span, within",
    [
        ((1, 99), (20, 30)),
        ((25, 99), (25, 30)),
        ((1, 25), (20, 25)),
        ((22, 28), (22, 28)),
        ((30, 31), (30, 30)),
        ((1, 19), (LAST_KEY, FIRST_KEY)),
        ((31, 99), (LAST_KEY, FIRST_KEY)),
    ],
)
def test_a_range_that_was_announced_is_cut_to_the_span(
    span: tuple[int, int], within: tuple[int, int]
) -> None:
    told = AnnouncedRange(20, 30, "", place=0, announced_ns=0, late=False, until_ns=NEVER_NS)
    assert told.within(("run", "true", "p1/1", *span)) == ("run", "true", "p1/1", *within)


@pytest.mark.parametrize("reason, kind", [("", "withheld_unjustified"), ("early", "gap_early")])
def test_a_publication_sent_after_an_announcement_has_no_excuse(reason: str, kind: str) -> None:
    told = AnnouncedRange(
        20, 30, "", place=0, announced_ns=0, late=False, until_ns=5, reason=reason
    )
    assert [*_objections(told)] == [(kind, 5)]
    assert [*_objections(replace(told, until_ns=NEVER_NS))] == []
    late = replace(told, until_ns=NEVER_NS, late=True)
    assert [*_objections(late)] == [("withheld_late", -NEVER_NS)]
