"""What this broker's clients have still to get or to acknowledge, each in order, in a window.

A client is like a next hop: it gets each publication once, acknowledges ranges, and what it
has not acknowledged when its session ends comes again, in order, on its next session.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from brokerd.model.client_messages import Deliveries, Notice
from brokerd.model.identity import ClientId, PartitionId, SourceId
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.delta_tree.routing_table import LocalSubscription, Phase, Withheld
from brokerd.protocols.delta_tree.state import State
from brokerd.protocols.interface import Change, Commit, Deliver

POSITIONS = "positions"
FLUSH_POSITIONS = "flush positions"
FLUSH_INTERVAL_NS = 100_000_000

Entry = TypeVar("Entry")


@dataclass(slots=True, eq=False)
class Parcel(Generic[Entry]):
    """Queue entries that are not done before all deliveries made of them are."""

    entries: tuple[Entry, ...]
    open: int = 1


@dataclass(slots=True, eq=False)
class Delivery(Generic[Entry]):
    """Publications for some subscriptions of one client.

    Attributes:
        left: what the client has not acknowledged.
        subscriptions: none once all of them have ended; it was done then.
        serial: deliveries of one client in the order in which they were made.
        withheld: what is announced in place of them, if they are withheld: first and last
            sequence, and by which partition.
    """

    left: PublicationRun
    subscriptions: tuple[LocalSubscription, ...]
    parcel: Parcel[Entry]
    serial: int
    withheld: Withheld | None = None


@dataclass(slots=True, eq=False)
class Outlet(Generic[Entry]):
    """One client's deliveries.

    Attributes:
        holds: how many of its subscriptions are about to start; nothing is sent before they
            have.
        claimed: the subscriptions it has asked for on this session.
        parked: deliveries for subscriptions it has not.
        waiting: deliveries that will be sent as soon as the window allows.
        sent: what it has not acknowledged on this session, by source.
        unacknowledged: how many publications these are.
    """

    holds: int = 0
    claimed: dict[LocalSubscription, None] = field(default_factory=dict)
    parked: list[Delivery[Entry]] = field(default_factory=list)
    waiting: deque[Delivery[Entry]] = field(default_factory=deque)
    sent: dict[SourceId, deque[Delivery[Entry]]] = field(default_factory=dict)
    unacknowledged: int = 0


class DeliveryWindows(Generic[Entry]):
    """The deliveries of all clients of one broker."""

    def __init__(self, state: State, on_done: Callable[[Entry], None]) -> None:
        self._state = state
        self._on_done = on_done
        self._outlets: dict[ClientId, Outlet[Entry]] = {}
        self._serial = 0
        self._positions: dict[tuple[LocalSubscription, SourceId], int] = {}

    def deliver(
        self,
        client: ClientId,
        run: PublicationRun,
        subscriptions: tuple[LocalSubscription, ...],
        entries: tuple[Entry, ...],
        withheld: Withheld | None = None,
    ) -> None:
        """Queue publications, or a notice that they and what came before are withheld.

        `on_done` is called for each entry once they are acknowledged.
        """
        self._serial += 1
        outlet = self._outlet(client)
        delivery = Delivery(run, subscriptions, Parcel(entries), self._serial, withheld)
        if all(local in outlet.claimed for local in subscriptions):
            outlet.waiting.append(delivery)
            self._send(client, outlet)
            return
        for local in subscriptions:
            self._park(outlet, delivery, local)
        self._end_part(delivery.parcel)
        self._send(client, outlet)

    def withhold(
        self,
        local: LocalSubscription,
        run: PublicationRun,
        partition: PartitionId,
        entries: tuple[Entry, ...],
    ) -> None:
        """Queue a notice that a subscription does not get these, nor what came before them.

        What was announced before this broker restarted may come again. It is announced again,
        whole, so that what the client answers covers it; the client knows what it was told.
        """
        fresh = local.withhold(run.source, run.last, partition)
        first = run.first if fresh is None else min(run.first, fresh[0])
        self.deliver(local.client, run, (local,), entries, (first, run.last, partition))

    def announce(self, local: LocalSubscription, source: SourceId, withheld: Withheld) -> None:
        """Queue a notice of publications that need not have come here."""
        last = withheld[1]
        run = PublicationRun(source, range(last, last + 1), (b"",), b"\0", 0, ())
        self.deliver(local.client, run, (local,), (), withheld)

    def clients_behind(self) -> list[ClientId]:
        """Whose deliveries wait because the window is full."""
        window = self._state.parameters.client_window
        return [
            client
            for client, outlet in self._outlets.items()
            if outlet.waiting and outlet.unacknowledged >= window
        ]

    def claim(self, local: LocalSubscription) -> None:
        """The client has asked for a subscription on this session: send what it lacks.

        It gets nothing for a subscription before: a client that has lost its memory may not
        know the number.
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
            begins_after = local.begins_after.get(delivery.left.source, 0)
            mine_again = local in delivery.subscriptions and delivery.withheld is None
            if mine_again and begins_after >= delivery.left.first:
                # What the client has, as its Connect said, came again after a restart here.
                remaining = delivery.left.after(begins_after)
                if remaining is None:
                    self._end_part(delivery.parcel)
                    continue
                delivery.left = remaining
            if before and before.parcel is delivery.parcel and before.left is delivery.left:
                before.subscriptions += delivery.subscriptions
                self._end_part(delivery.parcel)
            else:
                outlet.waiting.append(delivery)
        self._send(local.client, outlet)

    def close(self, client: ClientId) -> None:
        """The client's session is over: what it has not acknowledged waits for the next one."""
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
                if local.phase is not Phase.ENDED:
                    self._park(outlet, delivery, local)
            if delivery.subscriptions:
                self._end_part(delivery.parcel)
        outlet.parked.sort(key=lambda item: item.serial)

    def give_up(self, local: LocalSubscription) -> None:
        """The subscription has ended: nothing more is sent for it, what is queued is done.

        What is out stays so until the client acknowledges it, or a late acknowledgement might
        be taken for that of a copy for another subscription.
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
                    self._end_part(delivery.parcel)
        outlet.parked = [each for each in outlet.parked if each.subscriptions]
        outlet.waiting = deque(each for each in outlet.waiting if each.subscriptions)
        self._send(local.client, outlet)

    def drained(self, client: ClientId) -> bool:
        """Whether the client has acknowledged all that there was for it."""
        outlet = self._outlets.get(client)
        return outlet is None or not (outlet.waiting or outlet.sent or outlet.parked)

    def forget(self, client: ClientId) -> None:
        """The client is gone, and has no subscription."""
        outlet = self._outlets.get(client)
        if outlet is not None and not outlet.holds:
            assert self.drained(client), f"{client} is gone and has deliveries"
            del self._outlets[client]

    def hold(self, client: ClientId) -> None:
        """Send the client nothing until `release`."""
        self._outlet(client).holds += 1

    def release(self, client: ClientId) -> None:
        """Undo one `hold`."""
        outlet = self._outlet(client)
        outlet.holds -= 1
        self._send(client, outlet)

    def acknowledge(self, client: ClientId, source: SourceId, first: int, last: int) -> None:
        """The client has everything sent to it of `source` in [first, last]."""
        outlet = self._outlet(client)
        sent = outlet.sent.get(source)
        if sent is None:
            return
        finished: list[Delivery[Entry]] = []
        kept: list[Delivery[Entry]] = []
        while sent and sent[0].left.first <= last:
            delivery = sent.popleft()
            before = len(delivery.left)
            left = without(delivery.left, first, last)
            outlet.unacknowledged -= before - (len(left) if left else 0)
            if left is None:
                finished.append(delivery)
            else:
                delivery.left = left
                kept.append(delivery)
        if finished and not kept:
            self._advance(finished)
        sent.extendleft(reversed(kept))
        if not sent:
            del outlet.sent[source]
        for delivery in finished:
            if delivery.subscriptions:
                self._end_part(delivery.parcel)
        self._send(client, outlet)

    def flush_positions(self) -> None:
        """Hand the positions reached since the last time to the disk, lazily."""
        changes = [
            Change(POSITIONS, position_key(local.client, local.number, source), last)
            for (local, source), last in self._positions.items()
            if local.phase is not Phase.ENDED
        ]
        self._positions.clear()
        if changes:
            self._state.machine.emit(Commit(tuple(changes), None))

    def _advance(self, finished: Iterable[Delivery[Entry]]) -> None:
        """Remember how far the subscriptions got.

        Only when nothing older is unacknowledged: a position says that all before it is done.
        """
        for delivery in finished:
            for local in delivery.subscriptions:
                self._positions[local, delivery.left.source] = delivery.left.last
        key = (FLUSH_POSITIONS, -1)
        if key not in self._state.deadlines:
            self._state.deadlines.set(key, self._state.machine.now_ns + FLUSH_INTERVAL_NS)

    def _outlet(self, client: ClientId) -> Outlet[Entry]:
        outlet = self._outlets.get(client)
        if outlet is None:
            outlet = self._outlets[client] = Outlet()
        return outlet

    def _park(
        self, outlet: Outlet[Entry], delivery: Delivery[Entry], local: LocalSubscription
    ) -> None:
        """Keep the delivery for one of its subscriptions, or send it for that one alone."""
        part = Delivery(
            delivery.left, (local,), delivery.parcel, delivery.serial, delivery.withheld
        )
        delivery.parcel.open += 1
        if local in outlet.claimed:
            outlet.waiting.append(part)
        else:
            outlet.parked.append(part)

    def _end_part(self, parcel: Parcel[Entry]) -> None:
        parcel.open -= 1
        if parcel.open == 0:
            for entry in parcel.entries:
                self._on_done(entry)

    def _send(self, client: ClientId, outlet: Outlet[Entry]) -> None:
        window = self._state.parameters.client_window
        while outlet.waiting and not outlet.holds and outlet.unacknowledged < window:
            delivery = outlet.waiting[0]
            sent = outlet.sent.setdefault(delivery.left.source, deque())
            if sent and sent[-1].left.last >= delivery.left.first:
                # For another subscription. An acknowledgement names numbers only: what is out
                # must be acknowledged first, or nobody could say which copy one is for.
                break
            outlet.waiting.popleft()
            sent.append(delivery)
            outlet.unacknowledged += len(delivery.left)
            numbers = tuple(local.number for local in delivery.subscriptions)
            if delivery.withheld is not None:
                first, last, partition = delivery.withheld
                notice = Notice(numbers[0], delivery.left.source, ((first, last),), partition)
                self._state.machine.send(client, notice)
                continue
            self._state.counters["publications_delivered"] += len(delivery.left)
            self._state.machine.emit(Deliver(client, Deliveries(delivery.left, numbers)))


def position_key(client: ClientId, number: int, source: SourceId) -> str:
    """The key of a row of the positions table."""
    return f"{client}/{number}/{source.broker}.{source.publisher}.{source.incarnation}"


def without(run: PublicationRun, first: int, last: int) -> PublicationRun | None:
    """The publications of `run` that are not numbered in [first, last]; None when all are."""
    before = run.up_to(first - 1)
    after = run.after(last)
    if before is None or after is None:
        return before or after
    return merge_runs([before, after])
