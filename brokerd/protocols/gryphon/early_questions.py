"""What is asked of a broker while it reads its log: once, however often its neighbours ask.

They ask again until they are answered, and it has said nothing yet. Each time would be answered
with the same events, in the window for answers that others wait for.

Paper: [GD02] §3.1 (consolidation of curiosity); a restart is not told there.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.intervals import IntervalSet
from brokerd.protocols.gryphon.messages import Nack
from brokerd.protocols.interface import MessageReceived


def asked_once(early: Iterable[Any]) -> Iterator[Any]:
    """The events that wait for a log, without what was asked before on the same session."""
    asked: dict[tuple[object, int, StreamId], IntervalSet] = {}
    for event in early:
        if type(event) is not MessageReceived or type(event.message) is not Nack:
            yield event
            continue
        nack = event.message
        before = asked.setdefault((event.peer, event.session, nack.stream), IntervalSet())
        if not nack.ranges or any(start >= end for start, end in nack.ranges):
            yield event  # malformed: it ends the session
            continue
        fresh = tuple(gap for start, end in nack.ranges for gap in before.gaps(start, end))
        for start, end in fresh:
            before.add(start, end)
        if fresh:
            yield MessageReceived(event.peer, event.session, Nack(nack.stream, fresh))
