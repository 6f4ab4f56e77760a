"""What this broker's clients have still to get or to acknowledge, each in order, in a window.

A client is like a next hop: it gets each publication once, acknowledges ranges, and what it
has not acknowledged when its session ends comes again, in order, on its next session.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.delta_tree.state import State
from brokerd.protocols.delta_tree.subscriptions import LocalSubscription
from brokerd.protocols.interface import Change, Commit, Deliver

POSITIONS = "positions"
FLUSH_POSITIONS = "flush positions"
FLUSH_INTERVAL_NS = 100_000_000

Entry = TypeVar("Entry")


@dataclass(slots=True, eq=False)
class Delivery(Generic[Entry]):
    """Publications for some subscriptions of one client.

    Attributes:
        left: what the client has not acknowledged.
        entries: the queue entries that are not done before this is.
        serial: deliveries of one client in the order in which they were made.
    """

    left: PublicationRun
    subscriptions: tuple[LocalSubscription, ...]
    entries: tuple[Entry, ...]
    serial: int


@dataclass(slots=True, eq=False)
class Outlet(Generic[Entry]):
    """One client's deliveries.

    Attributes:
        open: the client has a session and has been told that it is connected.
        holds: how many of its subscriptions are about to start; nothing is sent before they
            have.
    """

    open: bool = False
    holds: int = 0
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
    ) -> None:
        """Queue publications; `on_done` is called for each entry once they are acknowledged."""
        self._serial += 1
        outlet = self._outlets.setdefault(client, Outlet())
        outlet.waiting.append(Delivery(run, subscriptions, entries, self._serial))
        self._send(client, outlet)

    def open(self, client: ClientId) -> None:
        """The client is connected: send what it lacks, oldest first."""
        outlet = self._outlets.setdefault(client, Outlet())
        outlet.open = True
        kept: deque[Delivery[Entry]] = deque()
        finished: list[Delivery[Entry]] = []
        for delivery in outlet.waiting:
            lacking = tuple(
                local
                for local in delivery.subscriptions
                if local.begins_after.get(delivery.left.source, 0) < delivery.left.last
            )
            delivery.subscriptions = lacking
            (kept if lacking else finished).append(delivery)
        outlet.waiting = kept
        self._finish(finished)
        self._send(client, outlet)

    def close(self, client: ClientId) -> None:
        """The client's session is over: what it has not acknowledged waits for the next one."""
        outlet = self._outlets.get(client)
        if outlet is None:
            return
        outlet.open = False
        again = sorted(chain.from_iterable(outlet.sent.values()), key=lambda item: item.serial)
        outlet.waiting.extendleft(reversed(again))
        outlet.sent = {}
        outlet.unacknowledged = 0

    def drop(self, client: ClientId) -> None:
        """The client is given up: everything queued for it is done."""
        self.close(client)
        outlet = self._outlets.pop(client, None)
        if outlet is not None:
            self._finish(outlet.waiting)

    def hold(self, client: ClientId) -> None:
        """Send the client nothing until `release`."""
        self._outlets.setdefault(client, Outlet()).holds += 1

    def release(self, client: ClientId) -> None:
        """Undo one `hold`."""
        outlet = self._outlets.get(client)
        if outlet is not None:
            outlet.holds -= 1
            self._send(client, outlet)

    def acknowledge(self, client: ClientId, source: SourceId, first: int, last: int) -> None:
        """The client has everything sent to it of `source` in [first, last]."""
        outlet = self._outlets[client]
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
        self._finish(finished)
        self._send(client, outlet)

    def flush_positions(self) -> None:
        """Hand the positions reached since the last time to the disk, lazily."""
        changes = [
            Change(POSITIONS, position_key(local.client, local.number, source), last)
            for (local, source), last in self._positions.items()
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

    def _finish(self, deliveries: Iterable[Delivery[Entry]]) -> None:
        for delivery in deliveries:
            for entry in delivery.entries:
                self._on_done(entry)

    def _send(self, client: ClientId, outlet: Outlet[Entry]) -> None:
        window = self._state.parameters.client_window
        while (
            outlet.waiting and outlet.open and not outlet.holds and outlet.unacknowledged < window
        ):
            delivery = outlet.waiting.popleft()
            outlet.sent.setdefault(delivery.left.source, deque()).append(delivery)
            outlet.unacknowledged += len(delivery.left)
            self._state.counters["publications_delivered"] += len(delivery.left)
            numbers = tuple(local.number for local in delivery.subscriptions)
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
