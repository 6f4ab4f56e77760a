"""Simulated clients: the core of the client library with an application on top."""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from brokerd.client.broker_choice import Brokers
from brokerd.client.core import ClientCore
from brokerd.client.events import (
    Announced,
    Attached,
    ClientEvent,
    Detached,
    GapAnnounced,
    GapsAnnounced,
    PublicationsDone,
    Received,
    Redirected,
    RequestRefused,
    RetryLater,
    SubscriptionAnswered,
    SubscriptionEnded,
)
from brokerd.client.state import Home, Positions
from brokerd.model.client_messages import Notice, Refused
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import Buffer
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.clock import Lane
from brokerd.simulator.world.network import Network, kill_endpoint
from brokerd.simulator.world.sessions import Endpoint, SessionEnd
from brokerd.units import MILLISECOND_NS

RECONNECT_NS = 100 * MILLISECOND_NS


class ClientObserver(Protocol):
    """An observer with the view of the clients' applications, and no other."""

    def on_connected(self, client: ClientId, source: SourceId | None) -> None:
        """Record the source of a client's publications."""
        ...

    def on_started(self, client: ClientId, number: int) -> None:
        """Record that the broker reported a start of a subscription to the client."""
        ...

    def on_delivered(
        self,
        client: ClientId,
        number: int,
        source: SourceId,
        sequence: int,
        blob: bytes,
        payload: Buffer,
    ) -> None:
        """Record a publication for the application, after the duplicate check of the library."""
        ...

    def on_withheld(self, client: ClientId, notice: Notice) -> None:
        """Record a notice of withheld publications."""
        ...

    def on_gap(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        """Record an announced gap: publications that do not arrive, now or ever."""
        ...

    def on_acknowledged(self, client: ClientId, sequence: int) -> None:
        """Record an acknowledgement of the client's publication."""
        ...


class Observers:
    """Several observers as one, called in turn."""

    def __init__(self, *observers: ClientObserver) -> None:
        self._observers = observers

    def on_connected(self, client: ClientId, source: SourceId | None) -> None:
        """Pass the source to each observer."""
        for observer in self._observers:
            observer.on_connected(client, source)

    def on_started(self, client: ClientId, number: int) -> None:
        """Pass the start to each observer."""
        for observer in self._observers:
            observer.on_started(client, number)

    def on_delivered(
        self,
        client: ClientId,
        number: int,
        source: SourceId,
        sequence: int,
        blob: bytes,
        payload: Buffer,
    ) -> None:
        """Pass the publication to each observer."""
        for observer in self._observers:
            observer.on_delivered(client, number, source, sequence, blob, payload)

    def on_withheld(self, client: ClientId, notice: Notice) -> None:
        """Pass the notice to each observer."""
        for observer in self._observers:
            observer.on_withheld(client, notice)

    def on_gap(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        """Pass the gap to each observer."""
        for observer in self._observers:
            observer.on_gap(client, number, source, first, last, reason)

    def on_acknowledged(self, client: ClientId, sequence: int) -> None:
        """Pass the acknowledgement to each observer."""
        for observer in self._observers:
            observer.on_acknowledged(client, sequence)


class SimulatedClient(Endpoint):
    """A client that publishes, subscribes, and reconnects for ever.

    Attributes:
        name: name of the client, also the key of the endpoint.
        broker: the access broker; the only peer until a move.
        core: the core of the client library.
        received: deliveries to the application by subscription number, in order.
        started_numbers: subscriptions that the broker reported as started.
        withheld: notices of publications withheld by partitions, in order.
        gaps: announced gaps, in order.
        refused: requests that the broker refused for good.
        repeated_requests: number of subscriptions that were refused temporarily.
        ended: subscriptions that the broker has ended on request.
        path_ages_ns: `path_age_ns` of the report of each started subscription.
        detached: the broker keeps no state for this client any more.
        drains: the client has requested its remaining publications, before it leaves.
        tokens: committed positions by subscription at several times; empty unless requested.
        take_after_ns: time that the application needs for a delivery.
        on_change: called after any possible change.
        on_refused: called with each request that was refused for good.
        brokers: possible targets of redirects, by their numbers as text; None before the first
            redirect.
        on_redirected: called with the brokers of a redirect, best first.
        is_moving: the client moves to another broker, or has just moved, and stays meanwhile.
    """

    def __init__(
        self,
        name: ClientId,
        broker: BrokerNumber,
        network: Network,
        random: Random,
        observer: ClientObserver | None,
        publishes: bool,
        core: ClientCore | None = None,
    ) -> None:
        super().__init__(name)
        self.name = name
        self.broker = broker
        self.alive = True
        self.incarnation = 1
        self.publishes = publishes
        self.core = core or ClientCore(name, publishes=publishes, instance=b"1")
        self.on_change: Callable[[], None] = lambda: None
        self.on_refused: Callable[[Refused], None] = lambda refused: None
        self.brokers: Brokers | None = None
        self.on_redirected: Callable[[Sequence[str]], None] = lambda addresses: None
        self.is_moving = False
        self.received: dict[int, list[tuple[SourceId, int]]] = {
            number: [] for number in self.core.subscriptions
        }
        self.started_numbers: dict[int, None] = {}
        self.withheld: list[Notice] = []
        self.gaps: list[GapAnnounced] = []
        self.tokens: deque[dict[int, Positions]] = deque(maxlen=0)
        self.refused: list[Refused] = []
        self.take_after_ns = 0
        self.repeated_requests = 0
        self.ended: dict[int, None] = {}
        self.path_ages_ns: dict[int, int] = {}
        self.detached = self.drains = False
        self._network = network
        self._random = random
        self._observer = observer
        self._retry = Lane(network.schedule, f"{name}:tries-again")
        self._application = Lane(network.schedule, f"{name}:takes")

    # ------------------------------------------------------------ actions of the application

    def dial(self) -> None:
        """Open a session with the broker; after each interruption the client dials by itself."""
        if self.alive:
            self._network.open(self, self.broker)

    def move_to(self, home: Home, broker: BrokerNumber) -> None:
        """Continue at another broker, as if the old broker were unreachable."""
        here, self.broker = self.broker, broker
        self.started_numbers = {}
        self._network.close(self, here, "closed_by_us")
        self.core.on_lost()
        self.core.move_to(home)
        self.core.leave()
        self.dial()

    def leave(self) -> None:
        """End the process of the application for good, as a machine failure does."""
        self.alive = False
        kill_endpoint(self._network, self)

    def subscribe(self, predicate: Predicate) -> int:
        """Subscribe to publications; return the number of the subscription."""
        number = self.core.subscribe(predicate)
        self.received[number] = []
        self._send_out()
        return number

    def mark(self) -> int:
        """Subscribe to nothing, with a start behind all earlier publications; return the number."""
        number = self.core.mark()
        self._send_out()
        return number

    def unsubscribe(self, number: int) -> None:
        """End a subscription; the application receives nothing more of this subscription."""
        self.core.unsubscribe(number)
        self._send_out()

    def detach(self, *, drain: bool = False, through: Positions = ()) -> None:
        """Detach from the broker, which then keeps no state of this client."""
        self.drains = drain
        self.core.detach(drain=drain, through=through)
        self._send_out()

    def take_over(self, predecessor: "SimulatedClient") -> None:
        """Continue from the state of this client at another broker; see ClientCore."""
        for event in self.core.take_over(predecessor.core):
            self._on_event(event)
        self._send_out()

    def publish(self, contents: Sequence[tuple[bytes, bytes]]) -> int:
        """Publish (attribute blob, payload) pairs as one run; return the first sequence number."""
        first = self.core.outgoing.next_sequence
        for blob, payload in contents:
            self.core.outgoing.publish(blob, payload)
        self._send_out()
        return first

    @property
    def is_committing(self) -> bool:
        """True if a consumer waits for the answer to a commit."""
        return False

    @property
    def waits(self) -> str:
        """Unanswered requests to the broker, in words."""
        if self.core.is_detaching:
            return "" if self.detached else "leave to go"
        return (
            f"the end of {self.core.subscriptions.ending}" if self.core.subscriptions.ending else ""
        )

    # ------------------------------------------------------------ events from the network

    def on_established(self, end: SessionEnd, incarnation: int) -> None:
        self.core.on_established()
        self._send_out()

    def on_lost(self, end: SessionEnd, reason: LossReason) -> None:
        self.core.on_lost()
        if not self.detached:
            self._defer(self.dial)
        self.on_change()

    def open_failed(self, peer: Peer, reason: str) -> None:
        self._defer(self.dial)

    def message_arrived(self, end: SessionEnd, message: Any) -> None:
        for event in self.core.on_message(message):
            self._on_event(event)
        self._send_out()
        self.on_change()

    # ------------------------------------------------------------ internals

    def _on_event(self, event: ClientEvent) -> None:
        match event:
            case Received():
                self._on_received(event)
            case Announced(notice, serial):
                self.withheld.append(notice)
                if self._observer is not None:
                    self._observer.on_withheld(self.name, notice)
                self._process_later(serial)
            case GapsAnnounced(gaps, serial):
                self.gaps += gaps
                for gap in gaps:
                    if self._observer is not None:
                        self._observer.on_gap(
                            self.name, gap.number, gap.source, gap.first, gap.last, gap.reason
                        )
                self._process_later(serial)
            case PublicationsDone(first, last):
                if self._observer is not None:
                    for sequence in range(first, last + 1):
                        self._observer.on_acknowledged(self.name, sequence)
            case SubscriptionAnswered(number, state, path_age_ns):
                if state == "started":
                    self.started_numbers[number] = None
                    self.path_ages_ns[number] = path_age_ns
                    if self._observer is not None:
                        self._observer.on_started(self.name, number)
            case SubscriptionEnded(number):
                self.ended[number] = None
            case Detached():
                self.detached = True
                self._network.close(self, self.broker, "closed_by_us")
            case Attached(source, _):
                if self._observer is not None:
                    self._observer.on_connected(self.name, source)
            case Redirected(addresses):
                self.on_redirected(addresses)
            case RequestRefused(refused):
                self.refused.append(refused)
                self.on_refused(refused)
            case RetryLater(refused) if refused.number:
                self.repeated_requests += 1
                self._defer(self._subscribe_again, refused.number)
            case RetryLater():
                self._defer(self._network.close, self, self.broker, "closed_by_us")

    def _on_received(self, event: Received) -> None:
        for deliveries in event.deliveries:
            source = deliveries.run.source
            for sequence, blob, payload in deliveries.run.publications():
                for number in deliveries.subscriptions:
                    self.received[number].append((source, sequence))
                    if self._observer is not None:
                        self._observer.on_delivered(
                            self.name, number, source, sequence, blob, payload
                        )
        self._process_later(event.serial)

    def _process_later(self, serial: int) -> None:
        if self.take_after_ns:
            self._network.schedule.post(self._application, self.take_after_ns, self._take, serial)
        elif self._application.queue:  # earlier deliveries must be taken earlier
            self._network.schedule.post(self._application, 0, self._take, serial)
        else:
            self._take_now(serial)

    def _take_now(self, serial: int) -> None:
        self.core.progress.take(serial)
        if self.tokens.maxlen:
            numbers = self.core.subscriptions
            self.tokens.append(
                {number: self.core.progress.committed_positions(number) for number in numbers}
            )

    def _take(self, serial: int) -> None:
        self._take_now(serial)
        self._send_out()

    def _subscribe_again(self, number: int) -> None:
        self.repeated_requests -= 1
        self.core.subscribe_again(number)
        self._send_out()

    def _send_out(self) -> None:
        if self.ends:
            for message in self.core.messages_to_send():
                self._network.send(self, self.broker, message)

    def _defer(self, action: Any, *arguments: Any) -> None:
        delay_ns = RECONNECT_NS + int(self._random.random() * RECONNECT_NS)
        schedule = self._network.schedule
        if schedule.adversarial:
            schedule.post(self._retry, delay_ns, action, *arguments)
        else:
            schedule.at(schedule.now_ns + delay_ns, action, *arguments)
