"""Tests of a client after an episode: it behaves like a new client at the same positions.

An episode is any mix of deliveries, repetitions, silence, gaps and lost sessions.
"""

from random import Random
from typing import Any

import pytest

from brokerd.client.core import ClientCore
from brokerd.client.events import GapsAnnounced, Received, Withheld
from brokerd.client.restart import restart, state_of
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Gap,
    PublishAcknowledged,
    Silence,
    Subscribed,
    Unsubscribed,
)
from brokerd.model.identity import SourceId
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import PublicationRun

STREAMS = (SourceId(1, 0, 1), SourceId(2, 0, 1))


def connect(core: ClientCore) -> tuple[Any, ...]:
    """Start a session; return the positions that the client reports."""
    core.on_established()
    said, *_ = core.messages_to_send()
    core.on_message(Connected(None, 1))
    assert isinstance(said, Connect)
    return said.resume


def client() -> ClientCore:
    core = ClientCore("c", publishes=False)
    connect(core)
    core.subscribe(EVERYTHING)
    core.subscribe(EVERYTHING)
    core.messages_to_send()
    return core


class Broker:
    """Messages of a broker with random repetitions, equal for all of its clients."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.last = dict.fromkeys(STREAMS, 0)

    def next(self) -> Any:
        random, stream = self.random, self.random.choice(STREAMS)
        first = max(1, self.last[stream] + 1 - random.choice((0, 0, 0, 1, 4)))
        last = first + random.randrange(4)
        self.last[stream] = max(last, self.last[stream])
        numbers = random.choice(((1,), (2,), (1, 2), (1, 2)))
        match random.randrange(8):
            case 0:
                return Silence(numbers, stream, first, last)
            case 1:
                return Gap(numbers, stream, first, last, "lost")
            case _:
                count = last - first + 1
                run = PublicationRun(
                    stream, range(first, last + 1), (b"a",), bytes(count), 1, (bytes(count),)
                )
                return Deliveries(run, numbers)


def told(core: ClientCore, message: Any) -> list[Any]:
    """Return the deliveries to the application and the replies to the broker after a message."""
    found: list[Any] = []
    for event in core.on_message(message):
        match event:
            case Received():
                found += [(each.run.source, *each.run.sequences, each.subscriptions)
                          for each in event.deliveries]  # fmt: skip
            case Withheld():
                run = event.deliveries.run
                found.append(("withheld", run.source, *run.sequences))
            case GapsAnnounced():
                found += [("gap", *vars_of(gap)) for gap in event.gaps]
        if hasattr(event, "serial"):
            core.progress.take(event.serial)
    return [*found, *(each for each in core.messages_to_send() if isinstance(each, Acknowledge))]


def vars_of(gap: Any) -> tuple[Any, ...]:
    return tuple(getattr(gap, name) for name in type(gap).__dataclass_fields__)


@pytest.mark.parametrize("seed", range(100))
def test_a_client_after_an_episode_is_like_a_new_one_at_its_positions(seed: int) -> None:
    broker, old = Broker(seed), client()
    for _ in range(broker.random.randrange(1, 60)):
        told(old, broker.next())
        if broker.random.random() < 0.1:
            connect(old)
            old.messages_to_send()
    new = client()
    for number, positions in connect(old):
        new.on_message(Subscribed(number, "started", positions))
    connect(new)
    for each in (old, new):
        each.messages_to_send()
    before = old.progress.duplicates
    for _ in range(60):
        message = broker.next()
        assert told(old, message) == told(new, message), message
    assert old.progress.duplicates - before == new.progress.duplicates
    assert sorted(connect(old)) == sorted(connect(new))


@pytest.mark.parametrize("seed", range(50))
def test_no_publication_is_given_twice_over_many_sessions(seed: int) -> None:
    """A plain table of the deliveries per subscription is the twin."""
    broker, core = Broker(seed), client()
    had: dict[tuple[int, SourceId], int] = {}
    for _ in range(200):
        message = broker.next()
        numbers, stream = (
            (message.subscriptions, message.run.source)
            if isinstance(message, Deliveries)
            else (message.subscriptions, message.stream)
        )
        last = message.run.last if isinstance(message, Deliveries) else message.last
        expected = {
            (number, place)
            for number in numbers
            for place in (message.run.sequences if isinstance(message, Deliveries) else ())
            if place > had.get((number, stream), 0)
        }
        given = {
            (number, place)
            for each in told(core, message)
            if isinstance(each, tuple) and isinstance(each[0], SourceId)
            for number in each[-1]
            for place in each[1:-1]
        }
        assert given == expected
        for number in numbers:
            had[number, stream] = max(had.get((number, stream), 0), last)
        if broker.random.random() < 0.1:
            resumed = dict(connect(core))
            core.messages_to_send()
            for (number, stream_of), position in had.items():
                assert dict(resumed[number])[stream_of] == position


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_successor_takes_over_what_its_present_session_delivered(sessions: int) -> None:
    """Items of an earlier session have no acknowledgement here: the broker repeats the items."""
    predecessor = client()
    successor = predecessor.successor()
    for lost in range(sessions):
        connect(successor)
        for number in (1, 2):
            successor.on_message(Subscribed(number, "started"))
        successor.messages_to_send()
        run = PublicationRun(STREAMS[0], range(1, 4 + lost), (b"",), bytes(3 + lost), 0, ())
        successor.on_message(Deliveries(run, (1, 2)))
        successor.on_lost()
    connect(successor)
    successor.messages_to_send()
    run = PublicationRun(STREAMS[0], range(1, 3), (b"",), bytes(2), 0, ())
    successor.on_message(Deliveries(run, (1, 2)))
    events = successor.take_over(predecessor)
    received = [item for each in events if isinstance(each, Received) for item in each.deliveries]
    assert {number for item in received for number in item.run.sequences} == {1, 2}


@pytest.mark.parametrize("unsent", [0, 2])
def test_a_restarted_publisher_states_the_highest_number_that_it_may_have_sent(unsent: int) -> None:
    """No broker may acknowledge a later number."""
    core = ClientCore("c", publishes=True, keeps_state=True)
    core.on_established()
    core.revision.on_saved(core.revision.current)
    core.messages_to_send()
    core.on_message(Connected(STREAMS[0], 1))
    for _ in range(3):
        core.outgoing.publish(b"", b"")
    core.revision.on_saved(core.revision.current)
    core.messages_to_send()
    for _ in range(unsent):
        core.outgoing.publish(b"", b"")
    again = restart(state_of(core))
    again.on_established()
    again.revision.on_saved(again.revision.current)
    said, *_ = again.messages_to_send()
    assert isinstance(said, Connect)
    assert (said.next_sequence, said.highest_sequence) == (1, 3 + unsent)
    again.on_message(Connected(STREAMS[0], 1))
    with pytest.raises(RemoteProtocolError, match="never sent here"):
        again.on_message(PublishAcknowledged(1, 4 + unsent))
    again.on_message(PublishAcknowledged(1, 3 + unsent))
    assert not len(again.outgoing)


def test_an_ended_subscription_is_neither_stated_nor_in_the_way() -> None:
    """The broker has confirmed the start and the end."""
    core, new = client(), client()
    for number in (1, 2):
        core.on_message(Subscribed(number, "started", ((STREAMS[0], 7),)))
        core.unsubscribe(number)
        core.on_message(Unsubscribed(number))
    assert connect(core) == ()
    assert core._unfinished() == new._unfinished()
    assert [*core.subscriptions.started] == []


def test_a_client_that_left_publishes_as_a_new_one() -> None:
    core, new = (ClientCore("c", publishes=True) for _ in range(2))
    core.on_established()
    core.messages_to_send()
    core.on_message(Connected(STREAMS[0], 1))
    for _ in range(3):
        core.outgoing.publish(b"", b"")
    core.messages_to_send()
    core.on_message(PublishAcknowledged(1, 3))
    core.outgoing.renew()
    for each in (core, new):
        each.on_established()
    (said, *_), (wanted, *_) = core.messages_to_send(), new.messages_to_send()
    assert said == wanted
    for each in (core, new):
        each.on_message(Connected(STREAMS[1], 1))
        each.outgoing.publish(b"", b"")
        each.messages_to_send()
        with pytest.raises(RemoteProtocolError, match="never sent here"):
            each.on_message(PublishAcknowledged(1, 2))
