"""Stories of decommissioned brokers, and of those that return nevertheless."""

import pytest
from _pytest.outcomes import Failed

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.operator_acts import ACCEPT_LOSS, DECOMMISSION
from brokerd.protocols.durable.messages import Decommissioned, Fetch
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    Commit,
    MessageReceived,
    Send,
    SessionEstablished,
)
from brokerd.protocols.registry import definition_of
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.broker_factory import make_signature
from tests.helpers.durable_cores import core_of, handle, relay
from tests.helpers.durable_stories import DurableStory, fails
from tests.helpers.gryphon_stories import cells
from tests.protocols.durable.test_moves import MovingStory

MUTANTS = bugs_of("durable")


def a_dead_one_holds_nobody_up() -> bool:
    """Return True if a dead broker's unacknowledged events are released at its decommission."""
    story = MovingStory()
    story.miss()
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    before = story.kept("p1")
    assert not story.cluster.membership.decommission("s1")
    story.sent += story.publish(3)
    story.settle()
    return (before, story.kept("p1")) == (10, 0) and story.other.received == story.sent


def known_after_restarts_of_all_others() -> bool:
    story = MovingStory()
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    assert not story.cluster.membership.decommission("s1")
    assert not story.cluster.membership.decommission("s1"), "once more does no harm"
    story.cluster.run_for(1)
    for broker in ("p1", "b1", "s2"):
        story.cluster.broker(broker).restart()
    story.sent += story.publish(3)
    story.settle()
    return story.other.received == story.sent and story.kept("p1") == 0


def comes_back_all_the_same() -> bool:
    """Return True if a decommissioned broker that returns is notified and stops.

    The result also holds if all notified brokers have restarted meanwhile.
    """
    story = MovingStory()
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    assert not story.cluster.membership.decommission("s1")
    story.cluster.run_for(1)
    story.cluster.broker("b1").restart()
    for _ in range(2):
        story.cluster.broker("s1").start()
        story.cluster.run_for(3)
        if story.cluster.broker("s1").broker.alive:
            return False
    reasons = [event for event, _ in story.cluster.broker("s1").broker.recorded]
    return reasons.count("decommissioned") == 2


def moved_just_before() -> bool:
    """Return True if a decommission waits for moved subscriptions and no event is lost."""
    story = MovingStory()
    story.miss()
    upstream = story.cluster.link("p1", "b1").cut()
    story.cluster.broker("s1").kill()
    story.move("s2")
    story.take_slowly()
    story.cluster.run_for(3)
    refusals = story.cluster.membership.decommission("s1")
    upstream.heal()
    story.cluster.run_for(3)
    assert refusals == ["s2: 1 subscriptions from another broker are not durable yet"], refusals
    assert not story.cluster.membership.decommission("s1")
    story.sent += story.publish(3)
    story.settle(60)
    return story.is_whole and story.nothing_is_left()


def with_what_only_it_has() -> bool:
    """Return True if a broker with owed events in its pubends cannot be decommissioned."""
    story = DurableStory()
    away = story.subscriber("s2")
    link = story.away(away, "s2")
    story.cluster.publish_run("s1", [(story.blob("a"), b"")] * 3)
    story.cluster.run_for(3)
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    refusals = story.cluster.membership.decommission("s1")
    if refusals != ["s2: publications of its pubends are not acknowledged here, in 1 streams"]:
        return False
    story.cluster.broker("s1").start()
    link.heal()
    story.settle(40)
    assert len(away.received) == 3
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    return not any("s2" in each for each in story.cluster.membership.decommission("s1"))


def with_what_a_moved_subscription_lacks() -> bool:
    """Return True if a subscription keeps the only broker that has what it missed, and is whole.

    Its former broker has released it, and its present broker has matched nothing for it.
    """
    story = DurableStory()
    mover = story.subscriber("s2")
    before = story.away(mover, "s2")
    story.cluster.publish_run("s1", [(story.blob("a"), b"")] * 3)
    story.cluster.run_for(3)
    before.heal()
    story.cluster.transfers.reattach(mover.client.name, "p1")
    story.cluster.run_for(0.01)
    link = story.away(mover, "p1")
    story.cluster.broker("s1").kill()
    story.cluster.broker("p1").restart()
    story.cluster.run_for(3)
    refusals = story.cluster.membership.decommission("s1")
    if refusals != ["p1: publications of its pubends are not acknowledged here, in 1 streams"]:
        return False
    story.cluster.broker("s1").start()
    link.heal()
    story.settle(40)
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    assert not story.cluster.membership.decommission("s1")
    return len(mover.received) == 3


STORIES = {
    "decommissioned-holds-back": a_dead_one_holds_nobody_up,
    "decommission-dropped": known_after_restarts_of_all_others,
    "decommissioned-is-let-in": comes_back_all_the_same,
    "decommissioned-before-all-is-held": moved_just_before,
    "decommissioned-broker-is-awaited": moved_just_before,
    "decommissioned-with-the-only-copy": with_what_only_it_has,
    "decommissioned-before-unknown-matches": with_what_a_moved_subscription_lacks,
}


@pytest.mark.parametrize("name, told", [*STORIES.items()], ids=[*STORIES])
def test_a_story_passes_without_its_named_bug_and_fails_with_it(name, told) -> None:
    assert told()
    with plant([MUTANTS[name]]):
        assert fails(told)


def test_a_neighbour_of_a_removed_broker_states_the_silence_of_its_pubends() -> None:
    """No event since the position of the moved client matches."""
    story = DurableStory()
    mover = story.subscriber("p1", "kind = 'a'")
    story.subscriber("s2")
    story.cluster.publish_run("s1", [(story.blob("a"), b"")] * 3)
    story.cluster.run_for(1)
    link = story.away(mover, "p1")
    story.cluster.publish_run("s1", [(story.blob("b"), b"")] * 3)
    story.cluster.run_for(1)
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    assert not story.cluster.membership.decommission("s1")
    story.cluster.run_for(1)
    story.quiet_since()
    link.heal()
    story.cluster.transfers.reattach(mover.client.name, "s2")
    story.settle()
    assert story.from_to("s2", "b1", Fetch)
    assert len(mover.received) == 3


def test_a_broker_that_was_down_learns_of_a_decommission_later() -> None:
    story = MovingStory()
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    story.cluster.broker("s2").kill()
    story.cluster.run_for(1)
    (refusal,) = story.cluster.membership.decommission("s1")
    assert refusal == "s2 does not answer"
    story.cluster.broker("s2").start()
    story.cluster.run_for(1)
    story.cluster.link("b1", "s2").cut()
    story.cluster.run_for(1)
    b1 = story.cluster.broker("b1").broker
    assert not story.core("b1").farewell(2).is_known
    b1.operate(BrokerDecommissioned(2, make_signature(DECOMMISSION, "s1")))
    story.cluster.run_for(1)
    assert story.core("b1").farewell(2).is_known
    assert story.core("p1").farewell(2).is_known
    assert not story.core("s2").farewell(2).is_known
    story.cluster.link("b1", "s2").heal()
    story.cluster.run_for(3)
    assert story.core("s2").farewell(2).is_known


def test_a_running_broker_is_not_decommissioned() -> None:
    story = MovingStory()
    refusals = story.cluster.membership.decommission("s1")
    assert refusals == ["s1 is up", "b1: it is up, there is a session with it"]


@pytest.mark.parametrize("gone", [0, 1, 9], ids=["itself", "between others", "nobody"])
def test_a_neighbour_cannot_decommission_a_broker_that_is_no_leaf(gone: int) -> None:
    message = MessageReceived(0, 10, Decommissioned(((gone, bytes(64)),)))
    with pytest.raises(RemoteProtocolError, match=f"broker {gone} cannot be decommissioned"):
        relay().handle(message, 0)


def test_only_leaves_can_be_decommissioned_and_only_in_supporting_protocols() -> None:
    topology = cells("p1-b1", "b1-s1")
    definition_of("durable").check_decommissioned(topology, 2, "here")
    with pytest.raises(ConfigError, match="here: b1 is linked to p1, s1"):
        definition_of("durable").check_decommissioned(topology, 1, "here")
    with pytest.raises(ConfigError, match="with gryphon no broker is decommissioned"):
        definition_of("gryphon").check_decommissioned(topology, 2, "here")
    assert core_of(0, topology).farewell(2).refusals == ()


FORGED = {
    "unsigned": b"",
    "wrongly signed": bytes(64),
    "of another broker": make_signature(DECOMMISSION, "p1"),
    "of another act": make_signature(ACCEPT_LOSS, "s1"),
    "of another version": make_signature(DECOMMISSION, "s1", 1),
}


def a_forged_one_is_refused(at: int, signature: bytes) -> None:
    """Check that a forged decommission closes the session and changes no state."""
    core = relay() if at == 1 else core_of(2, cells("p1-b1", "b1-s1"))
    peer = 0 if at == 1 else 1
    if at == 2:
        core.handle(SessionEstablished(1, 10, 1), 0)
    message = MessageReceived(peer, 10, Decommissioned(((2, signature),)))
    with pytest.raises(RemoteProtocolError, match="authority has not signed a decommission of 2"):
        handle(core, message)
    assert not core.farewell(2).is_known


@pytest.mark.parametrize("at", [1, 2], ids=["another", "itself"])
@pytest.mark.parametrize("signature", FORGED.values(), ids=FORGED)
def test_a_forged_decommission_is_refused(at: int, signature: bytes) -> None:
    a_forged_one_is_refused(at, signature)
    bug = MUTANTS["decommissioned-on-a-neighbours-word"]
    with plant([bug]), pytest.raises(Failed):
        a_forged_one_is_refused(at, signature)


def test_the_signature_travels_with_the_act_and_survives_a_restart() -> None:
    """Broker b1 forwards the act to p1 with the signature; a repeated act changes nothing."""
    signature = make_signature(DECOMMISSION, "s1")
    core = relay()
    message = MessageReceived(0, 10, Decommissioned(((2, signature),)))
    effects = handle(core, message)
    rows = [each for effect in effects if isinstance(effect, Commit) for each in effect.changes]
    assert [each.value for each in rows if each.table == "decommissioned"] == [signature]
    assert Decommissioned(((2, signature),)) in [
        each.message for each in effects if isinstance(each, Send)
    ]
    assert core.farewell(2).is_known
    assert not [each for each in handle(core, message) if isinstance(each, Commit)]
