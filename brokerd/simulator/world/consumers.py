"""Simulated consumers: applications without state, with a token at their broker.

Some redeliveries to a consumer are permitted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.client.consumption import Consumption, Taken
from brokerd.client.core import ClientCore
from brokerd.client.events import ClientEvent, Committed, GapsAnnounced, Received
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.predicate import Predicate
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.units import MILLISECOND_NS

Publication = tuple[SourceId, int]

WORKS_NS: Final = 5 * MILLISECOND_NS


@dataclass(slots=True)
class _Consumer:
    """One subscriber.

    Attributes:
        uncommitted: number of publications before a commit.
        redeliveries_left: number of permitted redeliveries.
        copied: the commits in the last copy of the broker's disk.
        own: the publications of the present process.
        unacknowledged: publications that their broker lost before their acknowledgement, so that
            they may be published again.
    """

    uncommitted: int
    redeliveries_left: int = 0
    had: set[Publication] = field(default_factory=set)
    committed: set[Publication] = field(default_factory=set)
    copied: set[Publication] = field(default_factory=set)
    own: set[Publication] = field(default_factory=set)
    unacknowledged: set[Publication] = field(default_factory=set)


class Redeliveries:
    """The rules for consumers, beside the rules for all subscribers.

    - redelivered unmarked: a redelivery is marked;
    - redelivered committed: no publication repeats after the broker reported its commit;
    - redelivered often: each crash of the application repeats at most its uncommitted publications.

    A broker that accepts a loss has lost the commits since the copy of its disk. A publication that
    it lost without an acknowledgement is published again, as another one to a later process.

    Attributes:
        count: number of redeliveries.
        marked: number of marked publications that the application had not received before.
    """

    def __init__(self) -> None:
        self.count = self.marked = 0
        self._consumers: dict[ClientId, _Consumer] = {}

    def begin(self, client: ClientId, uncommitted: int) -> None:
        """Begin a consumer, or a process after a crashed one."""
        if client in self._consumers:
            self._consumers[client].redeliveries_left += uncommitted
            self._consumers[client].own = set()
        else:
            self._consumers[client] = _Consumer(uncommitted)

    def on_disk_copied(self, clients: Iterable[ClientId], *, is_empty: bool) -> None:
        """Record the commits in a copy of the disk of these clients' broker."""
        for consumer in self._at(clients):
            consumer.copied = set() if is_empty else {*consumer.committed}

    def on_state_lost(
        self, clients: Iterable[ClientId], unacknowledged: Iterable[Publication]
    ) -> None:
        """Permit redeliveries after a broker's loss of state.

        Args:
            clients: the clients of the broker, which has lost their commits since the copy.
            unacknowledged: publications at the broker without an acknowledgement.
        """
        for consumer in self._at(clients):
            consumer.redeliveries_left += len(consumer.committed - consumer.copied)
            consumer.committed &= consumer.copied
        for consumer in self._consumers.values():
            consumer.unacknowledged.update(unacknowledged)

    def _at(self, clients: Iterable[ClientId]) -> list[_Consumer]:
        return [self._consumers[client] for client in clients if client in self._consumers]

    def on_delivered(
        self, client: ClientId, source: SourceId, sequence: int, *, again: bool
    ) -> None:
        """Judge a delivery to an application, with `again` marked as a possible redelivery."""
        consumer, publication = self._consumers[client], (source, sequence)
        subject = f"{client} got {tuple(source)} {sequence}"
        is_own = publication in consumer.own
        consumer.own.add(publication)
        if publication not in consumer.had:
            self.marked += again
            consumer.had.add(publication)
            return
        self.count += 1
        if publication in consumer.unacknowledged and not is_own:
            consumer.unacknowledged.discard(publication)
            return
        consumer.redeliveries_left -= 1
        if publication in consumer.committed:
            raise InvariantViolated(
                "redelivered committed", f"{subject} again, and had committed it"
            )
        if not again:
            raise InvariantViolated("redelivered unmarked", f"{subject} again without the mark")
        if consumer.redeliveries_left < 0:
            most = consumer.uncommitted
            subject = f"{subject} again, which has had more than {most} for each crash again"
            raise InvariantViolated("redelivered often", subject)

    def on_committed(self, client: ClientId, source: SourceId, sequence: int) -> None:
        """Record that an application was notified of a commit."""
        self._consumers[client].committed.add((source, sequence))


class SimulatedConsumer(SimulatedClient):
    """A client with one subscription and committed positions at the broker.

    Attributes:
        uncommitted: number of publications that the application takes before a commit.
        again: publications that were marked as redelivered, in order.
        works_ns: maximum time of processing.
    """

    def __init__(
        self, *arguments: Any, uncommitted: int, redeliveries: Redeliveries, **others: Any
    ) -> None:
        super().__init__(*arguments, **others)
        self.uncommitted = uncommitted
        self.again: list[tuple[Any, int]] = []
        self.works_ns = WORKS_NS
        self._redeliveries = redeliveries
        self._consumption: Consumption | None = None
        self._batch: list[Taken] = []
        self._requested = 0
        self._is_busy = False
        redeliveries.begin(self.name, uncommitted)

    @staticmethod
    def make_core(name: str) -> ClientCore:
        """Return the core of a process without state."""
        return ClientCore(name, publishes=False, incarnation=1, mode="transactional")

    def subscribe(self, predicate: Predicate) -> int:
        """Subscribe once, as a consumer."""
        assert self._consumption is None, f"{self.name} consumes one subscription"
        number = self.core.consume(predicate, self.uncommitted)
        self.received[number] = []
        self._consumption = Consumption(self.core, number, self.uncommitted)
        self._send_out()
        return number

    @property
    def is_committing(self) -> bool:
        return self._is_busy and not self.core.is_detaching and bool(self.core.subscriptions)

    @property
    def waits(self) -> str:
        """Unanswered requests, including a commit."""
        if self.is_committing:
            return "what it has consumed to be committed"
        return super().waits

    def _on_event(self, event: ClientEvent) -> None:
        match event:
            case GapsAnnounced():
                self._on_delivery(event)
            case Committed(_, request) if self._is_busy and request >= self._requested > 0:
                self._on_committed()
            case _:
                super()._on_event(event)

    def _on_received(self, event: Received) -> None:
        self._on_delivery(event)

    def _on_delivery(self, event: Received | GapsAnnounced) -> None:
        assert self._consumption is not None, f"{self.name} has asked for nothing"
        self._consumption.put(event)
        self._work()

    def _work(self) -> None:
        """Take available publications, visible at once, and schedule their commit."""
        consumption = self._consumption
        if self._is_busy or consumption is None or not self.core.subscriptions:
            return
        while (item := consumption.next()) is not None:
            if isinstance(item, Taken):
                self._take_one(item)
            else:
                self._report_gaps(item)
        if consumption.is_uncommitted:
            self._is_busy = True
            delay_ns = int(self._random.random() * self.works_ns)
            self._network.schedule.post(self._application, delay_ns, self._commit)

    def _take_one(self, item: Taken) -> None:
        (number,) = self.core.subscriptions
        self._batch.append(item)
        self.received[number].append((item.source, item.sequence))
        if item.redelivered:
            self.again.append((item.source, item.sequence))
        self._redeliveries.on_delivered(
            self.name, item.source, item.sequence, again=item.redelivered
        )
        if self._observer is not None:
            self._observer.on_delivered(
                self.name, number, item.source, item.sequence, item.blob, item.payload
            )

    def _report_gaps(self, event: GapsAnnounced) -> None:
        self.gaps += event.gaps
        for gap in event.gaps:
            if self._observer is not None:
                self._observer.on_gap(
                    self.name, gap.number, gap.source, gap.first, gap.last, gap.reason
                )

    def _commit(self) -> None:
        if self.alive and self._consumption is not None and self.core.subscriptions:
            self._requested = self._consumption.commit()
            self._send_out()

    def _on_committed(self) -> None:
        for item in self._batch:
            self._redeliveries.on_committed(self.name, item.source, item.sequence)
        self._batch, self._requested, self._is_busy = [], 0, False
        self._work()
