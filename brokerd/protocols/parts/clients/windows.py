"""Unsent and unacknowledged deliveries of this broker's clients, in order and within a window.

A client is like a next hop: the client receives each publication once and acknowledges ranges.
Deliveries without an acknowledgement at the end of a session are sent again, in order, on the next
session.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic

from brokerd.model.client_messages import Deliveries, Gap
from brokerd.model.identity import ClientId, StreamId
from brokerd.model.losses import MARKER, without_markers
from brokerd.model.publication import PublicationRun, without
from brokerd.protocols.interface import Deliver
from brokerd.protocols.parts.clients.outlets import (
    Delivery,
    Entry,
    Instead,
    Outlet,
    Parcel,
    Subscription,
    Wholes,
    join_deliveries,
)
from brokerd.protocols.parts.event_machine import EventMachine


class DeliveryWindows(Generic[Entry, Subscription]):
    """The deliveries of all clients of one broker.

    `claim`, `close`, `discard_unsent` and `acknowledge` yield each entry once all deliveries of the
    entry are complete. The caller takes all entries: then waiting deliveries are sent.

    Args:
        window: greatest number of unacknowledged publications of a client.
        counters: contains the counter `publications_delivered`.

    Attributes:
        serial: of the last delivery.
        advanced: the subscriptions whose positions the last acknowledgement has advanced.
    """

    def __init__(
        self,
        machine: EventMachine,
        window: int,
        counters: dict[str, int],
    ) -> None:
        self._machine = machine
        self._window = window
        self._counters = counters
        self._outlets: dict[ClientId, Outlet[Entry, Subscription]] = {}
        self.serial = 0
        self.advanced: list[Subscription] = []

    def deliver(
        self,
        client: ClientId,
        run: PublicationRun,
        subscriptions: tuple[Subscription, ...],
        entries: tuple[Entry, ...],
        instead: Instead | None = None,
    ) -> None:
        """Queue publications, or the item that replaces withheld publications."""
        self.serial += 1
        outlet = self._outlet(client)
        delivery = Delivery(run, subscriptions, Parcel(entries), self.serial, instead)
        if all(local in outlet.claimed for local in subscriptions):
            outlet.waiting.append(delivery)
            self._send(client, outlet)
            return
        for local in subscriptions:
            self._park(outlet, delivery, local)
        delivery.parcel.open -= 1  # the parked parts are open
        self._send(client, outlet)

    def announce(
        self,
        client: ClientId,
        subscriptions: tuple[Subscription, ...],
        stream: StreamId,
        last: int,
        instead: Instead,
    ) -> None:
        """Queue an item about publications up to `last`, which need not have arrived here."""
        run = PublicationRun(stream, range(last, last + 1), (b"",), b"\0", 0, ())
        self.deliver(client, run, subscriptions, (), instead)

    def announce_first(self, local: Subscription, gap: Gap) -> None:
        """Queue a gap in front of all deliveries of a subscription that is not claimed.

        No effect if the same gap waits since an earlier session.
        """
        assert local not in self._outlet(local.client).claimed, f"{local} has had deliveries"
        outlet = self._outlet(local.client)
        if any(each.instead == gap and local in each.subscriptions for each in outlet.parked):
            return
        last = gap.last
        run = PublicationRun(gap.stream, range(last, last + 1), (b"",), b"\0", 0, ())
        delivery: Delivery[Entry, Subscription] = Delivery(run, (local,), Parcel(()), 0, gap)
        outlet.parked.insert(0, delivery)

    def clients_behind(self) -> list[ClientId]:
        """Return the clients with a full window and waiting deliveries."""
        window = self._window
        return [
            client
            for client, outlet in self._outlets.items()
            if outlet.waiting and outlet.unacknowledged >= window
        ]

    def claim(self, local: Subscription) -> Iterator[Entry]:
        """Send parked deliveries of a subscription that the client has requested on its session.

        Nothing is sent for a subscription before the request: a client that has lost its memory may
        not have a subscription with this number.
        """
        outlet = self._outlet(local.client)
        if local in outlet.claimed:
            return
        outlet.claimed[local] = None
        mine = [delivery for delivery in outlet.parked if local in delivery.subscriptions]
        outlet.parked = [
            delivery for delivery in outlet.parked if local not in delivery.subscriptions
        ]
        ordered = sorted(chain(outlet.waiting, mine), key=lambda item: item.serial)
        outlet.waiting = deque()
        for delivery in ordered:
            before = outlet.waiting[-1] if outlet.waiting else None
            begins_after = local.begins_after.get(delivery.remainder.source, 0)
            mine_again = local in delivery.subscriptions and delivery.instead is None
            if mine_again and begins_after >= delivery.remainder.first:
                # Publications that the client's Connect reported arrived again after a restart.
                remaining = delivery.remainder.after(begins_after)
                if remaining is None:
                    yield from _end_part(delivery.parcel)
                    continue
                delivery.remainder = remaining
            if (
                before
                and before.parcel is delivery.parcel
                and before.remainder is delivery.remainder
            ):
                before.subscriptions += delivery.subscriptions
                yield from _end_part(delivery.parcel)
            else:
                outlet.waiting.append(delivery)
        self._send(local.client, outlet)

    def first_waiting(self, local: Subscription) -> dict[StreamId, int]:
        """Return, by stream, the first position that waits for a subscription's claim.

        That is the first position of a gap, or of a publication.
        """
        outlet = self._outlets.get(local.client)
        found: dict[StreamId, int] = {}
        for delivery in outlet.parked if outlet is not None else ():
            if local in delivery.subscriptions:
                gap = delivery.instead if isinstance(delivery.instead, Gap) else None
                first = gap.first if gap is not None else delivery.remainder.first
                stream = delivery.remainder.source
                found[stream] = min(first, found.get(stream, first))
        return found

    def close(self, client: ClientId) -> Iterator[Entry]:
        """Park the unacknowledged deliveries of a client at the end of its session."""
        outlet = self._outlets.get(client)
        if outlet is None:
            return
        outlet.claimed = {}
        again = list(chain(*outlet.sent.values(), outlet.waiting))
        outlet.sent = {}
        outlet.waiting = deque()
        outlet.unacknowledged = 0
        for delivery in again:
            for local in delivery.subscriptions:
                if not local.is_over:
                    self._park(outlet, delivery, local)
            if delivery.subscriptions:
                yield from _end_part(delivery.parcel)
        outlet.parked.sort(key=lambda item: item.serial)

    def discard_unsent(self, local: Subscription) -> Iterator[Entry]:
        """Discard the unsent deliveries of an ended subscription, and complete their parts.

        Sent deliveries stay until the client acknowledges them. Otherwise a late acknowledgement
        could be attributed to a copy for another subscription.
        """
        outlet = self._outlets.get(local.client)
        if outlet is None:
            return
        outlet.claimed.pop(local, None)
        for delivery in chain(outlet.parked, outlet.waiting, *outlet.sent.values()):
            if local in delivery.subscriptions:
                left = tuple(each for each in delivery.subscriptions if each is not local)
                delivery.subscriptions = left
                if not left:
                    yield from _end_part(delivery.parcel)
        outlet.parked = [each for each in outlet.parked if each.subscriptions]
        outlet.waiting = deque(each for each in outlet.waiting if each.subscriptions)
        self._send(local.client, outlet)

    def is_drained(self, client: ClientId) -> bool:
        """Return True if the client has acknowledged all of its deliveries."""
        outlet = self._outlets.get(client)
        return outlet is None or not (outlet.waiting or outlet.sent or outlet.parked)

    def forget(self, client: ClientId) -> None:
        """Remove a departed client without subscriptions."""
        outlet = self._outlets.get(client)
        if outlet is not None and not outlet.holds:
            assert self.is_drained(client), f"{client} departed, but has deliveries"
            del self._outlets[client]

    def hold(self, client: ClientId) -> None:
        """Suspend sending to the client until `release`."""
        self._outlet(client).holds += 1

    def release(self, client: ClientId) -> None:
        """Undo one `hold`."""
        outlet = self._outlet(client)
        outlet.holds -= 1
        self._send(client, outlet)

    def acknowledge(
        self, client: ClientId, stream: StreamId, first: int, last: int
    ) -> Iterator[Entry]:
        """Record the client's acknowledgement of publications of `stream` in [first, last]."""
        self.advanced = []
        outlet = self._outlet(client)
        sent = outlet.sent.get(stream)
        if sent is None:
            return
        finished: list[Delivery[Entry, Subscription]] = []
        kept: list[Delivery[Entry, Subscription]] = []
        while sent and sent[0].remainder.first <= last:
            delivery = sent.popleft()
            before = len(delivery.remainder)
            left = without(delivery.remainder, first, last)
            outlet.unacknowledged -= before - (len(left) if left else 0)
            if left is None:
                finished.append(delivery)
            else:
                delivery.remainder = left
                kept.append(delivery)
        if finished and not kept:
            self._advance(finished)
        sent.extendleft(reversed(kept))
        if not sent:
            del outlet.sent[stream]
        for delivery in finished:
            if delivery.subscriptions:
                yield from _end_part(delivery.parcel)
        self._send(client, outlet)

    def join(
        self, client: ClientId, stream: StreamId, serials: tuple[int, int], wholes: Wholes[Entry]
    ) -> None:
        """Join deliveries of joined entries, among the deliveries made within `serials`."""
        outlet = self._outlets.get(client)
        if outlet is None:
            return
        start, end = _find_bounds(outlet.parked, serials)
        outlet.parked[start:end] = join_deliveries(outlet.parked[start:end], wholes)
        for deliveries in (outlet.waiting, outlet.sent.get(stream)):
            if deliveries:
                start, end = _find_bounds(deliveries, serials)
                deliveries.rotate(-start)
                part = [deliveries.popleft() for _ in range(end - start)]
                deliveries.extendleft(reversed(join_deliveries(part, wholes)))
                deliveries.rotate(start)

    def _advance(self, finished: Iterable[Delivery[Entry, Subscription]]) -> None:
        """Record the progress of subscriptions.

        Called only if no older delivery is unacknowledged: all earlier deliveries are complete.
        """
        for delivery in finished:
            if delivery.instead is not None:
                continue  # a client may state no position for it
            stream, last = delivery.remainder.source, delivery.remainder.last
            for local in delivery.subscriptions:
                if last > local.acknowledged.get(stream, 0):
                    local.acknowledged[stream] = last
                    self.advanced.append(local)

    def _outlet(self, client: ClientId) -> Outlet[Entry, Subscription]:
        outlet = self._outlets.get(client)
        if outlet is None:
            outlet = self._outlets[client] = Outlet()
        return outlet

    def _park(
        self,
        outlet: Outlet[Entry, Subscription],
        delivery: Delivery[Entry, Subscription],
        local: Subscription,
    ) -> None:
        """Park the delivery for a single subscription, or queue the delivery if claimed."""
        part = Delivery(
            delivery.remainder, (local,), delivery.parcel, delivery.serial, delivery.instead
        )
        delivery.parcel.open += 1
        if local in outlet.claimed:
            outlet.waiting.append(part)
        else:
            outlet.parked.append(part)

    def _send(self, client: ClientId, outlet: Outlet[Entry, Subscription]) -> None:
        window = self._window
        while outlet.waiting and not outlet.holds and outlet.unacknowledged < window:
            delivery = outlet.waiting[0]
            sequences = delivery.remainder.sequences
            sent = outlet.sent.setdefault(delivery.remainder.source, deque())
            if sent and sent[-1].remainder.sequences[-1] >= sequences[0]:
                # For another subscription. An acknowledgement names numbers only: the copy that was
                # sent comes first, or an acknowledgement could be for either copy.
                break
            outlet.waiting.popleft()
            sent.append(delivery)
            outlet.unacknowledged += len(sequences)
            numbers = tuple([local.number for local in delivery.subscriptions])
            if delivery.instead is not None:
                self._machine.emit(Deliver(client, delivery.instead))
                continue
            if MARKER in delivery.remainder.attribute_table:
                for item in without_markers(delivery.remainder, numbers):
                    self._machine.emit(Deliver(client, item))
                continue
            self._counters["publications_delivered"] += len(sequences)
            self._machine.effects.append(Deliver(client, Deliveries(delivery.remainder, numbers)))


def _end_part(parcel: Parcel[Entry]) -> Sequence[Entry]:
    """Complete a part of a delivery; return the entries that are complete with the last part."""
    parcel.open -= 1
    return parcel.entries if parcel.open == 0 else ()


def _find_bounds(
    deliveries: Sequence[Delivery[Entry, Subscription]], serials: tuple[int, int]
) -> tuple[int, int]:
    """Return the bounds of the deliveries after the first and through the second serial."""
    return (
        bisect_right(deliveries, serials[0], key=_serial),
        bisect_right(deliveries, serials[1], key=_serial),
    )


def _serial(delivery: Delivery[Entry, Subscription]) -> int:
    return delivery.serial
