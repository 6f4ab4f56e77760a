"""Consolidation of nacks that arrive while a broker reads its log.

Neighbours repeat nacks until an answer arrives, and the broker sends none while it reads. Every
repetition would be answered with the same events, in the window of answers for other nacks.

Paper: [GD02] §3.1 (consolidation of curiosity); a restart is not described there.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.intervals import IntervalSet
from brokerd.protocols.gryphon.messages import Nack
from brokerd.protocols.interface import MessageReceived


def drop_repeated(early: Iterable[Any]) -> Iterator[Any]:
    """Yield the events that wait for a log, without repeated requests on the same session."""
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
