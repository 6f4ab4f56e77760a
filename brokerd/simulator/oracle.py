"""What subscribers are owed, from nothing but what the applications did and saw.

The oracle knows no broker. It is told each publication when it is published, each delivery
behind the client library, each acknowledgement, and when the client learnt that a subscription
has started. Predicates are evaluated by their reference semantics.

The rule: sort the publications of one source that match a subscription by sequence number; the
subscriber must see a stretch of them without a step, and the stretch must begin at the latest
with the first one published after the subscription had started or, where the source lay behind
a partition then, after its gate had opened. A gate never closes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from brokerd.model.client_messages import Notice
from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.predicate import Attributes, Predicate
from brokerd.model.publication import Buffer


class InvariantViolated(Exception):
    """What was promised did not hold.

    Attributes:
        rule: its short name, e.g. "gap".
    """

    def __init__(self, rule: str, what: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {what}")


@dataclass(slots=True)
class _Publisher:
    """What one client has published: (blob, payload) per sequence number, from 1."""

    client: ClientId
    contents: list[tuple[bytes, bytes]] = field(default_factory=list)
    source: SourceId | None = None
    acknowledged: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Stream:
    """One subscription and one publisher.

    Attributes:
        matching: sequence numbers that match, in order.
        ranks: place in `matching` by sequence number.
        got: what was delivered.
        at: place in `matching` of the last delivery; None before the first.
        fence: all matching publications above this sequence number are owed; None as long as
            the subscription has not started, or the gate is closed.
        withheld: highest number that the subscriber was told it does not get.
        asked: highest number when the subscriber learnt that its subscription had started.
        had: highest number that the client had from the broker that it has moved from.
    """

    matching: list[int] = field(default_factory=list)
    ranks: dict[int, int] = field(default_factory=dict)
    got: set[int] = field(default_factory=set)
    at: int | None = None
    fence: int | None = None
    withheld: int = 0
    asked: int = 0
    had: int = 0


@dataclass(slots=True)
class _Subscription:
    client: ClientId
    number: int
    predicate: Predicate
    started: bool = False
    draining: bool = False
    closed: frozenset[BrokerNumber] = frozenset()
    streams: dict[ClientId, _Stream] = field(default_factory=dict)


class Oracle:
    """Judges deliveries as they come, and what is still missing at the end.

    With `strict` a violation is raised; without, it is counted in `violations` by rule, as a
    run of a protocol that promises less needs it. With `reliable` a publisher's
    acknowledgement means that everybody who is owed the publication has it, and nothing comes
    before a subscription has started.

    Attributes:
        deliveries: seen behind the clients' duplicate checks.
        announced: (publication, subscription) pairs that were announced as withheld.
        owed: (publication, subscription) pairs that had to be delivered and were asked for.
        homes: at which broker a client is, where it has been told.
        logged: an acknowledgement means that the publication is on disk, and no more.
        violations: how often each rule was broken.
        first_violations: the first few, in words.
    """

    def __init__(self, decode: Callable[[bytes], Attributes], strict: bool, reliable: bool) -> None:
        self._decode = decode
        self._strict = strict
        self.reliable = reliable
        self._publishers: dict[ClientId, _Publisher] = {}
        self._by_source: dict[SourceId, _Publisher] = {}
        self._subscriptions: dict[tuple[ClientId, int], _Subscription] = {}
        self._ended: dict[tuple[ClientId, int], _Subscription] = {}
        self._unnamed: dict[SourceId, list[tuple[ClientId, Notice]]] = {}
        self._matches: dict[tuple[Predicate, bytes], bool] = {}
        self.published_count = 0
        self.deliveries = 0
        self.announced = 0
        self.homes: dict[ClientId, BrokerNumber] = {}
        self.logged = False
        self.owed = 0
        self.violations: dict[str, int] = {}
        self.first_violations: list[str] = []

    # ------------------------------------------------------------ what the applications do

    def published(self, client: ClientId, sequence: int, blob: bytes, payload: bytes) -> None:
        """The application hands a publication to its client; numbers go up by one from 1."""
        publisher = self._publishers.setdefault(client, _Publisher(client))
        assert sequence == len(publisher.contents) + 1, f"{client} skips to {sequence}"
        publisher.contents.append((blob, payload))
        self.published_count += 1
        for subscription in self._subscriptions.values():
            if self.wants(subscription.predicate, blob):
                stream = self._stream(subscription, publisher)
                stream.ranks[sequence] = len(stream.matching)
                stream.matching.append(sequence)

    def subscribed(self, client: ClientId, number: int, predicate: Predicate) -> None:
        """The application asks for a subscription."""
        subscription = _Subscription(client, number, predicate)
        self._subscriptions[client, number] = subscription
        for publisher in self._publishers.values():
            stream = self._stream(subscription, publisher)
            for sequence, (blob, _) in enumerate(publisher.contents, 1):
                if self.wants(predicate, blob):
                    stream.ranks[sequence] = len(stream.matching)
                    stream.matching.append(sequence)

    def unsubscribed(self, client: ClientId, number: int) -> None:
        """The application ends a subscription: it is owed nothing, and must get nothing."""
        self._ended[client, number] = self._subscriptions.pop((client, number))

    def draining(self, client: ClientId) -> None:
        """The client asks its broker for the rest, and to be done with it when it has that.

        What it is owed beside that, it is owed at the broker to which it moves.
        """
        for (name, _), subscription in self._subscriptions.items():
            subscription.draining = subscription.draining or name == client

    def moved(self, client: ClientId, successor: ClientId, *, whole: bool) -> None:
        """A client goes on at another broker, as `successor`, with the same subscriptions.

        Nothing that it had may come again. With `whole` nothing failed meanwhile and the old
        broker has delivered all it had: its streams go on without a step. Else they begin anew,
        at the latest with the first publication after the subscription had started at the new
        broker.
        """
        for (name, number), before in list(self._subscriptions.items()):
            if name != client:
                continue
            self.unsubscribed(name, number)
            after = self._subscriptions[successor, number]
            for publisher in self._publishers.values():
                self._go_on(
                    self._stream(before, publisher),
                    self._stream(after, publisher),
                    len(publisher.contents),
                    whole=whole,
                )

    def _go_on(self, before: _Stream, after: _Stream, published: int, *, whole: bool) -> None:
        last = before.matching[before.at] if before.at is not None else 0
        after.had = max(last, before.withheld, before.had)
        if not whole:
            after.asked = published
            if after.fence is not None:
                after.fence = max(after.fence, after.had)
            return
        after.asked = before.asked
        fence = after.had if before.at is not None else before.fence
        if fence is not None:
            there = fence if after.fence is None else after.fence
            after.fence = max(after.had, min(fence, there))

    # ------------------------------------------------------------ what the applications see

    def connected(self, client: ClientId, source: SourceId | None) -> None:
        """A client learnt its source."""
        if source is None:
            return
        publisher = self._publishers.setdefault(client, _Publisher(client))
        holder = self._by_source.setdefault(source, publisher)
        if holder is not publisher:
            self._break("identity", f"{source} was given to {holder.client} and to {client}")
        publisher.source = source
        for subscriber, notice in self._unnamed.pop(source, ()):
            self.withheld(subscriber, notice)

    def started(self, client: ClientId, number: int) -> None:
        """A client learnt that its subscription has started."""
        subscription = self._subscriptions.get((client, number))
        if subscription is None or subscription.started:
            return
        subscription.started = True
        for publisher in self._publishers.values():
            stream = self._stream(subscription, publisher)
            stream.asked = len(publisher.contents)
            if stream.fence is None and not self._is_closed(subscription, publisher):
                stream.fence = len(publisher.contents)

    def joined(self, client: ClientId, number: int, newcomer: BrokerNumber) -> None:
        """A source broker has joined where a subscription hears nobody."""
        subscription = self._subscriptions.get((client, number))
        if subscription is not None:
            subscription.closed |= {newcomer}

    def gates(self, client: ClientId, number: int, closed: frozenset[BrokerNumber]) -> None:
        """From now on these source brokers, and no others, are not heard by a subscription."""
        subscription = self._subscriptions.get((client, number))
        if subscription is None:
            return  # it has ended at its client, not on this disk
        if subscription.started:
            again = closed - subscription.closed
            if again:
                self._break("gate closed", f"{client}/{number} does not hear {sorted(again)}")
            subscription.closed = closed
            for publisher in self._publishers.values():
                stream = self._stream(subscription, publisher)
                if stream.fence is None and not self._is_closed(subscription, publisher):
                    stream.fence = len(publisher.contents)
        subscription.closed = closed

    def closed_by_subscription(self) -> list[frozenset[BrokerNumber]]:
        """Per subscription: the source brokers that it does not hear."""
        return [subscription.closed for subscription in self._subscriptions.values()]

    def closed_gates(self) -> list[str]:
        """Subscriptions that do not hear some source, in words."""
        return [
            f"{subscription.client}/{subscription.number} does not hear {sorted(closed)}"
            for subscription in self._subscriptions.values()
            if (closed := subscription.closed)
        ]

    def withheld(self, client: ClientId, notice: Notice) -> None:
        """The application was told of publications that it does not get."""
        publisher = self._by_source.get(notice.source)
        what = f"{client}/{notice.subscription} is told that {notice} is withheld"
        subscription = self._subscriptions.get((client, notice.subscription))
        if subscription is None:
            self._break("ended", f"{what} after its end")
            return
        if publisher is None:
            # What its broker knows to be handed over counts, told or not; see `connected`.
            self._unnamed.setdefault(notice.source, []).append((client, notice))
            return
        if notice.ranges[-1][1] > len(publisher.contents):
            self._break("phantom", f"{what}, which nobody published")
            return
        stream = self._stream(subscription, publisher)
        for first, last in notice.ranges:
            for sequence in range(first, last + 1):
                if sequence not in stream.ranks:
                    continue  # whole stretches are named, with what does not match in them
                self.announced += 1
                if stream.at is not None:
                    self._break("gap", f"{what} after {stream.matching[stream.at]} was delivered")
                elif stream.fence is not None and sequence > stream.fence:
                    self._break("gap", f"{what}, published while the source was heard")
                elif sequence <= stream.withheld:
                    self._break("duplicate", f"{what} again")
                stream.withheld = sequence

    def delivered(
        self,
        client: ClientId,
        number: int,
        source: SourceId,
        sequence: int,
        blob: bytes,
        payload: Buffer,
    ) -> None:
        """The application got a publication."""
        self.deliveries += 1
        publisher = self._by_source.get(source)
        what = f"{client}/{number} got {tuple(source)} {sequence}"
        subscription = self._subscriptions.get((client, number))
        if subscription is None:
            self._break("ended", f"{what} after its end")
            return
        if publisher is None or not 1 <= sequence <= len(publisher.contents):
            self._break("phantom", f"{what}, which nobody published")
            return
        if publisher.contents[sequence - 1] != (blob, bytes(payload)):
            self._break("phantom", f"{what} with contents that were not published")
        if self.reliable and not subscription.started:
            self._break("early", f"{what} before it was told that it had started")
        if self._is_closed(subscription, publisher):
            self._break("closed gate", f"{what} through a closed gate")
        stream = self._stream(subscription, publisher)
        rank = stream.ranks.get(sequence)
        if rank is None:
            self._break("unwanted", f"{what}, which does not match {subscription.predicate}")
            return
        stream.got.add(sequence)
        if sequence <= stream.had:
            self._break("duplicate", f"{what}, which it had before it moved")
        if stream.at is None:
            self._check_first(stream, rank, what)
        elif sequence <= stream.withheld:
            self._break("order", f"{what}, which was withheld")
        elif rank == stream.at:
            self._break("duplicate", f"{what} twice in a row")
        elif rank < stream.at:
            self._break("order", f"{what} after {stream.matching[stream.at]}")
        elif rank > stream.at + 1:
            missing = self._owed_of(stream, stream.matching[stream.at + 1 : rank])
            if missing:
                self._break(
                    "gap", f"{what} after {stream.matching[stream.at]}, without {_listed(missing)}"
                )
        stream.at = rank if stream.at is None else max(stream.at, rank)

    def acknowledged(self, client: ClientId, sequence: int) -> None:
        """A publisher learnt that its publication is safe: everybody has it, or the log."""
        publisher = self._publishers[client]
        publisher.acknowledged[sequence] = None
        if not self.reliable or self.logged:
            return
        for subscription in self._subscriptions.values():
            if not self._has(subscription, publisher, sequence):
                self._break(
                    "acknowledged",
                    f"{client} was told that {sequence} is done, "
                    f"but {subscription.client}/{subscription.number} has not got it",
                )

    # ------------------------------------------------------------ questions

    def source_of(self, client: ClientId) -> SourceId | None:
        """Under which source a client publishes; None when it has not been told yet."""
        publisher = self._publishers.get(client)
        return publisher.source if publisher is not None else None

    def missing_at(self, source: SourceId, sequence: int) -> list[ClientId]:
        """Subscribers that are owed a publication and have not got it."""
        publisher = self._by_source.get(source)
        if publisher is None or sequence > len(publisher.contents):
            return []
        return [
            subscription.client
            for subscription in self._subscriptions.values()
            if not self._has(subscription, publisher, sequence)
        ]

    def got(self, subscriber: ClientId, client: ClientId, sequence: int) -> bool:
        """Whether a subscriber has got a publication for every subscription that wants it."""
        streams = [
            self._stream(subscription, self._publishers[client])
            for subscription in self._subscriptions.values()
            if subscription.client == subscriber
        ]
        return all(sequence in stream.got for stream in streams if sequence in stream.ranks)

    def owed_to(self, client: ClientId, sequence: int) -> list[ClientId]:
        """Subscribers that have started and want this publication."""
        return [
            subscription.client
            for subscription in self._subscriptions.values()
            if subscription.started
            and sequence in self._stream(subscription, self._publishers[client]).ranks
        ]

    def wants(self, predicate: Predicate, blob: bytes) -> bool:
        """Whether a predicate holds for an attribute blob."""
        key = (predicate, blob)
        found = self._matches.get(key)
        if found is None:
            found = self._matches[key] = predicate.matches(self._decode(blob))
        return found

    def undelivered(self) -> list[str]:
        """What is owed and not delivered, in words, one line per stream."""
        lines = []
        for subscription in self._subscriptions.values():
            name = f"{subscription.client}/{subscription.number}"
            if not subscription.started:
                lines.append(f"{name} has not started")
                continue
            for client, stream in subscription.streams.items():
                missing = self._missing(stream)
                if missing:
                    lines.append(f"{name} misses {_listed(missing)} of {client}")
        for publisher in self._publishers.values():
            left = len(publisher.contents) - len(publisher.acknowledged)
            if left:
                lines.append(f"{publisher.client} has {left} publications unacknowledged")
        return lines

    def lacking(
        self,
    ) -> Iterator[tuple[ClientId, int, bool, list[tuple[ClientId, list[int]]]]]:
        """Per subscription (client, number, started): what it is owed by whom and has not got."""
        for subscription in self._subscriptions.values():
            if subscription.draining:
                continue
            owed = [
                (client, missing)
                for client, stream in subscription.streams.items()
                if (missing := self._missing(stream))
            ]
            yield subscription.client, subscription.number, subscription.started, owed

    def subscribers(self) -> list[ClientId]:
        """Clients that have a subscription, or had one."""
        return list(dict.fromkeys(client for client, _ in [*self._subscriptions, *self._ended]))

    def unacknowledged(self) -> Iterator[tuple[ClientId, list[int]]]:
        """Per client: its publications that it does not know to be done, where there are some."""
        for publisher in self._publishers.values():
            sequences = range(1, len(publisher.contents) + 1)
            left = [number for number in sequences if number not in publisher.acknowledged]
            if left:
                yield publisher.client, left

    def judge_end(self) -> None:
        """Everything owed must be there by now; also counts what was owed."""
        for subscription in self._subscriptions.values():
            for stream in subscription.streams.values():
                if stream.fence is not None:
                    first = bisect_right(stream.matching, stream.fence)
                    self.owed += len(stream.matching) - first
        for source, notices in self._unnamed.items():
            self._break("phantom", f"{notices[0][0]} was told of {source}, which nobody is")
        for line in self.undelivered():
            self._break("incomplete", line)

    # ------------------------------------------------------------ inside

    def _check_first(self, stream: _Stream, rank: int, what: str) -> None:
        """Nothing that was owed may lie before the first delivery."""
        owed = self._missing(stream)
        before = [sequence for sequence in owed if sequence < stream.matching[rank]]
        if before:
            self._break(
                "gap", f"{what} first, without {_listed(before)}, published after the start"
            )
        if self.reliable:
            silent = [
                sequence
                for sequence in stream.matching[:rank]
                if sequence > max(stream.asked, stream.withheld, stream.had)
            ]
            if silent:
                self._break("silent", f"{what} first; nobody told it of {_listed(silent)}")

    def _missing(self, stream: _Stream) -> list[int]:
        if stream.at is not None:
            return self._owed_of(stream, stream.matching[stream.at + 1 :])
        if stream.fence is None:
            return []
        return stream.matching[bisect_right(stream.matching, stream.fence) :]

    def _owed_of(self, stream: _Stream, sequences: list[int]) -> list[int]:
        """Those of publications behind a delivered one that may not be missing.

        A reliable stream has no holes, wherever it begins. An unreliable one begins to count
        once the subscription has started.
        """
        if self.reliable:
            return sequences
        return [n for n in sequences if stream.fence is not None and n > stream.fence]

    def _has(self, subscription: _Subscription, publisher: _Publisher, sequence: int) -> bool:
        """Whether the subscription has the publication, or is not owed it."""
        if not subscription.started or subscription.draining:
            return True
        stream = self._stream(subscription, publisher)
        rank = stream.ranks.get(sequence)
        if rank is None:
            return True
        if stream.at is None:
            return stream.fence is None or sequence <= stream.fence
        return rank <= stream.at

    def _stream(self, subscription: _Subscription, publisher: _Publisher) -> _Stream:
        stream = subscription.streams.get(publisher.client)
        if stream is None:
            stream = subscription.streams[publisher.client] = _Stream()
            if subscription.started and not self._is_closed(subscription, publisher):
                stream.fence = 0
        return stream

    def _is_closed(self, subscription: _Subscription, publisher: _Publisher) -> bool:
        return self.homes.get(publisher.client, -1) in subscription.closed

    def _break(self, rule: str, what: str) -> None:
        self.violations[rule] = self.violations.get(rule, 0) + 1
        if len(self.first_violations) < 10:
            self.first_violations.append(f"{rule}: {what}")
        if self._strict:
            raise InvariantViolated(rule, what)


def _listed(sequences: list[int]) -> str:
    """Sequence numbers in words: a few of them, and how many there are."""
    more = f" and {len(sequences) - 6} more" if len(sequences) > 6 else ""
    return ", ".join(map(str, sequences[:6])) + more
