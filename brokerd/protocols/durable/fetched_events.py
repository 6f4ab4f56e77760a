"""A cache of recently fetched events, for subscribers that return shortly after the first.

Paper: [DS03] §3 (intermediate brokers cache), §5 (many reconnect at once).
"""

from collections import deque
from typing import Final

from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon import IntervalSet, sequences_within

RUNS: Final = 64
"""The most cached runs, because every run is searched for every request."""


class FetchedEvents:
    """A first-in, first-out cache of runs.

    Args:
        limit_bytes: the most bytes of payload.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._runs: deque[PublicationRun] = deque()
        self.payload_bytes = 0

    def add(self, run: PublicationRun) -> None:
        """Cache a run of any stream."""
        self._runs.append(run)
        self.payload_bytes += run.payload_bytes()
        while self.payload_bytes > self._limit_bytes or len(self._runs) > RUNS:
            self.payload_bytes -= self._runs.popleft().payload_bytes()

    def drop_through(self, identity: StreamId, tick: int) -> None:
        """Drop events of a stream through a tick, which no broker will request any more."""
        if any(run.source == identity and run.last <= tick for run in self._runs):
            kept = [run for run in self._runs if run.source != identity or run.last > tick]
            self._runs = deque(kept)
            self.payload_bytes = sum(run.payload_bytes() for run in kept)

    def take(self, identity: StreamId, left: IntervalSet) -> list[PublicationRun]:
        """Return cached events in some ranges, and remove their ticks from the ranges.

        Returns:
            Parts without common events, in no order.
        """
        found = []
        for run in self._runs if left else ():
            if run.source != identity:
                continue
            ticks = {tick for each in left for tick in sequences_within(run, *each)}
            if ticks:
                places = [place for place, tick in enumerate(run.sequences) if tick in ticks]
                found.append(run.select(places))
                for place in places:
                    left.remove(run.sequences[place], run.sequences[place] + 1)
        return found
