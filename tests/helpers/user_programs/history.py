"""The publications and deliveries of a random program, as its processes see them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from brokerd.client.application import Publication, publications_of
from brokerd.client.events import GapAnnounced
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Scalar

Attributes = Mapping[str, Scalar]
Fate = Literal["calling", "published", "cancelled", "doubtful"]
"""The result of a publish call; a doubtful publication may arrive or not."""

SEPARATOR: Final = b"|"


@dataclass
class Published:
    """A publication of a program.

    Attributes:
        call: number of the publish call.
        size_bytes: size of the payload, which begins with the name.
        sequence: number that the client returned; 0 without.
        source: the client's source; None if it was not known at the end of its process.
    """

    attributes: Attributes
    call: int
    size_bytes: int
    fate: Fate = "calling"
    sequence: int = 0
    source: SourceId | None = None


@dataclass
class History:
    """The publications of a program.

    Attributes:
        published: publications by name, `PUBLISHER-NUMBER`.
        calls: number of publish calls.
        is_disturbed: True once a broker or a connection has failed, or a client has moved.
    """

    published: dict[str, Published] = field(default_factory=dict)
    calls: int = 0
    is_disturbed: bool = False

    def doubt(self, names: list[str]) -> None:
        """Record that these publications may arrive or not."""
        for name in names:
            self.published[name].fate = "doubtful"


@dataclass(frozen=True)
class Receipt:
    """A publication as an application received it.

    Attributes:
        source: the source; a publisher that moves continues as another source.
        task, call: the task and its call that received it; each task receives in order.
    """

    name: str
    source: SourceId
    sequence: int
    attributes: Attributes
    size_bytes: int
    redelivered: bool
    task: int
    call: int


@dataclass(frozen=True)
class Gap:
    """A gap as an application was notified of it.

    Attributes:
        call: number of the last publish call before; no later publication is in the gap.
    """

    announced: GapAnnounced
    call: int


@dataclass
class SubscriptionRecord:
    """The deliveries of one subscription.

    Attributes:
        started: number of the last publish call before the start; None before the start.
        ended: once the application has ended the subscription, the last call of each task before.
    """

    predicate: str
    started: int | None = None
    ended: dict[int, int] | None = None
    receipts: list[Receipt] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def end(self, calls: dict[int, int]) -> None:
        """Record the end; a call of another task may have taken deliveries before."""
        self.ended = dict(calls)

    def add(self, receipt: Receipt) -> None:
        """Record a delivery."""
        if self.ended is not None and receipt.call > self.ended.get(receipt.task, 0):
            self.faults.append(f"{receipt.name} after the end")
        self.receipts.append(receipt)


def receipt_of(publication: Publication, task: int = 0, call: int = 0) -> Receipt:
    """Return the receipt of a publication."""
    name = publication.payload.partition(SEPARATOR)[0].decode()
    return Receipt(
        name,
        publication.source,
        publication.sequence,
        publication.attributes,
        len(publication.payload),
        publication.redelivered,
        task,
        call,
    )


def singles_of(item: Publication | Deliveries) -> list[Publication]:
    """Return the publications of a run, or a publication by itself."""
    return [item] if isinstance(item, Publication) else list(publications_of(item))
