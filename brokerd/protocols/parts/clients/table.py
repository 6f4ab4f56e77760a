"""The clients of one broker: sessions, sources, limits, and the lifetime of their state.

A protocol has a `ClientTable`, and reports all sessions and requests to the table: the table checks
a request, refuses what all protocols refuse, and returns the client. What a subscription or a
publication is, only the protocol decides. The permitted order of requests is the same in all
protocols.

A client is admitted in four steps: `check_connect`; `assign_source`, with changes that the protocol
commits; `enter`, once the changes are durable and the protocol has restored the state in the
Connect; `welcome`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    MOST_INCARNATION,
    Acknowledge,
    CommitConsumed,
    Connect,
    Connected,
    Consume,
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
from brokerd.protocols.interface import LOSS_PROVED, Change, Commit, Instant
from brokerd.protocols.parts.clients.lost_state import lost_range, older_copy
from brokerd.protocols.parts.clients.progress import (
    PUBLISHER_PROGRESS,
    WRITE,
    WRITE_INTERVAL_NS,
    Progressive,
    PublisherProgress,
    progress_rows,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS
from brokerd.protocols.parts.publishers import PublisherTable

MOST_INSTANCE_BYTES: Final = 16
"""The longest `instance` that a client may state."""

NO_PEER: Final = -1
"""The peer of a deadline for all clients."""

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
        claimed: the source of another broker that the client continues as on its present session.
        leaving: the client has sent Detach on its present session.
        stated: subscriptions that the client has stated as started on its session.
        lost_positions: positions of subscriptions that this broker lost, by number and stream.
    """

    name: ClientId
    session: int = 0
    connect_seen: bool = False
    connected: bool = False
    source: SourceId | None = None
    claimed: SourceId | None = None
    leaving: bool = False
    stated: dict[int, None] = field(default_factory=dict)
    lost_positions: dict[int, dict[StreamId, int]] = field(default_factory=dict)
    subscriptions: dict[int, Subscription] = field(default_factory=dict)


Client = TypeVar("Client", bound=HostedClient[Any])


@dataclass(frozen=True, slots=True)
class Admission(Generic[Client]):
    """The admission of a client whose Connect is permitted.

    Attributes:
        session: of the Connect.
        message: the Connect, with the source that the client gets or continues as.
        changes: durable before the client receives the source.
    """

    client: Client
    session: int
    message: Connect
    changes: list[Change]

    def is_current(self) -> bool:
        """Return True if the client still has the session; set the client's source then."""
        if self.client.session != self.session:
            return False
        self.client.source = self.message.source
        return True


class ClientTable(Generic[Client]):
    """The clients of one broker.

    Args:
        kind: the class of the protocol's clients.
        takes_sources: whether a client may continue with a source of another broker.
        writes_published: whether the numbers of publishers are written, because no disk has the
            publications themselves.
        pubends: see PublisherTable.

    Attributes:
        incarnation: of this broker.
        lineage: see Started.
        clients: all clients with state here, by name.
        here: the admitted clients, in the order of admission.
        refusal: the reason for which no client is admitted at present; "" otherwise.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: ClientParameters,
        kind: type[Client],
        *,
        takes_sources: bool = False,
        writes_published: bool = False,
        pubends: int = 0,
    ) -> None:
        self.incarnation = 0
        self.lineage = 0
        self.clients: dict[ClientId, Client] = {}
        self.here: dict[ClientId, None] = {}
        self.refusal = ""
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._limits = parameters
        self._kind = kind
        self._takes_sources = takes_sources
        self._publishers = PublisherTable(broker, pubends)
        self._published = PublisherProgress(is_written=writes_published)
        self._advanced: dict[Progressive, None] = {}
        self._is_write_due = False
        self._claims: dict[SourceId, ClientId] = {}

    def start(
        self, incarnation: int, recovered: Mapping[str, Mapping[str, Any]], lineage: int = 0
    ) -> None:
        """Start with the publisher numbers and the progress of earlier incarnations.

        Args:
            lineage: see Started.
        """
        self.incarnation = incarnation
        self.lineage = lineage
        self._publishers.recover(recovered.get(PUBLISHERS, {}), lineage)
        self._published.recover(recovered.get(PUBLISHER_PROGRESS, {}))

    def find(self, name: ClientId) -> Client:
        """Return a client; a client without state here becomes a new client."""
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = self._kind(name)
        return client

    def publisher_of(self, source: SourceId) -> ClientId:
        """Return the name of the client with a source of this broker."""
        return self._publishers.name_of(source.publisher)

    def session_of(self, name: ClientId) -> int:
        """Return the client's current session, 0 without a session."""
        client = self.clients.get(name)
        return client.session if client is not None else 0

    def is_connected(self, name: ClientId) -> bool:
        """Return True if the client is connected and may receive messages."""
        client = self.clients.get(name)
        return client is not None and client.connected

    def count_subscriptions(self) -> int:
        """Return the number of subscriptions of this broker's clients."""
        return sum(len(client.subscriptions) for client in self.clients.values())

    # ------------------------------------------------------------ sessions

    def open_session(self, name: ClientId, session: int) -> Client:
        """Return the client of a new session; the first message must be Connect."""
        client = self.find(name)
        assert not client.session, f"second session with client {name!r}"
        client.session = session
        client.connect_seen = client.connected = client.leaving = False
        self._deadlines.cancel((LINGER, name))
        return client

    def close_session(self, name: ClientId, session: int) -> tuple[Client, bool]:
        """Return the client of a session that has ended, and whether the client was admitted.

        `source` is still set. The caller then calls `keep` or `forget`.
        """
        client = self.clients[name]
        assert client.session == session, f"session {session} of {name!r} is not current"
        was_admitted = client.connected or not client.connect_seen
        if client.claimed is not None:
            del self._claims[client.claimed]
            client.claimed = None
        client.session = 0
        client.connected = False
        return client, was_admitted

    def keep(self, client: Client) -> bool:
        """Keep an absent client for a while; return True if the client was admitted."""
        client.source = None
        self.linger(client.name)
        return self._leave(client.name)

    def forget(self, name: ClientId) -> bool:
        """Remove an absent client without remaining state; return True if admitted."""
        del self.clients[name]
        self._deadlines.cancel((LINGER, name))
        return self._leave(name)

    def _leave(self, name: ClientId) -> bool:
        if name not in self.here:
            return False
        del self.here[name]
        return True

    def linger(self, name: ClientId) -> None:
        """Set the deadline at which a client's subscriptions end that no session has requested."""
        self._deadlines.set((LINGER, name), self._machine.now_ns + self._limits.client_linger_ns)

    def away_ns(self, name: ClientId, now_ns: Instant) -> Instant | None:
        """Return the time since a client's last session, or the start; None with a session."""
        client, over_ns = self.clients.get(name), self._deadlines.instant((LINGER, name))
        if client is not None and client.session:
            return None
        return 0 if over_ns is None else now_ns + self._limits.client_linger_ns - over_ns

    # ------------------------------------------------------------ admission

    def check_connect(
        self, name: ClientId, message: Connect, received: int = 0, durable: int | None = None
    ) -> Client | None:
        """Return the client of a permitted Connect; refuse any other.

        Args:
            received: the last sequence number of the source that is on record here. A publisher
                that continues at a lower number has lost the counter: the next publications would
                count as duplicates.
            durable: the last sequence number of the source that is on disk here. None if this
                broker stores no publications of its clients: then no client can prove a loss.

        Raises:
            RemoteProtocolError: the message is impossible.
        """
        client = self.clients[name]
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
            return None
        if objection := self._objection_to(name, message, received, durable):
            self._machine.send(name, Refused("connect", 0, objection, False))
            return None
        client.connect_seen = True
        if message.source is not None and message.source.broker != self._broker:
            self._claims[message.source] = name
            client.claimed = message.source
        return client

    def _objection_to(
        self, name: ClientId, message: Connect, received: int, durable: int | None
    ) -> str:
        """Return the reason for a permanent refusal of a client; empty if permitted."""
        is_foreign = message.source is not None and message.source.broker != self._broker
        if not message.publishes:
            return ""
        if objection := self._publishers.objection_to_pubend(name, message):
            return objection
        if message.source is not None and is_foreign and self._takes_sources:
            if self._claims.get(message.source, name) == name:
                return ""
            return f"publisher {name!r} is {message.source}, as another client here is"
        objection = self._publishers.objection_to(name, message)
        if objection and message.source is not None and not is_foreign:
            self._machine.record(LOSS_PROVED, client=name, cause=objection)
        if objection or message.source is None:
            return objection
        received = max(received, self._published.highest(name, message.source))
        if message.highest_sequence < received:
            return older_copy(name, message.highest_sequence, received)
        if self.lineage:
            return ""
        lost = lost_range(durable, message.next_sequence)
        if lost is None:
            return ""
        cause = (
            f"publications {lost[0]} to {lost[-1]} of {name!r} were acknowledged, and are missing "
            "on this broker's disk"
        )
        self._machine.record(LOSS_PROVED, client=name, cause=cause)
        return f"{cause}: an older copy of its state folder was put back"

    def assign_source(self, client: Client, message: Connect) -> Admission[Client]:
        """Return the admission of a client, with a source if it publishes."""
        changes: list[Change] = []
        if message.publishes and message.source is None:
            source, change = self._publishers.assign_source(client.name, message)
            message = replace(message, source=source)
            changes.append(change)
        elif message.source is not None and self.lineage:
            restored = self._publishers.restore(client.name, message.source)
            changes.extend([restored] if restored is not None else ())
        return Admission(client, client.session, message, changes)

    def enter(self, client: Client) -> None:
        """Admit a client after the restoration of its state."""
        client.connected = True
        self.here[client.name] = None
        if client.source is not None:
            self._published.renew(client.name, self.here)

    def welcome(self, client: Client) -> None:
        """Notify a client of its admission."""
        self._machine.send(client.name, Connected(client.source, self.incarnation))

    # ------------------------------------------------------------ state that this broker lost

    def recall_lost(self, client: Client, message: Connect, whole: Collection[int]) -> None:
        """Recall the positions of stated subscriptions of which this broker has lost a part.

        Args:
            whole: the numbers of the client's started subscriptions without a loss.
        """
        client.stated = dict.fromkeys(number for number, _ in message.resume)
        if self.lineage:
            client.lost_positions = {
                number: dict(seen) for number, seen in message.resume if number not in whole
            }

    def gaps_of_lost(
        self, client: Client, number: int, begins_after: Mapping[StreamId, int]
    ) -> Iterator[Gap]:
        """Yield a gap for each stream in which a lost subscription restarts.

        The gap of a stream of which the client has no position begins at the first position.

        Args:
            begins_after: positions behind which the subscription restarts.
        """
        had = client.lost_positions.pop(number, None)
        if had is None:
            return
        for stream, last in begins_after.items():
            first = had.get(stream, 0) + 1
            if first <= last and last:
                yield Gap((number,), stream, first, last, STATE_LOST)

    def lost_publications(self, message: Connect, durable: int | None) -> PublicationRun | None:
        """Return the loss marker to publish for publications of a source that are lost here."""
        source = message.source
        lost = lost_range(durable, message.next_sequence) if self.lineage else None
        if source is None or lost is None:
            return None
        self._machine.record("loss_announced", first=lost[0], last=lost[-1], source=[*source])
        return marker(source, lost[0], lost[-1])

    # ------------------------------------------------------------ requests

    def requester(self, name: ClientId, request: str) -> Client:
        """Return the client that made a request.

        Raises:
            RemoteProtocolError: the client is not connected, or has sent Detach before.
        """
        client = self.clients[name]
        if not client.connected:
            raise RemoteProtocolError(name, f"{request} before Connected")
        if client.leaving and request != "Acknowledge":
            raise RemoteProtocolError(name, f"{request} after Detach")
        return client

    def is_permitted(self, client: Client, message: Subscribe, waiting: int = 0) -> bool:
        """Return True if a client may subscribe; refuse too many, or another predicate.

        Args:
            waiting: requests that count against the client's limit, besides subscriptions.
        """
        number, subscription = message.number, client.subscriptions.get(message.number)
        if subscription is None:
            most = self._limits.client_subscriptions
            beside = message.predicate == NOTHING
            if len(client.subscriptions) + waiting < most + beside:
                return True
            reason = f"a client has at most {most} subscriptions"
        elif subscription.predicate == message.predicate:
            return True
        else:
            reason = f"subscription {number} exists with another predicate"
        self._machine.send(client.name, Refused("subscribe", number, reason, False))
        return False

    def on_consume(self, name: ClientId, message: Consume) -> None:
        """Refuse a Consume, in protocols without committed positions at brokers."""
        self.requester(name, "Consume")
        reason = "brokers of this protocol do not keep how far a subscription is committed"
        self._machine.send(name, Refused("subscribe", message.number, reason, False))

    def on_commit_consumed(self, name: ClientId, message: CommitConsumed) -> None:
        """Refuse a commit, in protocols without committed positions at brokers."""
        raise RemoteProtocolError(name, f"commits {message.number}, which is not kept here")

    def check_unsubscribe(self, name: ClientId, message: Unsubscribe) -> Client:
        """Return the client that ends a subscription."""
        client = self.requester(name, "Unsubscribe")
        if message.number < 1:
            raise RemoteProtocolError(name, f"there is no subscription {message.number}")
        return client

    def check_detach(self, name: ClientId) -> Client:
        """Return the client that ends all subscriptions, and makes no further request."""
        client = self.requester(name, "Detach")
        client.leaving = True
        return client

    def check_publish(self, name: ClientId, message: Publish) -> Client:
        """Return the client that publishes as a source.

        The caller checks the contents, and then records the numbers.
        """
        client = self.requester(name, "Publish")
        if has_marker(message.run):
            raise RemoteProtocolError(name, "publishes a loss marker")
        if message.run.source != client.source or message.run.origins:
            raise RemoteProtocolError(name, f"publishes as {message.run.source}")
        return client

    def check_acknowledge(self, name: ClientId, message: Acknowledge) -> Client:
        """Return the client that acknowledges deliveries on the session."""
        client = self.requester(name, "Acknowledge")
        if message.first > message.last:
            raise RemoteProtocolError(name, f"range [{message.first}, {message.last}]")
        return client

    # ------------------------------------------------------------ progress

    def record_published(self, name: ClientId, source: SourceId, last: int) -> None:
        """Record a number of a source of this broker, and write it later.

        Every publication comes here: the progress is not called.
        """
        known, highest = self._published.latest.get(name, (None, 0))
        if source.broker != self._broker or last <= (highest if known == source else 0):
            return
        self._published.latest[name] = source, last
        if self._published.unwritten is not None:
            self._published.unwritten[name] = None
            self._write_later()

    def advance(self, locals_: Iterable[Progressive]) -> None:
        """Write the acknowledged positions of subscriptions later."""
        self._advanced.update(dict.fromkeys(locals_))
        if self._advanced:
            self._write_later()

    def withdraw(self, former: Sequence[Progressive]) -> None:
        """Write at once that subscriptions have lost the positions of an earlier process."""
        self.advance(former)
        if former:
            self.write_progress()

    def _write_later(self) -> None:
        if not self._is_write_due:
            self._is_write_due = True
            self._deadlines.set((WRITE, NO_PEER), self._machine.now_ns + WRITE_INTERVAL_NS)

    def write_progress(self, _peer: Peer = NO_PEER) -> None:
        """Write the progress of clients since the last call, lazily."""
        self._is_write_due = False
        self._deadlines.cancel((WRITE, NO_PEER))
        changes = [*self._published.take_changes(), *progress_rows(self._advanced)]
        self._advanced.clear()
        if changes:
            self._machine.emit(Commit(tuple(changes), None))

    def report_end(self, client: Client, session: int, number: int) -> None:
        """Report the end of a subscription, or of all for number 0, if the session is current."""
        if client.session == session:
            self._machine.send(client.name, Unsubscribed(number))
