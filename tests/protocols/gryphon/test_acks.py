"""A batch of acks has the changes since the last batch, once for every neighbour."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.acknowledgements import ACKS, Acknowledgements
from brokerd.protocols.gryphon.messages import Done
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.state import Stream
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.deadlines import DeadlineQueue

INTERVAL_NS = 100
CELL, ABOVE, BELOW = 1, 0, 2
PARENT, SIBLINGS = 10, (21, 22)


class Member:
    """A broker in a cell of three, with one upstream neighbour and its streams."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.streams: list[Any] = []
        routes: Any = SimpleNamespace(
            cell=CELL, peers=SIBLINGS, cells=(ABOVE, BELOW), cell_of=lambda _: ABOVE
        )
        links: Any = SimpleNamespace(up=lambda *_, **__: (PARENT,), senders={})
        parameters = GryphonParameters(ack_interval_ns=INTERVAL_NS)
        filters, streams = SimpleNamespace(is_on=False), self.streams
        self.acks = Acknowledgements(
            routes,
            parameters,
            streams,
            filters,
            links,
            self.deadlines,
            {},  # type: ignore[arg-type]
        )

    def stream(self, number: int, upstream: int | None = ABOVE) -> Any:
        final = SimpleNamespace(final=5)
        return SimpleNamespace(
            identity=StreamId(9, number, 0), upstream=upstream, via=None, knowledge=final,
            children={BELOW}, acknowledged_by=lambda _: 7,
        )  # fmt: skip

    def batch(self) -> list[tuple[int, Done]]:
        """Return the messages of the next batch; an empty list without a deadline."""
        due_ns = self.deadlines.earliest()
        if due_ns is None:
            return []
        assert due_ns == self.now_ns + INTERVAL_NS
        self.now_ns = due_ns
        assert self.deadlines.due(due_ns) == [(ACKS, None)]
        effects = self.acks.flush()
        return [(each.peer, each.message) for each in effects if isinstance(each, Send)]


@pytest.mark.parametrize("times", [1, 2, 4])
def test_each_ack_is_in_one_batch(times: int) -> None:
    member = Member()
    one, other = member.stream(1), member.stream(2)
    for _ in range(times):
        member.acks.add_final(one, member.now_ns)
        member.acks.add_final(one, member.now_ns)
        assert member.batch() == [(PARENT, Done(CELL, ((one.identity, 5),)))]
        assert member.batch() == []
        member.acks.add_done(other, BELOW, member.now_ns)
        done = Done(BELOW, ((other.identity, 7),))
        assert member.batch() == [(peer, done) for peer in SIBLINGS]
        assert member.batch() == []
        member.acks.add_final(other, member.now_ns)
        assert member.batch() == [(PARENT, Done(CELL, ((other.identity, 5),)))]


def test_a_final_tick_ends_at_its_pubend() -> None:
    member = Member()
    own = Stream(StreamId(9, 1, 0), None, (), GryphonParameters())
    own.subend.position = 5
    assert member.acks.settle(own, member.now_ns), "its log may be released"
    assert not member.acks.settle(own, member.now_ns), "once"
    assert member.batch() == []


def test_a_neighbour_with_a_new_session_gets_all_that_is_its_own() -> None:
    member = Member()
    member.streams += [member.stream(1), member.stream(2, upstream=BELOW)]
    (sent,) = member.acks.resend(PARENT)
    assert sent == Send(PARENT, Done(CELL, ((member.streams[0].identity, 5),)))
