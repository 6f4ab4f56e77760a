"""Batches of missed ticks of a subscription in a stream, the oldest first.

Paper: [DS03] §4.2 (batch read).
"""

from collections import deque
from dataclasses import dataclass

from brokerd.protocols.durable.filter_log import FilterLog
from brokerd.protocols.durable.filter_records import NO_RECORD
from brokerd.protocols.interface import LogEffect


@dataclass(frozen=True, slots=True)
class Batch:
    """The ticks after `after`, through `upto`, that are for a subscription.

    Attributes:
        unknown_through: the truncated part of the log, in which nothing is determined, ends here;
            `after` without one.
        ticks: the later ticks for the subscription, lowest first; all others through `upto` are
            not.
    """

    after: int
    unknown_through: int
    ticks: tuple[int, ...]
    upto: int


class BatchReader:
    """A reader for a subscription, one batch at a time.

    Reading goes back from the newest record, and finds the oldest last; a small batch is a small
    part of a long walk. So batch ends are marked during the walk, and the next batch begins at the
    lowest mark that has a whole batch below: a backlog is walked three times at most, not once per
    batch.

    Args:
        most: the most ticks in a batch.

    Attributes:
        visited: the number of records visited.
    """

    def __init__(self, log: FilterLog, subscription: int, most: int) -> None:
        assert most > 0, f"batches of {most}"
        self.visited = 0
        self._log = log
        self._subscription = subscription
        self._most = most
        self._marks: list[tuple[int, int]] = []
        self._after = self._limit = self._upto = 0
        self._index = NO_RECORD
        self._walked = 0
        self._found: deque[int] = deque()

    def begin(self, after: int, through: int, position: int) -> None:
        """Begin to read the subscription's ticks after `after`, through `through`.

        Args:
            position: the tick through which everything was written; at least the last written
                tick.
        """
        log = self._log
        self._after, self._limit = after, max(after, log.chopped_tick)
        self._upto = min(through, max(position, log.last_tick))
        self._index, self._walked = log.newest(self._subscription), 0
        self._found = deque()
        while self._marks and self._marks[-1][0] <= self._limit:
            self._marks.pop()
        if len(self._marks) > 1:
            tick, self._index = self._marks[-2]
            self._upto = min(self._upto, tick)

    def step(self) -> tuple[Batch | None, list[LogEffect]]:
        """Continue as far as records are in memory.

        Returns:
            The batch once complete; until then the reads to do before the next step.
        """
        log = self._log
        while log.has(self._index):
            record = log.record(self._index)
            if record is None:
                return None, log.read(self._index)
            self.visited += 1
            if record.tick <= self._limit:
                break
            if record.tick <= self._upto:
                self._take(record.tick)
            self._index = record.before(self._subscription)
        limit = max(self._limit, log.chopped_tick)
        ticks = tuple(tick for tick in self._found if tick > limit)
        return Batch(self._after, limit, ticks, max(self._upto, limit)), []

    def _take(self, tick: int) -> None:
        self._found.appendleft(tick)
        self._walked += 1
        if self._walked % self._most == 0 and (not self._marks or tick < self._marks[-1][0]):
            self._marks.append((tick, self._index))
        if len(self._found) > self._most:
            self._upto = self._found.pop() - 1
