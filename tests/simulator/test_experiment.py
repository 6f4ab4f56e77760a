"""Tests of experiments in virtual time: equal load and faults, judged for each protocol."""

import pytest

from brokerd.model.fault_verbs import SIMULATED_VERBS, VERB_TABLE
from brokerd.simulator.experiment import (
    SimulatedPublisher,
    SimulatedStep,
    SimulatedSubscriber,
    SimulatedVerdict,
    simulate_schedule,
)
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.attributes import encode_attributes
from tests.helpers.cluster import chain

STALL_THEN_KILL = (
    SimulatedStep("stall", "absorb", ("b2",), SECOND_NS, duration_ns=SECOND_NS, released=False),
    SimulatedStep("kill", "kill", ("b2",), after=("stall", "end")),
    SimulatedStep("back", "restart", ("b2",), after=("kill", "applied"), delay_ns=SECOND_NS),
    SimulatedStep("cut", "cut", ("b2", "b3"), after=("back", "recovered"), duration_ns=SECOND_NS),
)


def _run(protocol: str, steps: tuple[SimulatedStep, ...], calm: bool = False) -> SimulatedVerdict:
    blob = encode_attributes({"n": 1})
    publisher = SimulatedPublisher(
        "p", "b1", range(0, 8 * SECOND_NS, 20 * MILLISECOND_NS), lambda sequence: (blob, b"x")
    )
    subscribers = [SimulatedSubscriber(f"s{n}", f"b{n}", "n = 1") for n in (2, 3)]
    return simulate_schedule(
        chain("b1", "b2", "b3"),
        protocol,
        [publisher],
        subscribers,
        steps,
        duration_ns=8 * SECOND_NS,
        calm=calm,
    )


def test_delta_tree_is_valid_and_has_recovered_all_deliveries_at_risk() -> None:
    verdict = _run("delta_tree", STALL_THEN_KILL)
    assert verdict.value == "VALID", verdict.describe()
    assert verdict.counters["published"] == 400
    assert verdict.counters["deliveries"] == verdict.counters["owed"] == 800
    assert verdict.counters["recovered"] == verdict.counters["at_risk"] > 100
    assert [line.split("s  ")[1] for line in verdict.story] == [
        "absorb b2",
        "kill b2",
        "restart b2",
        "b2 has recovered",
        "cut b2-b3",
        "cut b2-b3 ends",
        "b2-b3 has recovered",
    ]


@pytest.mark.parametrize(
    "verb, target", [(verb, on) for verb in SIMULATED_VERBS for on in VERB_TABLE[verb].simulated_on]
)
def test_every_simulated_verb_strikes_each_of_its_targets(verb: str, target: str) -> None:
    ends = ("b2",) if target == "broker" else ("b2", "b3")
    lasts_ns = SECOND_NS if VERB_TABLE[verb].lasts else None
    one_way = target == "direction"
    fault = SimulatedStep("f", verb, ends, SECOND_NS, duration_ns=lasts_ns, one_way=one_way)
    back = SimulatedStep("back", "restart", ("b2",), 3 * SECOND_NS)
    verdict = _run("best_effort", (fault, back) if VERB_TABLE[verb].risk == "end" else (fault,))
    assert any(f"{verb} b2" in line for line in verdict.story), verdict.story


def test_best_effort_is_invalid_under_the_same_faults() -> None:
    verdict = _run("best_effort", STALL_THEN_KILL)
    assert verdict.value == "INVALID"
    assert verdict.counters["recovered"] < verdict.counters["at_risk"]
    assert any(line.startswith("gap: ") for line in verdict.violations)


def test_a_run_in_which_nothing_was_at_risk_shows_nothing_unless_it_is_calm() -> None:
    assert _run("delta_tree", ()).value == "UNKNOWN"
    assert _run("best_effort", (), calm=True).value == "VALID"


def test_the_same_experiment_has_the_same_history() -> None:
    first, again = (_run("delta_tree", STALL_THEN_KILL) for _ in range(2))
    assert first == again


def _run_with_absence(protocol: str) -> SimulatedVerdict:
    blob = encode_attributes({"n": 1})
    publisher = SimulatedPublisher(
        "p", "b1", range(0, 6 * SECOND_NS, 20 * MILLISECOND_NS), lambda sequence: (blob, b"x")
    )
    absences = ((SECOND_NS, 3 * SECOND_NS),)
    return simulate_schedule(
        chain("b1", "b2"),
        protocol,
        [publisher],
        [SimulatedSubscriber("s", "b2", "n = 1", absences=absences)],
        duration_ns=6 * SECOND_NS,
    )


def test_a_subscriber_receives_the_publications_of_its_absence_after_its_return() -> None:
    verdict = _run_with_absence("delta_tree")
    assert verdict.value == "VALID", verdict.describe()
    assert verdict.counters["deliveries"] == verdict.counters["owed"] == 300
    assert verdict.counters["recovered"] == verdict.counters["at_risk"] == 100


def test_an_absent_subscriber_of_a_protocol_without_memory_misses_all_of_its_absence() -> None:
    counters = _run_with_absence("best_effort").counters
    assert 100 <= counters["published"] - counters["deliveries"] < 150
