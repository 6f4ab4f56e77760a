"""Subscriptions matched at the access broker, over several sessions of their client."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Deliveries,
    Gap,
    PublishAcknowledged,
    Subscribe,
    Subscribed,
)
from brokerd.model.identity import SourceId
from brokerd.model.losses import STATE_LOST
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Deliver, Send
from brokerd.protocols.parts.clients.own_subscriptions import (
    OwnClient,
    OwnSubscription,
    OwnSubscriptions,
    new_subscription,
)
from brokerd.protocols.parts.clients.restored_subscriptions import CONFIRMED, RestoredSubscriptions
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.wire.attributes import decode_attribute_table, encode_attributes

S, T, U, V = (SourceId(3, number, 1) for number in range(4))
BLOB = encode_attributes({"kind": "a"})


@dataclass(eq=False)
class Part:
    """Publications that were handed out."""

    open: int = 0


def gap(stream: SourceId, first: int = 1, last: int = 4) -> Gap:
    return Gap((1,), stream, first, last, STATE_LOST)


class World:
    """A client with started subscriptions, and what it receives."""

    def __init__(self, *numbers: int) -> None:
        self.machine = EventMachine()
        self.client: OwnClient[OwnSubscription] = OwnClient("c")
        windows: DeliveryWindows[Part, OwnSubscription] = DeliveryWindows(
            self.machine, 100, {"publications_delivered": 0}
        )
        self.own: OwnSubscriptions[OwnSubscription, Part] = OwnSubscriptions(
            self.machine, windows, decode_attribute_table, {"c": self.client}
        )
        self.done: list[Part] = []
        self.connect()
        for number in numbers:
            local = new_subscription(self.client, Subscribe(number, EVERYTHING))
            self.own.start(local)

    def connect(self, *resume: tuple[int, tuple[tuple[SourceId, int], ...]]) -> None:
        """Begin the next session."""
        self.take(self.own.close(self.client))
        self.client.session += 1
        self.client.connected = True
        self.own.resume(self.client, Connect(True, 1, 1, 0, resume))

    def claim(self, number: int, *gaps: Gap) -> list[Any]:
        """Request a subscription; return the items in the answer."""
        local = self.client.subscriptions[number]
        local.claimed = self.client.session
        self.take(self.own.claim(self.client, local, (), gaps))
        return self.received()

    def take(self, parts: Iterable[Part]) -> None:
        self.done += parts

    def hand_out(self, source: SourceId, first: int, last: int) -> Part:
        count = last - first + 1
        part = Part()
        run = PublicationRun(source, range(first, last + 1), (BLOB,), bytes(count), 0, ())
        self.own.hand_out(run, part)
        return part

    def acknowledge(self, stream: SourceId, last: int) -> None:
        self.take(self.own.acknowledge("c", Acknowledge(stream, 1, last)))

    def received(self) -> list[Any]:
        """Return the messages and items to the client since the last call."""
        effects, self.machine.effects = self.machine.effects, []
        return [
            each.item if isinstance(each, Deliver) else each.message
            for each in effects
            if isinstance(each, Deliver | Send)
        ]


def test_gaps_come_in_their_order_before_all_publications_and_once() -> None:
    world = World(1)
    part = world.hand_out(S, 5, 6)
    world.client.subscriptions[1].forgotten = (gap(V),)
    answer, *gaps, run = world.claim(1, gap(T), gap(U))
    assert isinstance(answer, Subscribed)
    assert gaps == [gap(T), gap(U), gap(V)]
    assert isinstance(run, Deliveries)
    for stream, last in ((T, 4), (U, 4), (V, 4), (S, 6)):
        world.acknowledge(stream, last)
    assert world.done == [part]
    for _ in range(2):
        world.connect()
        assert len(world.claim(1)) == 1, "the answer only"


def test_gaps_without_an_acknowledgement_are_repeated_in_their_order() -> None:
    world = World(1)
    world.claim(1, gap(T), gap(U), gap(V))
    world.acknowledge(U, 4)
    for _ in range(2):
        world.connect()
        assert world.claim(1)[1:] == [gap(T), gap(V)]


def test_positions_of_a_client_never_decrease_between_sessions() -> None:
    world = World(1)
    for stated, known in ((3, 3), (9, 9), (5, 9), (0, 9)):
        world.connect((1, ((S, stated),)))
        assert world.client.subscriptions[1].begins_after == {S: known}
    part = world.hand_out(S, 8, 10)
    world.claim(1)
    world.acknowledge(S, 10)
    assert world.done == [part]


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_a_drain_waits_for_subscriptions_of_the_present_session_only(sessions: int) -> None:
    """The client has requested number 2 on an earlier session, and sends nothing for it now."""
    world = World(1, 2)
    world.claim(2)
    for _ in range(sessions):
        world.connect()
    world.claim(1)
    part = world.hand_out(S, 1, 2)
    over = [*world.client.subscriptions.values()]
    world.take(world.own.end(world.client, over, drain=True))
    world.client.drains = True
    world.own.answer_detach(world.client)
    assert world.client.drains
    world.acknowledge(S, 2)
    assert world.done == [part]
    world.own.answer_detach(world.client)
    assert not world.client.drains
    assert world.own.started == 0


def test_an_end_without_a_drain_completes_what_was_not_sent() -> None:
    world = World(1, 2)
    world.claim(2)
    world.connect()
    part = world.hand_out(S, 1, 2)
    world.take(world.own.end(world.client, [*world.client.subscriptions.values()]))
    assert world.done == [part]
    assert world.own.windows.is_drained("c")


def test_a_publisher_receives_each_acknowledgement_once_per_session() -> None:
    world = World()
    for _ in range(2):
        world.connect()
        world.client.submitted = 5
        for done in (3, 3, 9, 9):
            world.own.acknowledge_through(world.client, done)
        assert world.received() == [PublishAcknowledged(1, 3), PublishAcknowledged(4, 5)]
    world.client.connected, world.client.submitted = False, 9
    world.own.acknowledge_through(world.client, 9)
    assert not world.received()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_confirmed_subscription_is_owed_a_gap_if_a_part_of_it_is_lost(is_whole: bool) -> None:
    world = World(1, 2)
    restored = RestoredSubscriptions(world.machine)
    one, two = world.client.subscriptions.values()
    for each in (one, two):
        restored.recover(each, {CONFIRMED: {two.row: 9}}, 9)
    assert [restored.is_doubtful(each) for each in (one, two)] == [True, False]
    one.is_restarted = not is_whole
    world.client.lost_positions = {1: {S: 3}, 2: {S: 4}}
    confirmation = restored.request(world.client, one, 9)
    assert restored.is_requested(one, world.client.session)
    assert restored.confirm(confirmation)
    assert not restored.is_doubtful(one)
    assert world.client.lost_positions == {**({} if is_whole else {1: {S: 3}}), 2: {S: 4}}
    assert restored.list_whole(world.client) == ([1, 2] if is_whole else [2])
