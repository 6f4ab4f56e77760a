"""The clients of one broker: attachment, numbers, limits, and the lifetime of their state.

A protocol derives from `ClientService` and defines subscriptions, their end, and the handling of
publications. The permitted order of requests is the same in all protocols.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    MOST_INCARNATION,
    Acknowledge,
    CommitConsumed,
    Connect,
    Connected,
    Consume,
    Detach,
    Gap,
    Publish,
    Refused,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId, StreamId
from brokerd.model.losses import STATE_LOST, has_marker, marker
from brokerd.model.predicate import NOTHING, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import LOSS_PROVED, Change
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS
from brokerd.protocols.parts.publishers import PublisherTable

MOST_INSTANCE_BYTES: Final = 16
"""The longest `instance` that a client may state."""

LINGER: Final = "linger"
"""Purpose of the deadline at which a client's subscriptions end."""


class ClientParameters(Protocol):
    """A protocol's parameters of clients."""

    @property
    def client_linger_ns(self) -> int:
        """Duration for which subscriptions of a client without a session are kept."""

    @property
    def client_subscriptions(self) -> int:
        """Greatest number of subscriptions of a client; further requests are refused."""


class HostedSubscription(Protocol):
    """A subscription of a client of this broker."""

    @property
    def number(self) -> int:
        """The subscription's number at its client."""

    @property
    def predicate(self) -> Predicate:
        """The subscription's predicate."""


Subscription = TypeVar("Subscription", bound=HostedSubscription)


@dataclass(slots=True, eq=False)
class HostedClient(Generic[Subscription]):
    """A client that has a session here, or had a session and may return.

    Attributes:
        session: 0 without a session.
        connect_seen: the client has sent Connect on its present session.
        connected: the broker has sent Connected on the present session.
        source: the source that the client publishes as on its present session.
        leaving: the client has sent Detach on its present session.
        stated: subscriptions that the client has stated as started on its session.
        forgotten: positions of subscriptions that this broker lost, by number and stream.
    """

    name: ClientId
    session: int = 0
    connect_seen: bool = False
    connected: bool = False
    source: SourceId | None = None
    leaving: bool = False
    stated: dict[int, None] = field(default_factory=dict)
    forgotten: dict[int, dict[StreamId, int]] = field(default_factory=dict)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)


Client = TypeVar("Client", bound=HostedClient[Any])


class ClientService(ABC, Generic[Client, Subscription]):
    """The clients of one broker.

    Attributes:
        incarnation: of this broker.
        takes_sources: whether a client may continue with a source of another broker.
        keeps_subscriptions: whether a subscription that this broker lost restarts.
        unseen_first: the first position of a gap of a lost subscription in a stream that its client
            has no position of; None, for the last position alone, if positions count no
            publications.
        here: the admitted clients, in the order of admission.
        on_change: called after the admission or departure of a client.
        refusal: the reason for which no client is admitted at present; "" otherwise.
        lineage: see Started.
    """

    takes_sources: ClassVar[bool] = False
    keeps_subscriptions: ClassVar[bool] = False
    unseen_first: ClassVar[int | None] = None

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: ClientParameters,
    ) -> None:
        self.incarnation = 0
        self.lineage = 0
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._limits = parameters
        self._publishers = PublisherTable(broker)
        self._clients: dict[ClientId, Client] = {}
        self.here: dict[ClientId, None] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.refusal = ""

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of clients' messages by type."""
        return {
            Connect: self.on_connect,
            Subscribe: self.on_subscribe,
            Consume: self.on_consume,
            CommitConsumed: self.on_commit_consumed,
            Unsubscribe: self.on_unsubscribe,
            Detach: self.on_detach,
            Publish: self.on_publish,
            Acknowledge: self.on_acknowledge,
        }

    def start(
        self, incarnation: int, recovered: Mapping[str, Mapping[str, Any]], lineage: int = 0
    ) -> None:
        """Start the service with the publisher numbers of earlier incarnations.

        Args:
            lineage: see Started.
        """
        self.incarnation = incarnation
        self.lineage = lineage
        self._publishers.recover(recovered.get(PUBLISHERS, {}), lineage)

    # ------------------------------------------------------------ sessions

    def session_of(self, name: ClientId) -> int:
        """Return the client's current session, 0 without a session."""
        client = self._clients.get(name)
        return client.session if client is not None else 0

    def is_connected(self, name: ClientId) -> bool:
        """Return True if the client is connected and may receive messages."""
        client = self._clients.get(name)
        return client is not None and client.connected

    def subscriptions(self) -> int:
        """Return the number of subscriptions of this broker's clients."""
        return sum(len(client.subscriptions) for client in self._clients.values())

    def on_established(self, name: ClientId, session: int) -> None:
        """Handle a client's new session; the first message must be Connect."""
        client = self._client(name)
        assert not client.session, f"second session with client {name!r}"
        client.session = session
        client.connect_seen = client.connected = client.leaving = False
        self._on_arrived(client)
        self._deadlines.cancel((LINGER, name))

    def on_lost(self, name: ClientId, session: int) -> None:
        """Handle the end of a client's session; the client's state is kept for a while."""
        client = self._clients[name]
        assert client.session == session, f"session {session} of {name!r} is not current"
        was_let_in = client.connected or not client.connect_seen
        client.session = 0
        client.connected = False
        self._on_gone(client)
        client.source = None
        if was_let_in and not self._keeps(client):
            self._deadlines.cancel((LINGER, name))
            self._forget(name)
        else:
            self._linger(name)
        if name in self.here:
            del self.here[name]
            self.on_change()

    @abstractmethod
    def linger_over(self, name: ClientId) -> None:
        """Release the state of a client that has not returned in time."""

    def _linger(self, name: ClientId) -> None:
        self._deadlines.set((LINGER, name), self._machine.now_ns + self._limits.client_linger_ns)

    def _client(self, name: ClientId) -> Client:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self._new_client(name)
        return client

    def _client_of(self, name: ClientId, request: str) -> Client:
        """Return the client that made a request.

        Raises:
            RemoteProtocolError: the client is not connected, or has sent Detach before.
        """
        client = self._clients[name]
        if not client.connected:
            raise RemoteProtocolError(name, f"{request} before Connected")
        if client.leaving and request != "Acknowledge":
            raise RemoteProtocolError(name, f"{request} after Detach")
        return client

    # ------------------------------------------------------------ requests

    def on_connect(self, name: ClientId, message: Connect) -> None:
        """Assign a publisher its source, and admit the client once the source is on disk."""
        client = self._clients[name]
        if client.connect_seen:
            raise RemoteProtocolError(name, "a second Connect on one session")
        if (
            message.next_sequence < 1
            or message.highest_sequence < 0
            or not 0 <= message.incarnation <= MOST_INCARNATION
            or len(message.instance) > MOST_INSTANCE_BYTES
        ):
            raise RemoteProtocolError(name, f"impossible numbers in {message}"[:300])
        if message.source is not None and not message.publishes:
            raise RemoteProtocolError(name, f"continues as {message.source}, and does not publish")
        if self.refusal:
            self._machine.send(name, Refused("connect", 0, self.refusal, True))
            return
        if objection := self._objection_to(name, message):
            self._machine.send(name, Refused("connect", 0, objection, False))
            return
        client.connect_seen = True
        self._admit(client, message)

    def _objection_to(self, name: ClientId, message: Connect) -> str:
        """Return the reason for a permanent refusal of a client; empty without one."""
        is_foreign = message.source is not None and message.source.broker != self._broker
        if not message.publishes or (is_foreign and self.takes_sources):
            return ""
        objection = self._publishers.objection_to(name, message)
        if objection and message.source is not None and not is_foreign:
            self._machine.record(LOSS_PROVED, client=name, cause=objection)
        if objection or message.source is None:
            return objection
        known = self._last_known(message.source)
        if message.highest_sequence < known:
            return (
                f"publisher {name!r} continues behind {message.highest_sequence}, and has "
                f"published up to {known}: its store is an older copy; start it without the store"
            )
        if self.lineage:
            return ""
        durable = self._durable_of(message.source)
        lost = lost_range(durable, message.next_sequence) if durable is not None else None
        if lost is None:
            return ""
        cause = (
            f"publications {lost[0]} to {lost[-1]} of {name!r} were acknowledged, and are missing "
            "on this broker's disk"
        )
        self._machine.record(LOSS_PROVED, client=name, cause=cause)
        return f"{cause}: an older copy of its state folder was put back"

    def _admit(self, client: Client, message: Connect) -> None:
        changes: list[Change] = []
        if message.publishes and message.source is None:
            source, change = self._publishers.assign_source(client.name, message)
            message = replace(message, source=source)
            changes.append(change)
        elif message.source is not None and self.lineage:
            restored = self._publishers.restore(client.name, message.source)
            changes.extend([restored] if restored is not None else ())
        changes.extend(self._changes_first(client, message))
        session = client.session
        self._disk.commit(changes, lambda: self._accept(client, session, message))

    def _accept(self, client: Client, session: int, message: Connect) -> None:
        self._on_recorded(client, message)
        if client.session != session:
            return
        client.source = message.source
        self._resume(client, message)
        if self.lineage and self._ends_unstated(message):
            self._end_unstated(client, [number for number, _ in message.resume])
        client.stated = dict.fromkeys(number for number, _ in message.resume)
        if self.lineage and self.keeps_subscriptions:
            client.forgotten = {
                number: dict(seen)
                for number, seen in message.resume
                if not self._has_whole(client, number)
            }
        if message.source is not None and self.lineage:
            self._announce_lost(client, message.source, message.next_sequence)
        client.connected = True
        self.here[client.name] = None
        self.on_change()
        self._machine.send(client.name, Connected(client.source, self.incarnation))
        self._on_connected(client)

    def on_consume(self, name: ClientId, message: Consume) -> None:
        """Handle a Consume as `on_subscribe`, in protocols with committed positions at brokers."""
        self._client_of(name, "Consume")
        reason = "brokers of this protocol do not keep how far a subscription is committed"
        self._machine.send(name, Refused("subscribe", message.number, reason, False))

    def on_commit_consumed(self, name: ClientId, message: CommitConsumed) -> None:
        """Commit a client's consumed positions, in protocols that store positions at brokers."""
        raise RemoteProtocolError(name, f"commits {message.number}, which is not kept here")

    def on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        """Create a subscription, or report its state; the same request again changes nothing."""
        client = self._client_of(name, "Subscribe")
        subscription = client.subscriptions.get(message.number)
        most = self._limits.client_subscriptions
        beside = message.predicate == NOTHING
        if subscription is None and self._subscriptions_of(client) >= most + beside:
            reason = f"a client has at most {most} subscriptions"
            self._machine.send(name, Refused("subscribe", message.number, reason, False))
        elif subscription is None:
            self._subscribe(client, message)
        elif subscription.predicate != message.predicate:
            reason = f"subscription {message.number} exists with another predicate"
            self._machine.send(name, Refused("subscribe", message.number, reason, False))
        else:
            self._claim(client, subscription)

    def on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """End a subscription and its stream at once, without waiting for other brokers."""
        client = self._client_of(name, "Unsubscribe")
        number, session = message.number, client.session
        if number < 1:
            raise RemoteProtocolError(name, f"there is no subscription {number}")
        found = client.subscriptions.get(number)
        over = [found] if found is not None else []
        self._end(client, over, lambda: self._answer_ended(client, session, number))

    @abstractmethod
    def on_detach(self, name: ClientId, message: Detach) -> None:
        """End all subscriptions of a client, and release its state."""

    def _announce_lost(self, client: Client, source: SourceId, next_sequence: int) -> None:
        """Publish a loss marker for publications of a source that this broker has lost."""
        durable = self._durable_of(source)
        lost = lost_range(durable, next_sequence) if durable is not None else None
        if lost is not None:
            self._machine.record("loss_announced", first=lost[0], last=lost[-1], source=[*source])
            self._publish_marker(client, marker(source, lost[0], lost[-1]))

    def on_publish(self, name: ClientId, message: Publish) -> None:
        """Check and accept publications of a client."""
        client = self._client_of(name, "Publish")
        if has_marker(message.run):
            raise RemoteProtocolError(name, "publishes a loss marker")
        if message.run.source != client.source or message.run.origins:
            raise RemoteProtocolError(name, f"publishes as {message.run.source}")
        self._publish(client, message)

    def on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        """Handle an acknowledgement of deliveries on the client's session."""
        client = self._client_of(name, "Acknowledge")
        if message.first > message.last:
            raise RemoteProtocolError(name, f"range [{message.first}, {message.last}]")
        self._acknowledge(client, message)

    def _answer_ended(self, client: Client, session: int, number: int) -> None:
        """Report the end of a subscription, or of all for number 0, if the session is current."""
        if client.session == session:
            self._machine.send(client.name, Unsubscribed(number))

    # ------------------------------------------------------------ overrides of a protocol

    @abstractmethod
    def _new_client(self, name: ClientId) -> Client:
        """Return a new client."""

    def _subscriptions_of(self, client: Client) -> int:
        """Return the number of subscriptions that count against the client's limit."""
        return len(client.subscriptions)

    @abstractmethod
    def _subscribe(self, client: Client, message: Subscribe) -> None:
        """Create a subscription."""

    @abstractmethod
    def _claim(self, client: Client, subscription: Subscription) -> None:
        """Report the state of an existing subscription to the client that requests it."""

    @abstractmethod
    def _end(self, client: Client, over: Sequence[Subscription], then: Callable[[], None]) -> None:
        """End subscriptions of a client; call `then` once the end is durable."""

    @abstractmethod
    def _publish(self, client: Client, message: Publish) -> None:
        """Accept publications of a client."""

    def _ends_unstated(self, message: Connect) -> bool:
        """Return True if a client has ended all subscriptions that the message does not state."""
        return self.keeps_subscriptions

    def _end_unstated(self, client: Client, stated: Sequence[int]) -> None:
        """End subscriptions from an older copy of the state folder that had ended since.

        A client that connects states all its started subscriptions, and requests the others again.
        """

    def _has_whole(self, client: Client, number: int) -> bool:
        """Return True if this broker has not lost any part of a client's started subscription."""
        return number in client.subscriptions

    def _gaps_of_forgotten(
        self,
        client: Client,
        number: int,
        begins_after: Mapping[StreamId, int],
    ) -> Iterator[Gap]:
        """Yield a gap for each stream in which a lost subscription restarts.

        Args:
            begins_after: positions behind which the subscription restarts.
        """
        had = client.forgotten.pop(number, None)
        if had is None:
            return
        for stream, last in begins_after.items():
            first = had[stream] + 1 if stream in had else self.unseen_first or last
            if first <= last and last:
                yield Gap((number,), stream, first, last, STATE_LOST)

    def _last_known(self, source: SourceId) -> int:
        """Return the last sequence number of a source that this broker has received.

        A publisher that continues at a lower number has lost the counter: the next publications
        would count as duplicates.
        """
        return self._durable_of(source) or 0

    def _durable_of(self, source: SourceId) -> int | None:
        """Return the last sequence number of a source that is on disk here.

        None if this broker stores no publications of its clients: then no client can prove a loss.
        """
        return None

    def _publish_marker(self, client: Client, run: PublicationRun) -> None:
        """Publish a loss marker in place of the source."""
        raise AssertionError(f"{run} of a source that is not kept")

    def _acknowledge(self, client: Client, message: Acknowledge) -> None:
        """Handle an acknowledgement; empty unless a protocol overrides it."""

    def _keeps(self, client: Client) -> bool:
        """Return True if state of a client without a session is kept for a while."""
        return True

    def _forget(self, name: ClientId) -> None:
        """Remove an absent client without remaining state."""
        del self._clients[name]

    def _on_arrived(self, client: Client) -> None:
        """Handle a client's new session."""

    def _on_gone(self, client: Client) -> None:
        """Handle the end of a client's session; `source` is still set."""

    def _changes_first(self, client: Client, message: Connect) -> Sequence[Change]:
        """Return the changes that must be durable before the client is admitted, besides its row.

        `message.source` is the source that the client gets or continues as.
        """
        return ()

    def _on_recorded(self, client: Client, message: Connect) -> None:
        """Handle the durability of `_changes_first`; the session may have ended."""

    def _resume(self, client: Client, message: Connect) -> None:
        """Restore the state in the client's Connect, before the client is admitted."""

    def _on_connected(self, client: Client) -> None:
        """Handle the admission of a client."""


def lost_range(durable: int, next_sequence: int) -> range | None:
    """Return the publications of a source that were acknowledged and are not on disk, if any.

    All numbers below `next_sequence` were acknowledged, as the publisher states when it connects.
    """
    return range(durable + 1, next_sequence) if next_sequence > durable + 1 else None
