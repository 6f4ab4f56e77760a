"""A stream at a broker of durable subscribers, and its position on the broker's disk.

Paper: [DS03] §4.1 (latestDelivered, released).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.filter_log import FilterLog
from brokerd.protocols.durable.lanes import DurableSubscription, Lane
from brokerd.protocols.durable.logs import log_of
from brokerd.protocols.gryphon import InFlightEvents, Stream

DELIVERED: Final = "delivered"
"""Per stream, the tick through which matches are durable and were given to live clients."""


WRITTEN: Final = "written"
"""Per stream, the index after the last record of its matches, at that tick."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a commit.

    Attributes:
        delivered: per stream, the tick through which matches are durable, or will be first.
        written: the index after the record of that tick.
        acknowledged: per lane, the tick through which the client has acknowledged.
    """

    delivered: Mapping[StreamId, int]
    written: Mapping[StreamId, int]
    acknowledged: Mapping[Lane, int]


class HostedStream:
    """A stream at this broker.

    Attributes:
        log: the matches.
        delivered: the tick through which matches are durable, and the row of it is durable or
            under way.
        delivered_on_disk: the same in a durable row; a restart continues from there.
        seen: the position at the last processing.
        reading: lanes that wait for the log.
    """

    def __init__(self, identity: StreamId, streams: Callable[[StreamId], Stream]) -> None:
        self.identity = identity
        self.log = FilterLog(log_of(identity))
        self.delivered = self.delivered_on_disk = self.seen = 0
        self.reading: dict[Lane, None] = {}
        self._streams = streams
        self._stream: Stream | None = None
        self._open: deque[tuple[int, InFlightEvents]] = deque()

    @property
    def stream(self) -> Stream:
        """The state of the stream."""
        found = self._stream
        if found is None:
            found = self._stream = self._streams(self.identity)
        return found

    @property
    def position(self) -> int:
        """The tick through which everything was given to live clients, with written matches."""
        return self.stream.subend.position

    @property
    def is_ahead(self) -> bool:
        """True if there is something to commit."""
        return self.position > self.delivered or bool(self._open)

    def released(self, subscriptions: Iterable[DurableSubscription]) -> int:
        """Return the tick through which all subscriptions have durably acknowledged."""
        committed = [each.lane(self.identity).committed for each in subscriptions]
        return min([self.delivered_on_disk, *committed])

    def mark_uncommitted(self, last: int, entry: InFlightEvents) -> None:
        """Record that matches through a tick are not durable yet."""
        self._open.append((last, entry))

    def commit(self, delivered: int) -> list[InFlightEvents]:
        """Record that everything through a tick is durable, and return the completed entries."""
        self.delivered = max(self.delivered, delivered)
        self.delivered_on_disk = max(self.delivered_on_disk, delivered)
        done = []
        while self._open and self._open[0][0] <= delivered:
            done.append(self._open.popleft()[1])
        return done
