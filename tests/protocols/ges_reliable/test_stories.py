"""Stories of brokers that fail for ever, storages that return, and clients that roam."""

from collections.abc import Callable

import pytest

from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes

BROKEN = (AssertionError, InvariantViolated)
TOPOLOGY = Topology.from_mapping(
    {
        "schema": SCHEMA,
        "name": "stored",
        "kind": "hierarchy",
        "brokers": ["s", "g", "x", "y", "z"],
        "hierarchy": {
            "addresses": {"s": "0.0.0", "g": "0.0.1", "x": "0.1.0", "y": "0.1.1", "z": "0.1.2"},
            "links": [
                ["s", "g"], ["g", "x"], ["s", "y"], ["x", "y"], ["y", "z"], ["x", "z"]
            ],
            "storages": {"s": 2},
        },
    },
    "stored",
)  # fmt: skip
"""A storage and a broker in a cluster; three brokers in another, two of them gatekeepers."""

_A = encode_attributes({"kind": "a"})


class Story:
    """A publisher at z and a subscriber at x; the oracle determines the owed deliveries."""

    topology = TOPOLOGY

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(self.topology, "ges_reliable").start()
        self.cluster.run_until_quiet()
        self.subscription = self.subscribe("x", "kind = 'a'")
        self.publish("z", "a")

    def subscribe(self, at: str, predicate: str = "true") -> Subscription:
        found = self.cluster.subscribe(at, predicate)
        self.cluster.run_for(3)
        assert found.number in found.client.started_numbers
        return found

    def publish(self, at: str, *kinds: str, seconds: float = 1) -> None:
        for kind in kinds:
            self.cluster.publish(at, kind=kind)
        self.cluster.run_for(seconds)

    def lose(self, broker: str) -> None:
        do = self.cluster.broker(broker)
        do.kill()
        self.cluster.removed[do.broker.number] = None

    def settle(self, seconds: float = 10) -> None:
        """Check that all owed events arrived once and in order and that no broker keeps them."""
        self.cluster.run_for(seconds)
        self.cluster.oracle.judge_end()
        assert not list(self.cluster.oracle.obligations.unacknowledged())
        left = [broker.core.status().queued for broker in self.cluster.state.staying]
        assert not any(left), left

    def storage(self):
        return self.cluster.broker("s").broker.core.storage

    def got(self) -> int:
        return len(self.subscription.received)


def all_is_well() -> None:
    story = Story()
    story.publish("z", "a", "b", "a")
    story.publish("g", "a", "b")
    story.settle()
    assert story.got() == 4
    assert len(story.storage().registrations) == 1


def a_gatekeeper_fails_for_ever_and_its_subscriber_moves() -> None:
    """Events of the time without a broker are kept for the subscriber (a08_fail_forever)."""
    story = Story()
    story.lose("x")
    story.publish("z", "a", "a", "b")
    client = story.subscription.client
    story.cluster.transfers.reattach(client.name, "y")
    story.publish("z", "a")
    story.settle()
    assert story.got() == 4


def a_publisher_moves_with_unstored_publications() -> None:
    """Broker z dies with publications in flight, some of them stored (a12_publisher_hop)."""
    story = Story()
    story.cluster.publish("z", kind="a")
    story.cluster.broker("s").freeze()
    story.publish("z", "a", "a", seconds=0.2)
    story.lose("z")
    story.cluster.transfers.reattach("p-z", "g")
    for _ in range(2):
        story.cluster.publish_run("z", [(_A, b"")], "p-z")
    story.cluster.broker("s").thaw()
    story.settle(20)
    assert story.got() == 6


def a_storage_stalls_dies_and_restarts() -> None:
    """Publishers receive no acknowledgement meanwhile (a20_storage_bounce)."""
    story = Story()
    story.cluster.broker("s").freeze()
    story.publish("z", "a", "a", seconds=3)
    story.cluster.broker("s").kill()
    story.publish("z", "a", seconds=30)
    ((_, open_ones),) = list(story.cluster.oracle.obligations.unacknowledged())
    assert len(open_ones) == 3
    story.cluster.broker("s").start()
    story.publish("z", "a")
    story.settle(20)
    assert story.got() == 5


def a_storage_loses_nothing_that_it_acknowledged() -> None:
    """The storage dies right after every acknowledgement, again and again (a21_torn_log)."""
    story = Story()
    for _ in range(4):
        story.publish("z", "a", "b", "a", seconds=0.05)
        story.cluster.broker("s").kill()
        story.cluster.broker("s").start()
        story.publish("z", "a", seconds=2)
    story.settle(20)
    assert story.got() == 13


def a_subscriber_roams_while_it_catches_up() -> None:
    """The client is absent, then at three brokers one after the other (a16_roam_in_recovery)."""
    story = Story()
    client = story.subscription.client
    line = story.cluster.link(client.name, "x")
    line.cut()
    story.publish("z", *"ab" * 20, seconds=3)
    for broker in ("y", "g", "z"):
        story.cluster.transfers.reattach(client.name, broker)
        story.publish("z", "a", seconds=0.15)
    story.settle()
    assert story.got() == 24


def nothing_is_delivered_after_the_end_of_a_subscription() -> None:
    """Deliveries in flight are dropped (a17_unsub_in_flight)."""
    story = Story()
    other = story.subscribe("y")
    story.cluster.publish("z", kind="a")
    story.cluster.run_for(0.01)
    story.cluster.unsubscribe(other.client.name)
    story.publish("z", "a", "a")
    story.settle()
    assert list(other.client.ended) == [other.number]
    assert len(story.storage().registrations) == 1


def a_client_that_dies_before_the_reply_starts_once() -> None:
    """The storage has the subscription; its client lacks the reply and moves (a18_early_leave)."""
    story = Story()
    early = story.cluster.subscribe("y", "true")
    while len(story.storage().registrations) < 2:
        story.cluster.run_for(0.001)
    began = {key: each.began for key, each in story.storage().registrations.subscriptions().items()}
    story.lose("y")
    story.publish("z", "b")
    story.cluster.transfers.reattach(early.client.name, "z")
    story.publish("z", "a")
    story.settle()
    again = {key: each.began for key, each in story.storage().registrations.subscriptions().items()}
    assert again == began
    assert len(early.received) == 2


def a_client_that_detaches_elsewhere_leaves_no_state() -> None:
    """The new broker has no record of the client's subscription."""
    story = Story()
    other = story.subscribe("y")
    story.cluster.link(other.client.name, "y").cut()
    story.cluster.population.detach(other.client.name)
    story.cluster.transfers.reattach(other.client.name, "z")
    story.publish("z", "a")
    story.settle()
    assert other.client.detached
    assert len(story.storage().registrations) == 1


def a_client_without_memory_continues() -> None:
    """No publication from the time without a client process is missing."""
    story = Story()
    client = story.subscription.client
    story.cluster.link(client.name, "x").cut()
    story.publish("z", "a", "a", "a", seconds=2)
    story.cluster.link(client.name, "x").heal()
    new = story.cluster.population.forget(client.name)
    story.publish("z", "a")
    story.settle()
    assert len(new.received[1]) == 4


def a_new_process_at_another_broker_resumes() -> None:
    """The new process counts attachments from 1; the earlier process had attached three times."""
    for earlier in ("", "yz"):
        story = Story()
        name = story.subscription.client.name
        for broker in earlier:
            story.cluster.transfers.reattach(name, broker)
            story.cluster.run_for(1)
        story.publish("z", "a")
        story.cluster.population.forget(name)
        story.cluster.transfers.reattach(name, "y")
        story.publish("z", "a", seconds=3)
        story.settle()
        new = story.cluster.clients[name]
        assert len(new.received[1]) == 1, "does not resume at its receipt"
        assert not new.refused


_LINKS_OF_Y = (("s", "y"), ("x", "y"), ("y", "z"))


def displace(story: Story) -> SimulatedClient:
    """Return a new process at x; a delayed request of y for the earlier process follows it.

    Another subscription at x wants a part of the same publications.
    """
    client = story.subscribe("x", "kind = 'a' or kind = 'b'").client
    for link in _LINKS_OF_Y:
        story.cluster.link(*link).cut()
    story.cluster.run_for(1)
    story.cluster.transfers.reattach(client.name, "y")
    story.cluster.run_for(1)
    new = story.cluster.population.forget(client.name)
    story.cluster.transfers.reattach(client.name, "x")
    story.cluster.run_for(3)
    assert new.started_numbers
    for link in _LINKS_OF_Y:
        story.cluster.link(*link).heal()
    y = story.cluster.broker("y").broker.number
    until_displaced = story.cluster.state.schedule.now_ns + 30 * SECOND_NS
    while y not in (each.home for each in story.storage().registrations.kept()):
        assert story.cluster.state.schedule.now_ns < until_displaced, "y requests nothing"
        story.cluster.run_for(0.01)
    return new


def a_new_process_displaced_by_a_late_request_resumes() -> None:
    """The storage ignores the receipts of x, and says so; x ends the session (seed 63002014)."""
    story = Story()
    new = displace(story)
    story.publish("g", "b", seconds=0.02)
    story.publish("g", "a", "b")
    story.settle(20)
    assert len(new.received[1]) == 3
    assert not any(each.displaced for each in story.storage().registrations.kept())


def a_new_process_at_another_broker_ends_its_subscription() -> None:
    """No state of a subscription remains, whether the process ends it or detaches."""
    for keeps in (0, 1):
        story = Story()
        name = story.subscription.client.name
        story.cluster.population.forget(name, keeps)
        story.cluster.transfers.reattach(name, "y")
        story.cluster.run_for(0.01)
        story.cluster.population.detach(name)
        story.publish("z", "a", seconds=3)
        story.settle()
        assert not story.storage().registrations.subscriptions()


def a_displaced_process_ends_its_subscription() -> None:
    """The storage ignores an end of x, for a late request of y for an earlier process."""
    for ends in (_unsubscribe, _detach):
        story = Story()
        others = len(story.storage().registrations)
        new = displace(story)
        ends(story.cluster, new.name)
        story.settle(20)
        assert len(story.storage().registrations) == others


def _unsubscribe(cluster: SimulatedCluster, client: str) -> None:
    cluster.unsubscribe(client)


def _detach(cluster: SimulatedCluster, client: str) -> None:
    cluster.population.detach(client)


def subscribe_again(between: Callable[[Story, str], None]) -> None:
    """End a subscription, start a process without memory, and subscribe with the same number."""
    for milliseconds in (0, 1, 4, 12, 25):
        story = Story()
        others = len(story.storage().registrations)
        client = story.subscribe("y").client.name
        between(story, client)
        story.cluster.population.forget(client)
        story.cluster.run_for(milliseconds / 1000)
        story.cluster.unsubscribe(client)
        new = story.cluster.population.forget(client)
        story.cluster.run_for(3)
        assert new.started_numbers
        story.publish("z", "b", "b")
        story.settle()
        assert len(new.received[1]) == 2, f"ended after {milliseconds} ms"
        assert len(story.storage().registrations) == others + 1


def a_process_that_subscribes_again_is_stored_for() -> None:
    subscribe_again(lambda story, client: None)


def a_process_that_moved_twice_and_subscribes_again_is_stored_for() -> None:
    def move_twice(story: Story, client: str) -> None:
        for broker in "zy":
            story.cluster.transfers.reattach(client, broker)
            story.cluster.run_for(1)

    subscribe_again(move_twice)


def a_repeated_subscription_at_a_restarted_broker_is_stored_for() -> None:
    def restart(story: Story, client: str) -> None:
        story.cluster.broker("y").kill()
        story.cluster.broker("y").start()
        story.cluster.run_for(5)

    subscribe_again(restart)


STORIES = (
    all_is_well,
    a_gatekeeper_fails_for_ever_and_its_subscriber_moves,
    a_publisher_moves_with_unstored_publications,
    a_storage_stalls_dies_and_restarts,
    a_storage_loses_nothing_that_it_acknowledged,
    a_subscriber_roams_while_it_catches_up,
    nothing_is_delivered_after_the_end_of_a_subscription,
    a_client_that_dies_before_the_reply_starts_once,
    a_client_that_detaches_elsewhere_leaves_no_state,
    a_client_without_memory_continues,
    a_new_process_at_another_broker_resumes,
    a_new_process_displaced_by_a_late_request_resumes,
    a_new_process_at_another_broker_ends_its_subscription,
    a_displaced_process_ends_its_subscription,
    a_process_that_subscribes_again_is_stored_for,
    a_process_that_moved_twice_and_subscribes_again_is_stored_for,
    a_repeated_subscription_at_a_restarted_broker_is_stored_for,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story(story: Callable[[], None]) -> None:
    story()
