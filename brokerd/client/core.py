"""The decisions of a client library: numbering, retransmission, subscriptions, permitted moves.

The shell around the core (trio client, simulator) reports events of the session and received
messages, sends `messages_to_send()` to the broker, and passes on the results. There is no clock in
the core: pauses before a retry are the shell's.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from brokerd.client.commit_requests import CommitRequests
from brokerd.client.events import (
    Attached,
    ClientEvent,
    Committed,
    Detached,
    PublicationsDone,
    Redirected,
    RequestRefused,
    RetryLater,
    SubscriptionAnswered,
    SubscriptionEnded,
)
from brokerd.client.progress import Progress
from brokerd.client.state import ClientState, Home, KeptSubscription, Positions, Revision
from brokerd.client.window import Singles, Window, in_good_sizes, of_bounded_size, used_attributes
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    ClientMessage,
    Connect,
    Connected,
    Consume,
    ConsumedCommitted,
    Consuming,
    DeliveredItem,
    Deliveries,
    Detach,
    Gap,
    Notice,
    Publish,
    PublishAcknowledged,
    Redirect,
    Refused,
    Silence,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.predicate import NOTHING, Predicate
from brokerd.model.publication import Buffer, PublicationRun

_NOBODY = SourceId(0, 0, 0)


class ClientCore:
    """One client of one broker, across any number of sessions.

    It can move to another broker if that breaks no promise of its protocol: see `may_leave`.

    Publications are numbered from 1 and kept until the broker acknowledges them; after each
    attachment all kept publications are sent again, in order. Received publications are delivered
    once per subscription and in order, regardless of repetitions by the broker.

    It relies on the broker delivering, within one session, the publications of a stream by
    increasing position.

    With `keeps_state`, the state that must survive a restart is in `state`, which the shell saves
    whenever `needs_saving`; no message is sent before the state that it depends on is saved. `give`
    records the next delivery to the application, so that the delivery is on record after a restart.

    With `commits_by_itself`, taken deliveries are committed. Otherwise `commit` commits, and until
    then the broker keeps the publications. With `in_transactions`, `commit_through` commits all
    arrivals.

    Attributes:
        name: name of the client at its broker.
        incarnation: incarnation of the client; increases when the client attaches to another
            broker.
        exact_incarnation: True if the next source must have this incarnation; else the broker
            assigns one that has never been used, of at least this number.
        source: source of the client's publications; None until the first attachment.
        attached: True if the current session is connected in the protocol's sense.
        home: the broker of the current or last session; None before the first.
        keeps_state: True if the state must survive a restart.
        publishes: True if the client may publish.
        resubmitted: number of publications sent more than once.
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
        commits_by_itself: bool = True,
        in_transactions: bool = False,
    ) -> None:
        self.name = name
        self.source: SourceId | None = None
        self.attached = False
        self.home: Home | None = None
        self.resubmitted = 0
        self.publishes = publishes
        self.incarnation = incarnation
        self.exact_incarnation = exact_incarnation
        self._instance = instance
        self._was_attached = self._has_connected = False
        self._urgent: list[ClientMessage] = []
        # publishing
        self._next_sequence = 1
        self._highest_sent = 0
        self._window = Window()
        self._unsent: list[PublicationRun] = []
        self._singles = Singles()
        # subscribing
        self._predicates: dict[int, Predicate] = {}
        self._last_number = 0
        self._ending: dict[int, None] = {}
        self._marks: dict[int, None] = {}
        self._started: dict[int, None] = {}
        self._detaching: Detach | None = None
        self._held: list[DeliveredItem] | None = None
        self._revision = Revision()
        self._commits = CommitRequests()
        self._progress = Progress(
            self._predicates,
            self._marks,
            self._revision,
            commits_by_itself=commits_by_itself,
            keeps_state=keeps_state,
            in_transactions=in_transactions,
            consumers=self._commits,
        )
        # keeping
        self.keeps_state = keeps_state
        self._unsaid: deque[tuple[int, ClientMessage]] = deque()

    # ------------------------------------------------------------ the session

    def on_established(self) -> None:
        """Begin a session with the broker; the last session has ended."""
        self.on_lost()
        self._has_connected = True
        oldest = self._window.first() or self._oldest_unsent()
        positions = self._progress.resume(self._started)
        highest = self._next_sequence - 1
        self._urgent.append(
            Connect(
                self.publishes,
                self.incarnation,
                oldest,
                highest,
                positions,
                self.source,
                self.exact_incarnation and self.source is None,
                self._instance,
            )
        )

    def on_lost(self) -> None:
        """End the session; its deliveries may no longer be acknowledged."""
        self.attached = False
        self._urgent.clear()
        self._unsaid.clear()
        self._progress.detach()
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
                return self._on_acknowledged(first, last)
            case Connected():
                return [self._on_connected(message)]
            case Subscribed(number, state, begins_after, path_age_ns):
                self._check_number(number)
                if begins_after and self._wants(number):
                    self._progress.begin_after(number, begins_after)
                if state == "started" and self._wants(number) and number not in self._started:
                    self._started[number] = None
                    self._revision.current += 1
                if not self._wants(number):
                    return []
                return [SubscriptionAnswered(number, state, path_age_ns)]
            case Unsubscribed(number):
                return self._on_unsubscribed(number)
            case Consuming(number):
                self._check_number(number)
                self._commits.on_consuming(message)
                return []
            case ConsumedCommitted(number, request):
                self._check_number(number)
                if not self._commits.on_committed(number, request):
                    raise RemoteProtocolError("broker", f"answers {request} of {number}, not asked")
                return [Committed(number, request)]
            case Refused():
                if message.number:
                    self._check_number(message.number)
                return [RetryLater(message) if message.retry else RequestRefused(message)]
            case Redirect(addresses):
                return [Redirected(addresses)]
        raise RemoteProtocolError("broker", f"{type(message).__name__} is not for a client")

    def messages_to_send(self) -> list[ClientMessage]:
        """Return all messages to the broker that are due, in order, once.

        Publications handed over one by one since the last call are sent as one run.
        """
        messages = self._new_messages()
        if not self.keeps_state:
            return messages
        self._unsaid.extend((self._revision.current, message) for message in messages)
        messages = []
        while self._unsaid and self._unsaid[0][0] <= self._revision.saved:
            messages.append(self._unsaid.popleft()[1])
        return messages

    def _new_messages(self) -> list[ClientMessage]:
        messages, self._urgent = self._urgent, []
        if not self.attached:
            return messages
        acknowledgements = self._progress.acknowledgements()
        if self._detaching is not None:
            return [*acknowledgements, *messages]
        messages.extend(acknowledgements)
        for run in self._take_unsent():
            self._window.add(run)
            messages.append(Publish(run))
        return messages

    @property
    def unsaid_acknowledgements(self) -> int:
        """The approximate number of publications with an acknowledgement that is not sent yet."""
        return self._progress.unsaid_acknowledgements

    # ------------------------------------------------------------ publishing

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""
        return self._next_sequence

    @property
    def outstanding(self) -> int:
        """The number of unacknowledged publications."""
        return self._window.publications + self._next_sequence - self._oldest_unsent()

    def publish(self, blob: bytes, payload: Buffer) -> int:
        """Take one publication with encoded attributes; return its number."""
        self._singles.add(blob, payload)
        self._next_sequence += 1
        self._revision.current += 1
        return self._next_sequence - 1

    def publish_many(
        self,
        attribute_table: Sequence[bytes],
        attribute_index: Sequence[int],
        payload_lengths: int | tuple[int, ...],
        payload: Buffer,
    ) -> range:
        """Take consecutive publications; return their numbers.

        Args:
            attribute_table: distinct encoded attribute maps; not all need be used.
            attribute_index: per publication, its place in the table; `bytes` is the fast kind.
            payload_lengths: bytes per payload, or one length for all.
            payload: all payloads, one after the other; must not change afterwards.
        """
        count = len(attribute_index)
        size = payload_lengths * count if isinstance(payload_lengths, int) else sum(payload_lengths)
        assert count, "nothing to publish"
        assert size == len(payload), f"{count} payloads of {size} bytes: {len(payload)}"
        self._flush_singles()
        table, index = used_attributes(attribute_table, attribute_index)
        first = self._next_sequence
        self._next_sequence += count
        sequences = range(first, first + count)
        source = self.source or _NOBODY
        pieces = (payload,) if size else ()
        run = PublicationRun(source, sequences, table, index, payload_lengths, pieces)
        self._unsent.extend(of_bounded_size(run))
        self._revision.current += 1
        return sequences

    def _oldest_unsent(self) -> int:
        if self._unsent:
            return self._unsent[0].first
        return self._next_sequence - len(self._singles)

    def _flush_singles(self) -> None:
        if self._singles:
            first = self._next_sequence - len(self._singles)
            run = self._singles.run(self.source or _NOBODY, first)
            self._singles = Singles()
            self._unsent.extend(of_bounded_size(run))

    def _take_unsent(self) -> list[PublicationRun]:
        self._flush_singles()
        runs, self._unsent = self._unsent, []
        if runs:
            self._highest_sent = runs[-1].last
        return in_good_sizes(runs)

    def _on_connected(self, message: Connected) -> Attached:
        if self.attached:
            raise RemoteProtocolError("broker", "a second Connected on one session")
        if (message.source is not None) != self.publishes:
            raise RemoteProtocolError("broker", f"gave the source {message.source}")
        if self.source is None and message.source is not None:
            self._flush_singles()
            self._unsent = [replace(run, source=message.source) for run in self._unsent]
            self.source = message.source
            self._revision.current += 1
        if self.source != message.source:
            # Another number would make old publications new ones to every subscriber.
            raise RemoteProtocolError("broker", f"{self.source} became {message.source}")
        self.attached = self._was_attached = True
        self._progress.attach()
        if self._detaching is not None:
            self._urgent.append(self._detaching)
            return Attached(message.source, message.broker_incarnation)
        self._urgent.extend(Unsubscribe(number) for number in self._ending)
        self._urgent.extend(self._asks_for(number) for number in self._predicates)
        self._urgent.extend(self._commits.unanswered())
        for run in in_good_sizes(self._window.runs()):
            self.resubmitted += len(run)
            self._urgent.append(Publish(run))
        return Attached(message.source, message.broker_incarnation)

    def _on_acknowledged(self, first: int, last: int) -> list[ClientEvent]:
        if not self.attached or not 0 < first <= last <= self._highest_sent:
            raise RemoteProtocolError("broker", f"acknowledged {first} to {last}, never sent here")
        done = self._window.remove(first, last)
        if not self.outstanding:
            self._revision.current += 1
        return [PublicationsDone(*each) for each in done]

    # ------------------------------------------------------------ subscribing

    def subscribe(self, predicate: Predicate) -> int:
        """Request a subscription, now and after each attachment; return its number."""
        self._last_number = number = self._last_number + 1
        self._predicates[number] = predicate
        self._revision.current += 1
        self.subscribe_again(number)
        return number

    def consume(self, predicate: Predicate, uncommitted: int) -> int:
        """Request a subscription as `subscribe`, with positions kept by the broker.

        Args:
            uncommitted: number of publications that the application receives before it commits.
        """
        assert self.in_transactions, "what is taken otherwise is committed otherwise"
        self._last_number = number = self._last_number + 1
        self._predicates[number] = predicate
        self._commits.begin(number, uncommitted)
        self.subscribe_again(number)
        return number

    def _asks_for(self, number: int) -> Subscribe | Consume:
        predicate, uncommitted = self._predicates[number], self._commits.uncommitted(number)
        if uncommitted:
            return Consume(number, predicate, uncommitted)
        return Subscribe(number, predicate)

    def ask_to_commit(self, number: int) -> int:
        """Request a commit of the application's positions; return the number of the request."""
        message = self._commits.ask(number, self._progress.committed(number))
        if self.attached:
            self._urgent.append(message)
        return message.request

    def is_committed(self, number: int, request: int) -> bool:
        """Return True if the broker has answered that request, or a later request."""
        return self._commits.is_committed(number, request)

    def go_on_behind(self, number: int, positions: Positions) -> None:
        """Set the positions of an earlier process for a subscription without any deliveries yet."""
        self._progress.begin_after(number, positions)

    def mark(self) -> int:
        """Subscribe to nothing, starting behind all earlier publications; return the number.

        The application is not notified of this subscription, or of gaps in it.
        """
        number = self.subscribe(NOTHING)
        self._marks[number] = None
        return number

    def subscribe_again(self, number: int) -> None:
        """Repeat a request that was refused temporarily."""
        if self.attached and self._wants(number):
            self._urgent.append(self._asks_for(number))

    def unsubscribe(self, number: int) -> None:
        """End a subscription: no further arrivals are delivered for it."""
        assert self._wants(number), f"there is no subscription {number}"
        del self._predicates[number]
        self._started.pop(number, None)
        self._ending[number] = None
        self._revision.current += 1
        self._progress.forget(number)
        self._commits.forget(number)
        if self.attached:
            self._urgent.append(Unsubscribe(number))

    def detach(self, *, drain: bool) -> None:
        """Request the removal of this client; `Detached` follows, possibly on a later session.

        No publications follow. With `drain` the broker's present publications for the subscriptions
        still arrive, and must be taken; without, nothing more is delivered.
        """
        self._detaching = Detach(drain, (self._window.first() or self._oldest_unsent()) - 1)
        if not drain:
            for number in list(self._predicates):
                self.unsubscribe(number)
        self._urgent = [each for each in self._urgent if isinstance(each, Connect)]
        if self.attached:
            self._urgent.append(self._detaching)

    def _on_unsubscribed(self, number: int) -> list[ClientEvent]:
        if number == 0 and self._detaching is not None:
            self._ending.clear()
            return [Detached()]
        self._check_number(number)
        if self._ending.pop(number, number) is not None:
            raise RemoteProtocolError("broker", f"ended subscription {number} unasked")
        self._revision.current += 1
        return [SubscriptionEnded(number)]

    @property
    def subscriptions(self) -> tuple[int, ...]:
        """The numbers of the subscriptions."""
        return tuple(self._predicates)

    @property
    def predicates(self) -> Mapping[int, Predicate]:
        """The predicates of the subscriptions, by number."""
        return self._predicates

    @property
    def ending(self) -> tuple[int, ...]:
        """Subscriptions with an end that the broker has not confirmed."""
        return tuple(self._ending)

    @property
    def is_detaching(self) -> bool:
        """Return True if a detachment was requested."""
        return self._detaching is not None

    def _wants(self, number: int) -> bool:
        return number in self._predicates

    # ------------------------------------------------------------ moving

    def objection(self, home: Home) -> str | None:
        """Return the reason against a session with this broker.

        None if the session is permitted.
        """
        if self.home is None:
            return None
        if home.protocol != self.home.protocol:
            theirs, ours = home.protocol[:64], self.home.protocol
            return f"{home.broker} runs {theirs!r}, not {ours!r}"
        if home.deployment != self.home.deployment:
            theirs, ours = home.deployment[:64], self.home.deployment
            return f"{home.broker} is of deployment {theirs!r}, not {ours!r}"
        if home.broker != self.home.broker and not self.may_leave:
            return f"{home.broker} is not {self.home.broker}, which has what is not done"
        return None

    def go_to(self, home: Home) -> None:
        """Set the broker of the next session; `objection` returned None."""
        if home != self.home:
            self.home = home
            self._revision.current += 1

    @property
    def may_leave(self) -> bool:
        """Return True if a move to another broker breaks no promise of the protocol.

        Unacknowledged publications may have been delivered: at another broker they would be
        delivered a second time. The publications that this broker still has for a started
        subscription would be missing there, unless the protocol loses publications anyway, or
        subscriptions resume elsewhere; then only this broker can end a subscription. If brokers
        keep no state of clients, a client may move whenever it has no session.
        """
        if not self._was_attached or self.leaves_freely:
            return not self.attached
        may_lose = self.home is not None and self.home.may_lose
        goes_on = self.home is not None and self.home.resumes_elsewhere
        would_miss = bool(self._ending if goes_on else self._started) and not may_lose
        is_busy = self.attached or self._detaching is not None
        return not (is_busy or would_miss or self.outstanding)

    @property
    def may_go(self) -> bool:
        """Return True if the client may end its session to follow a redirect.

        The client keeps its identity: a publisher that would have another source elsewhere does not
        move. Nor does a subscriber with subscriptions that would not resume there, unless the
        protocol loses publications anyway.
        """
        if not self.attached or self._detaching is not None:
            return False
        if self.leaves_freely:
            return True
        may_lose = self.home is not None and self.home.may_lose
        goes_on = self.home is not None and self.home.resumes_elsewhere and not self._ending
        return (goes_on or may_lose) and not self.publishes

    @property
    def leaves_freely(self) -> bool:
        """Return True if brokers keep no state of the client.

        The client then keeps its identity at another broker.
        """
        return self.home is not None and self.home.leaves_freely

    def leave(self) -> None:
        """Prepare a session with another broker; only while `may_leave`.

        Later publications belong to a new source, numbered from 1; if brokers keep no state of
        clients, to the same source. If subscriptions resume elsewhere, the higher `incarnation`
        identifies the broker that they moved to last.
        """
        assert self.may_leave, f"{self.name} has to stay at {self.home}"
        if self._has_connected:
            # A client that returns must not continue with numbers that its broker has received.
            self.incarnation = max(self.incarnation, self._commits.generation) + 1
            self.exact_incarnation = self._has_connected = False
        if self._was_attached and not self.leaves_freely:
            self.source = None
            self._next_sequence = 1
            self._highest_sent = 0
        self._was_attached = False
        self._started.clear()
        self._revision.current += 1
        self.home = self.home and replace(self.home, broker="")

    def successor(self) -> "ClientCore":
        """Return the same client for another broker.

        The same subscriptions, under the same numbers. It publishes as a new source, numbered from
        1: at the new broker it may meet gates that are closed to others, and an old stream must not
        continue behind a gap. Its arrivals are held until `take_over`.
        """
        assert not self.keeps_state, f"{self.name} moves, and only one of two can be kept"
        other = ClientCore(
            self.name,
            publishes=self.publishes,
            incarnation=self.incarnation + 1,
            instance=self._instance,
            commits_by_itself=self.commits_by_itself,
        )
        other.home = self.home and replace(self.home, broker="")
        other._predicates.update(self._predicates)
        other._last_number = self._last_number
        other._held = []
        return other

    def take_over(self, predecessor: "ClientCore") -> list[ClientEvent]:
        """Continue from the positions of the predecessor, which must receive nothing more.

        Publications that both received are delivered once.
        """
        assert self._held is not None, f"{self.name} has taken over already"
        held, self._held = self._held, None
        self._progress.take_over(predecessor._progress)
        self.resubmitted += predecessor.resubmitted
        for number in [each for each in self._predicates if not predecessor._wants(each)]:
            self.unsubscribe(number)
        return [event for message in held for event in self.on_message(message)]

    # ------------------------------------------------------------ receiving

    @property
    def duplicates(self) -> int:
        """The number of publications that were withheld as duplicates."""
        return self._progress.duplicates

    @property
    def commits_by_itself(self) -> bool:
        """Return True if taken deliveries are committed."""
        return self._progress.commits_by_itself

    def _on_item(self, item: DeliveredItem) -> list[ClientEvent]:
        if not self.attached:
            raise RemoteProtocolError("broker", f"{type(item).__name__} before Connected")
        for number in (item.subscription,) if isinstance(item, Notice) else item.subscriptions:
            self._check_number(number)
        return self._progress.on_item(item)

    def _check_number(self, number: int) -> None:
        if not 1 <= number <= self._last_number:
            raise RemoteProtocolError("broker", f"there is no subscription {number}")

    def give(self, serial: int) -> None:
        """See Progress.give."""
        self._progress.give(serial)

    def take(self, serial: int) -> None:
        """See Progress.take."""
        self._progress.take(serial)

    def commit(self, number: int, source: SourceId, last: int) -> bool:
        """See Progress.commit."""
        return self._progress.commit(number, source, last)

    def reached(self, number: int, serial: int) -> Positions:
        """See Progress.reached."""
        return self._progress.reached(number, serial)

    def commit_through(self, serial: int) -> None:
        """See Progress.commit_through."""
        self._progress.commit_through(serial)

    def commit_consumed(self, number: int, serial: int, source: SourceId, last: int) -> None:
        """See Progress.commit_consumed."""
        self._progress.commit_consumed(number, serial, source, last)

    @property
    def in_transactions(self) -> bool:
        """Return True if all arrivals are committed together, with a token."""
        return self._progress.in_transactions

    @property
    def is_kept(self) -> bool:
        """Return True if a restart restores the broker of the client.

        No other broker is permitted then.
        """
        return self.keeps_state or self.in_transactions

    # ------------------------------------------------------------ keeping

    @property
    def needs_saving(self) -> bool:
        """Return True if state has changed that must survive a restart."""
        return self.keeps_state and self._revision.saved < self._revision.current

    @property
    def version(self) -> int:
        """The version of the state, which increases with each change."""
        return self._revision.current

    def committed(self, number: int) -> Positions:
        """Return the committed positions of a subscription, per stream."""
        return self._progress.committed(number)

    def is_saved(self, version: int) -> bool:
        """Return True if this version of the state, or a later version, is durable."""
        return self._revision.saved >= version or not self.keeps_state

    def on_saved(self, version: int) -> None:
        """Record that this version of the state is durable."""
        self._revision.saved = max(self._revision.saved, version)

    def state(self) -> ClientState:
        """Return the state that must survive a restart, as of `version`."""
        self._flush_singles()
        subscriptions = tuple(
            KeptSubscription(
                number,
                predicate,
                number in self._started,
                self._progress.committed(number),
                self._progress.given(number),
            )
            for number, predicate in self._predicates.items()
        )
        return ClientState(
            self.name,
            self.publishes,
            self.incarnation,
            self._next_sequence,
            self.home,
            self.source,
            (*self._window.runs(), *self._unsent),
            self._last_number,
            subscriptions,
            tuple(self._ending),
        )

    @classmethod
    def restarted(
        cls,
        state: ClientState,
        *,
        instance: bytes = b"",
        commits_by_itself: bool = True,
        in_transactions: bool = False,
    ) -> "ClientCore":
        """Return the client with the state that an earlier process has left.

        Deliveries that were not committed are delivered again, marked, if the protocol redelivers;
        otherwise they count as committed.
        """
        core = cls(
            state.name,
            publishes=state.publishes,
            incarnation=state.incarnation,
            instance=instance,
            keeps_state=not in_transactions,
            commits_by_itself=commits_by_itself,
            in_transactions=in_transactions,
        )
        core.home, core.source = state.home, state.source
        core._was_attached = state.home is not None and bool(state.home.broker)
        core._has_connected = True
        core._next_sequence = state.next_sequence
        if state.source is None:
            core._unsent = list(state.runs)
        else:
            core._highest_sent = state.next_sequence - 1
            for run in state.runs:
                core._window.add(run)
        core._last_number = state.last_number
        core._ending = dict.fromkeys(state.ending)
        redelivers = state.home is not None and state.home.redelivers
        for kept in state.subscriptions:
            core._predicates[kept.number] = kept.predicate
            if kept.is_started:
                core._started[kept.number] = None
        core._progress.restore(state.subscriptions, redelivers=redelivers)
        return core
