"""Events that were fetched lately, for those who come back a little later than the first.

Paper: [DS03] §3 (intermediate brokers cache), §5 (many reconnect at once).
"""

from collections import deque
from typing import Final

from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.intervals import IntervalSet
from brokerd.protocols.gryphon.retained import sequences_within

RUNS: Final = 64
"""So many runs are kept at most, because each is looked at for each question."""


class FetchedEvents:
    """Runs as they came; those that came first go first.

    Args:
        limit_bytes: how many bytes of payload are kept at most.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._runs: deque[PublicationRun] = deque()
        self.payload_bytes = 0

    def add(self, run: PublicationRun) -> None:
        """Keep a run of any stream."""
        self._runs.append(run)
        self.payload_bytes += run.payload_bytes()
        while self.payload_bytes > self._limit_bytes or len(self._runs) > RUNS:
            self.payload_bytes -= self._runs.popleft().payload_bytes()

    def drop_through(self, identity: StreamId, tick: int) -> None:
        """Nobody will ask for events of a stream up to a tick any more."""
        if any(run.source == identity and run.last <= tick for run in self._runs):
            kept = [run for run in self._runs if run.source != identity or run.last > tick]
            self._runs = deque(kept)
            self.payload_bytes = sum(run.payload_bytes() for run in kept)

    def take(self, identity: StreamId, left: IntervalSet) -> list[PublicationRun]:
        """The events in some ranges, which are taken out of them.

        Returns:
            Parts that have no event twice, in no order.
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
