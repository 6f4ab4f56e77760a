"""The progress that clients have proved, on disk: an older copy of a client's store states less.

A publisher proves the highest number of its source, a subscriber the positions that it has
acknowledged. Both are written lazily, at most once in WRITE_INTERVAL_NS, in one transaction: no
message waits for them. After a crash of the broker, the progress of the last interval is lost, and
a copy of a store that was made in that interval is not detected.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from brokerd.model.identity import ClientId, SourceId, StreamId
from brokerd.protocols.interface import Change
from brokerd.units import SECOND_NS

PUBLISHER_PROGRESS: Final = "publisher_progress"
SUBSCRIBER_PROGRESS: Final = "subscriber_progress"

WRITE: Final = "write progress"
"""Purpose of the deadline at which new progress is written."""

WRITE_INTERVAL_NS: Final = 5 * SECOND_NS

MOST_PUBLISHERS: Final = 65_536
"""The number of publishers with progress; that of the longest absent publisher is forgotten."""


class PublisherProgress:
    """The progress of the clients that publish as sources of one broker.

    A broker has the progress of the latest source of each client. It forgets earlier sources, and
    absent clients beyond MOST_PUBLISHERS.

    Args:
        is_written: the progress is written; else it is kept while the broker runs.

    Attributes:
        latest: the latest source of each client, with its highest number.
        unwritten: the clients whose rows have changed; None if nothing is written.
    """

    def __init__(self, *, is_written: bool) -> None:
        self.latest: dict[ClientId, tuple[SourceId, int]] = {}
        self.unwritten: dict[ClientId, None] | None = {} if is_written else None

    def recover(self, rows: Mapping[ClientId, Any]) -> None:
        """Restore the progress on disk."""
        for name, (*source, last) in rows.items():
            self.latest[name] = SourceId(*source), last

    def highest(self, name: ClientId, source: SourceId) -> int:
        """Return the highest number of a source, 0 if unknown."""
        known, last = self.latest.get(name, (None, 0))
        return last if known == source else 0

    def renew(self, name: ClientId, present: Collection[ClientId]) -> None:
        """Make a connecting client the last one to be forgotten; forget clients beyond the bound.

        Args:
            present: the clients with a session.
        """
        known = self.latest.pop(name, None)
        if known is not None:
            self.latest[name] = known
        excess = len(self.latest) - MOST_PUBLISHERS
        absent = (each for each in [*self.latest] if each not in present)
        for each in islice(absent, max(0, excess)):
            del self.latest[each]
            if self.unwritten is not None:
                self.unwritten[each] = None

    def take_changes(self) -> list[Change]:
        """Return the rows that have changed since the last call."""
        unwritten = self.unwritten or {}
        changes = []
        for name in unwritten:
            source, last = self.latest.get(name, (None, 0))
            row = (*source, last) if source is not None else None
            changes.append(Change(PUBLISHER_PROGRESS, name, row))
        unwritten.clear()
        return changes


class Progressive(Protocol):
    """A subscription with acknowledged positions."""

    acknowledged: dict[StreamId, int]

    @property
    def row(self) -> str:
        """The key of the subscription's rows on disk."""

    @property
    def is_over(self) -> bool:
        """True after the end of the subscription."""


class Acknowledged(Protocol):
    """A subscription of a client that acknowledges deliveries."""

    acknowledged: dict[StreamId, int]


Local = TypeVar("Local", bound=Acknowledged)


def list_unstated(
    subscriptions: Mapping[int, Local], stated: Iterable[tuple[int, object]]
) -> list[Local]:
    """Return the subscriptions with acknowledgements that a connecting client does not state.

    The client is a new process without the memory of the earlier one. It need not state the
    positions of that process on later sessions.
    """
    numbers = [number for number, _ in stated]
    return [
        local
        for number, local in subscriptions.items()
        if number not in numbers and local.acknowledged
    ]


def progress_rows(advanced: Iterable[Progressive]) -> Iterator[Change]:
    """Yield the rows of acknowledged positions, without those of ended subscriptions."""
    for local in advanced:
        if not local.is_over:
            row = [[*stream, last] for stream, last in local.acknowledged.items()]
            yield Change(SUBSCRIBER_PROGRESS, local.row, row or None)


def read_progress(row: Iterable[tuple[int, int, int, int]] | None) -> dict[StreamId, int]:
    """Return the acknowledged positions of a row, none without a row."""
    return {StreamId(*stream): last for *stream, last in row or ()}
