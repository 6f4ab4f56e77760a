"""A broker survives every order of client messages, with answers or RemoteProtocolError.

For every seed, two brokers serve fuzzed clients and honest clients; sessions are lost and brokers
restart. A refused message changes no state: the broker behaves equally without the message. `python
-m tests.fuzz.sessions` runs the same against real brokers.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Consume,
    Deliveries,
    Detach,
    Publish,
    Subscribe,
    Subscribed,
    Unsubscribed,
)
from brokerd.model.identity import SourceId
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import PublicationRun
from brokerd.protocols.registry import definition_of
from brokerd.wire.attributes import encode_attributes
from tests.fuzz.simulated import FuzzedClient, FuzzedCluster
from tests.helpers.every_protocol import PROTOCOLS
from tests.protocols.ges_reliable.test_trees import TREES

SEEDS = 4
STEPS = 500
PUBLISHER = Connect(True, 1, 1, 0, ())
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "total order": ("gryphon", {"order": "total", "pubends": 2}),
    "no filters": ("gryphon", {"filters": False}),
    "small gryphon": ("gryphon", {"client_window": 2, "client_subscriptions": 2}),
    "logged": ("delta_tree", {"publication_log": True}),
    "paper": ("delta_tree", {"profile": "paper", "assist": "off"}),
    "small tree": ("delta_tree", {"client_window": 2, "client_subscriptions": 2}),
    "catch-up": ("durable", {"catchup_batch": 2, "catchup_window": 4, "live_limit": 4}),
    "early release": ("durable", {"max_retain_ns": 1_000_000_000}),
    "rendezvous": ("multi_proxy", {"ownership": "rendezvous", "topic_attribute": "kind"}),
    "small topics": ("multi_proxy", {"topic_attribute": "kind", "topics": 4, "client_window": 2}),
    "causal": ("multi_proxy", {"ownership": "causal"}),
    "small home": ("ges_reliable", {"client_window": 2, "home_window": 4, "held_limit": 4}),
}


def fuzzed(protocol: str, name: str, parameters: Mapping[str, Any]) -> FuzzedCluster:
    """Return a cluster after a seed; honest clients have all events and refusals had no effect."""
    cluster = FuzzedCluster(protocol, Random(name), **parameters)
    for _ in range(STEPS):
        cluster.step()
    assert cluster.end() == [], name
    cluster.repeat()
    return cluster


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_answers_or_refuses_whatever_its_clients_send(protocol: str) -> None:
    clusters = [fuzzed(protocol, f"{protocol} {seed}", {}) for seed in range(SEEDS)]
    assert sum(each.messages for each in clusters) > SEEDS * STEPS / 10, "they sent hardly anything"
    assert sum(each.hostile_deliveries for each in clusters) > SEEDS, (
        "they received hardly anything"
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_so_it_does_with_other_parameters(variant: str) -> None:
    protocol, parameters = VARIANTS[variant]
    fuzzed(protocol, variant, parameters)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_so_it_does_where_clients_go_from_broker_to_broker(protocol: str) -> None:
    fuzzed(protocol, f"roams {protocol}", {"homes": ("c1", "c2", "c3"), "roams": True})


def test_so_it_does_where_there_are_several_storages() -> None:
    parameters = {"topology": TREES, "homes": ("g", "x", "y", "z"), "roams": True}
    fuzzed("ges_reliable", "trees", parameters)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_name_that_was_abused_is_as_good_as_any_afterwards(protocol: str) -> None:
    cluster = fuzzed(protocol, f"afterwards {protocol}", {})
    for client in cluster.fuzzed:
        subscription = cluster.take_in(client)
        assert subscription.started
        published = cluster.cluster.publish("c1", honest=True)
        cluster.cluster.run_for(5)
        assert subscription.received == [published]


# ---------------------------------------------------------------- stories


class StoryClient(FuzzedClient):
    """A client that sends the messages of a story and keeps the messages it receives."""

    def __init__(self, world: FuzzedCluster) -> None:
        self.received: list[Any] = []
        self._world = world
        first = world.fuzzed[0]
        super().__init__(str(first.key), first.broker, world.cluster)
        self.script = first.script

    def message_arrived(self, end: Any, message: Any) -> None:
        self.received.append(message)

    def session(self, *messages: Any) -> list[Any]:
        """Play a session with time for every message; return the messages received."""
        self.received = []
        self.dial()
        self._world.cluster.run_for(0.1)
        for message in messages:
            self.say(message)
            self._world.cluster.run_for(0.5)
        return self.received

    def end(self, seconds: float = 0.1) -> None:
        """End the session and let time pass."""
        self.hang_up()
        self._world.cluster.run_for(seconds)


def run_of(source: SourceId, first: int, count: int = 1) -> PublicationRun:
    blob = encode_attributes({"kind": "a"})
    sequences = range(first, first + count)
    return PublicationRun(source, sequences, (blob,), bytes(count), 1, (b"x" * count,))


def continued(source: SourceId, next_sequence: int) -> Connect:
    """Return the Connect of a publisher that reconnects."""
    return Connect(True, 1, next_sequence, next_sequence - 1, (), source)


def source_given(received: list[Any]) -> SourceId:
    (connected,) = [each for each in received if isinstance(each, Connected)]
    assert connected.source is not None
    return connected.source


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_departs_without_unacknowledged_deliveries(protocol: str, drain: bool) -> None:
    """The broker answers at once, since no more messages are due to the client, and stays up."""
    world = FuzzedCluster(protocol, Random(1))
    client = StoryClient(world)
    source = source_given(client.session(PUBLISHER, Subscribe(1, EVERYTHING)))
    client.say(Publish(run_of(source, 1)))
    world.cluster.run_for(1)
    assert [each for each in client.received if isinstance(each, Deliveries)]
    client.end()
    again = continued(source, 2)
    assert Unsubscribed(0) in client.session(again, Detach(drain=drain, done_through=0))
    client.end(30)
    world.cluster.publish("c1", honest=True)
    assert world.end() == []
    world.repeat()


def test_a_start_states_only_the_positions_of_topics_with_publications() -> None:
    world = FuzzedCluster("multi_proxy", Random(1))
    client = StoryClient(world)
    world.cluster.publish("c1", honest=True)
    world.cluster.run_for(1)
    received = client.session(Connect(False, 1, 1, 0, ()), Subscribe(1, EVERYTHING))
    (started,) = [each for each in received if isinstance(each, Subscribed) and each.begins_after]
    assert started.state == "started"
    assert [position for _, position in started.begins_after] == [1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refused_publication_advances_no_record_of_its_publisher(protocol: str) -> None:
    """The broker recorded the number before the attributes turned out to be malformed."""
    world = FuzzedCluster(protocol, Random(1))
    client = StoryClient(world)
    source = source_given(client.session(PUBLISHER))
    client.say(Publish(run_of(source, 1)))
    world.cluster.run_for(1)
    client.say(Publish(replace(run_of(source, 2), attribute_table=(b"\xff",))))
    world.cluster.run_for(1)
    assert "malformed" in world.fuzzed[0].refusals[-1]
    client.end(30)
    assert world.end() == []
    world.repeat()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_detach_drains_only_the_claimed_subscriptions(protocol: str) -> None:
    """Deliveries of a claimed subscription are drained; the others are released."""
    world = FuzzedCluster(protocol, Random(1))
    client = StoryClient(world)
    wants = (Subscribe(1, EVERYTHING), Subscribe(2, EVERYTHING))
    source = source_given(client.session(PUBLISHER, *wants))
    client.say(Publish(run_of(source, 1, 3)))
    world.cluster.run_for(1)
    client.end()
    again = continued(source, 4)
    received = client.session(again, Subscribe(1, EVERYTHING), Detach(drain=True, done_through=0))
    for each in [each for each in received if isinstance(each, Deliveries)]:
        assert each.subscriptions == (1,)
        client.say(Acknowledge(each.run.source, each.run.first, each.run.last))
    world.cluster.run_for(1)
    assert Unsubscribed(0) in client.received
    client.end(30)
    assert world.end() == []
    world.repeat()


@pytest.mark.parametrize("protocol", ["gryphon", "delta_tree"])
def test_a_detach_completes_only_after_all_deliveries_are_acknowledged(protocol: str) -> None:
    """The Detach is answered after the last acknowledgement; the window is one publication."""
    world = FuzzedCluster(protocol, Random(1), client_window=1)
    client = StoryClient(world)
    source = source_given(client.session(PUBLISHER, Subscribe(1, EVERYTHING)))
    for sequence in (1, 2, 3):
        client.say(Publish(run_of(source, sequence)))
    world.cluster.run_for(1)
    client.say(Detach(drain=True, done_through=0))
    for count in (1, 2, 3):
        world.cluster.run_for(1)
        assert Unsubscribed(0) not in client.received
        delivered = [each for each in client.received if isinstance(each, Deliveries)]
        assert len(delivered) == count
        run = delivered[-1].run
        client.say(Acknowledge(run.source, run.first, run.last))
    world.cluster.run_for(1)
    assert Unsubscribed(0) in client.received


@pytest.mark.parametrize(
    "protocol",
    [each for each in PROTOCOLS if definition_of(each).promises.keeps_committed],
)
def test_a_consumer_departs_without_uncommitted_events(protocol: str) -> None:
    world = FuzzedCluster(protocol, Random(1))
    client = StoryClient(world)
    source = source_given(client.session(PUBLISHER, Consume(1, EVERYTHING, 5)))
    client.say(Publish(run_of(source, 1, 3)))
    world.cluster.run_for(1)
    client.end()
    again = continued(source, 4)
    assert Unsubscribed(0) in client.session(again, Detach(drain=True, done_through=0))
    client.end(30)
    assert world.end() == []
    world.repeat()
