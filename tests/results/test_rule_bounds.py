"""Tests of single rules at and beside their bounds, on objects."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from results.reference.pair import Pair as PlainPair
from results.reference.withholding import explained_until_ns
from results.rules.absences import _absences, _explained_until_ns, _Line, _lines, absences_of
from results.rules.announcements import (
    AnnouncedRange,
    Announcements,
    StreamLosses,
    _announced_in_gaps,
    _gaps_through,
    _objections,
)
from results.rules.doubts import _check_fences
from results.rules.evidence import _Context, _neighbours
from results.rules.exposure import _recovery
from results.rules.findings import (
    MOST_SHOWN_PAIRS,
    Findings,
    PairSummary,
    SourceSummary,
    describe_nothing_owed,
)
from results.rules.log_doubts import JITTER_NS, doubts_about_clock, doubts_about_numbers
from results.rules.losses import find_permitted, is_accepted, promises_with_losses
from results.rules.pairs import Pair, join_counts
from results.rules.retentions import find_last_sent_ns
from results.rules.risks import Tree
from results.rules.specification import specification_digest, specification_doubts
from results.rules.terms import (
    NEVER_NS,
    STATE_LOST,
    Gap,
    Promises,
    Recovery,
    Retention,
    RiskWindow,
    doubt,
)
from results.rules.verdict_text import (
    MOST_IDLE_NAMED,
    ProtocolWords,
    churn_in_words,
    churn_of,
    describe_withheld,
    recoveries_in_words,
    recovery_in_words,
)
from results.rules.violations import BadWalks
from results.rules.withholding import stretches_in_gaps
from results.tables.frames import SEQUENCE_BITS, escape_path, key_of

SECOND = 10**9
LOST = "expired"


# --- Absences and losses ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_both_judges_explain_the_same_gaps_by_absences(seed: int) -> None:
    """Absences last as long as the promise less the slack, or a nanosecond more or less."""
    random = Random(seed)
    promises = Promises(absence_gaps=(LOST,), absence_ns=3 * SECOND)
    for _ in range(60):
        at_ns, lines, opened = 0, [], []
        for number in range(random.randrange(1, 8)):
            at_ns += random.choice((SECOND, 2 * SECOND, 5 * SECOND)) + random.choice((-1, 0, 1))
            if opened and random.random() < 0.5:
                session, broker = opened.pop(random.randrange(len(opened)))
                lines.append(_Line(at_ns, False, broker, session))
            else:
                opened.append((number, random.choice(("b1", "b2"))))
                lines.append(_Line(at_ns, True, opened[-1][1], number))
        told_ns = at_ns + random.choice((1, SECOND, 2 * SECOND)) + random.choice((-1, 0, 1))
        gap = Gap("p1/0", 1, 1, 1, random.choice((LOST, LOST, "other")), 0, told_ns)
        found = _explained_until_ns(gap, promises, [*_absences(lines)])
        assert found == explained_until_ns(gap, lines, promises), lines


def test_session_lines_that_no_version_writes_are_no_absences() -> None:
    good = {"client": "s1-sub-1", "t_ns": 5, "broker": "s1", "session": 1, "event": "up"}
    bad = [{**good, "client": "s2-sub-1"}, {**good, "t_ns": "5"}, {**good, "broker": None}]
    process = SimpleNamespace(host="h", lines=lambda name: [*bad, good])
    run: Any = SimpleNamespace(to_timeline=lambda ns, host: ns)
    logs: Any = SimpleNamespace(processes=[process])
    assert _lines(run, logs, {"s1-sub-1"}) == {"s1-sub-1": [_Line(5, True, "s1", 1)]}


@pytest.mark.parametrize("reason", [LOST, "other", STATE_LOST])
@pytest.mark.parametrize("absent_ns", [None, 7])
def test_a_gap_of_an_absence_has_a_promised_reason(reason: str, absent_ns: int | None) -> None:
    promises = Promises(absence_gaps=(LOST,))
    gap = Gap("p1/0", 1, 1, 1, reason, 0, 9, absent_ns)
    is_permitted = reason == LOST and absent_ns is not None
    assert [*find_permitted([gap], promises, 0)] == [gap] * is_permitted


def test_clocks_that_nothing_bounds_permit_every_gap_of_an_accepted_loss() -> None:
    gap = Gap("p1/0", 1, 1, 1, STATE_LOST, 0, 5)
    assert [*find_permitted([gap], Promises(losses_from_ns=SECOND), None)] == [gap]
    assert [*find_permitted([gap], Promises(losses_from_ns=SECOND), 5)] == []


def test_a_lost_stream_of_a_broker_excuses_all_sources() -> None:
    """A stream with the name of a source is its own, and a loss that nobody accepted is none."""
    gaps = {
        ("s1/1", stream): [Gap(stream, 1, 1, 1, STATE_LOST, 0, at_ns) for at_ns in (4, 6)]
        for stream in ("b1/7", "p1/0")
    }
    facts: Any = SimpleNamespace(
        sources=[SimpleNamespace(pubend=name) for name in ("p1/1", "p1/0")],
        gaps=gaps, promises=Promises(losses_from_ns=5),
        clock_errors={("s1/1", "p1/0"): 3, ("s1/1", "p1/1"): None},
    )  # fmt: skip
    found = [(names, gap.source, until) for names, gap, until in StreamLosses({"r": facts})._gaps]
    assert found == [
        (("r", "s1/1", "p1/0"), "b1/7", 9), (("r", "s1/1", "p1/1"), "b1/7", NEVER_NS),
    ]  # fmt: skip


@pytest.mark.parametrize("late_ns", [-1, 0, 1])
def test_a_lost_stream_excuses_what_may_be_sent_when_it_is_announced(late_ns: int) -> None:
    """Two clocks differ by at most 3 ns; the rule on Spark has the same bound, included."""
    gap, row = (
        Gap("b1/7", 1, 1, 1, STATE_LOST, 0, 6),
        SimpleNamespace(key=(1, 1), sent_ns=9 + late_ns),
    )
    pair: Any = SimpleNamespace(
        promises=Promises(losses_from_ns=5), source=SimpleNamespace(committed=[row]), error_ns=3
    )
    assert PlainPair._find_last_lost(pair, gap) == ((1, 1) if late_ns <= 0 else None)


def test_a_range_in_gaps_is_of_the_named_reasons() -> None:
    gaps = [Gap("p1/0", 1, 2, 5, "other", 0), Gap("p1/0", 1, 4, 9, LOST, 1)]
    assert stretches_in_gaps(gaps, (LOST,), []) == [(gaps[1], (1, 4), (1, 9))]


@pytest.mark.parametrize("late_ns", [-1, 0, 1])
def test_a_gap_of_a_loss_counts_from_the_act_that_accepts_it(late_ns: int) -> None:
    promises = Promises(losses_from_ns=SECOND)
    gap = Gap("p1/0", 1, 1, 1, STATE_LOST, 0, SECOND + late_ns)
    assert is_accepted(gap, promises) == (late_ns >= 0)
    assert [*find_permitted([gap], promises, 0)] == [gap] * (late_ns >= 0)
    earlier = Gap("p1/0", 1, 1, 1, STATE_LOST, 0, SECOND + late_ns - 40)
    assert [*find_permitted([earlier], promises, 40)] == [earlier] * (late_ns >= 0)


def test_the_first_act_of_a_run_accepts_its_losses() -> None:
    act = {"event": "loss_accepted", "loss": 1, "signature": "0a" * 64}
    lines = [{**act, "t_ns": 7}, {**act, "t_ns": 5}, {**act, "t_ns": 9}]
    process = SimpleNamespace(name="c1", host="h", role="broker", lines=lambda name: lines)
    run: Any = SimpleNamespace(promises=Promises(), to_timeline=lambda ns, host: ns)
    logs: Any = SimpleNamespace(processes=[process])
    assert promises_with_losses(run, logs).losses_from_ns == 5


def test_an_absence_has_the_greatest_error_of_all_clocks() -> None:
    line = {"subscriber": "s1-sub-1", "t_left_ns": 1, "t_back_ns": 2}
    process = SimpleNamespace(host="h", name="load", lines=lambda name: [line])
    run: Any = SimpleNamespace(
        hosts_of_load=["a", "b", "c"],
        clock_error_ns=lambda host, other: {"a": 4, "b": 9, "c": 6}[other],
        to_timeline=lambda ns, host: ns,
    )
    logs: Any = SimpleNamespace(processes=[process])
    assert [each.err_ns for each in absences_of(run, logs)] == [9]


# --- Logs -------------------------------------------------------------------------------------


def test_a_clock_may_step_back_by_the_jitter() -> None:
    for back_ns, count in ((JITTER_NS, 0), (JITTER_NS + 1, 1)):
        scan: Any = SimpleNamespace(untimed=0, back_ns=back_ns)
        assert len([*doubts_about_clock("h/p", scan)]) == count


@pytest.mark.parametrize(
    "logged, highest, answered, reserved, wanted",
    [
        (3, 3, 3, 3, []),
        (3, 3, 5, 3, ["numbers"]),
        (3, 5, 3, 5, ["numbers"]),
        (3, 3, 0, 2, ["unreserved"]),
        (3, 3, 2, 4, []),
    ],
)
def test_numbers_that_were_used_are_in_the_log_and_reserved(
    logged: int, highest: int, answered: int, reserved: int, wanted: list[str]
) -> None:
    key = "p1/0", 1
    files = {
        "publications": SimpleNamespace(logged=logged, highest=highest, first_lost=logged + 1),
        "acks": SimpleNamespace(highest=answered),
        "intents": SimpleNamespace(highest=reserved),
    }
    records: Any = {
        name: SimpleNamespace(numbers=lambda of=of: {key: of}) for name, of in files.items()
    }
    found = [*doubts_about_numbers(records)]
    told = {
        "numbers": doubt("numbers", source="p1/0", incarnation=1, n=2, highest=5, first=logged + 1),
        "unreserved": doubt("unreserved", source="p1/0", highest=highest),
    }
    assert found == [told[name] for name in wanted]


# --- Pairs ------------------------------------------------------------------------------------


def pair(*, closed: bool = True, started: bool = True, **source: Any) -> Pair:
    summary = SourceSummary(source.get("opening"), source.get("closing"), 0, 0)
    return Pair("run", "s1/1", "p1/0", 0, closed, started, summary)


def test_a_pair_is_owed_what_lies_between_the_fences() -> None:
    assert pair(opening=4, closing=9).compute_owed_span()[3:] == (5, 8)


@pytest.mark.parametrize(
    "closed, walked, wanted",
    [(True, (6, 7), (4, 9)), (True, (2, 11), (2, 11)), (False, (6, 7), (4, 7))],
)
def test_a_pair_walks_all_keys_between_fences_and_deliveries(
    closed: bool, walked: tuple[int, int], wanted: tuple[int, int]
) -> None:
    made = pair(opening=4, closing=9, closed=closed)
    span = made.span_to_walk({"lowest": walked[0], "highest": walked[1]})
    assert span[3:] == wanted


@pytest.mark.parametrize("first, back", [(6, 0), (5, 1), (4, 1)])
def test_a_stretch_that_begins_at_or_before_the_end_of_another_steps_back(
    first: int, back: int
) -> None:
    added = ("walked", "objections", "received", "delivered", "other_kind", "too_soon", "back")
    ends = ("lowest", "highest", "first_seq", "last_seq", "first_ns", "last_ns", "first_place")
    plain = {**dict.fromkeys(added, 0), **dict.fromkeys(ends, 1), "xor_hash": 0}
    one, other = {**plain, "first": 3, "last": 5}, {**plain, "first": first, "last": 9}
    assert join_counts(one, other)["back"] == back


def summary(sub_id: str, owed: int) -> PairSummary:
    return PairSummary(sub_id, "p1/0", None, None, 0, 0, 0, owed, 0, 0, None, None, 0, started=True)


def test_the_pair_that_is_owed_least_is_named() -> None:
    findings = Findings(pairs=[summary("s1/1", 5), summary("s2/1", 3), summary("s3/1", 4)])
    assert findings.counts.least_owed == ("s2/1", "p1/0", 3)


@pytest.mark.parametrize("count", [MOST_SHOWN_PAIRS - 1, MOST_SHOWN_PAIRS, MOST_SHOWN_PAIRS + 1])
def test_a_list_of_pairs_is_cut_once_it_is_too_long(count: int) -> None:
    (line,) = describe_nothing_owed(summary(f"s{number}/1", 0) for number in range(count))
    assert ("more" in line) == (count > MOST_SHOWN_PAIRS)


# --- Announcements ----------------------------------------------------------------------------


def announced(first: int, last: int, until_ns: int = NEVER_NS) -> AnnouncedRange:
    return AnnouncedRange(first, last, "", 0, 0, late=False, until_ns=until_ns, reason=LOST)


@pytest.mark.parametrize(
    "span, wanted",
    [((1, 9), (3, 5)), ((4, 9), (4, 5)), ((1, 4), (3, 4)), ((5, 9), (5, 5)), ((1, 3), (3, 3)),
     ((6, 9), None), ((1, 2), None)],
)  # fmt: skip
def test_a_span_within_an_announcement_has_its_common_keys(
    span: tuple[int, int], wanted: tuple[int, int] | None
) -> None:
    first, last = announced(3, 5).within(("run", 0, "p1/0", *span))[3:]
    assert (first, last) == wanted if wanted else first > last


def test_an_announcement_objects_unless_it_excuses_for_ever() -> None:
    assert [*_objections(announced(1, 1, NEVER_NS))] == []
    assert [*_objections(announced(1, 1, NEVER_NS - 1))] == [("gap_early", NEVER_NS - 1)]


def test_a_lost_stream_excuses_every_incarnation_up_to_its_last_key() -> None:
    most = (1 << SEQUENCE_BITS) - 1
    gap = Gap("b1/7", 1, 1, 1, STATE_LOST, 0)
    through = [*_gaps_through(key_of(2, 5), "p1/0", gap)]
    assert {each.source for each in through} == {"p1/0"}
    found = [(each.incarnation, each.first, each.last) for each in through]
    assert found == [(0, 1, most), (1, 1, most), (2, 1, 5)]


@pytest.mark.parametrize("absent_ns, until_ns", [(3_000, 3_040), (900, 1_040)])
def test_a_gap_with_two_reasons_has_the_later_excuse(absent_ns: int, until_ns: int) -> None:
    """The gap is promised for publications of an age, and after an absence."""
    promises = Promises(gaps=(LOST,), gap_age_ns=4_000, absence_gaps=(LOST,))
    facts: Any = SimpleNamespace(promises=promises, clock_errors={("s1/1", "p1/0"): 40})
    gap = Gap("p1/0", 1, 2, 3, LOST, 0, received_ns=5_000, absent_until_ns=absent_ns)
    (found,) = _announced_in_gaps([gap], facts, ("s1/1", "p1/0"), [])
    assert found.until_ns == until_ns


@pytest.mark.parametrize(
    "changes, last_ns",
    [
        ([], "none"),
        ([["a", 0, 2, 10, 100]], "997"),
        ([["a", 0, 2, 0, 100]], "never"),
        ([["b", 0, 2, 0, 0]], "none"),
        ([["a", 1, 2, 0, 0]], "none"),
        ([["a", 2, 3, 10, 1_007]], "997"),
        ([["a", 2, 3, 10, 1_008]], "none"),
        ([["a", 0, 2, 10, 100], ["a", 0, 2, -1, 500]], "504"),
        ([["a", 0, 2, 10, 100], ["a", 0, 2, 900, 500]], "504"),
        ([["a", 0, 2, 0, 100], ["a", 0, 2, -1, 500]], "514"),
    ],
)
def test_a_gap_has_what_some_retention_in_force_permits(changes: list[Any], last_ns: str) -> None:
    """The gap is received at 1,000; clocks differ by 7 at most, in addition to the broker's 0."""
    retentions = tuple(
        Retention(broker, stream, streams, LOST, None if age_ns < 0 else age_ns, since_ns, 7)
        for broker, stream, streams, age_ns, since_ns in changes
    )
    gap = Gap("a/2", 1, 2, 3, LOST, 0, received_ns=1_000)
    found = find_last_sent_ns(gap, Promises(retentions=retentions), 7)
    said = "never" if found == NEVER_NS else "none" if found is None else str(found)
    assert said == last_ns


@pytest.mark.parametrize("lowest, wanted", [(8, True), (9, True), (10, False), (None, False)])
def test_a_delivery_up_to_the_last_announced_key_contradicts(
    lowest: int | None, wanted: bool
) -> None:
    names = "run", "s1/1", "p1/0"
    made = Announcements.__new__(Announcements)
    made._announced, made._gaps = {names: [announced(1, 4)]}, {names: [Gap("p1/0", 0, 5, 9, "", 0)]}
    assert made.is_contradicted(names, lowest) == wanted


def test_one_pair_in_spite_of_announcements_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BadWalks, "_owed", None)
    made = BadWalks.__new__(BadWalks)
    made._bad = [SimpleNamespace(in_spite=False), SimpleNamespace(in_spite=True)]  # type: ignore[list-item]
    made._firsts = None  # type: ignore[assignment]
    made._announced = SimpleNamespace(count_arrived=lambda firsts, owed: {"counted": 1})  # type: ignore[assignment]
    assert made.count_arrived_announced() == {"counted": 1}


# --- Doubts, evidence and words ---------------------------------------------------------------


@pytest.mark.parametrize(
    "accepted_ns, closed_ns, wanted",
    [(140, 960, []), (141, 960, ["late_start"]), (140, 959, ["closed_early"])],
)
def test_fences_enclose_the_measurement_within_the_errors_of_clocks(
    accepted_ns: int, closed_ns: int, wanted: list[str]
) -> None:
    facts: Any = SimpleNamespace(
        subscriptions=[SimpleNamespace(sub_id="s1/1", accepted_ns=accepted_ns)],
        clock_errors={("s1/1", "p1/0"): 40}, timeline_errors={"p1/0": 40}, measured_until_ns=1000,
    )  # fmt: skip
    source = SourceSummary(1, 9, 0, 0, opened_ns=100, closed_ns=closed_ns)
    told = {
        "late_start": doubt("late_start", who="s1/1", source="p1/0"),
        "closed_early": doubt("closed_early", source="p1/0"),
    }
    found = [*_check_fences(facts, Findings(sources={"p1/0": source}))]
    assert found == [told[name] for name in wanted]


@pytest.mark.parametrize("t_ns, active", [(9, 0), (10, 1), (20, 1), (21, 0), (None, 0)])
def test_a_violation_names_the_faults_that_were_active_then(t_ns: int | None, active: int) -> None:
    made = _Context.__new__(_Context)
    made._spans = [SimpleNamespace(from_ns=10, to_ns=20, parts=("b1",))]  # type: ignore[list-item]
    made._tree = Tree([("b1", "b2")])
    assert len(made._find_active(t_ns, ("b1", "b2"), "s1-sub-1")) == active


@pytest.mark.parametrize("incarnation, sequence", [(1 << 16, 3), (1, -1), (1, 1 << SEQUENCE_BITS)])
def test_numbers_beyond_their_columns_have_no_neighbours(incarnation: int, sequence: int) -> None:
    row = {"sub_id": "s1/1", "pubend": "p1/0", "incarnation": incarnation, "seq": sequence}
    assert _neighbours(None, None, [row]) == {}  # type: ignore[arg-type]


def test_the_first_number_of_all_has_neighbours() -> None:
    row = {"sub_id": "s1/1", "pubend": "p1/0", "incarnation": 1, "seq": 0}
    with pytest.raises(AttributeError, match="createDataFrame"):
        _neighbours(None, None, [row])  # type: ignore[arg-type]


def window(verb: str = "freeze", ended_by: str = "kill") -> RiskWindow:
    return RiskWindow(("f1",), verb, "b1", 100, 300, ended_by, frozenset(), 0)


def test_a_recovery_ends_with_the_last_arrival() -> None:
    rows = [{"at_risk": 2, "recovered": 2, "last_ns": at_ns} for at_ns in (350, None, 330)]
    assert _recovery(window(), rows) == Recovery(window(), 6, 6, 50)


@pytest.mark.parametrize("after_ns, word", [(-SECOND, "before"), (0, "after"), (SECOND, "after")])
def test_a_recovery_is_told_in_words(after_ns: int, word: str) -> None:
    text = recovery_in_words(Recovery(window(), 3, 3, after_ns), "lost")
    assert text.endswith(f"3 recovered, the last {abs(after_ns) / SECOND:.2f} s {word} the kill")
    assert recovery_in_words(Recovery(window(), 3, 2, 0), "lost").endswith("2 recovered, 1 lost")


def test_churn_is_told_with_its_last_return() -> None:
    away = [Recovery(window("churn"), 2, 2, after_ns) for after_ns in (SECOND, 3 * SECOND)]
    churn = churn_of(away)
    assert churn["recovered_after_ns_max"] == 3 * SECOND
    assert "lost" not in churn_in_words(churn, "lost")
    assert churn_in_words({**churn, "recovered": 3}, "lost").endswith("3 recovered, 1 lost")


@pytest.mark.parametrize("count", [MOST_IDLE_NAMED, MOST_IDLE_NAMED + 1])
def test_many_faults_without_risk_are_one_line(count: int) -> None:
    lines = recoveries_in_words([Recovery(window(), 0, 0, None)] * count)
    assert len(lines) == (count if count <= MOST_IDLE_NAMED else 1)


@pytest.mark.parametrize("count", [8, 9])
def test_many_partitions_are_cut(count: int) -> None:
    text = describe_withheld({f"b{number}": 1 for number in range(count)})
    assert ("more partitions" in text) == (count == 9)


def test_promises_and_words_are_texts() -> None:
    assert Promises.from_mapping({"gap_age_ns": 0}).gap_age_ns == 0
    with pytest.raises(ValueError, match="no duration"):
        Promises.from_mapping({"gap_age_ns": -1})
    with pytest.raises(ValueError, match="no reasons"):
        Promises.from_mapping({"gaps": [LOST, 7]})
    with pytest.raises(TypeError, match="no texts"):
        ProtocolWords.from_mapping({"title": "the tree", "wiring": 1})


def test_one_of_two_digests_of_a_specification_needs_the_other(tmp_path: Path) -> None:
    (tmp_path / "spec").mkdir()
    (tmp_path / "spec" / "workload.toml").write_text("x = 1\n")
    digest = specification_digest(tmp_path / "spec")
    run: Any = SimpleNamespace(folder=tmp_path, manifest={"specification_digest": digest})
    assert [*specification_doubts(run)] == [doubt("no_digest", file="log.jsonl")]


def test_a_path_is_no_pattern_for_the_readers_of_tables() -> None:
    assert escape_path("/it's 1,5 % =ü:#") == "/it's 1,5 % =ü:#"
    assert escape_path("/a [1]{x}*?\\") == "/a \\[1\\]\\{x\\}\\*\\?\\\\"
