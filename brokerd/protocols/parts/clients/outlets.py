"""The unfinished deliveries of a client, and their joining into fewer deliveries."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from brokerd.model.client_messages import Gap, Notice, Silence
from brokerd.model.identity import ClientId, StreamId
from brokerd.model.joined_runs import take
from brokerd.model.publication import PublicationRun


class WindowedSubscription(Protocol):
    """A subscription of a client of this broker."""

    @property
    def client(self) -> ClientId:
        """The client that subscribed."""

    @property
    def number(self) -> int:
        """The subscription's number at its client."""

    @property
    def is_over(self) -> bool:
        """True after the end of the subscription."""

    @property
    def begins_after(self) -> Mapping[StreamId, int]:
        """The client's positions by stream, as of its last Connect."""

    @property
    def acknowledged(self) -> dict[StreamId, int]:
        """By stream, the last position that the client has acknowledged."""


Instead = Notice | Silence | Gap
"""Items that a client may receive in place of publications."""

Entry = TypeVar("Entry")
Subscription = TypeVar("Subscription", bound=WindowedSubscription)


@dataclass(slots=True, eq=False)
class Parcel(Generic[Entry]):
    """Queue entries that are open until all deliveries of them are acknowledged."""

    entries: tuple[Entry, ...]
    open: int = 1


@dataclass(slots=True, eq=False)
class Delivery(Generic[Entry, Subscription]):
    """Publications for some subscriptions of one client.

    Attributes:
        remainder: the publications without an acknowledgement.
        subscriptions: empty once all of them have ended; the delivery was complete then.
        serial: the place among the deliveries of the client, in the order of creation.
        instead: the item that replaces withheld publications.
    """

    remainder: PublicationRun
    subscriptions: tuple[Subscription, ...]
    parcel: Parcel[Entry]
    serial: int
    instead: Instead | None = None


@dataclass(slots=True, eq=False)
class Outlet(Generic[Entry, Subscription]):
    """The deliveries of one client.

    Attributes:
        holds: number of the client's subscriptions that are about to start; nothing is sent before
            they have started.
        claimed: the subscriptions that the client has requested on its present session.
        parked: deliveries for subscriptions without such a request.
        waiting: deliveries that are sent as soon as the window allows.
        sent: deliveries without an acknowledgement on the present session, by stream.
        unacknowledged: number of publications in `sent`.
    """

    holds: int = 0
    claimed: dict[Subscription, None] = field(default_factory=dict)
    parked: list[Delivery[Entry, Subscription]] = field(default_factory=list)
    waiting: deque[Delivery[Entry, Subscription]] = field(default_factory=deque)
    sent: dict[StreamId, deque[Delivery[Entry, Subscription]]] = field(default_factory=dict)
    unacknowledged: int = 0


class Wholes(Protocol[Entry]):
    """Joined entries, and the accounting for deliveries of their parts.

    Attributes:
        publications, payload_bytes: limits of a joined delivery.
    """

    publications: int
    payload_bytes: int

    def part_of(self, entry: Entry) -> Entry | None:
        """Return the joined entry that replaced an entry; None if the entry was not joined."""

    def run(self, entry: Entry) -> PublicationRun:
        """Return the publications of a joined entry."""

    def count_out(self, entry: Entry, deliveries: int) -> None:
        """Reduce the number of deliveries of a joined entry."""


def join_deliveries(
    deliveries: Iterable[Delivery[Entry, Subscription]], wholes: Wholes[Entry]
) -> list[Delivery[Entry, Subscription]]:
    """Return the same deliveries, joined if their entries were joined; every stream in order.

    A delivery with separate parts for several subscriptions is not joined.
    """
    groups: list[list[Delivery[Entry, Subscription]]] = []
    open_groups: dict[StreamId, _Group[Entry, Subscription]] = {}
    for delivery in deliveries:
        stream = delivery.remainder.source
        if not _can_join(delivery, wholes):
            open_groups.pop(stream, None)
            groups.append([delivery])
            continue
        group = open_groups.get(stream)
        if group is None or not group.takes(delivery, wholes):
            group = open_groups[stream] = _Group(delivery)
            groups.append(group.deliveries)
    return [_join(group, wholes) for group in groups]


class _Group(Generic[Entry, Subscription]):
    """Consecutive deliveries of one stream for the same subscriptions."""

    def __init__(self, delivery: Delivery[Entry, Subscription]) -> None:
        self.deliveries = [delivery]
        self._publications = len(delivery.remainder)
        self._payload_bytes = delivery.remainder.payload_bytes()

    def takes(self, delivery: Delivery[Entry, Subscription], wholes: Wholes[Entry]) -> bool:
        """Add the delivery, if it may be joined with the deliveries of the group."""
        publications = self._publications + len(delivery.remainder)
        payload_bytes = self._payload_bytes + delivery.remainder.payload_bytes()
        if (
            publications > wholes.publications
            or payload_bytes > wholes.payload_bytes
            or delivery.subscriptions != self.deliveries[0].subscriptions
        ):
            return False
        self.deliveries.append(delivery)
        self._publications, self._payload_bytes = publications, payload_bytes
        return True


def _can_join(delivery: Delivery[Entry, Subscription], wholes: Wholes[Entry]) -> bool:
    entries = delivery.parcel.entries
    return (
        delivery.instead is None
        and delivery.parcel.open == 1
        and bool(delivery.subscriptions)
        and bool(entries)
        and all(wholes.part_of(entry) is not None for entry in entries)
    )


def _join(
    group: list[Delivery[Entry, Subscription]], wholes: Wholes[Entry]
) -> Delivery[Entry, Subscription]:
    """Return one delivery for a group, of the entries that the group's entries were joined in."""
    if not _can_join(group[0], wholes):
        return group[0]
    counts: dict[Entry, int] = {}
    for delivery in group:
        for entry in delivery.parcel.entries:
            whole = wholes.part_of(entry)
            assert whole is not None, f"{entry} is no part of anything"
            counts[whole] = counts.get(whole, 0) + 1
    numbers = [number for delivery in group for number in delivery.remainder.sequences]
    left = take([wholes.run(whole) for whole in counts], numbers)
    for whole, count in counts.items():
        wholes.count_out(whole, count - 1)
    first = group[0]
    return Delivery(left, first.subscriptions, Parcel(tuple(counts)), first.serial)
