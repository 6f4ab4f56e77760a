"""Access brokers that never return, and those that return after their decommission."""

from collections.abc import Callable

import pytest
from _pytest.outcomes import Failed

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import SourceId
from brokerd.model.operator_acts import ACCEPT_LOSS, DECOMMISSION
from brokerd.protocols.interface import BrokerDecommissioned, MessageReceived
from brokerd.protocols.multi_proxy.messages import Decommissioned, Elsewhere, Periodic, Stored
from brokerd.protocols.registry import definition_of
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.broker_factory import make_signature
from tests.helpers.proxy_stories import Story, sides
from tests.protocols.multi_proxy.test_causal_ownership import HOME as CARRIED
from tests.protocols.multi_proxy.test_causal_ownership import a_server, carry, transfer
from tests.protocols.multi_proxy.test_server import (
    HOME,
    SERVER,
    TOPIC,
    Disk,
    follow,
    get,
    put,
)
from tests.protocols.multi_proxy.test_stories import owner_of, queued

MUTANTS = bugs_of("multi_proxy")

OTHER = HOME + 1


def with_a_dead_one() -> Story:
    """Return a story with followers e1 and e2; e1 is down and lacks ten publications."""
    story = Story()
    for home in ("e1", "e2"):
        story.cluster.subscribe(home, "kind = 'a'")
    story.cluster.run_for(1)
    story.cluster.broker("e1").kill()
    story.publish("e2", 10)
    story.cluster.run_for(1)
    return story


def a_dead_one_has_nothing_kept_for_it() -> bool:
    story = with_a_dead_one()
    before = queued(story, owner_of(story, "a"))
    assert not story.cluster.membership.decommission("e1")
    story.publish("e2", 3)
    story.cluster.run_for(1)
    return (before, queued(story, owner_of(story, "a"))) == (10, 0)


def known_after_restarts_of_all_others() -> bool:
    story = with_a_dead_one()
    assert not story.cluster.membership.decommission("e1")
    assert not story.cluster.membership.decommission("e1"), "once more does no harm"
    story.cluster.run_for(1)
    others = [name for name in story.topology.brokers if name != "e1"]
    for name in others:
        story.cluster.broker(name).restart()
    story.cluster.run_for(2)
    number = story.topology.number_of("e1")
    cores = [story.cluster.broker(name).broker.core for name in others]
    return all(core.farewell(number).is_known for core in cores)


def a_decommissioned_broker_that_returns_stops() -> bool:
    """Return True if a decommissioned broker that returns is notified and stops."""
    story = with_a_dead_one()
    assert not story.cluster.membership.decommission("e1")
    story.cluster.run_for(1)
    e1 = story.cluster.broker("e1").start()
    story.cluster.run_for(2)
    ended = not e1.broker.alive
    return ended and "decommissioned" in [event for event, _ in e1.broker.recorded]


def puts_stop_waiting_for_a_decommissioned_follower() -> bool:
    """Return True if publish requests stop waiting for a decommissioned follower.

    It was too far behind, and the server would have waited for it for a while.
    """
    disk = Disk(topic_window=2)
    disk.tell(follow(1, TOPIC))
    disk.tell(get(1, 0, 0))
    disk.tell(put(1, 3, home=OTHER))
    held = disk.tell(put(4, 4, previous=3, home=OTHER))
    disk.said.clear()
    disk.give_up(HOME)
    stored = Stored(SERVER, OTHER, TOPIC, SourceId(OTHER, 0, 1), 4)
    return stored not in held and stored in disk.said and disk.core.status().queued == 0


def old_requests_of_a_decommissioned_broker_have_no_effect() -> bool:
    """Return True if an old request of a decommissioned broker has no effect.

    A proxy still had the request.
    """
    disk = Disk()
    disk.tell(follow(1, TOPIC))
    disk.give_up(HOME)
    answers = disk.tell(follow(2, TOPIC)) + disk.tell(put(1, 3))
    disk.tell(put(1, 2, home=OTHER))
    return answers == [] and disk.core.status().queued == 0


def a_transferred_topic_expects_no_decommissioned_follower() -> bool:
    """Return True if a transferred topic expects no decommissioned follower.

    The former owner has not received the decommission yet.
    """
    server = a_server()
    server.give_up(CARRIED)
    server.tell(carry(1, 4))
    server.tell(transfer(4))
    server.tell(Periodic(2, 1, 1, (), (Elsewhere(2, TOPIC, 4),)))
    return server.core.status().queued == 0


RULES: dict[str, Callable[[], bool]] = {
    "given-up-and-kept-for": a_dead_one_has_nothing_kept_for_it,
    "given-up-and-waited-for": puts_stop_waiting_for_a_decommissioned_follower,
    "decommission-is-volatile": known_after_restarts_of_all_others,
    "given-up-and-let-in": a_decommissioned_broker_that_returns_stops,
    "given-up-and-followed-anew": old_requests_of_a_decommissioned_broker_have_no_effect,
    "given-up-and-expected": a_transferred_topic_expects_no_decommissioned_follower,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        assert not RULES[bug]()


def test_a_missed_decommission_is_learned_from_neighbours() -> None:
    story = with_a_dead_one()
    number = story.topology.number_of("e1")
    cut = [story.cluster.link("e2", proxy).cut() for proxy in ("x1", "x2")]
    story.cluster.run_for(1)
    cores = [story.cluster.broker(name).broker.core for name in ("v2", "e2")]
    act = BrokerDecommissioned(number, make_signature(DECOMMISSION, "e1"))
    story.cluster.broker("v1").broker.operate(act)
    story.cluster.run_for(1)
    assert [core.farewell(number).is_known for core in cores] == [True, False]
    for link in cut:
        link.heal()
    story.cluster.run_for(3)
    assert [core.farewell(number).is_known for core in cores] == [True, True]


def test_a_running_broker_is_not_decommissioned() -> None:
    story = Story()
    refusals = story.cluster.membership.decommission("e1")
    assert refusals[0] == "e1 is up"
    assert "x1: it is up, there is a session with it" in refusals


def test_proxies_and_servers_are_not_decommissioned() -> None:
    topology = sides()
    check = definition_of("multi_proxy").check_decommissioned
    check(topology, topology.number_of("e1"), "here")
    with pytest.raises(ConfigError, match="here: x1 is a proxy; the others"):
        check(topology, topology.number_of("x1"), "here")
    with pytest.raises(ConfigError, match="here: v2 is a server"):
        check(topology, topology.number_of("v2"), "here")
    story = Story()
    story.cluster.broker("x1").kill()
    story.cluster.run_for(1)
    assert "e1: it is no edge, and others need it" in story.cluster.membership.decommission("x1")


@pytest.mark.parametrize("gone", [0, SERVER, 9], ids=["who says it", "itself", "nobody"])
def test_a_neighbour_cannot_decommission_a_broker_that_is_no_edge(gone: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"broker {gone} cannot be decommissioned"):
        Disk().tell(Decommissioned(((gone, bytes(64)),)))


FORGED = {
    "unsigned": b"",
    "wrongly signed": bytes(64),
    "of another broker": make_signature(DECOMMISSION, "e2"),
    "of another act": make_signature(ACCEPT_LOSS, "e1"),
    "of another version": make_signature(DECOMMISSION, "e1", 1),
}


def a_forged_one_is_refused(at: str, signature: bytes) -> None:
    """Check that a forged decommission of e1 closes the session and changes no state."""
    story = Story()
    number, x1 = story.topology.number_of("e1"), story.topology.number_of("x1")
    broker = story.cluster.broker(at).broker
    message = Decommissioned(((number, signature),))
    event = MessageReceived(x1, broker.session_with(x1), message)
    with pytest.raises(RemoteProtocolError, match="authority has not signed a decommission of"):
        broker.core.handle(event, story.cluster.schedule.now_ns)
    assert not broker.core.farewell(number).is_known


@pytest.mark.parametrize("at", ["e1", "v1"], ids=["itself", "another"])
@pytest.mark.parametrize("signature", FORGED.values(), ids=FORGED)
def test_a_forged_decommission_is_refused(at: str, signature: bytes) -> None:
    a_forged_one_is_refused(at, signature)
    with plant([MUTANTS["given-up-on-a-neighbours-word"]]), pytest.raises(Failed):
        a_forged_one_is_refused(at, signature)
