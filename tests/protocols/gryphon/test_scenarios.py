"""Gryphon scenarios as text: the messages between brokers, one by one."""

import pytest

from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.scenario import play_scenario
from tests.helpers.scenario import play, scenario_files

MUTANTS = bugs_of("gryphon")

FILES = {path.stem: path for path in scenario_files(__file__)}

# Scenario → a named bug that omits the rule of the story.
RULES = {
    "07_two_subends_with_one_gap": "recent-request-is-repeated",
    "10_sideways_then_another_way": "never-sideways",
    "20_acks_by_different_brokers": "acks-are-not-sent-sideways",
    "28_a_pubend_begins": "pubend-begins-after-one-round",
}


@pytest.mark.parametrize("name", FILES)
def test_scenario(name: str, request: pytest.FixtureRequest) -> None:
    """Play a scenario; --rewrite-scenarios records today's behaviour for review."""
    play(FILES[name], rewrite=request.config.getoption("--rewrite-scenarios"))


def test_each_scenario_names_its_rule() -> None:
    assert FILES.keys() == RULES.keys()


@pytest.mark.parametrize("name", RULES)
def test_a_scenario_changes_without_its_rule(name: str) -> None:
    told = FILES[name].read_text(encoding="utf-8")
    with plant([MUTANTS[RULES[name]]]):
        assert seen(told) != told


def seen(told: str) -> str:
    """Return the outcome of a scenario, or the error of the rule that stops it."""
    try:
        return play_scenario(told)
    except InvariantViolated as error:
        return str(error)
