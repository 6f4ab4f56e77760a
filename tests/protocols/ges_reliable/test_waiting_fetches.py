"""Fetches without a limit (`fetch_wait_ns = 0`): silence when idle, and no lost answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from brokerd.errors import ConfigError
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.interface import Effect, Send
from brokerd.protocols.registry import definition_of, parameters_on
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS
from tests.protocols.ges_reliable.test_stories import BROKEN, TOPOLOGY, Story, displace
from tests.protocols.ges_reliable.test_trees import TREES

MUTANTS = bugs_of("ges_reliable")
NO_LIMIT = (("ges_reliable", (("fetch_wait_ns", 0),)),)


class Waiting(Story):
    """A subscriber at x and a publisher at z, with two roots and a finer storage, or with one."""

    def __init__(self, topology: Any = TREES, **parameters: Any) -> None:
        self.sent = 0
        chosen = {"fetch_wait_ns": 0, **parameters}
        self.topology = replace(topology, settings=(("ges_reliable", (*chosen.items(),)),))
        self.cluster = SimulatedCluster(self.topology, "ges_reliable", watcher=self._watch).start()
        self.cluster.run_until_quiet()
        self.subscription = self.subscribe("x", "kind = 'a'")
        self.publish("z", "a", seconds=3)

    def _watch(self, _broker: Any, _event: Any, effects: Sequence[Effect]) -> None:
        self.sent += sum(type(each) is Send and isinstance(each.peer, int) for each in effects)


def idle_brokers_send_nothing() -> None:
    story = Waiting()
    before = story.sent
    story.cluster.run_for(60)
    assert story.sent == before
    story.publish("z", "a", "b")
    story.publish("g", "a")
    story.settle()
    assert story.got() == 3


def an_answer_is_lost_in_flight() -> None:
    """The last publication before silence, on its way from s to x, is lost with both links."""
    story = Waiting(TOPOLOGY)
    links = (("g", "x"), ("s", "y"))
    story.cluster.publish("g", kind="a")
    for link in links:
        story.cluster.link(*link).cut()
    story.cluster.run_for(10)
    assert story.got() == 1
    for link in links:
        story.cluster.link(*link).heal()
    story.settle(20)
    assert story.got() == 2


def a_storage_restarts_while_a_fetch_waits() -> None:
    story = Waiting(TOPOLOGY)
    story.cluster.broker("s").restart()
    story.cluster.run_for(10)
    story.publish("z", "a", "a")
    story.settle()
    assert story.got() == 3


def storages_release_events_that_no_follower_wants() -> None:
    """The client at x wants nothing of it, and root q has it from its own unit."""
    story = Waiting()
    story.publish("z", *"bbb")
    story.publish("g", *"bbb")
    story.settle(5)
    assert story.got() == 1


def receipts_follow_a_fetch_that_was_too_early_for_them() -> None:
    """A receipt is answered with the progress of the log, too soon for the next one."""
    story = Waiting(TOPOLOGY, receipt_interval_ns=2 * SECOND_NS)
    for kind, seconds in (("a", 0.5), ("a", 1), ("b", 0.1)):
        story.publish("z", kind, seconds=seconds)
    story.settle(20)
    assert story.got() == 3


def a_kept_fetch_with_ignored_receipts_is_answered_at_once() -> None:
    """The last publication before silence, which the storage keeps for its receipt."""
    story = Waiting(TOPOLOGY)
    new = displace(story)
    story.publish("g", "b")
    story.settle(20)
    assert len(new.received[1]) == 1


STORIES: dict[Callable[[], None], str] = {
    an_answer_is_lost_in_flight: "lost-answer-is-not-repeated",
    a_storage_restarts_while_a_fetch_waits: "restart-is-not-announced",
    storages_release_events_that_no_follower_wants: "progress-waits-for-a-publication",
    receipts_follow_a_fetch_that_was_too_early_for_them: "early-fetch-drops-receipts",
    a_kept_fetch_with_ignored_receipts_is_answered_at_once: "kept-fetch-hides-a-displacement",
    idle_brokers_send_nothing: "kept-fetches-are-repeated",
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_rules_hold_in(story: Callable[[], None]) -> None:
    story()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_detects_its_bug(story: Callable[[], None]) -> None:
    with plant([MUTANTS[STORIES[story]]]), pytest.raises(BROKEN):
        story()


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(ConfigError, match="fetch_wait_ns = -1; at least 0"):
        GesReliableParameters(fetch_wait_ns=-1).check("here")


def test_a_storage_that_lost_its_disk_is_refused() -> None:
    """Its followers would wait for ever at a storage that has none of their subscriptions."""
    topology = replace(TOPOLOGY, settings=NO_LIMIT)
    parameters = parameters_on(topology, "ges_reliable")
    keeps = definition_of("ges_reliable").keeps_loss
    assert "fetches wait without a limit" in keeps(topology, parameters, 0)
    assert not keeps(topology, parameters, 1)
    assert not keeps(TOPOLOGY, GesReliableParameters(), 0)
