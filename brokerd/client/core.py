"""What a client library decides: numbering, resubmission, subscriptions, and where it may go.

The shell around it (trio client, simulator) says what happened to the session and which
messages came, carries `messages_to_send()` to the broker, and hands on what comes back. There
is no clock in here: pauses before a retry are the shell's.
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

    It can go to another one where that costs nothing that its protocol promises: see `may_leave`.

    What it publishes is numbered from 1 and kept until the broker says it is done; after each
    attach everything kept is sent again, in order. What it receives is given on once per
    subscription and in order, whatever the broker repeats.

    It relies on the broker delivering, within one session, the publications of a stream by
    increasing position.

    With `keeps_state`, what it must know after a restart is in `state`, which the shell saves
    whenever `needs_saving`; nothing goes out before what it rests on is saved. `given` says what
    the application is about to be given, so that it is known after a restart.

    With `commits_by_itself`, what is taken is committed. Else `commit` does that, and until then
    the broker keeps it. With `in_transactions`, `commit_through` does that for all that has come.

    Attributes:
        name: who it is at its broker.
        incarnation: of the client; it goes up when the client attaches to another broker.
        exact_incarnation: whether the next source must have this incarnation; else the broker
            gives one that has never been used, of at least this number.
        source: under which source its publications go; None until the first attach.
        attached: whether the current session is connected in the protocol's sense.
        home: the broker of the current or last session; None before the first.
        keeps_state: whether its state is to be known after a restart.
        publishes: whether the client may publish.
        resubmitted: publications sent more than once.
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
        """A session with the broker is up; the last one is over."""
        self.on_lost()
        self._has_connected = True
        oldest = self._window.first() or self._oldest_unsent()
        positions = self._progress.resume()
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
        """The session is over; nothing of it may be acknowledged any more."""
        self.attached = False
        self._urgent.clear()
        self._unsaid.clear()
        self._progress.detach()
        if self._held is not None:
            self._held = []

    def on_message(self, message: ClientMessage) -> list[ClientEvent]:
        """Take the session's next message; return what the application should know.

        Raises:
            RemoteProtocolError: no broker may say that here; the session must be closed.
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
            case Subscribed(number, state, begins_after):
                self._check_number(number)
                if begins_after and self._wants(number):
                    self._progress.begin_after(number, begins_after)
                if state == "started" and self._wants(number) and number not in self._started:
                    self._started[number] = None
                    self._revision.current += 1
                return [SubscriptionAnswered(number, state)] if self._wants(number) else []
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
        """Everything the broker should be told now, in order, once.

        Publications handed over one by one since the last call go as one run.
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
        """About how many publications the broker is still to be told that the client has."""
        return self._progress.unsaid_acknowledgements

    # ------------------------------------------------------------ publishing

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""
        return self._next_sequence

    @property
    def outstanding(self) -> int:
        """How many publications are not known to be done."""
        return self._window.publications + self._next_sequence - self._oldest_unsent()

    def publish(self, blob: bytes, payload: Buffer) -> int:
        """Take one publication with encoded attributes; returns its number."""
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
        """Take consecutive publications; returns their numbers.

        Args:
            attribute_table: distinct encoded attribute maps; not all need be used.
            attribute_index: per publication, its place in the table; `bytes` is the fast kind.
            payload_lengths: of each payload, or one for all.
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
        """Ask for publications, now and after each attach; returns the subscription's number."""
        self._last_number = number = self._last_number + 1
        self._predicates[number] = predicate
        self._revision.current += 1
        self.subscribe_again(number)
        return number

    def consume(self, predicate: Predicate, uncommitted: int) -> int:
        """As `subscribe`, of a subscription whose broker keeps how far it has come.

        Args:
            uncommitted: how many publications the application is given before it commits.
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
        """Have the broker commit what the application has; returns the number of the request."""
        message = self._commits.ask(number, self._progress.committed(number))
        if self.attached:
            self._urgent.append(message)
        return message.request

    def is_committed(self, number: int, request: int) -> bool:
        """Whether the broker has answered that request, or a later one."""
        return self._commits.is_committed(number, request)

    def go_on_behind(self, number: int, positions: Positions) -> None:
        """A subscription, of which nothing was said yet, goes on where an earlier process was."""
        self._progress.begin_after(number, positions)

    def mark(self) -> int:
        """Subscribe to nothing: it starts behind all that was published before; its number.

        The application does not know of it, and hears of nothing that is kept from it.
        """
        number = self.subscribe(NOTHING)
        self._marks[number] = None
        return number

    def subscribe_again(self, number: int) -> None:
        """Repeat a request that was refused for the time being."""
        if self.attached and self._wants(number):
            self._urgent.append(self._asks_for(number))

    def unsubscribe(self, number: int) -> None:
        """End a subscription: nothing more is given on for it, whatever comes."""
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
        """Have the broker forget this client; `Detached` follows, on a later session if need be.

        Nothing is published after this. With `drain` what the broker has for the subscriptions
        by now still comes, and must be taken; else nothing more is given on.
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
        """The numbers of the subscriptions that it has."""
        return tuple(self._predicates)

    @property
    def predicates(self) -> Mapping[int, Predicate]:
        """What its subscriptions ask for, by number."""
        return self._predicates

    @property
    def ending(self) -> tuple[int, ...]:
        """Subscriptions whose end the broker has not confirmed."""
        return tuple(self._ending)

    @property
    def is_detaching(self) -> bool:
        """Whether it has been told to detach."""
        return self._detaching is not None

    def _wants(self, number: int) -> bool:
        return number in self._predicates

    # ------------------------------------------------------------ moving

    def objection(self, home: Home) -> str | None:
        """Why a session with this broker must not be; None where it may."""
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
        """The next session is with this broker; `objection` has none."""
        if home != self.home:
            self.home = home
            self._revision.current += 1

    @property
    def may_leave(self) -> bool:
        """Whether to go on at another broker costs nothing that the protocol promises.

        What was published here and is not done may have been delivered: there it would be given
        a second time. What this broker still has for a subscription that has started would be
        missing there, unless the protocol loses publications anyway, or has subscriptions go on
        elsewhere; then only this broker can end one. Where brokers keep nothing of clients, one
        may go whenever it has no session.
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
        """Whether it may end its session to go where its broker tells it to.

        It stays who it is: a publisher that would be another source elsewhere does not go. Nor
        does one whose subscriptions would not go on there, unless the protocol loses some anyway.
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
        """Whether brokers keep nothing of it: it may go on at another one as who it is."""
        return self.home is not None and self.home.leaves_freely

    def leave(self) -> None:
        """The next session is with another broker; only while `may_leave`.

        What is published from then on belongs to a new source, numbered from 1; where brokers keep
        nothing of clients, to the same. Where subscriptions go on elsewhere, the higher
        `incarnation` says which broker they came to last.
        """
        assert self.may_leave, f"{self.name} has to stay at {self.home}"
        if self._has_connected:
            # Whoever comes back must not go on with numbers that its broker has heard of.
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
        """The same client at another broker: the same subscriptions, under the same numbers.

        It publishes as a new source, numbered from 1: at its new place it may meet gates that
        are closed to others, and an old stream must not go on behind a gap. What it receives it
        keeps to itself until `take_over`.
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
        """Go on where the predecessor has come to; it must receive nothing more.

        What both were sent is given on once.
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
        """Publications kept from the application because it had them."""
        return self._progress.duplicates

    @property
    def commits_by_itself(self) -> bool:
        """Whether what is taken is committed."""
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
        """Whether all that has come is committed together, with a token."""
        return self._progress.in_transactions

    @property
    def is_kept(self) -> bool:
        """Whether it is known after a restart where it was, so that it may not be elsewhere."""
        return self.keeps_state or self.in_transactions

    # ------------------------------------------------------------ keeping

    @property
    def needs_saving(self) -> bool:
        """Whether something has changed that must be known after a restart."""
        return self.keeps_state and self._revision.saved < self._revision.current

    @property
    def version(self) -> int:
        """Of the state: goes up with each change."""
        return self._revision.current

    def committed(self, number: int) -> Positions:
        """How far the application is done with a subscription, per stream."""
        return self._progress.committed(number)

    def is_saved(self, version: int) -> bool:
        """Whether this version of the state, or a later one, is safe."""
        return self._revision.saved >= version or not self.keeps_state

    def on_saved(self, version: int) -> None:
        """This version of the state is safe."""
        self._revision.saved = max(self._revision.saved, version)

    def state(self) -> ClientState:
        """What must be known after a restart, as of `version`."""
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
        """The client that an earlier process has left this state of.

        What the application was given and has not committed comes again, marked, where the
        protocol redelivers; elsewhere it counts as committed.
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
