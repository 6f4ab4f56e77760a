"""What has come of a subscription whose broker keeps how far it has come, until it is committed.

The application is given one publication after the other, so many at most before it commits.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from brokerd.client.core import ClientCore
from brokerd.client.events import GapsAnnounced, Received
from brokerd.model.identity import SourceId
from brokerd.model.publication import Buffer

Had = Callable[[SourceId, int], bool]
"""Whether the application knows that it has consumed a publication."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One publication that the application is given.

    Attributes:
        redelivered: it may have had it, from a process before.
        serial: of what it came with.
    """

    source: SourceId
    sequence: int
    blob: bytes
    payload: Buffer
    redelivered: bool
    serial: int


_Told = Taken | GapsAnnounced
_Item = _Told | Received
"""Or silence, which nobody is told."""


class Consumption:
    """One subscription of a client, from what has come to what it asks its broker to commit.

    Args:
        most: how many publications the application is given before it commits.
        had: asked of what is marked as redelivered, which is not given where it says so.

    Attributes:
        dropped: how many were not given for that reason.
    """

    def __init__(self, core: ClientCore, number: int, most: int, had: Had | None = None) -> None:
        self.dropped = 0
        self._core = core
        self._number = number
        self._most = most
        self._had = had
        self._came: deque[Received | GapsAnnounced] = deque()
        self._open: deque[_Item] = deque()
        self._taken: list[_Item] = []
        self._given = 0

    def put(self, event: Received | GapsAnnounced) -> None:
        """Something more has come."""
        self._came.append(event)

    @property
    def is_uncommitted(self) -> bool:
        """Whether the application has been given anything since it committed."""
        return bool(self._taken)

    @property
    def is_full(self) -> bool:
        """Whether it has to commit before it is given more."""
        return self._given >= self._most

    def next(self) -> _Told | None:
        """The next that the application is given or told; None: nothing, or it has to commit."""
        while not self.is_full:
            if not self._open:
                if not self._came:
                    return None
                self._unpack(self._came.popleft())
                continue
            item = self._open.popleft()
            if isinstance(item, Received) and not self._taken:
                # Nobody was given anything: the broker may know, and nobody waits for it.
                self._core.commit_through(item.serial)
                self._core.ask_to_commit(self._number)
                continue
            self._taken.append(item)
            if isinstance(item, Received):
                continue
            if isinstance(item, GapsAnnounced):
                return item
            if item.redelivered and self._had is not None and self._had(item.source, item.sequence):
                self.dropped += 1
                continue
            self._given += 1
            return item
        return None

    def commit(self) -> int:
        """Ask for all that the application was given; returns the request, or 0 for nothing."""
        if not self._taken:
            return 0
        last = self._taken[-1]
        if isinstance(last, Taken):
            self._core.commit_consumed(self._number, last.serial, last.source, last.sequence)
        else:
            self._core.commit_through(last.serial)
        self._taken, self._given = [], 0
        return self._core.ask_to_commit(self._number)

    def roll_back(self) -> None:
        """What was given since the last commit comes again."""
        self._open.extendleft(reversed(self._taken))
        self._taken, self._given = [], 0

    def _unpack(self, event: Received | GapsAnnounced) -> None:
        if isinstance(event, Received) and event.deliveries:
            self._open.extend(_publications(event))
        else:
            self._open.append(event)


def _publications(event: Received) -> Iterator[Taken]:
    for item in event.deliveries:
        for sequence, blob, payload in item.run.publications():
            yield Taken(item.run.source, sequence, blob, payload, item.redelivered, event.serial)
