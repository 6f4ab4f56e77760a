"""Tests of the risks of faults: times, paths, and uncertainty between clocks."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from brokerd.model.fault_verbs import VERB_TABLE
from results.reference import risk as reference_paths
from results.reference.fault_log import VERBS
from results.reference.history import History
from results.reference.risk import DeliveryPaths
from results.reference.rule import check
from results.rules.expectation import parse_predicate
from results.rules.risks import (
    JUDGED_VERBS,
    Exposure,
    Routes,
    Tree,
    parts_of,
    risk_windows,
)
from results.rules.terms import Fault, RiskWindow
from tests.helpers.histories import CHAIN, MACHINES, MILLISECOND, random_faults, random_history
from tests.helpers.plain_times import is_certainly_in

BROKERS = ["p1", "b-1", "s1", "s2", "s3"]
LINKS = [("p1", "b-1"), ("b-1", "s1"), ("b-1", "s2"), ("s2", "s3")]


@pytest.mark.parametrize("known", [{*JUDGED_VERBS}, VERBS], ids=["first judge", "second judge"])
def test_a_judge_accepts_every_verb_of_the_table(known: set[str]) -> None:
    """A log has the steps of a composed verb, and not the verb."""
    assert known == {verb.name for verb in VERB_TABLE.values() if verb.backend != "steps"}


def fault(fault_id: str, verb: str, applied: int, healed: int | None = None, **more) -> Fault:
    stamp = applied * MILLISECOND
    return Fault(
        fault_id, verb, more.pop("target", "b"), stamp, stamp,
        None if healed is None else healed * MILLISECOND, **more,
    )  # fmt: skip


# --- When -----------------------------------------------------------------------------------


@pytest.mark.parametrize("faults, windows", [
    ([fault("1", "absorb", 2), fault("2", "kill", 5, 9)], [("1+2", 2, 5, "kill")]),
    ([fault("1", "absorb", 2, 4)], [("1", 2, 4, "release")]),
    ([fault("1", "absorb", 2), fault("2", "cut", 5, 9)], [("1+2", 2, 5, "cut")]),
    (
        [fault("1", "freeze", 2, 3), fault("2", "kill", 5)],
        [("1", 2, 3, "release"), ("2", 5, None, "")],
    ),
    ([fault("1", "kill", 2), fault("2", "restart", 7)], [("1+2", 2, 7, "release")]),
    ([fault("1", "cut", 2, 6)], [("1", 2, 6, "release")]),
    (
        [fault("1", "delay", 2, 6), fault("2", "bandwidth", 3, 7)],
        [("1", 2, 6, "release"), ("2", 3, 7, "release")],
    ),
    ([fault("1", "delay", 2), fault("2", "kill", 5, 9)], [("1+2", 2, 5, "kill")]),
    ([fault("1", "disk-full", 2, 6), fault("2", "slow-fsync", 2, 6)], []),
    ([fault("1", "disk-full", 2), fault("2", "kill", 5, 9)], [("1+2", 2, 5, "kill")]),
    ([fault("1", "slow-fsync", 2, 4), fault("2", "kill", 5, 9)], [("2", 5, 9, "release")]),
    ([fault("1", "partition", 2, 6, target="a|b")], [("1", 2, 6, "release")]),
    ([fault("1", "host-loss", 2, 6, target="m2")], [("1", 2, 6, "release")]),
    ([fault("1", "blackhole", 2)], [("1", 2, None, "")]),
    ([fault("1", "client-disconnect", 2, 6)], [("1", 2, 6, "release")]),
    (
        [fault("1", "client-slow", 2, 6, target="c"), fault("2", "client-roam", 3, target="d"),
         fault("3", "kill", 4)],
        [("1", 2, 6, "release"), ("2", 3, 3, "release"), ("3", 4, None, "")],
    ),
    (
        [fault("1", "absorb", 1), fault("2", "kill", 2), fault("3", "restart", 3),
         fault("4", "absorb", 5), fault("5", "term", 6)],
        [("1+2", 1, 2, "kill"), ("4+5", 5, 6, "kill")],
    ),
])  # fmt: skip
def test_faults_open_the_expected_risk_windows(faults: list[Fault], windows: list) -> None:
    assert [short(window) for window in risk_windows(faults)] == windows
    assert risk_windows(reversed(faults)) == risk_windows(faults)


def short(window: RiskWindow) -> tuple:
    to_ms = None if window.to_ns > 1000 * MILLISECOND else window.to_ns // MILLISECOND
    from_ms = window.from_ns // MILLISECOND
    return "+".join(window.fault_ids), from_ms, to_ms, window.ended_by


def test_the_loss_of_a_machine_ends_the_faults_of_each_of_its_brokers() -> None:
    lost = fault("3", "host-loss", 5, 9, target="m2", parts=("b", "d"))
    faults = [fault("1", "absorb", 2), fault("2", "absorb", 3, 8, target="c"), lost]
    assert [short(window) for window in risk_windows(faults)] == [
        ("1+3", 2, 5, "kill"), ("2", 3, 8, "release"), ("3", 5, 9, "release"),
    ]  # fmt: skip


# --- Where ----------------------------------------------------------------------------------


def test_paths_run_through_brokers_links_and_directed_links() -> None:
    tree = Tree(LINKS)
    assert tree.path("s1", "p1") == ("s1", "b-1", "p1")
    for target in ("b-1", "p1", "s1", "b-1-p1", "p1-b-1", "p1->b-1"):
        assert tree.passes([target], "p1", "s1"), target
    for target in ("s2", "b-1->p1", "s2-s3"):
        assert not tree.passes([target], "p1", "s1"), target
    assert tree.passes(["s1"], "s1", "s1")


@pytest.mark.parametrize("verb, target, through, spared", [
    ("partition", "p1,b-1,s1|s2,s3", [("p1", "s2"), ("s3", "s1")], [("p1", "s1"), ("s2", "s3")]),
    ("partition", "s2", [("p1", "s2"), ("p1", "s3"), ("s3", "s2")], [("p1", "s1"), ("s2", "s2")]),
    ("partition", "p1|s1", [], [("p1", "s1"), ("p1", "s2")]),  # b-1, in no set, reaches both
    ("partition", "p1|b-1|s1", [("p1", "s1"), ("p1", "s3"), ("s2", "s1")], [("s2", "b-1")]),
    ("host-loss", "m1", [("p1", "s1"), ("s2", "s3"), ("s2", "s2")], [("s1", "s1")]),
    ("host-loss", "m2", [("p1", "s1")], [("p1", "s3"), ("p1", "p1")]),
    ("delay", "s1-b-1", [("p1", "s1"), ("s1", "s2")], [("p1", "s2")]),
    ("bandwidth", "b-1->s1", [("p1", "s1")], [("s1", "s2")]),
    ("cut", "s2", [("p1", "s2"), ("p1", "s3")], [("p1", "s1")]),
])  # fmt: skip
def test_which_ways_a_fault_stands_in(verb: str, target: str, through: list, spared: list) -> None:
    parts = parts_of(verb, target, BROKERS, LINKS, {"m1": ["s2", "b-1"], "m2": ["s1"]})
    tree = Tree(LINKS)
    assert [tree.passes(parts, *way) for way in through] == [True] * len(through)
    assert [tree.passes(parts, *way) for way in spared] == [False] * len(spared)


def test_a_fault_on_any_of_several_routes_puts_its_traffic_at_risk() -> None:
    rows = [{"from": "n1", "to": "n3", "over": ["n1", "n2", "n3", "n4", "n1->n2", "n4->n3"]}]
    routes = Routes.from_rows(rows)
    passing = reference_paths.Routes({(row["from"], row["to"]): row["over"] for row in rows})
    for part, through in (
        *(("n2", True), ("n5", False), ("n1-n2", True), ("n2-n1", True), ("n1->n2", True)),
        *(("n2->n1", False), ("n3-n4", True), ("n2-n3", False), ("client:c", False)),
    ):
        assert routes.passes([part], "n1", "n3") == through, part
        assert (part in passing.list_passed("n1", "n3")) == through, part
        assert not routes.passes([part], "n3", "n1")
    killed = fault("1", "kill", 2, 6, target="n4", parts=("n4",))
    (window,) = risk_windows([killed])
    assert Exposure([], [killed], routes).holds(window, "p", "n1", "c", "n3")
    assert DeliveryPaths(passing, [killed]).lead_through(window, "p", "n1", "c", "n3")


def test_only_deliveries_to_a_disconnected_client_are_at_risk() -> None:
    parts = parts_of("client-disconnect", "s1-sub-1", BROKERS, LINKS, {})
    away = fault("1", "client-disconnect", 2, 6, target="s1-sub-1", parts=parts)
    (window,) = risk_windows([away])
    exposure = Exposure(LINKS, [away])
    assert exposure.holds(window, "p", "p1", "s1-sub-1", "s1")
    assert exposure.holds(window, "p", "s1", "s1-sub-1", "s1"), "also from its own broker"
    assert not exposure.holds(window, "p", "p1", "s1-sub-2", "s1")


@pytest.mark.parametrize("applied, healed, at_s1, at_s2", [
    (1, 2, True, False),  # before it moves, its way leads to s1
    (12, 14, False, True),
    (9, 14, False, False),  # while it moves, it may be either
])  # fmt: skip
def test_a_client_that_roams_is_at_risk_where_it_is(
    applied: int, healed: int, at_s1: bool, at_s2: bool
) -> None:
    roam = replace(fault("r", "client-roam", 8, target="c", to="s2"), observed_ns=10 * MILLISECOND)
    for target, at_risk in (("b-1-s1", at_s1), ("b-1-s2", at_s2)):
        cut = fault("1", "cut", applied, healed, target=target, parts=(target,))
        window = next(each for each in risk_windows([roam, cut]) if each.verb == "cut")
        exposure = Exposure(LINKS, [roam, cut])
        assert exposure.holds(window, "p", "p1", "c", "s1") == at_risk
        assert exposure.holds(window, "p", "p1", "another", "s1") == (target == "b-1-s1")


def test_the_loss_of_an_unused_machine_affects_no_parts() -> None:
    assert parts_of("host-loss", "m9", BROKERS, LINKS, {}) == ()


# --- The dumb twin --------------------------------------------------------------------------

HOLDS = ("absorb", "send-omission", "freeze", "blackhole", "cut", "partition", "delay", "bandwidth")


def at_risk_by_hand(history: History) -> Iterator[tuple]:
    """Yield the deliveries at risk, by publication, fault and hop."""
    near = {x: [a if b == x else b for a, b in CHAIN if x in (a, b)] for x in "abcd"}
    first, *rest = history.faults
    kill = rest[0] if rest else None
    until_ns = kill.applied_ns if kill else first.healed_ns
    for log in history.publishers:
        committed = sorted(_committed(history, log), key=lambda row: row.key)
        fences = [r.key for r in committed if r.attribute_set == history.content.fence_set]
        for subscription in history.subscriptions:
            predicate = parse_predicate(subscription.predicate)
            [way] = [
                way for way in _ways(near, (log.broker,)) if way[-1] == subscription.broker
            ]  # fmt: skip
            for row in committed:
                if not fences[0] < row.key < fences[-1] or row.key in fences:
                    continue
                if not predicate.holds(history.content.attributes(row.attribute_set)):
                    continue
                if first.verb in ("disk-full", "slow-fsync") and kill is None:
                    continue
                since_ns = row.sent_ns - first.applied_ns
                is_sure = since_ns >= first.err_ns and row.sent_ns + first.err_ns < until_ns
                if is_sure and _is_in_the_way(first, way):
                    yield subscription.subscription, log.source, row.key


def _committed(history: History, log) -> list:
    answered = {
        (incarnation, sequence): outcome
        for incarnation, low, high, outcome in log.answers
        for sequence in range(low, high + 1)
    }
    seen = {
        (row.source, row.incarnation, row.sequence)
        for subscription in history.subscriptions
        for row in subscription.delivered
    }
    return [
        row
        for row in log.published
        if answered.get(row.key) == 1
        or (row.key not in answered and (log.source, *row.key) in seen)
    ]


def _ways(near: dict[str, list[str]], way: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield way
    for broker in near[way[-1]]:
        if broker not in way:
            yield from _ways(near, (*way, broker))


def _is_in_the_way(fault: Fault, way: tuple[str, ...]) -> bool:
    if fault.verb == "host-loss":
        return any(broker in MACHINES[fault.target] for broker in way)
    for here, there in pairwise(way):
        if fault.verb == "partition":
            sets = [part.split(",") for part in fault.target.split("|")]
            of = [next((n for n, one in enumerate(sets) if x in one), -1) for x in (here, there)]
            if of[0] != of[1] and (len(sets) == 1 or -1 not in of):
                return True
        elif fault.target in (f"{here}-{there}", f"{there}-{here}", f"{here}->{there}"):
            return True
    return fault.verb != "partition" and fault.target in way


def test_the_checker_and_its_dumb_twin_find_the_same_at_risk() -> None:
    found: dict[str, int] = {}
    for seed in range(300):
        history = random_history(random.Random(seed))
        expected = len([*at_risk_by_hand(history)])
        assert check(history).counts.at_risk == expected, f"seed {seed}: {history.faults}"
        verb = history.faults[0].verb
        found[verb] = found.get(verb, 0) + expected
    assert {verb for verb, n in found.items() if not n} == {"slow-fsync"}  # never ended by a kill
    assert len(found) == 10, found


# --- Between clocks -------------------------------------------------------------------------


def test_deliveries_within_the_clock_error_are_not_counted_as_at_risk() -> None:
    random_ = random.Random(7)
    for _ in range(200):
        faults = [replace(fault, err_ns=0) for fault in random_faults(random_)]
        err_ns = random_.randrange(3 * MILLISECOND)
        skews = [random_.randint(-err_ns, err_ns) for _ in faults]
        # The times of the fault log are off by no more than the stated error.
        logged = [
            replace(
                true, err_ns=err_ns, applied_ns=true.applied_ns + skew,
                healed_ns=None if true.healed_ns is None else true.healed_ns + skew,
            )
            for true, skew in zip(faults, skews, strict=True)
        ]  # fmt: skip
        true_windows = risk_windows(faults)
        for window in risk_windows(logged):
            for at_ns in range(0, 40 * MILLISECOND, MILLISECOND // 4):
                if is_certainly_in(window, at_ns):
                    assert any(
                        true.from_ns <= at_ns < true.to_ns and true.parts == window.parts
                        for true in true_windows
                    ), (faults, logged, at_ns)


def test_nothing_is_surely_at_risk_without_clock_comparisons() -> None:
    (window,) = risk_windows([fault("1", "freeze", 2, 6, err_ns=None)])
    assert not any(is_certainly_in(window, at_ms * MILLISECOND) for at_ms in range(40))
    history = replace(random_history(random.Random(3)), doubts=(), calm=False)
    faults = [replace(each, err_ns=None) for each in history.faults]
    judgement = check(replace(history, faults=faults))
    assert judgement.verdict == "UNKNOWN"
    assert judgement.because[0].startswith("the clocks were not compared: fault f1")
