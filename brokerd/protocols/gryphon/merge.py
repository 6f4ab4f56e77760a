"""Total order: the events of all pubends as one sequence, the same at every broker.

Events go to clients in the order of their ticks, and of their pubends where ticks are equal, as
far as nothing is unknown of any pubend. No broker needs to know of another one for that.

Paper: [GD02] §2.3 (total order, merge). Deviates: an idle pubend says nothing by itself; whoever
holds an event back for it asks it (DCT), and its pubend assigns silence up to there.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence

from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.stream import Stream


class Merge:
    """The streams that are handed out as one; where ticks are equal, in their own order.

    Args:
        stream: the state of one.
    """

    def __init__(self, stream: Callable[[StreamId], Stream]) -> None:
        self._group: list[StreamId] = []
        self._stream = stream

    def __iter__(self) -> Iterator[Stream]:
        """All of them."""
        return map(self._stream, self._group)

    def add(self, identity: StreamId) -> None:
        """Wait for one more from now on, of which nothing was handed out."""
        self._stream(identity)
        insort(self._group, identity)

    def next_runs(self) -> list[PublicationRun]:
        """What can be handed out now, in order; from here on it counts as handed out."""
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
        return merged(parts)

    def doubted(self) -> tuple[int, list[Stream]]:
        """The last event that is known here, and the streams that are unknown below it."""
        last = max((each.knowledge.events.last for each in self), default=0)
        lacking = [each for each in self if each.knowledge.horizon(each.subend.position) < last]
        return last, lacking


def merged(parts: Sequence[PublicationRun]) -> list[PublicationRun]:
    """Runs of different streams, cut so that all ticks are in order; equal ones as the runs are."""
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
