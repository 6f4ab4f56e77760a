"""The decisions of a client library, composed: publications, subscriptions, positions, moves.

The shell around the core (trio client, simulator) reports events of the session and received
messages, sends `messages_to_send()` to the broker, and passes on the results. There is no clock in
the core: pauses before a retry are the shell's.
"""

from dataclasses import replace

from brokerd.client.attachment import Attachment, Unfinished
from brokerd.client.commits import CommitMode
from brokerd.client.events import (
    Attached,
    ClientEvent,
    Committed,
    Detached,
    Redirected,
    RequestRefused,
    RetryLater,
    SubscriptionAnswered,
)
from brokerd.client.outgoing import OutgoingPublications
from brokerd.client.progress import Progress
from brokerd.client.state import Home, Positions, Revision
from brokerd.client.subscriptions import Subscriptions
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    ClientMessage,
    Connect,
    Connected,
    ConsumedCommitted,
    Consuming,
    DeliveredItem,
    Deliveries,
    Detach,
    Gap,
    Notice,
    PublishAcknowledged,
    Redirect,
    Refused,
    Silence,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import ClientId, SourceId, StreamId
from brokerd.model.predicate import Predicate


class ClientCore:
    """One client of one broker, across any number of sessions.

    It can move to another broker if that breaks no promise of its protocol: see `may_leave`.

    Received publications are delivered once per subscription and in order, regardless of
    repetitions by the broker. The core relies on the broker delivering, within one session, the
    publications of a stream by increasing position.

    With `keeps_state`, the shell saves the state that must survive a restart (`restart.state_of`)
    whenever `revision.needs_saving`; no message is sent before the state that it depends on is
    saved. `Progress.record_delivery` records the next delivery to the application, so that the
    delivery is on record after a restart.

    Args:
        mode: the commit mode; see `commits`.

    Attributes:
        name: name of the client at its broker.
        publishes: True if the client may publish.
        revision: the versions of the state.
        outgoing: the unacknowledged publications.
        subscriptions: the subscriptions, by number.
        progress: the received, delivered and committed positions.
        attachment: the client's broker.
    """

    def __init__(
        self,
        name: ClientId,
        *,
        publishes: bool,
        incarnation: int = 1,
        exact_incarnation: bool = False,
        instance: bytes = b"",
        keeps_state: bool = False,
        mode: CommitMode = "automatic",
    ) -> None:
        self.name = name
        self.publishes = publishes
        self._instance = instance
        self.revision = Revision(is_kept=keeps_state)
        self.attachment = Attachment(incarnation, exact_incarnation=exact_incarnation)
        self.outgoing = OutgoingPublications(self.revision)
        self.subscriptions = Subscriptions(self.revision)
        self.progress = Progress(self.subscriptions, self.revision, mode)
        self._detaching: Detach | None = None
        self._urgent: list[ClientMessage] = []
        self._held: list[DeliveredItem] | None = None

    # ------------------------------------------------------------ the session

    @property
    def attached(self) -> bool:
        """Return True if the current session is connected in the protocol's sense."""
        return self.attachment.attached

    @property
    def source(self) -> SourceId | None:
        """The source of the client's publications; None until the first attachment."""
        return self.outgoing.source

    def on_established(self) -> None:
        """Begin a session with the broker; the last session has ended."""
        self.on_lost()
        attachment = self.attachment
        attachment.has_connected = True
        self._urgent.append(
            Connect(
                self.publishes,
                attachment.incarnation,
                self.outgoing.oldest,
                self.outgoing.highest_sent,
                self.progress.resume(self.subscriptions.started),
                self.source,
                attachment.exact_incarnation and self.source is None,
                self._instance,
                attachment.pubend,
            )
        )

    def on_lost(self) -> None:
        """End the session; its deliveries may no longer be acknowledged."""
        self.attachment.attached = False
        self._urgent.clear()
        self.revision.drop_messages()
        self.progress.detach()
        if self._held is not None:
            self._held = []

    def on_message(self, message: ClientMessage) -> list[ClientEvent]:
        """Handle the session's next message; return the events for the application.

        Raises:
            RemoteProtocolError: the message is not permitted here; the session must be closed.
        """
        if self._held is not None and isinstance(message, DeliveredItem):
            self._held.append(message)
            return []
        match message:
            case Deliveries() | Silence() | Gap() | Notice():
                return self._on_item(message)
            case PublishAcknowledged(first, last):
                if not self.attached:
                    raise RemoteProtocolError("broker", f"acknowledged {first} before Connected")
                return [*self.outgoing.on_acknowledged(first, last)]
            case Connected():
                return [self._on_connected(message)]
            case Subscribed():
                return self._on_subscribed(message)
            case Unsubscribed(number):
                return self._on_unsubscribed(number)
            case Consuming(number):
                self.subscriptions.check(number)
                self.subscriptions.commits.on_consuming(message)
                return []
            case ConsumedCommitted(number, request):
                self.subscriptions.check(number)
                if not self.subscriptions.commits.on_committed(number, request):
                    raise RemoteProtocolError("broker", f"answers {request} of {number}, not asked")
                return [Committed(number, request)]
            case Refused():
                if message.number:
                    self.subscriptions.check(message.number)
                return [RetryLater(message) if message.retry else RequestRefused(message)]
            case Redirect(addresses):
                return [Redirected(addresses)]
        raise RemoteProtocolError("broker", f"{type(message).__name__} is not for a client")

    def messages_to_send(self) -> list[ClientMessage]:
        """Return all messages to the broker that are due, in order, once.

        Publications handed over one by one since the last call are sent as one run.
        """
        return self.revision.release(self._new_messages())

    def _new_messages(self) -> list[ClientMessage]:
        messages, self._urgent = self._urgent, []
        if not self.attached:
            return messages
        acknowledgements = self.progress.acknowledgements()
        if self._detaching is not None:
            return [*acknowledgements, *messages]
        messages.extend(acknowledgements)
        messages.extend(self.outgoing.send_new())
        return messages

    def _on_connected(self, message: Connected) -> Attached:
        if self.attached:
            raise RemoteProtocolError("broker", "a second Connected on one session")
        if (message.source is not None) != self.publishes:
            raise RemoteProtocolError("broker", f"gave the source {message.source}")
        if self.source is None and message.source is not None:
            self.outgoing.assign(message.source)
        if self.source != message.source:
            # Another number would make old publications new ones to every subscriber.
            raise RemoteProtocolError("broker", f"{self.source} became {message.source}")
        self.attachment.attached = self.attachment.was_attached = True
        self.progress.attach()
        if self._detaching is not None:
            self._urgent.append(self._detaching)
        else:
            self._urgent.extend(self.subscriptions.requests())
            self._urgent.extend(self.outgoing.retransmissions())
        return Attached(message.source, message.broker_incarnation)

    def _on_item(self, item: DeliveredItem) -> list[ClientEvent]:
        if not self.attached:
            raise RemoteProtocolError("broker", f"{type(item).__name__} before Connected")
        for number in (item.subscription,) if isinstance(item, Notice) else item.subscriptions:
            self.subscriptions.check(number)
        return self.progress.on_item(item)

    # ------------------------------------------------------------ subscribing

    def subscribe(self, predicate: Predicate) -> int:
        """Request a subscription, now and after each attachment; return its number."""
        number = self.subscriptions.subscribe(predicate)
        self.subscribe_again(number)
        return number

    def consume(self, predicate: Predicate, uncommitted: int) -> int:
        """Request a subscription as `subscribe`, with positions kept by the broker.

        Args:
            uncommitted: number of publications that the application receives before it commits.
        """
        assert self.progress.mode == "transactional", f"{self.name} is {self.progress.mode}"
        number = self.subscriptions.consume(predicate, uncommitted)
        self.subscribe_again(number)
        return number

    def mark(self) -> int:
        """Subscribe to nothing, starting behind all earlier publications; return the number.

        The application is not notified of this subscription, or of gaps in it.
        """
        number = self.subscriptions.mark()
        self.subscribe_again(number)
        return number

    def subscribe_again(self, number: int) -> None:
        """Repeat a request that was refused temporarily."""
        if self.attached and number in self.subscriptions:
            self._urgent.append(self.subscriptions.request(number))

    def request_commit(self, number: int) -> int:
        """Request a commit of the application's positions; return the number of the request."""
        positions = self.progress.committed_positions(number)
        message = self.subscriptions.commits.request(number, positions)
        if self.attached:
            self._urgent.append(message)
        return message.request

    def unsubscribe(self, number: int) -> None:
        """End a subscription: no further arrivals are delivered for it."""
        self.subscriptions.end(number)
        self.progress.forget(number)
        if self.attached:
            self._urgent.append(Unsubscribe(number))

    def detach(self, *, drain: bool, through: Positions = ()) -> None:
        """Request the removal of this client; `Detached` follows, possibly on a later session.

        No publications follow. With `drain` the broker's present publications for the subscriptions
        still arrive, and must be taken; without, nothing more is delivered.

        Args:
            through: with `drain`, the `start_positions` of the successor.
        """
        self._detaching = Detach(drain, self.outgoing.oldest - 1, through)
        if not drain:
            for number in self.subscriptions:
                self.unsubscribe(number)
        self._urgent = [each for each in self._urgent if isinstance(each, Connect)]
        if self.attached:
            self._urgent.append(self._detaching)

    @property
    def is_detaching(self) -> bool:
        """Return True if a detachment was requested."""
        return self._detaching is not None

    def _on_subscribed(self, message: Subscribed) -> list[ClientEvent]:
        number = message.number
        self.subscriptions.check(number)
        if number not in self.subscriptions:
            return []
        if message.begins_after:
            self.progress.begin_after(number, message.begins_after)
        if message.state == "started":
            self.subscriptions.on_started(number)
        return [SubscriptionAnswered(number, message.state, message.path_age_ns)]

    def _on_unsubscribed(self, number: int) -> list[ClientEvent]:
        if number == 0 and self._detaching is not None:
            self.subscriptions.ending.clear()
            return [Detached()]
        return [self.subscriptions.on_ended(number)]

    # ------------------------------------------------------------ moving

    @property
    def can_leave(self) -> bool:
        """Return True if a move to another broker breaks no promise; see Attachment.may_leave."""
        return self.attachment.may_leave(self._unfinished())

    @property
    def can_follow_redirect(self) -> bool:
        """Return True if the client may follow a redirect; see Attachment.may_follow."""
        return self.attachment.may_follow(self._unfinished(), publishes=self.publishes)

    def _unfinished(self) -> Unfinished:
        return Unfinished(
            len(self.outgoing),
            bool(self.subscriptions.started),
            bool(self.subscriptions.ending),
            self.is_detaching,
        )

    def objection(self, home: Home) -> str | None:
        """Return the reason against a session with this broker; see Attachment.objection."""
        return self.attachment.objection(home, self._unfinished())

    def move_to(self, home: Home) -> None:
        """Set the broker of the next session; `objection` returned None."""
        before = self.attachment.home
        if before is not None and before.broker != home.broker:
            self.attachment.witnessed = None
        if home != before:
            self.attachment.home = home
            self.revision.current += 1

    def leave(self) -> None:
        """Prepare a session with another broker; only while `may_leave`.

        Later publications belong to a new source, numbered from 1; if brokers keep no state of
        clients, to the same source. If subscriptions resume elsewhere, the higher incarnation
        identifies the broker that they moved to last.
        """
        assert self.can_leave, f"{self.name} has to stay at {self.attachment.home}"
        if self.attachment.leave(self.subscriptions.commits.generation):
            self.outgoing.renew()
        self.subscriptions.started.clear()
        self.revision.current += 1

    def successor(self) -> "ClientCore":
        """Return the same client for another broker.

        The same subscriptions, under the same numbers. It publishes as a new source, numbered from
        1: at the new broker it may meet gates that are closed to others, and an old stream must not
        continue behind a gap. Its arrivals are held until `take_over`.
        """
        assert not self.revision.is_kept, f"{self.name} moves, and only one of two can be kept"
        other = ClientCore(
            self.name,
            publishes=self.publishes,
            incarnation=self.attachment.incarnation + 1,
            instance=self._instance,
            mode=self.progress.mode,
        )
        home = self.attachment.home
        other.attachment.home = home and replace(home, broker="")
        other.attachment.pubend = self.attachment.pubend
        other.subscriptions.predicates.update(self.subscriptions.predicates)
        other.subscriptions.last_number = self.subscriptions.last_number
        other._held = []
        return other

    def start_positions(self) -> Positions:
        """Return, per stream, the position behind which all subscriptions of a successor begin.

        Empty if the broker has stated none.
        """
        assert self._held is not None, f"{self.name} has taken over already"
        found: dict[StreamId, int] = {}
        for _, positions in self.progress.resume():
            for stream, last in positions:
                found[stream] = max(last, found.get(stream, 0))
        return tuple(found.items())

    def take_over(self, predecessor: "ClientCore") -> list[ClientEvent]:
        """Continue from the positions of the predecessor, which must receive nothing more.

        Publications that both received are delivered once.
        """
        assert self._held is not None, f"{self.name} has taken over already"
        held, self._held = self._held, None
        self.progress.take_over(predecessor.progress)
        self.outgoing.resubmitted += predecessor.outgoing.resubmitted
        ended = [each for each in self.subscriptions if each not in predecessor.subscriptions]
        for number in ended:
            self.unsubscribe(number)
        return [event for message in held for event in self.on_message(message)]

    @property
    def is_kept(self) -> bool:
        """Return True if a restart restores the broker of the client.

        No other broker is permitted then.
        """
        return self.revision.is_kept or self.progress.mode == "transactional"
