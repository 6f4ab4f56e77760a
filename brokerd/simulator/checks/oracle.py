"""Judgement of deliveries from the actions and observations of applications alone.

The oracle has no access to brokers. It receives each publication at its publishing, each delivery
behind the client library, each acknowledgement, and each notification of a started subscription.
Predicates are evaluated by their reference semantics.

The rule: sort the publications of one source that match a subscription by sequence number. The
subscriber must receive a contiguous stretch of these publications. The stretch must begin at the
latest with the first publication after the start of the subscription or, for a source behind a
partition at the start, after the opening of its gate. A gate never closes again.

A client that is disconnected for longer than its broker waits (`client_linger`) loses the
publications in between, and the protocol may announce them as a gap. A subscriber's streams restart
when the client is notified of a start again. A subscription that started meanwhile may have missed
earlier publications of a publisher that returns.

A client without memory repeats its requests under the same numbers, and its streams resume at the
old positions. Some old deliveries may repeat, and nothing is missing behind them. As a publisher
the client is another source. Acknowledged publications of the old source are owed, and the
remaining publications contain no gap for any subscriber.

The protocol may promise less. Without an order, only the end of a run shows missing publications.
Publications in a gap that was announced for a promised reason are not owed. Publications that are
marked as redelivered and were not committed may repeat. The protocol may also promise more: in a
total order any two subscribers receive their common publications in the same order.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable

from brokerd.model.client_messages import Notice
from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.model.losses import OLDER_COPY, STATE_LOST
from brokerd.model.predicate import Attributes, Predicate
from brokerd.model.publication import Buffer
from brokerd.protocols.definition import Order, Promises
from brokerd.simulator.checks.obligations import Obligations, list_numbers
from brokerd.simulator.checks.streams import (
    Publisher,
    Stream,
    StreamRegister,
    Subscription,
    TotalOrder,
)

OriginsOf = Callable[[StreamId, int, int], Iterable[tuple[SourceId, int]] | None]
"""Returns the publications of a stream from the first to the last position; None if unknown."""

StoresFor = Callable[[BrokerNumber, BrokerNumber], bool]
"""Returns True if a broker, the first, has the subscriptions of an access broker on disk."""

KeeperOf = Callable[[SourceId, int, BrokerNumber], BrokerNumber]

HasLost = Callable[[SourceId, int], bool]
"""Returns True if an accepted loss took a publication that no broker has stored again."""
"""Returns the broker that has an acknowledged publication, whose access broker is the last one."""


class InvariantViolated(Exception):
    """A promise was broken.

    Attributes:
        rule: the short name of the rule, e.g. "gap".
    """

    def __init__(self, rule: str, what: str) -> None:
        self.rule = rule
        super().__init__(f"{rule}: {what}")


class Oracle:
    """The judge of deliveries on arrival, and of missing deliveries at the end.

    With `strict` a violation is raised; otherwise the violation is counted in `violations` by rule,
    for protocols that promise less. If exactly once is promised, a publisher's acknowledgement
    means that every subscription that is owed the publication has received it, and that no delivery
    precedes the start of its subscription.

    Args:
        now_ns: time of the common clock; None without a common clock, when the age of a publication
            is undefined.

    Attributes:
        promises: the promises to judge by.
        reliable: exactly once is promised.
        deliveries: number of deliveries behind the clients' duplicate checks.
        announced: number of (publication, subscription) pairs that were announced as withheld.
        in_gaps: number of pairs in gaps that the protocol promises to announce, by reason.
        redelivered: number of permitted redeliveries.
        owed: number of (publication, subscription) pairs that were owed.
        homes: access broker by client.
        register: the publishers and subscriptions of the run.
        obligations: the owed deliveries.
        accepts_losses: the operator has accepted a loss of state, so gaps with this reason are
            permitted.
        knows_losses: the brokers with losses are known; if not, any broker may have had the loss.
        origins_of: returns the publications at positions of a stream that no publisher has.
        stores_for: returns True if a broker has the subscriptions at an access broker on disk.
        keeper_of: returns the broker that has an acknowledged publication on disk.
        has_lost: returns True if an accepted loss took a publication that is not stored again.
        logged: an acknowledgement means only that the publication is on disk.
        violations: number of violations by rule.
        first_violations: the first few violations of each rule, in words.
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
        self.homes: dict[ClientId, BrokerNumber] = {}
        self.register = StreamRegister(self.homes)
        self.obligations = Obligations(self.register, promises)
        self._total_order = TotalOrder()
        self.reliable = promises.exactly_once
        self._closed: dict[tuple[ClientId, int], frozenset[BrokerNumber]] = {}
        self._before: dict[tuple[ClientId, int], Subscription] = {}
        self._unnamed: dict[SourceId, list[tuple[ClientId, Notice]]] = {}
        self._matches: dict[tuple[Predicate, bytes], bool] = {}
        self.published_count = 0
        self.deliveries = 0
        self.announced = 0
        self.in_gaps: dict[str, int] = {}
        self._lossy: dict[BrokerNumber, None] = {}
        self._lossy_clients: dict[ClientId, None] = {}
        self._restarted: dict[ClientId, None] = {}
        self.redelivered = 0
        self.logged = False
        self.accepts_losses = False
        self.knows_losses = True
        self.origins_of: OriginsOf = lambda stream, first, last: None
        self.stores_for: StoresFor = lambda broker, home: broker == home
        self.keeper_of: KeeperOf = lambda source, sequence, home: home
        self.has_lost: HasLost = lambda source, sequence: False
        self._unjudged: dict[tuple[SourceId, int], dict[tuple[ClientId, int], None]] = {}
        self.owed = 0
        self.violations: dict[str, int] = {}
        self.first_violations: list[str] = []

    # ------------------------------------------------------------ actions of the applications

    def published(self, client: ClientId, sequence: int, blob: bytes, payload: bytes) -> None:
        """Record a publication passed to a client; numbers rise by one from 1."""
        publisher = self.register.publisher(client)
        assert sequence == len(publisher.contents) + 1, f"{client} skips to {sequence}"
        publisher.contents.append((blob, payload))
        publisher.published_ns.append(self._now_ns() if self._now_ns is not None else 0)
        self.published_count += 1
        for subscription in self.register.subscriptions.values():
            if self.wants(subscription.predicate, blob):
                stream = self.register.stream(subscription, publisher)
                stream.ranks[sequence] = len(stream.matching)
                stream.matching.append(sequence)

    def on_subscribed(self, client: ClientId, number: int, predicate: Predicate) -> None:
        """Record a requested subscription."""
        subscription = Subscription(client, number, predicate, self._total_order.begin())
        subscription.closed = self._closed.get((client, number), frozenset())
        before = self._before.pop((client, number), None)
        if before is not None and before.predicate == predicate:
            subscription.before = before
        self.register.subscriptions[client, number] = subscription
        for publisher in self.register.publishers.values():
            stream = self.register.stream(subscription, publisher)
            for sequence, (blob, _) in enumerate(publisher.contents, 1):
                if self.wants(predicate, blob):
                    stream.ranks[sequence] = len(stream.matching)
                    stream.matching.append(sequence)

    def on_unsubscribed(self, client: ClientId, number: int) -> None:
        """Record the end of a subscription, after which no delivery is owed or permitted."""
        self.register.ended[client, number] = self.register.subscriptions.pop((client, number))

    def on_memory_loss(self, client: ClientId) -> None:
        """Record a client's loss of memory, after which only its new requests count.

        A broker that stores for the client's broker may have lost its subscriptions.
        """
        self._restarted[client] = None
        is_lost = client in self._lossy_clients and not self.is_lossy(self.homes.get(client, -1))
        for (name, number), subscription in list(self.register.subscriptions.items()):
            if name == client:
                self.on_unsubscribed(name, number)
                before = subscription.before  # without a start since the last loss
                is_kept = subscription.started and not subscription.given_up
                if before is None and is_kept and not (subscription.lost or is_lost):
                    before = subscription
                if before is not None:
                    self._before[name, number] = before
        publisher = self.register.current.pop(client, None)
        if publisher is not None:
            publisher.is_over = True

    def on_drain(self, client: ClientId) -> None:
        """Record a client's request for its remaining deliveries, before it leaves the broker.

        Other owed deliveries are owed at the new broker of the client.
        """
        for (name, _), subscription in self.register.subscriptions.items():
            subscription.draining = subscription.draining or name == client

    def on_moved(self, client: ClientId, successor: ClientId, *, whole: bool) -> None:
        """Record the move of a client to another broker, as `successor`.

        The client keeps its subscriptions. A subscription that ended at the new broker after a
        refusal is owed nothing more. Earlier deliveries must not repeat. With `whole`, nothing
        failed meanwhile and the old broker has delivered everything: the streams continue without a
        gap. Otherwise the streams restart, at the latest with the first publication after the start
        of the subscription at the new broker.
        """
        if client in self._lossy_clients:
            self._lossy_clients[successor] = None
        for (name, number), before in list(self.register.subscriptions.items()):
            if name != client:
                continue
            self.on_unsubscribed(name, number)
            after = self.register.subscriptions.get((successor, number))
            if after is None:
                assert (successor, number) in self.register.ended, f"{successor} never had {number}"
                continue
            for publisher in self.register.publishers.values():
                self._continue_stream(
                    self.register.stream(before, publisher),
                    self.register.stream(after, publisher),
                    len(publisher.contents),
                    whole=whole,
                )

    def _continue_stream(
        self, before: Stream, after: Stream, published: int, *, whole: bool
    ) -> None:
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
            after.requested = published
            if after.fence is not None:
                after.fence = max(after.fence, after.had)
            return
        after.requested = before.requested
        fence = after.had if before.at is not None else before.fence
        if fence is not None:
            there = fence if after.fence is None else after.fence
            after.fence = max(after.had, min(fence, there))

    # ------------------------------------------------------------ observations of the applications

    def on_connected(self, client: ClientId, source: SourceId | None) -> None:
        """Record the source that a client was notified of."""
        if source is None:
            return
        publisher = self.register.publisher(client)
        if publisher.given_up:
            self._restore_publisher(publisher)
        holder = self.register.by_source.setdefault(source, publisher)
        if holder is not publisher:
            self._break("identity", f"{source} was given to {holder.client} and to {client}")
        publisher.source = source
        self._name_earlier(publisher, source)
        for subscriber, notice in self._unnamed.pop(source, ()):
            self.withheld(subscriber, notice)

    def started(self, client: ClientId, number: int) -> None:
        """Record that a client was notified of the start of a subscription."""
        subscription = self.register.subscriptions.get((client, number))
        if subscription is not None and subscription.lost:
            self._restart_lost(subscription)
        if subscription is None or (subscription.started and not subscription.given_up):
            return
        subscription.started = True
        for publisher in self.register.publishers.values():
            stream = self.register.stream(subscription, publisher)
            if subscription.given_up:
                stream.restart()
                stream.absent = len(publisher.contents)
            stream.requested = len(publisher.contents)
            if stream.fence is None and not self.register.is_closed(subscription, publisher):
                self._open(stream, publisher)
            if subscription.before is not None:
                self._resume(subscription.before, stream, publisher)
        subscription.given_up, subscription.before = False, None

    def disk_copied(self, broker: BrokerNumber, *, is_empty: bool) -> None:
        """Record a copy of a broker's disk, with the publications acknowledged so far."""
        for publisher in self.register.publishers.values():
            here = {n: None for n, home in publisher.kept_at.items() if home == broker}
            copied = {n: None for n in publisher.copied if n not in here}
            publisher.copied = copied if is_empty else copied | here

    def state_lost(self, broker: BrokerNumber) -> None:
        """Record that a broker lost state, and that its operator accepted the loss.

        The broker may have lost subscriptions of its clients. Then neither it nor other brokers
        wait for these clients, until the clients have requested the subscriptions again. All
        publications remain owed, or must be in an announced gap. Only a client without memory then
        has a new subscription, since neither end has a position.
        """
        self.accepts_losses = True
        self._lossy[broker] = None
        self._lossy_clients |= {
            client: None for client, home in self.homes.items() if self.stores_for(broker, home)
        }
        for publisher in self.register.publishers.values():
            for number, home in publisher.kept_at.items():
                if home == broker and number not in publisher.copied:
                    publisher.lost[number] = None
        for subscription in self.register.subscriptions.values():
            if self.homes[subscription.client] == broker:
                subscription.lost, subscription.before = True, None
        for key in [key for key in self._before if self.stores_for(broker, self.homes[key[0]])]:
            del self._before[key]

    def unacknowledged_at(self, broker: BrokerNumber) -> list[tuple[SourceId, int]]:
        """Return the unacknowledged publications of clients at a broker."""
        return [
            (publisher.source, sequence)
            for publisher in self.register.publishers.values()
            if self.homes.get(publisher.client) == broker and publisher.source is not None
            for sequence in range(1, len(publisher.contents) + 1)
            if sequence not in publisher.acknowledged
        ]

    def is_lossy(self, broker: BrokerNumber) -> bool:
        """Return True if a broker has an accepted loss."""
        return broker in self._lossy

    def _has_lossy_home(self, client: ClientId) -> bool:
        """Return True if a broker of a client has an accepted loss, now or before a move."""
        if not self.knows_losses:
            return True
        return client in self._lossy_clients or self.is_lossy(self.homes.get(client, -1))

    def _restart_lost(self, subscription: Subscription) -> None:
        """Wait for a subscription again: a gap may still announce earlier publications."""
        subscription.lost = False
        for publisher in self.register.publishers.values():
            stream = self.register.stream(subscription, publisher)
            stream.lost_until = len(publisher.contents)

    def _resume(self, before: Subscription, stream: Stream, publisher: Publisher) -> None:
        """Resume the stream of a client without memory behind its old position.

        Old deliveries may repeat, in part: a broker that has crashed meanwhile has lost the last
        acknowledgements. Announced gaps and notices need not be repeated.
        """
        old = before.streams.get(publisher.name)
        if old is None:
            return
        stream.excused |= old.excused
        if stream.old_until >= 0:
            stream.old_until = max(stream.old_until, old.last)
        if old.fence is not None:
            stream.fence = stream.requested = max(old.fence, old.last)
        else:
            stream.requested = max(old.requested, old.last)

    def on_expired(self, client: ClientId, number: int) -> None:
        """Record the end of a subscription of a client that was away for too long."""
        subscription = self.register.subscriptions.get((client, number))
        if subscription is not None:
            subscription.given_up, subscription.before = True, None
        self._before.pop((client, number), None)

    def on_absence(self, client: ClientId, number: int) -> None:
        """Record that all publications so far may be lost to a subscription at another broker.

        The broker that the client has left ended the subscription, because the client was away for
        too long, before the new broker had the publications retained.
        """
        subscription = self.register.subscriptions.get((client, number))
        if subscription is not None:
            for publisher in self.register.publishers.values():
                self.register.stream(subscription, publisher).absent = len(publisher.contents)

    def publisher_given_up(self, client: ClientId) -> None:
        """Record that a broker, after a crash, no longer waits for a publisher."""
        self.register.publisher(client).given_up = True

    def _name_earlier(self, publisher: Publisher, source: SourceId) -> None:
        """Name earlier lives of a client that lost its memory before its source was known."""
        lives = [
            each for each in self.register.publishers.values() if each.client == publisher.client
        ]
        for place, earlier in enumerate(reversed(lives[: lives.index(publisher)]), 1):
            if earlier.source is None:
                earlier.source = source._replace(incarnation=source.incarnation - place)
                self.register.by_source.setdefault(earlier.source, earlier)

    def _restore_publisher(self, publisher: Publisher) -> None:
        publisher.given_up = False
        for subscription in self.register.subscriptions.values():
            stream = self.register.stream(subscription, publisher)
            if stream.old_until < 0:
                stream.old_until = len(publisher.contents)

    def _open(self, stream: Stream, publisher: Publisher) -> None:
        """Open a stream: all later publications are owed."""
        stream.fence = len(publisher.contents)
        if publisher.given_up:
            stream.old_until = -1  # the return of the publisher shows the extent

    def on_joined(self, client: ClientId, number: int, newcomer: BrokerNumber) -> None:
        """Record a new source broker behind a closed gate of a subscription."""
        subscription = self.register.subscriptions.get((client, number))
        if subscription is not None:
            subscription.closed |= {newcomer}
            self._closed[client, number] = subscription.closed

    def gates(self, client: ClientId, number: int, closed: frozenset[BrokerNumber]) -> None:
        """Replace the source brokers behind closed gates of a subscription."""
        self._closed[client, number] = closed
        subscription = self.register.subscriptions.get((client, number))
        if subscription is None:
            return  # ended at its client, not on this disk
        if subscription.started and not subscription.given_up:
            again = closed - subscription.closed
            if again and subscription.lost:
                self._close_lost(subscription, again)
            elif again:
                self._break("gate closed", f"{client}/{number} does not receive {sorted(again)}")
            subscription.closed = closed
            for publisher in self.register.publishers.values():
                stream = self.register.stream(subscription, publisher)
                if stream.fence is None and not self.register.is_closed(subscription, publisher):
                    self._open(stream, publisher)
        subscription.closed = closed

    def _close_lost(self, subscription: Subscription, closed: frozenset[BrokerNumber]) -> None:
        """Restart the streams of a lost subscription behind gates that are closed again."""
        for publisher in self.register.publishers.values():
            if self.homes.get(publisher.client, -1) in closed:
                self.register.stream(subscription, publisher).restart()

    def list_closed_sources(self) -> list[frozenset[BrokerNumber]]:
        """Return the source brokers behind closed gates, by subscription."""
        return [subscription.closed for subscription in self.register.subscriptions.values()]

    def describe_closed_gates(self) -> list[str]:
        """Return the subscriptions with closed gates, in words."""
        return [
            f"{subscription.client}/{subscription.number} does not receive {sorted(closed)}"
            for subscription in self.register.subscriptions.values()
            if (closed := subscription.closed) and not subscription.given_up
        ]

    def withheld(self, client: ClientId, notice: Notice) -> None:
        """Record a notice of withheld publications."""
        publisher = self.register.by_source.get(notice.source)
        what = f"{client}/{notice.subscription} receives the notice that {notice} is withheld"
        subscription = self.register.subscriptions.get((client, notice.subscription))
        if subscription is None:
            self._break("ended", f"{what} after its end")
            return
        if publisher is None:
            # The broker may count publications of an unnamed source; see `connected`.
            self._unnamed.setdefault(notice.source, []).append((client, notice))
            return
        if notice.ranges[-1][1] > len(publisher.contents):
            self._break("phantom", f"{what}, which was never published")
            return
        stream = self.register.stream(subscription, publisher)
        for first, last in notice.ranges:
            for sequence in range(first, last + 1):
                if sequence not in stream.ranks:
                    continue  # whole stretches are named, also publications that do not match
                self.announced += 1
                if stream.at is not None:
                    self._break("gap", f"{what} after {stream.matching[stream.at]} was delivered")
                elif stream.fence is not None and sequence > stream.fence:
                    self._break("gap", f"{what}, published while the source was reachable")
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
        """Judge a delivery to the application, with `again` marked as a possible redelivery."""
        self.deliveries += 1
        publisher = self.register.by_source.get(source)
        what = f"{client}/{number} got {tuple(source)} {sequence}"
        subscription = self.register.subscriptions.get((client, number))
        if subscription is None:
            self._break("ended", f"{what} after its end")
            return
        if publisher is None or not 1 <= sequence <= len(publisher.contents):
            self._break("phantom", f"{what}, which was never published")
            return
        if publisher.contents[sequence - 1] != (blob, bytes(payload)):
            self._break("phantom", f"{what} with contents that were not published")
        if self.reliable and not subscription.started:
            self._break("early", f"{what} before its start was announced")
        if self.register.is_closed(subscription, publisher):
            self._break("closed gate", f"{what} through a closed gate")
        stream = self.register.stream(subscription, publisher)
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
            self._check_rank(stream, publisher, rank, what)
        stream.got.add(sequence)
        stream.at = rank if stream.at is None else max(stream.at, rank)

    def _check_rank(self, stream: Stream, publisher: Publisher, rank: int, what: str) -> None:
        """Check that a delivery is the next publication of its stream.

        A publication that survived a loss of its source broker elsewhere may come before the gap
        that announces the loss.
        """
        sequence = stream.matching[rank]
        if stream.at is None:
            self._check_first(stream, publisher, rank, what)
        elif sequence <= stream.withheld:
            self._break("order", f"{what}, which was withheld")
        elif rank == stream.at:
            self._break("duplicate", f"{what} twice in a row")
        elif rank < stream.at:
            self._break("order", f"{what} after {stream.matching[stream.at]}")
        elif rank > stream.at + 1:
            missing = self.obligations.list_owed_after(
                stream, stream.matching[stream.at + 1 : rank]
            )
            missing = self._put_lost_aside(stream, publisher, missing)
            if missing:
                self._break(
                    "gap",
                    f"{what} after {stream.matching[stream.at]}, without {list_numbers(missing)}",
                )

    def gap(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        """Judge an announced gap: publications that do not arrive, now or ever."""
        what = f"{client}/{number} receives a gap, {tuple(source)} {first} to {last} ({reason})"
        publisher = self.register.by_source.get(source)
        subscription = self.register.subscriptions.get((client, number))
        if subscription is None:
            self._break("ended", f"{what}, after its end")
            return
        if reason == OLDER_COPY:
            if client not in self._restarted:
                self._break("gap unpromised", f"{what}, and its process was never restarted")
            return
        is_lost_state = reason == STATE_LOST and self.accepts_losses
        if is_lost_state and publisher is None:
            origins = self.origins_of(source, first, last)
            if origins is None:
                self._excuse_stream(subscription, source.broker)
                return
            for origin, sequence in origins:
                # A restarted subscription may have some of them from before.
                is_had = self.register.has_delivered(subscription, origin, sequence)
                if is_had:
                    continue
                if self._is_lost(client, origin, sequence):
                    self.gap(client, number, origin, sequence, sequence, reason)
                else:
                    self._unjudged.setdefault((origin, sequence), {})[client, number] = None
            return
        if publisher is None or not 1 <= first <= last <= len(publisher.contents):
            self._break("phantom", f"{what}, which was never published")
            return
        stream = self.register.stream(subscription, publisher)
        is_absence = reason in self.promises.absence_gaps and last <= stream.absent
        is_promised = is_absence or reason in self.promises.gaps
        is_lost_here = self._has_lossy_home(client)
        if not is_promised and not is_lost_state:
            self._break("gap unpromised", what)
        for sequence in range(first, last + 1):
            if sequence not in stream.ranks:
                continue  # whole stretches are named, also publications that do not match
            may_repeat = self.promises.redelivers and not stream.is_committed(sequence)
            if sequence in stream.got and not may_repeat:
                self._break("gap delivered", f"{what}, and had {sequence}")
            stream.gaps.add(sequence)
            stream.unexplained.discard(sequence)
            is_lost = is_lost_state and (is_lost_here or sequence in publisher.lost)
            if not is_promised and not is_lost and sequence not in stream.got:
                self._break("gap unpromised", f"{what}, and no broker has lost {sequence}")
            if (is_promised or is_lost) and sequence not in stream.excused:
                is_owed = stream.fence is not None and sequence > stream.fence
                is_owed = is_owed and sequence > stream.lost_until
                # What is in a gap of an accepted loss may be of any age.
                is_young = reason in self.promises.gaps and not self._is_old(publisher, sequence)
                if is_owed and is_young and not is_absence:
                    self._break("gap early", f"{what}, and {sequence} is not that old")
                stream.excused.add(sequence)
                self.in_gaps[reason] = self.in_gaps.get(reason, 0) + 1

    def _is_lost(self, client: ClientId, source: SourceId, sequence: int) -> bool:
        """Return True if lost positions took a publication; else it is published again."""
        publisher = self.register.by_source.get(source)
        if publisher is None:
            return False
        return self._has_lossy_home(client) or sequence in publisher.lost

    def _excuse_stream(self, subscription: Subscription, broker: BrokerNumber) -> None:
        """Excuse lost publications of a broker: a gap of a stream names no source.

        If the broker of the subscriber has lost state, these are all publications so far.
        """
        is_lost_here = self._has_lossy_home(subscription.client)
        for publisher in self.register.publishers.values():
            if self.stores_for(broker, self.homes.get(publisher.client, -1)):
                stream = self.register.stream(subscription, publisher)
                lost = {n for n in stream.matching if is_lost_here or n in publisher.lost}
                lost = {n for n in lost if n > stream.last} - stream.excused
                lost |= stream.unexplained
                stream.unexplained = set()
                stream.excused |= lost
                self.in_gaps[STATE_LOST] = self.in_gaps.get(STATE_LOST, 0) + len(lost)

    def _is_old(self, publisher: Publisher, sequence: int) -> bool:
        """Return True if a publication may be in a gap that is announced now."""
        if self._now_ns is None or not self.promises.gap_age_ns:
            return True
        age_ns = self._now_ns() - publisher.published_ns[sequence - 1]
        return age_ns >= self.promises.gap_age_ns

    def on_committed(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int
    ) -> None:
        """Record committed publications, which need not arrive after a restart."""
        subscription = self.register.subscriptions.get((client, number))
        if subscription is not None and source in self.register.by_source:
            stream = self.register.stream(subscription, self.register.by_source[source])
            stream.committed.append((first, last))

    def acknowledged(self, client: ClientId, sequence: int) -> None:
        """Judge an acknowledgement; owed subscriptions, or the log, must have the publication."""
        publisher = self.register.current[client]
        publisher.acknowledged[sequence] = None
        home = self.homes.get(client, -1)
        if publisher.source is not None:
            home = self.keeper_of(publisher.source, sequence, home)
            self._judge_late(publisher, publisher.source, sequence)
        publisher.kept_at[sequence] = home
        if not self.reliable or self.logged:
            return
        for subscription in self.register.subscriptions.values():
            if not self.obligations.has(subscription, publisher, sequence):
                self._break(
                    "acknowledged",
                    f"{client} received the acknowledgement of {sequence}, "
                    f"but {subscription.client}/{subscription.number} lacks it",
                )

    def _judge_late(self, publisher: Publisher, source: SourceId, sequence: int) -> None:
        """Judge gaps of a publication whose acknowledgement was in transit during the loss."""
        gaps = self._unjudged.pop((source, sequence), {})
        if not self.has_lost(source, sequence):
            return
        publisher.lost[sequence] = None
        for client, number in gaps:
            subscription = self.register.subscriptions.get((client, number))
            if subscription is not None and not self.register.has_delivered(
                subscription, source, sequence
            ):
                self.gap(client, number, source, sequence, sequence, STATE_LOST)

    # ------------------------------------------------------------ queries

    def list_missing_subscribers(self, source: SourceId, sequence: int) -> list[ClientId]:
        """Return the subscribers that are owed a publication and have not received it."""
        publisher = self.register.by_source.get(source)
        if publisher is None or sequence > len(publisher.contents):
            return []
        return [
            subscription.client
            for subscription in self.register.subscriptions.values()
            if not self.obligations.has(subscription, publisher, sequence)
        ]

    def wants(self, predicate: Predicate, blob: bytes) -> bool:
        """Return True if a predicate matches an attribute blob."""
        key = (predicate, blob)
        found = self._matches.get(key)
        if found is None:
            found = self._matches[key] = predicate.matches(self._decode(blob))
        return found

    def judge_end(self) -> None:
        """Judge the end: every owed delivery must have arrived; also count the owed deliveries."""
        for subscription in self.register.subscriptions.values():
            for stream in subscription.streams.values():
                if stream.fence is not None:
                    first = bisect_right(stream.matching, stream.fence)
                    never = stream.excused - stream.got
                    self.owed += sum(n not in never for n in stream.matching[first:])
        for source, notices in self._unnamed.items():
            self._break("phantom", f"{notices[0][0]} received {source}, which does not exist")
        for line in self.obligations.describe_undelivered():
            self._break("incomplete", line)

    # ------------------------------------------------------------ internals

    def _put_lost_aside(
        self, stream: Stream, publisher: Publisher, missing: list[int]
    ) -> list[int]:
        """Return missing publications that no loss of state explains; others await their gap."""
        source, lost = publisher.source, dict(publisher.lost)
        if source is not None:
            lost.update((n, None) for n in missing if self.has_lost(source, n))
        stream.unexplained.update(n for n in missing if n in lost)
        return [n for n in missing if n not in lost]

    def _check_first(self, stream: Stream, publisher: Publisher, rank: int, what: str) -> None:
        """Check that no owed publication lies before the first delivery."""
        owed = self.obligations.missing(stream)
        before = [sequence for sequence in owed if sequence < stream.matching[rank]]
        before = self._put_lost_aside(stream, publisher, before)
        if before:
            self._break(
                "gap", f"{what} first, without {list_numbers(before)}, published after the start"
            )
        if self.reliable:
            silent = [
                sequence
                for sequence in stream.matching[:rank]
                if sequence > max(stream.requested, stream.withheld, stream.had)
                and sequence not in stream.excused
                and sequence not in stream.unexplained
            ]
            if silent:
                self._break("silent", f"{what} first, without a notice of {list_numbers(silent)}")

    def _compare_orders(
        self, subscription: Subscription, publisher: Publisher, sequence: int, what: str
    ) -> None:
        if self._total_order.got(subscription.log, (publisher.name, sequence)):
            self._break("total order", f"{what} in another order than another subscriber")

    def _break(self, rule: str, what: str) -> None:
        self.violations[rule] = self.violations.get(rule, 0) + 1
        if self.violations[rule] <= 10:
            self.first_violations.append(f"{rule}: {what}")
        if self._strict:
            raise InvariantViolated(rule, what)
