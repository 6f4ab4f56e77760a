"""One stream at a broker of durable subscribers, and how far it is on this broker's disk.

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
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.gryphon.subend import Delivered

DELIVERED: Final = "delivered"
"""Per stream, the tick up to which all matches are on disk, and were given to who is here."""


WRITTEN: Final = "written"
"""Per stream, the index behind the last record of its matches, as of then."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one commit covers.

    Attributes:
        delivered: per stream, up to where matches are on disk, or will be first.
        written: and behind which record of them that is.
        acknowledged: per lane, up to where its client has all.
    """

    delivered: Mapping[StreamId, int]
    written: Mapping[StreamId, int]
    acknowledged: Mapping[Lane, int]


class HostedStream:
    """One stream here.

    Attributes:
        log: its matches.
        delivered: all up to here is on disk, and that it is, or is on its way there.
        delivered_on_disk: that is on disk; a restart goes on from there.
        seen: the position as of the last time that anything was done about it.
        reading: lanes that wait for the log.
    """

    def __init__(self, identity: StreamId, streams: Callable[[StreamId], Stream]) -> None:
        self.identity = identity
        self.log = FilterLog(log_of(identity))
        self.delivered = self.delivered_on_disk = self.seen = 0
        self.reading: dict[Lane, None] = {}
        self._streams = streams
        self._stream: Stream | None = None
        self._open: deque[tuple[int, Delivered]] = deque()

    @property
    def stream(self) -> Stream:
        """What is known of it."""
        found = self._stream
        if found is None:
            found = self._stream = self._streams(self.identity)
        return found

    @property
    def position(self) -> int:
        """Everything up to here was given to all who are live, and its matches were written."""
        return self.stream.subend.position

    @property
    def is_ahead(self) -> bool:
        """Whether there is anything to commit."""
        return self.position > self.delivered or bool(self._open)

    def released(self, subscriptions: Iterable[DurableSubscription]) -> int:
        """Everybody has acknowledged what is up to here, and that is on disk."""
        committed = [each.lane(self.identity).committed for each in subscriptions]
        return min([self.delivered_on_disk, *committed])

    def opened(self, last: int, entry: Delivered) -> None:
        """Matches up to a tick are not on disk yet."""
        self._open.append((last, entry))

    def commit(self, delivered: int) -> list[Delivered]:
        """All up to here is on disk; returns what is done by that."""
        self.delivered = max(self.delivered, delivered)
        self.delivered_on_disk = max(self.delivered_on_disk, delivered)
        done = []
        while self._open and self._open[0][0] <= delivered:
            done.append(self._open.popleft()[1])
        return done
