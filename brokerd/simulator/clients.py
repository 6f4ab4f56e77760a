"""Simulated clients: publishers and subscribers that stay with their broker whatever happens."""

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Publish,
    PublishAcknowledged,
    Refused,
    Subscribe,
    Subscribed,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import Buffer, PublicationRun
from brokerd.protocols.interface import LossReason
from brokerd.simulator.clock import MILLISECOND_NS, Lane
from brokerd.simulator.network import Endpoint, Network, SessionEnd

RECONNECT_NS = 100 * MILLISECOND_NS


class ClientObserver(Protocol):
    """Sees what the applications on top of the clients see, and nothing else."""

    def connected(self, client: ClientId, source: SourceId | None) -> None:
        """The client knows under which source its publications go."""
        ...

    def started(self, client: ClientId, number: int) -> None:
        """The client was told that a subscription of its own has started."""
        ...

    def delivered(
        self,
        client: ClientId,
        number: int,
        source: SourceId,
        sequence: int,
        blob: bytes,
        payload: Buffer,
    ) -> None:
        """The application got a publication, behind the library's duplicate check."""
        ...

    def acknowledged(self, client: ClientId, sequence: int) -> None:
        """The client was told that its publication is done."""
        ...


class SimulatedClient(Endpoint):
    """A client that publishes, subscribes, and reconnects for ever.

    Attributes:
        name: also its key.
        broker: the only broker it talks to.
        received: per subscription number, what the application got, in order.
        started_numbers: subscriptions that the broker has called started.
        duplicates: publications its duplicate check kept from the application.
        refused: requests that the broker refused for good.
    """

    def __init__(
        self,
        name: ClientId,
        broker: BrokerNumber,
        network: Network,
        random: Random,
        observer: ClientObserver | None,
    ) -> None:
        super().__init__(name)
        self.name = name
        self.broker = broker
        self.alive = True
        self.incarnation = 1
        self.received: dict[int, list[tuple[SourceId, int]]] = {}
        self.started_numbers: dict[int, None] = {}
        self.duplicates = 0
        self.refused: list[Refused] = []
        self.source: SourceId | None = None
        self.acknowledge_after_ns = 0
        self._network = network
        self._random = random
        self._observer = observer
        self._retry = Lane(network.schedule)
        self._acknowledgements = Lane(network.schedule)
        self._publishes = False
        self._is_connected = False
        self._published = 0
        self._unacknowledged: dict[int, tuple[bytes, bytes]] = {}
        self._predicates: dict[int, Predicate] = {}
        self._last: dict[tuple[int, SourceId], int] = {}

    # ------------------------------------------------------------ what the application does

    def connect(self, publishes: bool) -> None:
        """Dial the broker, now and after each interruption."""
        self._publishes = publishes
        self._network.open(self, self.broker)

    def subscribe(self, predicate: Predicate) -> int:
        """Ask for publications; returns the number of the subscription."""
        number = len(self._predicates) + 1
        self._predicates[number] = predicate
        self.received[number] = []
        if self._is_connected:
            self._send(Subscribe(number, predicate))
        return number

    def publish(self, contents: Sequence[tuple[bytes, bytes]]) -> int:
        """Publish (attribute blob, payload) pairs as one run; returns the first sequence number."""
        first = self._published + 1
        for content in contents:
            self._published += 1
            self._unacknowledged[self._published] = content
        if self._is_connected:
            self._send(Publish(self._run(range(first, self._published + 1))))
        return first

    def unacknowledged(self) -> int:
        """How many publications the broker has not acknowledged."""
        return len(self._unacknowledged)

    # ------------------------------------------------------------ what the network says

    def established(self, end: SessionEnd, incarnation: int) -> None:
        oldest = next(iter(self._unacknowledged), self._published + 1)
        resume: dict[int, list[tuple[SourceId, int]]] = {}
        for (number, source), sequence in self._last.items():
            resume.setdefault(number, []).append((source, sequence))
        vector = tuple((number, tuple(positions)) for number, positions in resume.items())
        self._send(Connect(self._publishes, 1, oldest, self._published, vector))

    def lost(self, end: SessionEnd, reason: LossReason) -> None:
        self._is_connected = False
        self._acknowledgements.truncate(0)
        self._later(self._dial)

    def open_failed(self, peer: Peer, reason: str) -> None:
        self._later(self._dial)

    def message_arrived(self, end: SessionEnd, message: Any) -> None:
        if isinstance(message, Deliveries):
            self._on_deliveries(message)
        elif isinstance(message, PublishAcknowledged):
            self._on_acknowledged(message)
        elif isinstance(message, Connected):
            self._on_connected(message)
        elif isinstance(message, Subscribed):
            if message.state == "started":
                self.started_numbers[message.number] = None
                if self._observer is not None:
                    self._observer.started(self.name, message.number)
        elif isinstance(message, Refused):
            if not message.retry:
                self.refused.append(message)
            elif message.number:
                self._later(self._subscribe_again, message.number)
            else:
                self._network.close(self, self.broker, "closed_by_us")
        else:
            raise AssertionError(f"{self.name} cannot take {message}")

    # ------------------------------------------------------------ inside

    def _on_connected(self, message: Connected) -> None:
        self._is_connected = True
        if self.source is not None:
            assert message.source == self.source, f"{self.source} became {message.source}"
        self.source = message.source
        if self._observer is not None:
            self._observer.connected(self.name, message.source)
        for number, predicate in self._predicates.items():
            self._send(Subscribe(number, predicate))
        if self._unacknowledged:
            self._send(Publish(self._run(tuple(self._unacknowledged))))

    def _on_deliveries(self, message: Deliveries) -> None:
        run = message.run
        for sequence, blob, payload in run.publications():
            for number in message.subscriptions:
                if sequence <= self._last.get((number, run.source), 0):
                    self.duplicates += 1
                    continue
                self._last[number, run.source] = sequence
                self.received[number].append((run.source, sequence))
                if self._observer is not None:
                    self._observer.delivered(self.name, number, run.source, sequence, blob, payload)
        answer = Acknowledge(run.source, run.first, run.last)
        if self.acknowledge_after_ns:
            self._network.schedule.post(
                self._acknowledgements, self.acknowledge_after_ns, self._send, answer
            )
        else:
            self._send(answer)

    def _on_acknowledged(self, message: PublishAcknowledged) -> None:
        for sequence in range(message.first, message.last + 1):
            if self._unacknowledged.pop(sequence, None) is not None and self._observer is not None:
                self._observer.acknowledged(self.name, sequence)

    def _run(self, sequences: range | tuple[int, ...]) -> PublicationRun:
        assert self.source is not None, f"{self.name} publishes without a source"
        places: dict[bytes, int] = {}
        contents = [self._unacknowledged[sequence] for sequence in sequences]
        index = [places.setdefault(blob, len(places)) for blob, _ in contents]
        return PublicationRun(
            self.source,
            sequences,
            tuple(places),
            bytes(index) if len(places) <= 256 else tuple(index),
            tuple(len(payload) for _, payload in contents),
            (b"".join(payload for _, payload in contents),),
        )

    def _subscribe_again(self, number: int) -> None:
        if self._is_connected:
            self._send(Subscribe(number, self._predicates[number]))

    def _send(self, message: Any) -> None:
        self._network.send(self, self.broker, message)

    def _dial(self) -> None:
        self._network.open(self, self.broker)

    def _later(self, action: Any, *arguments: Any) -> None:
        delay_ns = RECONNECT_NS + int(self._random.random() * RECONNECT_NS)
        self._network.schedule.post(self._retry, delay_ns, action, *arguments)
