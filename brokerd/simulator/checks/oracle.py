"""What subscribers are owed, from nothing but what the applications did and saw.

The oracle knows no broker. It is told each publication when it is published, each delivery
behind the client library, each acknowledgement, and when the client learnt that a subscription
has started. Predicates are evaluated by their reference semantics.

The rule: sort the publications of one source that match a subscription by sequence number; the
subscriber must see a stretch of them without a step, and the stretch must begin at the latest
with the first one published after the subscription had started or, where the source lay behind
a partition then, after its gate had opened. A gate never closes.

Whoever stays away for longer than its broker waits (`client_linger`) gives up what lies between:
a subscriber's streams begin anew when it is told that its subscription has started again; a
publisher may find that a subscription, started meanwhile, has missed what it had handed out
before it came back.

A client that has lost its memory asks again under the same numbers, and its streams go on where
the old ones had come to: it may get again some of what the old one had, and nothing is missing
behind that. As a publisher it is another source; of what the old one handed out, what it was
told is done is owed, and nobody has a gap in the rest.

What the protocol promises may be less: in no order, nothing is asked of what came before what, and
a publication is missing only in the end; what lies in a gap that was announced for a promised
reason is not owed; what is marked as given again, and was not committed, may come again. Or more:
in a total order any two subscribers get what both get in the same order.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator

from brokerd.model.client_messages import Notice
from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.losses import STATE_LOST
from brokerd.model.predicate import Attributes, Predicate
from brokerd.model.publication import Buffer
from brokerd.protocols.definition import Order, Promises
from brokerd.simulator.checks.total_order import TotalOrder
from brokerd.simulator.world.streams import Publisher, Stream, Subscription


class InvariantViolated(Exception):
    """What was promised did not hold.

    Attributes:
        rule: its short name, e.g. "gap".
    """

    def __init__(self, rule: str, what: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {what}")


class Oracle:
    """Judges deliveries as they come, and what is still missing at the end.

    With `strict` a violation is raised; without, it is counted in `violations` by rule, as a
    run of a protocol that promises less needs it. Where exactly once is promised, a publisher's
    acknowledgement means that everybody who is owed the publication has it, and nothing comes
    before a subscription has started.

    Args:
        now_ns: what the one clock shows that all have; None where there is none, and nobody can
            say how old a publication is.

    Attributes:
        promises: what it judges by.
        reliable: exactly once is promised.
        deliveries: seen behind the clients' duplicate checks.
        announced: (publication, subscription) pairs that were announced as withheld.
        in_gaps: those in gaps that the protocol promises to announce, by reason.
        redelivered: deliveries that were rightly given again.
        owed: (publication, subscription) pairs that had to be delivered and were asked for.
        homes: at which broker a client is, where it has been told.
        accepts_losses: an operator has accepted that a broker lost state, so gaps may say so.
        logged: an acknowledgement means that the publication is on disk, and no more.
        violations: how often each rule was broken.
        first_violations: the first few of each rule, in words.
    """

    def __init__(
        self,
        decode: Callable[[bytes], Attributes],
        strict: bool,
        promises: Promises,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        self._now_ns = now_ns
        self._decode = decode
        self._strict = strict
        self.promises = promises
        self._total_order = TotalOrder()
        self.reliable = promises.exactly_once
        self._publishers: dict[str, Publisher] = {}
        self._current: dict[ClientId, Publisher] = {}
        self._by_source: dict[SourceId, Publisher] = {}
        self._subscriptions: dict[tuple[ClientId, int], Subscription] = {}
        self._ended: dict[tuple[ClientId, int], Subscription] = {}
        self._closed: dict[tuple[ClientId, int], frozenset[BrokerNumber]] = {}
        self._before: dict[tuple[ClientId, int], Subscription] = {}
        self._unnamed: dict[SourceId, list[tuple[ClientId, Notice]]] = {}
        self._matches: dict[tuple[Predicate, bytes], bool] = {}
        self.published_count = 0
        self.deliveries = 0
        self.announced = 0
        self.in_gaps: dict[str, int] = {}
        self.redelivered = 0
        self.homes: dict[ClientId, BrokerNumber] = {}
        self.logged = False
        self.accepts_losses = False
        self.owed = 0
        self.violations: dict[str, int] = {}
        self.first_violations: list[str] = []

    # ------------------------------------------------------------ what the applications do

    def published(self, client: ClientId, sequence: int, blob: bytes, payload: bytes) -> None:
        """The application hands a publication to its client; numbers go up by one from 1."""
        publisher = self._publisher(client)
        assert sequence == len(publisher.contents) + 1, f"{client} skips to {sequence}"
        publisher.contents.append((blob, payload))
        publisher.published_ns.append(self._now_ns() if self._now_ns is not None else 0)
        self.published_count += 1
        for subscription in self._subscriptions.values():
            if self.wants(subscription.predicate, blob):
                stream = self._stream(subscription, publisher)
                stream.ranks[sequence] = len(stream.matching)
                stream.matching.append(sequence)

    def subscribed(self, client: ClientId, number: int, predicate: Predicate) -> None:
        """The application asks for a subscription."""
        subscription = Subscription(client, number, predicate, self._total_order.begin())
        subscription.closed = self._closed.get((client, number), frozenset())
        before = self._before.pop((client, number), None)
        if before is not None and before.predicate == predicate:
            subscription.before = before
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

    def forgot(self, client: ClientId) -> None:
        """A client has lost its memory: what it asks for from now on is all that it wants."""
        for (name, number), subscription in list(self._subscriptions.items()):
            if name == client:
                self.unsubscribed(name, number)
                before = subscription.before  # if it has not been told yet that it goes on
                if before is None and subscription.started and not subscription.given_up:
                    before = subscription
                if before is not None:
                    self._before[name, number] = before
        publisher = self._current.pop(client, None)
        if publisher is not None:
            publisher.over = True

    def draining(self, client: ClientId) -> None:
        """The client asks its broker for the rest, and to be done with it when it has that.

        What it is owed beside that, it is owed at the broker to which it moves.
        """
        for (name, _), subscription in self._subscriptions.items():
            subscription.draining = subscription.draining or name == client

    def moved(self, client: ClientId, successor: ClientId, *, whole: bool) -> None:
        """A client goes on at another broker, as `successor`, with the same subscriptions.

        Of a subscription that it has ended there meanwhile, since that broker had refused it, it
        is owed nothing more. Nothing that it had may come again. With `whole` nothing failed
        meanwhile and the old broker has delivered all it had: its streams go on without a step.
        Else they begin anew, at the latest with the first publication after the subscription had
        started at the new broker.
        """
        for (name, number), before in list(self._subscriptions.items()):
            if name != client:
                continue
            self.unsubscribed(name, number)
            after = self._subscriptions.get((successor, number))
            if after is None:
                assert (successor, number) in self._ended, f"{successor} never had {number}"
                continue
            for publisher in self._publishers.values():
                self._go_on(
                    self._stream(before, publisher),
                    self._stream(after, publisher),
                    len(publisher.contents),
                    whole=whole,
                )

    def _go_on(self, before: Stream, after: Stream, published: int, *, whole: bool) -> None:
        if not self.promises.order.is_of_sources:
            # A publication missing before the last delivered one may follow.
            after.got |= before.got
            after.excused |= before.excused
            if whole and before.fence is not None:
                there = before.fence if after.fence is None else after.fence
                after.fence = min(before.fence, there)
            return
        after.had = before.last
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
        publisher = self._publisher(client)
        if publisher.given_up:
            self._come_back(publisher)
        holder = self._by_source.setdefault(source, publisher)
        if holder is not publisher:
            self._break("identity", f"{source} was given to {holder.client} and to {client}")
        publisher.source = source
        self._name_earlier(publisher, source)
        for subscriber, notice in self._unnamed.pop(source, ()):
            self.withheld(subscriber, notice)

    def started(self, client: ClientId, number: int) -> None:
        """A client learnt that its subscription has started."""
        subscription = self._subscriptions.get((client, number))
        if subscription is None or (subscription.started and not subscription.given_up):
            return
        subscription.started = True
        for publisher in self._publishers.values():
            stream = self._stream(subscription, publisher)
            if subscription.given_up:
                stream.begin_anew()
            stream.asked = len(publisher.contents)
            if stream.fence is None and not self._is_closed(subscription, publisher):
                self._open(stream, publisher)
            if subscription.before is not None:
                self._resume(subscription.before, stream, publisher)
        subscription.given_up, subscription.before = False, None

    def _resume(self, before: Subscription, stream: Stream, publisher: Publisher) -> None:
        """Who has lost its memory is owed what comes behind what it had.

        What it had may come again, and not all of it: a broker that has crashed meanwhile has
        lost count of the last acknowledgements. What it was told of that it does not get, it
        need not be told of again.
        """
        old = before.streams.get(publisher.name)
        if old is None:
            return
        stream.excused |= old.excused
        if stream.old_until >= 0:
            stream.old_until = max(stream.old_until, old.last)
        if old.fence is not None:
            stream.fence = stream.asked = max(old.fence, old.last)
        else:
            stream.asked = max(old.asked, old.last)

    def given_up(self, client: ClientId, number: int) -> None:
        """A client was away for longer than its broker waits, and so its subscription is over."""
        subscription = self._subscriptions.get((client, number))
        if subscription is not None:
            subscription.given_up, subscription.before = True, None
        self._before.pop((client, number), None)

    def publisher_given_up(self, client: ClientId) -> None:
        """A broker has crashed, and its publisher has not come back while the broker waited."""
        self._publisher(client).given_up = True

    def _name_earlier(self, publisher: Publisher, source: SourceId) -> None:
        """Who lost its memory before it learnt its source was the incarnation before."""
        lives = [each for each in self._publishers.values() if each.client == publisher.client]
        for place, earlier in enumerate(reversed(lives[: lives.index(publisher)]), 1):
            if earlier.source is None:
                earlier.source = source._replace(incarnation=source.incarnation - place)
                self._by_source.setdefault(earlier.source, earlier)

    def _come_back(self, publisher: Publisher) -> None:
        publisher.given_up = False
        for subscription in self._subscriptions.values():
            stream = self._stream(subscription, publisher)
            if stream.old_until < 0:
                stream.old_until = len(publisher.contents)

    def _open(self, stream: Stream, publisher: Publisher) -> None:
        """A stream is owed from here on."""
        stream.fence = len(publisher.contents)
        if publisher.given_up:
            stream.old_until = -1  # how far that is shows when it comes back

    def joined(self, client: ClientId, number: int, newcomer: BrokerNumber) -> None:
        """A source broker has joined where a subscription hears nobody."""
        subscription = self._subscriptions.get((client, number))
        if subscription is not None:
            subscription.closed |= {newcomer}
            self._closed[client, number] = subscription.closed

    def gates(self, client: ClientId, number: int, closed: frozenset[BrokerNumber]) -> None:
        """From now on these source brokers, and no others, are not heard by a subscription."""
        self._closed[client, number] = closed
        subscription = self._subscriptions.get((client, number))
        if subscription is None:
            return  # it has ended at its client, not on this disk
        if subscription.started and not subscription.given_up:
            again = closed - subscription.closed
            if again:
                self._break("gate closed", f"{client}/{number} does not hear {sorted(again)}")
            subscription.closed = closed
            for publisher in self._publishers.values():
                stream = self._stream(subscription, publisher)
                if stream.fence is None and not self._is_closed(subscription, publisher):
                    self._open(stream, publisher)
        subscription.closed = closed

    def closed_by_subscription(self) -> list[frozenset[BrokerNumber]]:
        """Per subscription: the source brokers that it does not hear."""
        return [subscription.closed for subscription in self._subscriptions.values()]

    def closed_gates(self) -> list[str]:
        """Subscriptions that do not hear some source, in words."""
        return [
            f"{subscription.client}/{subscription.number} does not hear {sorted(closed)}"
            for subscription in self._subscriptions.values()
            if (closed := subscription.closed) and not subscription.given_up
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
        *,
        again: bool = False,
    ) -> None:
        """The application got a publication, with `again` as one that it may have had."""
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
        may_repeat = again and self.promises.redelivers and not stream.is_committed(sequence)
        if again and sequence in stream.got:
            self.redelivered += may_repeat
            if not may_repeat:
                self._break("duplicate", f"{what} again, which it may not")
            return
        if sequence in stream.gaps and not may_repeat:
            self._break("gap delivered", f"{what}, which was announced as a gap")
        if self.promises.order is Order.TOTAL and sequence not in stream.got:
            self._compare_orders(subscription, publisher, sequence, what)
        if not self.promises.order.is_of_sources:
            if sequence in stream.got:
                self._break("duplicate", f"{what} twice")
        else:
            if sequence <= stream.had:
                self._break("duplicate", f"{what}, which it had before it moved")
            self._check_rank(stream, rank, what)
        stream.got.add(sequence)
        stream.at = rank if stream.at is None else max(stream.at, rank)

    def _check_rank(self, stream: Stream, rank: int, what: str) -> None:
        """A delivery must be the next one."""
        sequence = stream.matching[rank]
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

    def gap(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        """The application was told that it does not get publications, now or ever."""
        what = f"{client}/{number} is told of a gap, {tuple(source)} {first} to {last} ({reason})"
        publisher = self._by_source.get(source)
        subscription = self._subscriptions.get((client, number))
        if subscription is None:
            self._break("ended", f"{what}, after its end")
            return
        is_lost_state = reason == STATE_LOST and self.accepts_losses
        if is_lost_state and publisher is None:
            return  # of a stream: how many publications that are, and whose, was lost
        if publisher is None or not 1 <= first <= last <= len(publisher.contents):
            self._break("phantom", f"{what}, which nobody published")
            return
        is_promised = is_lost_state or reason in self.promises.gaps
        if not is_promised:
            self._break("gap unpromised", what)
        stream = self._stream(subscription, publisher)
        for sequence in range(first, last + 1):
            if sequence not in stream.ranks:
                continue  # whole stretches are named, with what does not match in them
            may_repeat = self.promises.redelivers and not stream.is_committed(sequence)
            if sequence in stream.got and not may_repeat:
                self._break("gap delivered", f"{what}, and had {sequence}")
            stream.gaps.add(sequence)
            if is_promised and sequence not in stream.excused:
                is_owed = stream.fence is not None and sequence > stream.fence
                if is_owed and not self._is_old(publisher, sequence):
                    self._break("gap early", f"{what}, and {sequence} is not that old")
                stream.excused.add(sequence)
                self.in_gaps[reason] = self.in_gaps.get(reason, 0) + 1

    def _is_old(self, publisher: Publisher, sequence: int) -> bool:
        """Whether a publication may lie in a gap that is told now."""
        if self._now_ns is None or not self.promises.gap_age_ns:
            return True
        age_ns = self._now_ns() - publisher.published_ns[sequence - 1]
        return age_ns >= self.promises.gap_age_ns

    def committed(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int
    ) -> None:
        """The application is done with publications, and need not get them when it restarts."""
        subscription = self._subscriptions.get((client, number))
        if subscription is not None and source in self._by_source:
            stream = self._stream(subscription, self._by_source[source])
            stream.committed.append((first, last))

    def acknowledged(self, client: ClientId, sequence: int) -> None:
        """A publisher learnt that its publication is safe: everybody has it, or the log."""
        publisher = self._current[client]
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
            self._stream(subscription, self._current[client])
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
            and not subscription.given_up
            and sequence in self._stream(subscription, self._current[client]).ranks
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
            if not subscription.started or subscription.given_up:
                lines.append(f"{name} has not started")
                continue
            for publisher, stream in self._streams(subscription):
                missing = self._owed(stream, publisher)
                if missing:
                    lines.append(f"{name} misses {_listed(missing)} of {publisher.name}")
        for publisher in self._current.values():
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
                (publisher.client, missing)
                for publisher, stream in self._streams(subscription)
                if (missing := self._owed(stream, publisher))
            ]
            started = subscription.started and not subscription.given_up
            yield subscription.client, subscription.number, started, owed

    @property
    def living(self) -> int:
        """How many subscriptions have not ended."""
        return len(self._subscriptions)

    def living_at(self, home: BrokerNumber) -> int:
        """How many of them are of clients of one broker."""
        return sum(
            self.homes[subscription.client] == home for subscription in self._subscriptions.values()
        )

    @property
    def sources(self) -> int:
        """How many sources there have ever been."""
        return len(self._publishers)

    def subscribers(self) -> list[ClientId]:
        """Clients that have a subscription, or had one."""
        return list(dict.fromkeys(client for client, _ in [*self._subscriptions, *self._ended]))

    def unacknowledged(self) -> Iterator[tuple[ClientId, list[int]]]:
        """Per client: its publications that it does not know to be done, where there are some."""
        for publisher in self._current.values():
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
                    never = stream.excused - stream.got
                    self.owed += sum(n not in never for n in stream.matching[first:])
        for source, notices in self._unnamed.items():
            self._break("phantom", f"{notices[0][0]} was told of {source}, which nobody is")
        for line in self.undelivered():
            self._break("incomplete", line)

    # ------------------------------------------------------------ inside

    def _check_first(self, stream: Stream, rank: int, what: str) -> None:
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
                and sequence not in stream.excused
            ]
            if silent:
                self._break("silent", f"{what} first; nobody told it of {_listed(silent)}")

    def _compare_orders(
        self, subscription: Subscription, publisher: Publisher, sequence: int, what: str
    ) -> None:
        if self._total_order.got(subscription.log, (publisher.name, sequence)):
            self._break("total order", f"{what} in another order than somebody else")

    def _publisher(self, client: ClientId) -> Publisher:
        """The client as the source that it is at present."""
        publisher = self._current.get(client)
        if publisher is None:
            earlier = sum(each.client == client for each in self._publishers.values())
            publisher = Publisher(client, f"{client} ({earlier + 1})" if earlier else client)
            self._current[client] = self._publishers[publisher.name] = publisher
        return publisher

    def _streams(self, subscription: Subscription) -> Iterator[tuple[Publisher, Stream]]:
        for name, stream in subscription.streams.items():
            yield self._publishers[name], stream

    def _owed(self, stream: Stream, publisher: Publisher) -> list[int]:
        """What has to arrive in the end and has not."""
        missing = self._missing(stream)
        if publisher.over:
            return [sequence for sequence in missing if sequence in publisher.acknowledged]
        return missing

    def _missing(self, stream: Stream) -> list[int]:
        if not self.promises.order.is_of_sources:
            owed = [n for n in stream.matching if stream.fence is not None and n > stream.fence]
            return [n for n in self._owed_of(stream, owed) if n not in stream.got]
        if stream.at is not None:
            return self._owed_of(stream, stream.matching[stream.at + 1 :])
        if stream.fence is None:
            return []
        return self._owed_of(stream, stream.matching[bisect_right(stream.matching, stream.fence) :])

    def _owed_of(self, stream: Stream, sequences: list[int]) -> list[int]:
        """Those of publications behind a delivered one that may not be missing.

        A reliable stream has no holes, wherever it begins. An unreliable one begins to count
        once the subscription has started.
        """
        if stream.excused:
            sequences = [n for n in sequences if n not in stream.excused]
        if self.reliable and stream.old_until:
            old_until = stream.old_until
            return [n for n in sequences if 0 <= old_until < n]
        if self.reliable:
            return sequences
        return [n for n in sequences if stream.fence is not None and n > stream.fence]

    def _has(self, subscription: Subscription, publisher: Publisher, sequence: int) -> bool:
        """Whether the subscription has the publication, or is not owed it."""
        if not subscription.started or subscription.draining or subscription.given_up:
            return True
        stream = self._stream(subscription, publisher)
        rank = stream.ranks.get(sequence)
        if rank is None:
            return True
        if sequence in stream.excused:
            return True
        if not self.promises.order.is_of_sources and sequence in stream.got:
            return True
        if stream.at is None or not self.promises.order.is_of_sources:
            return stream.fence is None or sequence <= stream.fence
        return rank <= stream.at

    def _stream(self, subscription: Subscription, publisher: Publisher) -> Stream:
        stream = subscription.streams.get(publisher.name)
        if stream is None:
            stream = subscription.streams[publisher.name] = Stream()
            if subscription.started and not self._is_closed(subscription, publisher):
                stream.fence = 0
        return stream

    def _is_closed(self, subscription: Subscription, publisher: Publisher) -> bool:
        return self.homes.get(publisher.client, -1) in subscription.closed

    def _break(self, rule: str, what: str) -> None:
        self.violations[rule] = self.violations.get(rule, 0) + 1
        if self.violations[rule] <= 10:
            self.first_violations.append(f"{rule}: {what}")
        if self._strict:
            raise InvariantViolated(rule, what)


def _listed(sequences: list[int]) -> str:
    """Sequence numbers in words: a few of them, and how many there are."""
    more = f" and {len(sequences) - 6} more" if len(sequences) > 6 else ""
    return ", ".join(map(str, sequences[:6])) + more
