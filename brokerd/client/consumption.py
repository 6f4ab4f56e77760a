"""Deliveries of a subscription with positions kept by the broker, until they are committed.

The application receives one publication after the other, up to a limit before it commits.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from brokerd.client.core import ClientCore
from brokerd.client.events import GapsAnnounced, Received
from brokerd.model.identity import SourceId
from brokerd.model.publication import Buffer


class Consumed(Protocol):
    """The application's own record of the publications that it has consumed."""

    def has(self, source: SourceId, sequence: int) -> bool:
        """Return True if this publication was consumed; called only for possible redeliveries."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """One publication that is delivered to the application.

    Attributes:
        redelivered: True if an earlier process may have received the publication.
        serial: serial number of the message that delivered the publication.
    """

    source: SourceId
    sequence: int
    blob: bytes
    payload: Buffer
    redelivered: bool
    serial: int


_Delivery = Taken | GapsAnnounced
_Item = _Delivery | Received
"""A delivery, a gap, or silence, which is not reported to the application."""


class Consumption:
    """The deliveries of one subscription of a client, from arrival to the commit request.

    Args:
        most: number of publications that the application receives before it commits.
        consumed: the application's record; redeliveries of consumed publications are withheld.

    Attributes:
        dropped: number of redeliveries withheld for that reason.
    """

    def __init__(
        self, core: ClientCore, number: int, most: int, consumed: Consumed | None = None
    ) -> None:
        self.dropped = 0
        self._core = core
        self._number = number
        self._most = most
        self._consumed = consumed
        self._arrivals: deque[Received | GapsAnnounced] = deque()
        self._open: deque[_Item] = deque()
        self._processed: list[_Item] = []
        self._delivered = 0

    def put(self, event: Received | GapsAnnounced) -> None:
        """Add a delivery that has arrived."""
        self._arrivals.append(event)

    @property
    def is_uncommitted(self) -> bool:
        """Return True if the application has received anything since its last commit."""
        return bool(self._processed)

    @property
    def is_full(self) -> bool:
        """Return True if a commit must precede further deliveries."""
        return self._delivered >= self._most

    def next(self) -> _Delivery | None:
        """Return the next delivery or gap; None if there is none, or a commit must precede."""
        while not self.is_full:
            if not self._open:
                if not self._arrivals:
                    return None
                self._unpack(self._arrivals.popleft())
                continue
            item = self._open.popleft()
            if isinstance(item, Received) and not self._processed:
                # The application received nothing: the broker is notified, and no task waits for
                # the answer.
                self._core.progress.commit_through(item.serial)
                self._core.request_commit(self._number)
                continue
            self._processed.append(item)
            if isinstance(item, Received):
                continue
            if isinstance(item, GapsAnnounced):
                return item
            if self._is_consumed(item):
                self.dropped += 1
                continue
            self._delivered += 1
            return item
        return None

    def _is_consumed(self, item: Taken) -> bool:
        return (
            item.redelivered
            and self._consumed is not None
            and self._consumed.has(item.source, item.sequence)
        )

    def commit(self) -> int:
        """Request a commit of all deliveries.

        Return the number of the request, or 0 if there are none.
        """
        if not self._processed:
            return 0
        last = self._processed[-1]
        if isinstance(last, Taken):
            self._core.progress.commit_consumed(
                self._number, last.serial, last.source, last.sequence
            )
        else:
            self._core.progress.commit_through(last.serial)
        self._processed, self._delivered = [], 0
        return self._core.request_commit(self._number)

    def roll_back(self) -> None:
        """Queue the deliveries since the last commit again."""
        self._open.extendleft(reversed(self._processed))
        self._processed, self._delivered = [], 0

    def _unpack(self, event: Received | GapsAnnounced) -> None:
        if isinstance(event, Received) and event.deliveries:
            self._open.extend(_publications(event))
        else:
            self._open.append(event)


def _publications(event: Received) -> Iterator[Taken]:
    for item in event.deliveries:
        for sequence, blob, payload in item.run.publications():
            yield Taken(item.run.source, sequence, blob, payload, item.redelivered, event.serial)
