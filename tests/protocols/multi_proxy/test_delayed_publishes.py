"""Publish requests wait for a slow follower, and only as long as the follower progresses."""

from collections.abc import Callable, Iterable
from random import Random

import pytest

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.multi_proxy.followers import HELD, DelayedPublishes
from brokerd.protocols.multi_proxy.messages import Put
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.retention import Topic
from brokerd.protocols.multi_proxy.state import Part
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

SERVER, HOME, OTHER, TOPIC = 1, 2, 3, 1
WINDOW, PATIENCE_NS, TIMEOUT_NS = 4, 1_000, 100


class Room:
    """The topic of a server; every request is one publication at the next position."""

    def __init__(self) -> None:
        self.machine = EventMachine()
        self.deadlines: DeadlineQueue[tuple[str, object]] = DeadlineQueue()
        self.topic = Topic(Part(SERVER, TOPIC))
        self.appended: list[int] = []
        self.held: list[int] = []
        self.sequence = 0
        self.puts = DelayedPublishes(
            self.machine,
            self.deadlines,
            MultiProxyParameters(
                topic_window=WINDOW, patience_ns=PATIENCE_NS, timeout_ns=TIMEOUT_NS
            ),
        )

    def _append(self, ready: Iterable[Put]) -> None:
        for put in ready:
            self.appended.append(put.run.last)
            self.topic.assigned += 1

    def put(self) -> bool:
        """Make another request; return True if the request does not wait."""
        self.sequence += 1
        numbers = range(self.sequence, self.sequence + 1)
        run = PublicationRun(SourceId(9, 0, 1), numbers, (b"a",), b"\0", 0, ())
        put = Put(SERVER, HOME, TOPIC, self.sequence - 1, run)
        if self.puts.delays(self.topic, put):
            self.held.append(put.run.last)
        else:
            self._append([put])
        return self.appended[-1:] == [self.sequence]

    def got(self, home: int, after: int) -> None:
        self._append(self.puts.on_progress(home, self.topic, after))

    def advance(self, by_ns: int) -> None:
        end_ns = self.machine.now_ns + by_ns
        while (due_ns := self.deadlines.earliest()) is not None and due_ns <= end_ns:
            self.machine.now_ns = due_ns
            assert self.deadlines.due(due_ns) == [(HELD, TOPIC)]
            self._append(self.puts.list_ready(self.topic))
            self.held += [put.run.last for put in self.puts.list_late(self.topic)]
        self.machine.now_ns = end_ns

    def fill(self) -> None:
        """Make requests until one waits."""
        while self.put():
            assert self.sequence < 1_000, "nothing ever waits"


def waits_ns(room: Room, meanwhile: Callable[[Room], None]) -> int:
    """Return the waiting time of the oldest delayed request."""
    began_ns, before = room.machine.now_ns, len(room.appended)
    while len(room.appended) == before:
        meanwhile(room)
        room.advance(TIMEOUT_NS // 2)
        assert room.machine.now_ns - began_ns < 5 * PATIENCE_NS, "it waits for ever"
    return room.machine.now_ns - began_ns


def nothing(_: Room) -> None:
    """Keep the follower silent."""


def asks_again(room: Room) -> None:
    """Repeat the follower's last request, without progress."""
    room.got(HOME, 3)


def asks_for_less(room: Room) -> None:
    """Receive a request of the follower that an earlier request overtook."""
    room.got(HOME, 2)


def others_have_all(room: Room) -> None:
    room.got(OTHER, room.topic.assigned)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("meanwhile", [nothing, asks_again, asks_for_less, others_have_all])
def test_a_follower_that_takes_nothing_holds_up_publishers_for_its_patience_only(
    meanwhile: Callable[[Room], None], times: int
) -> None:
    """Progress of the follower restarts its patience."""
    room = Room()
    for _ in range(times):
        room.got(HOME, room.topic.assigned)
        room.fill()
        assert waits_ns(room, meanwhile if times == 1 else nothing) <= PATIENCE_NS
        assert room.put(), "it is waited for no more"
    room.got(HOME, room.topic.assigned)
    room.fill()
    assert waits_ns(room, nothing) == PATIENCE_NS


def test_a_follower_that_asks_again_is_waited_for_no_longer() -> None:
    room = Room()
    room.got(HOME, 3)
    room.fill()
    assert waits_ns(room, asks_again) == PATIENCE_NS
    for _ in range(10):
        asks_again(room)
        assert room.put()


@pytest.mark.parametrize("seed", range(60))
def test_requests_keep_their_order_and_none_is_lost(seed: int) -> None:
    random, room = Random(seed), Room()
    positions = {HOME: 0, OTHER: 0}
    for _ in range(200):
        match random.randrange(4):
            case 0 | 1:
                room.put()
            case 2:
                home = random.choice((HOME, OTHER))
                positions[home] = min(room.topic.assigned, positions[home] + random.randrange(6))
                room.got(home, positions[home])
            case 3:
                room.advance(random.choice((1, TIMEOUT_NS, PATIENCE_NS // 2)))
        assert room.appended + [
            each for each in range(1, room.sequence + 1) if each not in room.appended
        ] == [*range(1, room.sequence + 1)]
        waiting = room.sequence - len(room.appended)
        assert room.puts.count() == waiting
        assert ((HELD, TOPIC) in room.deadlines) == bool(waiting)
    for home in (HOME, OTHER):
        room._append(room.puts.remove_follower(home, room.topic))
    assert room.appended == [*range(1, room.sequence + 1)]
