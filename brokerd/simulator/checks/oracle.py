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

`Oracle` passes each action and each observation to the judge of its subject. The judges share the
`StreamRegister` of all publishers and subscriptions.
"""

from bisect import bisect_right
from collections.abc import Callable

from brokerd.model.client_messages import Notice
from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.predicate import Attributes, Predicate
from brokerd.model.publication import Buffer
from brokerd.protocols.definition import Promises
from brokerd.simulator.checks.deliveries import DeliveryJudge, Obligations
from brokerd.simulator.checks.gaps import GapJudge
from brokerd.simulator.checks.losses import StateLosses
from brokerd.simulator.checks.notices import Gates, NoticeJudge
from brokerd.simulator.checks.publishers import PublisherJudge
from brokerd.simulator.checks.streams import StreamRegister
from brokerd.simulator.checks.subscriptions import SubscriptionLives
from brokerd.simulator.checks.violations import Violations


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
        published_count: number of publications.
        deliveries: number of deliveries behind the clients' duplicate checks.
        owed: number of (publication, subscription) pairs that were owed.
        homes: access broker by client.
        register: the publishers and subscriptions of the run.
        obligations: the owed deliveries.
        losses: the accepted losses of state.
        gates: the closed gates of subscriptions.
        lives: the lives of subscriptions.
        arrivals: the judge of deliveries.
        gaps: the judge of announced gaps.
        notices: the judge of withheld publications.
        publishers: the judge of sources and acknowledgements.
        in_gaps: number of pairs in gaps that the protocol promises to announce, by reason.
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
        self.promises = promises
        self.reliable = promises.exactly_once
        self._logged = False
        self.homes: dict[ClientId, BrokerNumber] = {}
        self.register = register = StreamRegister(self.homes)
        self.obligations = Obligations(register, promises)
        found = Violations(strict)
        self.violations, self.first_violations = found.counts, found.first
        self.losses = StateLosses(register)
        self.gates = Gates(register, found)
        self.lives = SubscriptionLives(register, promises, self.losses, self.gates)
        self.gaps = GapJudge(register, promises, self.losses, found)
        self.in_gaps = self.gaps.counts
        self.notices = NoticeJudge(register, found)
        self.publishers = PublisherJudge(register, self.obligations, self.losses, self.gaps, found)
        self.publishers.is_owed_everywhere = self.losses.is_owed_everywhere = self.reliable
        self.arrivals = DeliveryJudge(register, promises, self.obligations, self.losses, found)
        self._violations = found
        self._matches: dict[tuple[Predicate, bytes], bool] = {}
        self.published_count = 0
        self.deliveries = 0
        self.owed = 0

    @property
    def logged(self) -> bool:
        """True if an acknowledgement means only that the publication is on disk."""
        return self._logged

    @logged.setter
    def logged(self, is_logged: bool) -> None:
        self._logged = is_logged
        is_owed = self.reliable and not is_logged
        self.publishers.is_owed_everywhere = self.losses.is_owed_everywhere = is_owed

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
                self.register.stream(subscription, publisher).add(sequence)

    def on_subscribed(
        self,
        client: ClientId,
        number: int,
        predicate: Predicate,
    ) -> None:
        """Record a requested subscription; see SubscriptionLives."""
        log = self.arrivals.total_order.begin()
        subscription = self.lives.begin(client, number, predicate, log)
        for publisher in self.register.publishers.values():
            stream = self.register.stream(subscription, publisher)
            for sequence, (blob, _) in enumerate(publisher.contents, 1):
                if self.wants(predicate, blob):
                    stream.add(sequence)

    def on_unsubscribed(self, client: ClientId, number: int) -> None:
        """Record the end of a subscription, after which no delivery is owed or permitted."""
        self.lives.end(client, number)

    def on_memory_loss(self, client: ClientId) -> None:
        """Record a client's loss of memory, after which only its new requests count."""
        self.lives.forget(client)

    def on_moved(self, client: ClientId, successor: ClientId, *, whole: bool) -> None:
        """Record the move of a client to another broker; see SubscriptionLives."""
        self.lives.move(client, successor, whole=whole)

    # ------------------------------------------------------------ observations of the applications

    def on_connected(self, client: ClientId, source: SourceId | None) -> None:
        """Record the source that a client was notified of."""
        if source is not None:
            self.publishers.connect(client, source)
            self.notices.judge_named(source)

    def on_started(self, client: ClientId, number: int) -> None:
        """Record that a client was notified of the start of a subscription."""
        self.lives.start(client, number)

    def on_withheld(self, client: ClientId, notice: Notice) -> None:
        """Judge a notice of withheld publications."""
        self.notices.judge(client, notice)

    def on_delivered(
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
        self.arrivals.judge(client, number, source, sequence, blob, payload, again=again)

    def on_gap(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        """Judge an announced gap: publications that do not arrive, now or ever."""
        self._read_clock()
        self.gaps.judge(client, number, source, first, last, reason)

    def on_committed(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int
    ) -> None:
        """Record committed publications, which need not arrive after a restart."""
        subscription = self.register.subscriptions.get((client, number))
        if subscription is not None and source in self.register.by_source:
            stream = self.register.stream(subscription, self.register.by_source[source])
            stream.committed.append((first, last))

    def on_acknowledged(self, client: ClientId, sequence: int) -> None:
        """Judge an acknowledgement; owed subscriptions, or the log, must have the publication."""
        self._read_clock()
        self.publishers.acknowledge(client, sequence)

    def on_retention(
        self, broker: BrokerNumber, stream: int, streams: int, reason: str, age_ns: int | None
    ) -> None:
        """Record a retention that is durable at a broker. See GapJudge.change_retention."""
        self._read_clock()
        self.gaps.change_retention(broker, stream, streams, reason, age_ns)

    def _read_clock(self) -> None:
        self.gaps.now_ns = self._now_ns() if self._now_ns is not None else None

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
        self.notices.judge_end()
        for line in self.obligations.describe_undelivered():
            self._violations.add("incomplete", line)
