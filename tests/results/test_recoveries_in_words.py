"""Tests of the words for risks of faults: as few lines as possible."""

from dataclasses import replace

from results.rules.terms import Recovery, RiskWindow
from results.rules.verdict_text import recoveries_in_words, verdict_in_words


def recovery(target: str, at_risk: int, verb: str = "kill") -> Recovery:
    window = RiskWindow(("step",), verb, target, 0, 1, "", frozenset({target}), 0)
    return Recovery(window, at_risk, at_risk, None)


def test_many_faults_that_put_nothing_at_risk_are_one_line() -> None:
    idle = [recovery(f"b{number}", 0) for number in range(5)]
    freezes = [recovery("c1", 0, "freeze")]
    assert recoveries_in_words([*idle, recovery("a", 7), *freezes]) == [
        "kill a: 7 deliveries at risk, 7 recovered",
        "freeze c1: nothing was at risk",
        "kill of 5 more: nothing was at risk",
    ]
    assert recoveries_in_words(idle) == ["kill of 5: nothing was at risk"]


def test_a_few_are_named() -> None:
    assert recoveries_in_words([recovery("a", 0), recovery("b", 0)]) == [
        "kill a: nothing was at risk",
        "kill b: nothing was at risk",
    ]


def test_a_verdict_names_what_the_run_was_without() -> None:
    assert verdict_in_words("VALID") == "VALID"
    assert verdict_in_words("VALID", is_calm=True, brokers="simulated") == "VALID (calm, simulated)"
    assert verdict_in_words("INVALID", is_calm=True) == "INVALID"
    assert verdict_in_words("UNKNOWN", brokers="made up") == "UNKNOWN (made up)"


def test_deliveries_without_a_decision_are_not_called_lost() -> None:
    some = replace(recovery("a", 7), recovered=5)
    assert recoveries_in_words([some]) == ["kill a: 7 deliveries at risk, 5 recovered, 2 lost"]
    undecided = recoveries_in_words([some], is_decided=False)
    assert undecided == ["kill a: 7 deliveries at risk, 5 recovered, 2 undecided"]
