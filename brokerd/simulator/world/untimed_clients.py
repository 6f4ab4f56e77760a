"""Clients without time: the client library's core, and an application that takes its while."""

from brokerd.client.core import ClientCore
from brokerd.client.events import (
    Announced,
    Attached,
    ClientEvent,
    GapsAnnounced,
    PublicationsDone,
    Received,
    RetryLater,
    SubscriptionAnswered,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.predicate import Predicate
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.clients import ClientObserver
from brokerd.simulator.world.untimed import End, Endpoint, UntimedNetwork


class UntimedClient(Endpoint):
    """A client that publishes, subscribes, and reconnects for ever.

    When it dials again, takes what it received, or repeats a request is an action of its own.

    Attributes:
        broker: the only broker it talks to.
        received: per subscription number, what the application got, in order.
    """

    def __init__(
        self,
        name: ClientId,
        broker: BrokerNumber,
        network: UntimedNetwork,
        observer: ClientObserver,
        publishes: bool,
    ) -> None:
        super().__init__(name)
        self.name = name
        self.broker = broker
        self.alive = True
        self.incarnation = 1
        self.publishes = publishes
        self.core = ClientCore(name, publishes=publishes)
        self.received: dict[int, list[tuple[SourceId, int]]] = {}
        self._network = network
        self._observer = observer
        self._dialling = network.lane(("dial", name), self._dial)
        self._taking = network.lane(("take", name), self._take)
        self._asking = network.lane(("ask again", name), self._ask_again)
        network.endpoints[name] = self
        self._dialling.push(None)

    @property
    def settled(self) -> bool:
        """Whether it has a session and nothing to do."""
        idle = not self._taking.queue and not self._asking.queue
        return bool(self.ends) and idle and not self.core.ending

    def subscribe(self, predicate: Predicate) -> int:
        """Ask for publications; returns the number of the subscription."""
        number = self.core.subscribe(predicate)
        self.received[number] = []
        self._send_out()
        return number

    def unsubscribe(self, number: int) -> None:
        """End a subscription."""
        self.core.unsubscribe(number)
        self._send_out()

    def forget(self) -> None:
        """Its process dies with its memory, and another one of that name dials."""
        self._network.endpoint_died(self)
        for lane in (self._dialling, self._taking, self._asking):
            lane.keep(0)
        incarnation = self.core.incarnation + self.publishes
        self.core = ClientCore(self.name, publishes=self.publishes, incarnation=incarnation)
        self.received = {}
        self._dialling.push(None)

    def publish(self, blob: bytes, payload: bytes, count: int) -> int:
        """Publish `count` times the same; returns the first sequence number."""
        first = self.core.next_sequence
        for _ in range(count):
            self.core.publish(blob, payload)
        self._send_out()
        return first

    # ------------------------------------------------------------ what the network says

    def established(self, end: End, incarnation: int) -> None:
        self.core.on_established()
        self._send_out()

    def lost(self, end: End, reason: LossReason) -> None:
        self.core.on_lost()
        self._dialling.push(None)

    def open_failed(self, peer: Peer, reason: str) -> None:
        self._dialling.push(None)

    def message_arrived(self, end: End, message: object) -> None:
        for event in self.core.on_message(message):  # type: ignore[arg-type]
            self._on_event(event)
        self._send_out()

    # ------------------------------------------------------------ inside

    def _on_event(self, event: ClientEvent) -> None:
        observer = self._observer
        match event:
            case Received():
                for deliveries in event.deliveries:
                    source = deliveries.run.source
                    for sequence, blob, payload in deliveries.run.publications():
                        for number in deliveries.subscriptions:
                            self.received[number].append((source, sequence))
                            observer.delivered(self.name, number, source, sequence, blob, payload)
                self._taking.push(event.serial)
            case Announced(notice, serial):
                observer.withheld(self.name, notice)
                self._taking.push(serial)
            case GapsAnnounced(gaps, serial):
                for gap in gaps:
                    observer.gap(self.name, gap.number, gap.source, gap.first, gap.last, gap.reason)
                self._taking.push(serial)
            case PublicationsDone(first, last):
                for sequence in range(first, last + 1):
                    observer.acknowledged(self.name, sequence)
            case SubscriptionAnswered(number, state):
                if state == "started":
                    observer.started(self.name, number)
            case Attached(source, _):
                observer.connected(self.name, source)
            case RetryLater(refused):
                self._asking.push(refused.number)

    def _dial(self, _: None) -> None:
        self._network.open(self, self.broker)

    def _take(self, serial: int) -> None:
        self.core.take(serial)
        self._send_out()

    def _ask_again(self, number: int) -> None:
        if number:
            self.core.subscribe_again(number)
            self._send_out()
        else:
            self._network.close(self, self.broker)

    def _send_out(self) -> None:
        if self.ends:
            for message in self.core.messages_to_send():
                self._network.send(self, self.broker, message)
