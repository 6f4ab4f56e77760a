"""A batch of acks has what is new since the last batch, once for each neighbour."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.protocols.gryphon.acknowledgements import ACKS, Acks
from brokerd.protocols.gryphon.messages import Done
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

INTERVAL_NS = 100
CELL, ABOVE, BELOW = 1, 0, 2
PARENT, SIBLINGS = 10, (21, 22)


class Member:
    """A broker of a cell of three, with one neighbour above and streams from there."""

    def __init__(self) -> None:
        self.machine = EventMachine()
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.finals: list[object] = []
        routes: Any = SimpleNamespace(
            cell=CELL, peers=SIBLINGS, cells=(ABOVE, BELOW), cell_of=lambda _: ABOVE
        )
        links: Any = SimpleNamespace(up=lambda *_, **__: (PARENT,))
        self.acks = Acks(
            self.machine, routes, links, self.deadlines, INTERVAL_NS, self.finals.append
        )

    def stream(self, number: int, upstream: int | None = ABOVE) -> Any:
        final = SimpleNamespace(final=5)
        return SimpleNamespace(
            identity=(9, number, 0), upstream=upstream, via=None, knowledge=final,
            children={BELOW}, acknowledged_by=lambda _: 7,
        )  # fmt: skip

    def batch(self) -> list[tuple[int, Done]]:
        """What the next batch sends; nothing without a deadline."""
        due_ns = self.deadlines.earliest()
        if due_ns is None:
            return []
        assert due_ns == self.machine.now_ns + INTERVAL_NS
        self.machine.now_ns = due_ns
        assert self.deadlines.due(due_ns) == [(ACKS, None)]
        self.acks.due()
        said = [(effect.peer, effect.message) for effect in self.machine.effects
                if isinstance(effect, Send)]  # fmt: skip
        self.machine.effects.clear()
        return said


@pytest.mark.parametrize("times", [1, 2, 4])
def test_each_ack_is_in_one_batch(times: int) -> None:
    member = Member()
    one, other = member.stream(1), member.stream(2)
    for _ in range(times):
        member.acks.on_final_advanced(one)
        member.acks.on_final_advanced(one)
        assert member.batch() == [(PARENT, Done(CELL, ((one.identity, 5),)))]
        assert member.batch() == []
        member.acks.pass_on(other, BELOW)
        done = Done(BELOW, ((other.identity, 7),))
        assert member.batch() == [(peer, done) for peer in SIBLINGS]
        assert member.batch() == []
        member.acks.on_final_advanced(other)
        assert member.batch() == [(PARENT, Done(CELL, ((other.identity, 5),)))]
    assert member.finals == []


def test_at_its_pubend_a_final_tick_goes_no_further() -> None:
    member = Member()
    own = member.stream(1, upstream=None)
    member.acks.on_final_advanced(own)
    assert member.finals == [own]
    assert member.batch() == []


def test_a_neighbour_with_a_new_session_gets_all_that_is_its_own() -> None:
    member = Member()
    streams = [member.stream(1), member.stream(2, upstream=BELOW)]
    member.acks.offer(streams, PARENT)
    (sent,) = member.machine.effects
    assert sent == Send(PARENT, Done(CELL, ((streams[0].identity, 5),)))
