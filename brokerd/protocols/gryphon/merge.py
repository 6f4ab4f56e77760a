"""Total order: the events of all pubends as one sequence, the same at every broker.

Events are delivered in the order of their ticks, and of their pubends for equal ticks, up to the
least doubt horizon of all pubends. Brokers need no agreement for that.

Paper: [GD02] §2.3 (total order, merge). Deviates: an idle pubend sends nothing unasked; a broker
with a waiting event asks the pubend (DCT), and the pubend assigns silence up to the event.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence

from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.stream import Stream


class Merge:
    """The streams that are merged into one; equal ticks in the order of the streams.

    Args:
        stream: returns the state of a stream.
    """

    def __init__(self, stream: Callable[[StreamId], Stream]) -> None:
        self._group: list[StreamId] = []
        self._stream = stream

    def __iter__(self) -> Iterator[Stream]:
        """Yield all merged streams."""
        return map(self._stream, self._group)

    def add(self, identity: StreamId) -> None:
        """Add a stream to the merge, before any of its events was delivered."""
        self._stream(identity)
        insort(self._group, identity)

    def next_runs(self) -> list[PublicationRun]:
        """Return the runs that can be delivered now, in order, and advance the positions."""
        streams = [*self]
        for each in streams:
            each.subend.position = max(each.subend.position, each.knowledge.final)
        horizons = [each.knowledge.horizon(each.subend.position) for each in streams]
        through = min(horizons, default=0)
        parts = []
        for each in streams:
            start = each.subend.position + 1
            if start <= through:
                each.subend.position = through
                part = each.knowledge.events.within(start, through + 1)
                if part is not None:
                    parts.append(part)
        return merge(parts)

    def find_doubt(self) -> tuple[int, list[Stream]]:
        """Return the last event at this broker, and the streams with unknown ticks below it."""
        last = max((each.knowledge.events.last for each in self), default=0)
        lacking = [each for each in self if each.knowledge.horizon(each.subend.position) < last]
        return last, lacking


def merge(parts: Sequence[PublicationRun]) -> list[PublicationRun]:
    """Return runs of different streams, cut into the order of ticks; equal ticks as the runs."""
    if len(parts) < 2:
        return [*parts]
    places = sorted(
        (tick, number, position)
        for number, part in enumerate(parts)
        for position, tick in enumerate(part.sequences)
    )
    found: list[PublicationRun] = []
    start = 0
    for place in range(1, len(places) + 1):
        number = places[start][1]
        if place == len(places) or places[place][1] != number:
            first, last = places[start][2], places[place - 1][2]
            found.append(parts[number].select(range(first, last + 1)))
            start = place
    return found
