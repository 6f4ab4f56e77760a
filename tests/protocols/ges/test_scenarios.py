"""Named scenarios of best-effort delivery: as text, as stories, and in `ges_reliable`."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.scenario import ScenarioError, play_scenario
from tests.helpers.scenario import play, scenario_files
from tests.protocols.ges.load_stories import two_loaded_gateways_each_look_better_to_the_other
from tests.protocols.ges.test_stories import (
    BROKEN,
    FOR_EVER_S,
    Story,
    two_units_each_prefer_the_gateway_of_the_other,
)

MUTANTS = bugs_of("ges")

FILES = {path.stem: path for path in scenario_files(__file__)}

# Scenario → a named bug that omits the rule of the story.
RULES = {
    "a01_echo_abbrev": "returned-statements-are-accepted",
    "a03_dup_delta": "started-before-all-confirm",
    "a05_only_child": "sent-to-all-units",
    "a07_stale_frame": "one-way-only",
}
SC_1_TO_2 = ((0, 0), (0, 1))


def gateways_known_to(story: Story, name: str) -> set[tuple[str, str]]:
    """Return the links between super-clusters 1 and 2 in the graph of an outside broker."""
    names = story.cluster.topology.brokers
    core = story.cluster.brokers[names.index(name)].core
    return {(names[a], names[b]) for a, b in core.units.view.edges.get(SC_1_TO_2, ())}


def a02_twin_gateway() -> None:
    """The units stay linked after the first of two gateways fails, but not after the second."""
    story = Story()
    both = {("n5", "n11"), ("n8", "n12")}
    assert gateways_known_to(story, "n14") == both
    for gone in sorted(both):
        story.cut(gone)
        story.settle()
        both -= {gone}
        assert gateways_known_to(story, "n14") == both
        story.publish("n10", "a", "b", "c")
    assert [story.got(name) for name in story.wanted] == [2, 2, 2, 2, 2]
    assert story.count("publications_without_route") == 0


def a04_keeper_birth() -> None:
    """Broker n5, the only level-2 gatekeeper of its cluster, appears while publications flow."""
    story, link = Story(), ("n5", "n11")
    story.cut(link)
    story.settle()
    for place in range(40):
        if place == 15:
            story.heal(link)
        story.cluster.publish("n10", kind="c")
        story.cluster.run_for(0.2)
    story.settle()
    assert story.got("n5") == 40
    story.cut(("n8", "n12"))
    story.settle()
    story.publish("n10", "a", "c")
    assert [story.got(name) for name in ("n9", "n8", "n5")] == [1, 1, 41]


def a06_pingpong() -> None:
    """Without clocks the loop would be endless; with clocks, reports of two link costs cross."""
    two_units_each_prefer_the_gateway_of_the_other()
    two_loaded_gateways_each_look_better_to_the_other()


def a08_fail_forever() -> None:
    """A gatekeeper is dead and its clients moved: no broker waits, and all forget the broker."""
    story = Story()
    story.kill("n5")
    story.cluster.subscribe("n6", "kind = 'c'", "moved")
    story.cluster.run_for(5)
    story.publish("n22", "a", "c")
    assert [story.got(name) for name in ("n9", "n8", "n5")] == [1, 1, 0]
    assert len(story.cluster.clients["moved"].received[1]) == 1
    story.settle(FOR_EVER_S)
    gone = story.cluster.topology.brokers.index("n5")
    for broker in story.cluster.brokers:
        if broker.alive:
            assert not broker.core.units.profiles.by_origin()[gone].predicates
    story.publish("n22", "c")
    assert len(story.cluster.clients["moved"].received[1]) == 2


def a09_zombie_broker() -> None:
    """Others declared n5 lost for long when n5 resumes; its own statements supersede theirs."""
    story = Story()
    story.cluster.broker("n5").freeze()
    story.cluster.run_for(FOR_EVER_S)
    assert story.count("spoken_for") > 0
    story.publish("n22", "c")
    story.cluster.broker("n5").thaw()
    story.settle(20)
    story.publish("n22", "a", "c")
    assert [story.got(name) for name in ("n9", "n8", "n5")] == [1, 1, 1]


def a10_split_cluster() -> None:
    """Cluster g is split in two live parts; no event arrives twice, and healing restores it."""
    story = Story()
    story.cluster.subscribe("n15", "kind = 'b'", "other part")
    story.cut(("n14", "n15"))
    story.cluster.run_for(FOR_EVER_S)
    story.publish("n22", "b")
    got = story.got("n14") + len(story.cluster.clients["other part"].received[1])
    assert got == 1, "the part whose gatekeeper was asked has it"
    story.heal(("n14", "n15"))
    story.settle(20)
    story.publish("n22", "b")
    assert story.got("n14") + len(story.cluster.clients["other part"].received[1]) == got + 2


STORIES: Mapping[str, Callable[[], None]] = {
    "a02_twin_gateway": a02_twin_gateway,
    "a04_keeper_birth": a04_keeper_birth,
    "a06_pingpong": a06_pingpong,
    "a08_fail_forever": a08_fail_forever,
    "a09_zombie_broker": a09_zombie_broker,
    "a10_split_cluster": a10_split_cluster,
}

# Story → a named bug that omits the rule of the story.
SEEN = {
    "a02_twin_gateway": "lost-session-stays-in-graph",
    "a04_keeper_birth": "lost-session-stays-in-graph",
    "a06_pingpong": "each-decides-anew",
    "a08_fail_forever": "the-dead-want-for-ever",
    "a09_zombie_broker": "dead-and-silent-about-wants",
    "a10_split_cluster": "dead-and-silent-about-links",
}

ELSEWHERE = (
    "a11_double_controller",
    "a12_publisher_hop",
    "a13_gap_across_roots",
    "a14_ahead_client",
    "a15_behind_old",
    "a16_roam_in_recovery",
    "a17_unsub_in_flight",
    "a18_early_leave",
    "a19_finer_mid_traffic",
    "a20_storage_bounce",
    "a21_torn_log",
    "a22_block_65",
    "a23_skip_race",
    "a24_double_attach",
    "a25_six_classrooms",
    "a26_new_unit_join",
)
"""Scenarios with storages, or with brokers that join and leave: stories of ges_reliable."""


def test_scenarios_of_ges_reliable_have_a_test_there() -> None:
    folder = Path(__file__).parent.with_name("ges_reliable")
    told = "".join(path.read_text("utf-8") for path in folder.glob("test_*.py"))
    assert not [name for name in ELSEWHERE if f"({name})" not in told]


def test_each_named_scenario_is_present() -> None:
    numbers = sorted(each[:3] for each in (*FILES, *STORIES, *ELSEWHERE))
    assert numbers == [f"a{number:02}" for number in range(1, 27)]


@pytest.mark.parametrize("name", FILES)
def test_scenario(name: str, request: pytest.FixtureRequest) -> None:
    """Play a scenario; --rewrite-scenarios records today's behaviour for review."""
    play(FILES[name], rewrite=request.config.getoption("--rewrite-scenarios"))


def test_each_scenario_names_its_rule() -> None:
    assert FILES.keys() == RULES.keys()
    assert STORIES.keys() == SEEN.keys()


@pytest.mark.parametrize("name", RULES)
def test_a_scenario_changes_without_its_rule(name: str) -> None:
    told = FILES[name].read_text(encoding="utf-8")
    with plant([MUTANTS[RULES[name]]]):
        assert seen(told) != told


def test_a_hierarchy_that_cannot_be_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"n2 not connected to n1 by links inside 0\.\*"):
        play_scenario("protocol ges\nhierarchy n1=0.0 n2=0.1\n")


def seen(told: str) -> str:
    """Return the outcome of a scenario, or the error of the rule that stops it."""
    try:
        return play_scenario(told)
    except InvariantViolated as error:
        return str(error)


@pytest.mark.parametrize("name", STORIES)
def test_the_rules_hold_in(name: str) -> None:
    STORIES[name]()


@pytest.mark.parametrize("name", STORIES)
def test_without_its_rule_it_ends_otherwise(name: str) -> None:
    with plant([MUTANTS[SEEN[name]]]), pytest.raises(BROKEN):
        STORIES[name]()
