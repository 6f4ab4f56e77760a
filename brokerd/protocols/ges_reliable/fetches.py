"""The storages that an access broker follows: epochs are fetched in order for its clients.

An answer is taken if it continues the previous one; else the range is fetched again. A
subscription that begins before the present epoch has everything since fetched again, and
subscriptions that had it before do not receive it again. The next fetch carries the
acknowledgements of clients.

Paper: [GES] §4 (epochs; positive and negative acknowledgements; receipts).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.model.losses import is_behind_loss
from brokerd.protocols.ges_reliable.messages import Events, Fetch, Fetched, Key, Targets
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.state import (
    Delivery,
    Displacement,
    FollowedState,
    LastReceipt,
    StorageLoss,
    StoredSubscription,
)
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue

FETCH: Final = "fetch"
"""Purpose of the deadline at which a fetch is sent again."""
RECEIPT: Final = "receipt"
"""Purpose of the deadline at which acknowledgements of clients are sent to a storage."""


@dataclass(slots=True, eq=False)
class DeliveredRun:
    """Publications that were delivered to clients; `open` parts are not acknowledged yet."""

    following: "FollowedStorage"
    first: int
    count: int
    open: int = 1


@dataclass(slots=True, eq=False)
class FollowedStorage:
    """A followed storage.

    Attributes:
        locals: the subscriptions here that the storage stores for.
        after: the epoch through which everything has arrived.
        latest: the last epoch that the storage has stated.
        in_flight: publications that clients have not acknowledged.
        number: of the last fetch.
        valid: the first fetch with an answer that is complete for all subscriptions.
        is_fetching: True while the last fetch is not answered.
        report: the epoch that the last fetch acknowledges, and for which subscriptions.
        departures: subscriptions that continue elsewhere after their last receipt here.
    """

    storage: BrokerNumber
    locals: dict[tuple[ClientId, int], StoredSubscription] = field(default_factory=dict)
    after: int = 0
    latest: int = 0
    in_flight: deque[DeliveredRun] = field(default_factory=deque)
    number: int = 0
    valid: int = 0
    is_fetching: bool = False
    waited_ns: int = 0
    reported_ns: int = 0
    report: tuple[int, tuple[StoredSubscription, ...]] = (0, ())
    departures: dict[StoredSubscription, None] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The epoch of arrived publications through which all clients here have acknowledged."""
        return min(self.after, *(each.first - 1 for each in self.in_flight), self.after)

    def outstanding(self) -> int:
        """Return the number of publications that clients have not acknowledged."""
        return sum(each.count for each in self.in_flight)


class EpochFetches:
    """All storages that an access broker follows, and the epochs that it fetches from them."""

    def __init__(
        self,
        broker: BrokerNumber,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        targets: Targets,
    ) -> None:
        self._broker = broker
        self._deadlines = deadlines
        self._parameters = parameters
        self._targets = targets
        self._incarnation = 0
        self._storages: dict[BrokerNumber, FollowedStorage] = {}

    def start(self, incarnation: int) -> None:
        """Start an incarnation without any followed storage."""
        self._incarnation = incarnation

    def begin(
        self,
        local: StoredSubscription,
        after: int,
        now_ns: Instant,
        *,
        announced: int | None = None,
    ) -> Fetch:
        """Begin a subscription after an epoch.

        Args:
            announced: the epoch through which the storage has the client's acknowledgement; None:
                through `after`.
        """
        assert local.storage is not None, f"{local} is stored nowhere"
        following = self._storages.get(local.storage)
        if following is None:
            following = self._storages[local.storage] = FollowedStorage(local.storage)
        if not following.locals:
            following.after = after
        following.latest = max(following.latest, after)
        following.locals[local.client, local.number] = local
        following.after = min(following.after, after)
        local.delivered_epoch, local.reported_epoch = (
            after,
            after if announced is None else announced,
        )
        local.unacknowledged.clear()
        local.acknowledged_epoch = 0  # of another storage, perhaps
        following.valid = following.number + 1
        return self._request(following, now_ns)

    def leave(self, local: StoredSubscription) -> Iterator[LastReceipt]:
        """Yield a LastReceipt once the client has acknowledged everything before `until`."""
        assert local.storage is not None, f"{local} is stored nowhere"
        following = self._storages[local.storage]
        following.departures[local] = None
        yield from self._let_leave(following)

    def _let_leave(self, following: FollowedStorage) -> Iterator[LastReceipt]:
        done = following.done if following.departures else 0
        for local in [*following.departures]:
            if local.until is not None and local.until <= done:
                del following.departures[local]
                yield LastReceipt(local)

    def stop(self, local: StoredSubscription) -> None:
        """Stop fetching for a subscription, which reports no more acknowledgements from here."""
        local.unacknowledged.clear()
        if local.storage is None:
            return
        following = self._storages.get(local.storage)
        if following is None or following.locals.pop((local.client, local.number), None) is None:
            return
        following.departures.pop(local, None)
        done, announced = following.report
        following.report = done, tuple(each for each in announced if each is not local)
        if not following.locals:
            following.is_fetching = False
            following.valid = following.number + 1
            self._deadlines.cancel((FETCH, local.storage))
            self._deadlines.cancel((RECEIPT, local.storage))

    def done(self, delivered: DeliveredRun, now_ns: Instant) -> Iterator[LastReceipt | Fetch]:
        """Take the acknowledgement of delivered publications."""
        following = delivered.following
        following.in_flight.remove(delivered)
        yield from self._let_leave(following)
        if not following.locals:
            return
        if not following.is_fetching:
            yield from self._fetch(following, now_ns)
        else:
            self._report_later(following, now_ns)

    def has_arrived(self, storage: BrokerNumber, epoch: int) -> bool:
        """Return True if everything through an epoch of a followed storage has arrived."""
        following = self._storages.get(storage)
        return following is None or not following.locals or epoch <= following.after

    def undone(self) -> int:
        """Return the number of arrived publications that clients have not acknowledged."""
        return sum(each.outstanding() for each in self._storages.values())

    def state(self) -> dict[BrokerNumber, FollowedState]:
        """Return the state of each followed storage, for people."""
        return {
            storage: FollowedState(each.after, each.done, len(each.locals), len(each.departures))
            for storage, each in self._storages.items()
            if each.locals or each.in_flight
        }

    def due(self, storage: BrokerNumber, now_ns: Instant) -> Iterator[Fetch]:
        """Repeat a fetch that has not been answered."""
        following = self._storages[storage]
        if following.is_fetching:
            waited_ns = min(2 * following.waited_ns, self._parameters.retry_limit_ns)
            yield self._request(following, now_ns, waited_ns)

    def receipt_due(self, storage: BrokerNumber, now_ns: Instant) -> Iterator[Fetch]:
        """Send acknowledgements of clients to a storage."""
        following = self._storages[storage]
        if following.locals and self._unannounced(following):
            yield self._request(following, now_ns)

    # ------------------------------------------------------------ fetching

    def _fetch(self, following: FollowedStorage, now_ns: Instant) -> Iterator[Fetch]:
        """Fetch the next epochs, unless clients are too far behind."""
        if following.locals and following.outstanding() < self._parameters.home_window:
            yield self._request(following, now_ns)

    def _unannounced(self, following: FollowedStorage) -> tuple[StoredSubscription, ...]:
        done = following.done
        return tuple(
            each
            for each in following.locals.values()
            if each.reported_epoch < done and (each.until is None or done <= each.until)
        )

    def _request(self, following: FollowedStorage, now_ns: Instant, waited_ns: int = 0) -> Fetch:
        parameters = self._parameters
        unannounced: tuple[StoredSubscription, ...] = ()
        if now_ns >= following.reported_ns + parameters.receipt_interval_ns:
            unannounced = self._unannounced(following)
        if unannounced:
            following.reported_ns = now_ns
            self._deadlines.cancel((RECEIPT, following.storage))
        following.report = following.done, unannounced
        following.number += 1
        following.is_fetching = True
        following.waited_ns = waited_ns or parameters.timeout_ns
        due_ns = now_ns + following.waited_ns + parameters.fetch_wait_ns
        self._deadlines.set((FETCH, following.storage), due_ns)
        room = max(1, parameters.home_window - following.outstanding())
        return Fetch(
            self._targets.to(following.storage),
            0,
            self._broker,
            self._incarnation,
            following.number,
            following.after,
            min(room, parameters.fetch_publications),
            following.done,
            tuple(receipt_of(each, following.done) for each in unannounced),
        )

    def _is_current(self, message: Events | Fetched) -> FollowedStorage | None:
        following = self._storages.get(message.storage)
        if following is None or not following.locals:
            return None
        if message.incarnation != self._incarnation or message.number < following.valid:
            return None
        return following

    def _lose(self, following: FollowedStorage, epoch: int) -> StorageLoss | None:
        """Return the subscriptions to state again, if the storage has lost state before an epoch.

        The storage may have lost the subscriptions, and what has arrived since lacks theirs.
        """
        is_lost = is_behind_loss(following.latest, epoch)
        following.latest = max(following.latest, epoch)
        return StorageLoss(tuple(following.locals.values())) if is_lost else None

    def position(self, local: StoredSubscription) -> int:
        """Return the epoch through which the client of a subscription has acknowledged."""
        assert local.storage is not None, f"{local} is stored nowhere"
        return min(local.delivered_epoch, self._storages[local.storage].done)

    def lose_range(self, local: StoredSubscription, last: int) -> DeliveredRun:
        """Return the delivery of a gap through an epoch, which a client has to acknowledge."""
        assert local.storage is not None, f"{local} is stored nowhere"
        following = self._storages[local.storage]
        delivered = DeliveredRun(following, last, 1)
        following.in_flight.append(delivered)
        return delivered

    def on_events(self, message: Events) -> Iterator[Delivery | LastReceipt | StorageLoss]:
        """Take a part of an answer; drop publications that are known, or behind a gap."""
        following = self._is_current(message)
        loss = self._lose(following, message.run.last) if following is not None else None
        if loss is not None:
            yield loss
            return
        if following is None or message.after > following.after:
            return
        rest = message.run.after(following.after)
        if rest is None:
            return
        delivered = DeliveredRun(following, rest.first, len(rest))
        following.in_flight.append(delivered)
        yield Delivery(rest, delivered)
        self._reach(following, rest.last)
        delivered.open -= 1
        if not delivered.open:
            following.in_flight.remove(delivered)
            yield from self._let_leave(following)

    def on_fetched(
        self, message: Fetched, now_ns: Instant
    ) -> Iterator[LastReceipt | Fetch | StorageLoss | Displacement]:
        """Take the end of an answer, and fetch missing publications again."""
        if message.is_request:
            yield from self._fetch_again(message.storage, now_ns)
            return
        following = self._is_current(message)
        if following is None:
            return
        yield from self._find_displaced(following, message)
        if message.waits:
            self._on_waiting(following, message.number, now_ns)
            return
        loss = self._lose(following, message.through)
        if loss is not None:
            yield loss
            return
        is_whole = message.after <= following.after
        if is_whole:
            self._reach(following, message.through)
            yield from self._let_leave(following)
        if message.number != following.number or not following.locals:
            return
        self._take_report(following)
        if not is_whole:  # the rest may be on its way still; or else it is asked for again, later
            if not self._parameters.fetch_wait_ns:
                due_ns = now_ns + self._parameters.timeout_ns
                self._deadlines.set((FETCH, following.storage), due_ns)
            return
        following.is_fetching = False
        self._deadlines.cancel((FETCH, following.storage))
        yield from self._fetch(following, now_ns)

    @staticmethod
    def _find_displaced(following: FollowedStorage, message: Fetched) -> Iterator[Displacement]:
        """Yield the clients here with attachments that the storage ignores."""
        for client, generation in message.displaced:
            held = (each for each in following.locals.values() if each.client == client)
            if any(each.generation <= generation for each in held):
                yield Displacement(client)

    @staticmethod
    def _take_report(following: FollowedStorage) -> None:
        """Record the acknowledgements of the last fetch, which the storage has."""
        done, announced = following.report
        for local in announced:
            local.reported_epoch = max(local.reported_epoch, done)
        following.report = 0, ()

    def _on_waiting(self, following: FollowedStorage, number: int, now_ns: Instant) -> None:
        """Await the answer to a fetch that the storage keeps, for as long as that takes.

        Acknowledgements that the fetch was too early for are sent later.
        """
        if number != following.number or not following.is_fetching:
            return
        self._take_report(following)
        self._deadlines.cancel((FETCH, following.storage))
        if self._unannounced(following):
            self._report_later(following, now_ns)

    def _report_later(self, following: FollowedStorage, now_ns: Instant) -> None:
        if (RECEIPT, following.storage) not in self._deadlines:
            due_ns = following.reported_ns + self._parameters.receipt_interval_ns
            self._deadlines.set((RECEIPT, following.storage), max(due_ns, now_ns))

    def _fetch_again(self, storage: BrokerNumber, now_ns: Instant) -> Iterator[Fetch]:
        """Repeat a fetch that a storage has lost in a restart."""
        following = self._storages.get(storage)
        if following is None or not following.locals:
            return
        if following.is_fetching:
            yield self._request(following, now_ns)
        else:
            yield from self._fetch(following, now_ns)

    @staticmethod
    def _reach(following: FollowedStorage, epoch: int) -> None:
        following.after = max(following.after, epoch)
        for local in following.locals.values():
            local.delivered_epoch = max(local.delivered_epoch, epoch)


def stream_of(storage: BrokerNumber) -> StreamId:
    """Return the stream of a storage's epochs."""
    return StreamId(storage, 0, 0)


def receipt_of(local: StoredSubscription, done: int) -> tuple[Key, int, int]:
    """Return the receipt of a client that has acknowledged everything through an epoch."""
    while local.unacknowledged and local.unacknowledged[0] <= done:
        local.acknowledged_epoch = local.unacknowledged.popleft()
    return Key(local.client, local.number), local.generation, local.acknowledged_epoch
