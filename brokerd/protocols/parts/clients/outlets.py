"""What is kept of a client's deliveries, and how those that stay become fewer."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from brokerd.model.client_messages import Gap, Notice, Silence
from brokerd.model.identity import ClientId, StreamId
from brokerd.model.joined_runs import taken
from brokerd.model.publication import PublicationRun


class WindowedSubscription(Protocol):
    """A subscription of a client of this broker."""

    @property
    def client(self) -> ClientId:
        """Whose it is."""

    @property
    def number(self) -> int:
        """At its client."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""

    @property
    def begins_after(self) -> Mapping[StreamId, int]:
        """What the client has of each stream, as it said last."""


Instead = Notice | Silence | Gap
"""What may be said in place of publications."""

Entry = TypeVar("Entry")
Subscription = TypeVar("Subscription", bound=WindowedSubscription)


@dataclass(slots=True, eq=False)
class Parcel(Generic[Entry]):
    """Queue entries that are not done before all deliveries made of them are."""

    entries: tuple[Entry, ...]
    open: int = 1


@dataclass(slots=True, eq=False)
class Delivery(Generic[Entry, Subscription]):
    """Publications for some subscriptions of one client.

    Attributes:
        left: what the client has not acknowledged.
        subscriptions: none once all of them have ended; it was done then.
        serial: deliveries of one client in the order in which they were made.
        instead: what is said in place of them, if they are withheld.
    """

    left: PublicationRun
    subscriptions: tuple[Subscription, ...]
    parcel: Parcel[Entry]
    serial: int
    instead: Instead | None = None


@dataclass(slots=True, eq=False)
class Outlet(Generic[Entry, Subscription]):
    """One client's deliveries.

    Attributes:
        holds: how many of its subscriptions are about to start; nothing is sent before they
            have.
        claimed: the subscriptions it has asked for on its present session.
        parked: deliveries for subscriptions it has not.
        waiting: deliveries that will be sent as soon as the window allows.
        sent: what it has not acknowledged on its present session, by stream.
        unacknowledged: how many publications these are.
    """

    holds: int = 0
    claimed: dict[Subscription, None] = field(default_factory=dict)
    parked: list[Delivery[Entry, Subscription]] = field(default_factory=list)
    waiting: deque[Delivery[Entry, Subscription]] = field(default_factory=deque)
    sent: dict[StreamId, deque[Delivery[Entry, Subscription]]] = field(default_factory=dict)
    unacknowledged: int = 0


@dataclass(frozen=True)
class Wholes(Generic[Entry]):
    """Entries that were joined, and what to do about the deliveries of their parts.

    Attributes:
        part_of: the entry that now stands for one; None where that is still itself.
        run: the publications of a joined one.
        count_out: told that so many fewer deliveries are made of a joined one.
        publications, payload_bytes: what a joined delivery has at most.
    """

    part_of: Callable[[Entry], Entry | None]
    run: Callable[[Entry], PublicationRun]
    count_out: Callable[[Entry, int], None]
    publications: int
    payload_bytes: int


def join_deliveries(
    deliveries: Iterable[Delivery[Entry, Subscription]], wholes: Wholes[Entry]
) -> list[Delivery[Entry, Subscription]]:
    """The same deliveries, fewer where they are of joined entries; each stream's in order.

    What is for several subscriptions in parts of its own stays as it is.
    """
    groups: list[list[Delivery[Entry, Subscription]]] = []
    open_groups: dict[StreamId, _Group[Entry, Subscription]] = {}
    for delivery in deliveries:
        stream = delivery.left.source
        if not _may_be_joined(delivery, wholes):
            open_groups.pop(stream, None)
            groups.append([delivery])
            continue
        group = open_groups.get(stream)
        if group is None or not group.takes(delivery, wholes):
            group = open_groups[stream] = _Group(delivery)
            groups.append(group.deliveries)
    return [_joined(group, wholes) for group in groups]


class _Group(Generic[Entry, Subscription]):
    """Deliveries of one stream for the same subscriptions, nothing of it between them."""

    def __init__(self, delivery: Delivery[Entry, Subscription]) -> None:
        self.deliveries = [delivery]
        self._publications = len(delivery.left)
        self._payload_bytes = delivery.left.payload_bytes()

    def takes(self, delivery: Delivery[Entry, Subscription], wholes: Wholes[Entry]) -> bool:
        """Add the delivery, if it may be one with those before it."""
        publications = self._publications + len(delivery.left)
        payload_bytes = self._payload_bytes + delivery.left.payload_bytes()
        if (
            publications > wholes.publications
            or payload_bytes > wholes.payload_bytes
            or delivery.subscriptions != self.deliveries[0].subscriptions
        ):
            return False
        self.deliveries.append(delivery)
        self._publications, self._payload_bytes = publications, payload_bytes
        return True


def _may_be_joined(delivery: Delivery[Entry, Subscription], wholes: Wholes[Entry]) -> bool:
    entries = delivery.parcel.entries
    return (
        delivery.instead is None
        and delivery.parcel.open == 1
        and bool(delivery.subscriptions)
        and bool(entries)
        and all(wholes.part_of(entry) is not None for entry in entries)
    )


def _joined(
    group: list[Delivery[Entry, Subscription]], wholes: Wholes[Entry]
) -> Delivery[Entry, Subscription]:
    """One delivery for all of them, of the entries that theirs were joined in."""
    if not _may_be_joined(group[0], wholes):
        return group[0]
    counts: dict[Entry, int] = {}
    for delivery in group:
        for entry in delivery.parcel.entries:
            whole = wholes.part_of(entry)
            assert whole is not None, f"{entry} is no part of anything"
            counts[whole] = counts.get(whole, 0) + 1
    numbers = [number for delivery in group for number in delivery.left.sequences]
    left = taken([wholes.run(whole) for whole in counts], numbers)
    for whole, count in counts.items():
        wholes.count_out(whole, count - 1)
    first = group[0]
    return Delivery(left, first.subscriptions, Parcel(tuple(counts)), first.serial)
