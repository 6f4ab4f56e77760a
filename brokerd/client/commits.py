"""Commits of a client: the modes of consumption, and requests of positions kept by the broker.

`Progress` has one mode, which decides on arrivals between their delivery and their commit:

- "automatic": a request for further deliveries commits the deliveries before;
- "explicit": the application commits publications by `Subscription.commit`;
- "transactional": the application commits all its arrivals together with a token, or the broker
  keeps the positions (`DurableSubscription`, `Consumer`).

Paper: [DS03] §5.2 (JMS: a commit is a request to the SHB, which keeps CT(s)).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from brokerd.client.commitment import ArrivalPart, Commitment
from brokerd.client.events import Redelivered
from brokerd.client.state import Positions
from brokerd.model.client_messages import CommitConsumed, Consuming, Deliveries
from brokerd.model.identity import SourceId, StreamId

CommitMode = Literal["automatic", "explicit", "transactional"]
"""The name of a commit mode."""


class CommitPolicy(Protocol):
    """The decisions that differ between commit modes.

    Attributes:
        reports_silence: True if silence is an arrival of the application, which commits it.
    """

    reports_silence: ClassVar[bool]

    def deliver(self, serial: int) -> None:
        """Record that all arrivals up to this serial are about to be delivered."""

    def deliver_part(self, part: ArrivalPart) -> None:
        """Record that this part of an arrival is about to be delivered."""

    def retract_delivery(self, part: ArrivalPart) -> None:
        """Record that no publication of an arrival behind this part was delivered after all."""

    def take(self, serial: int, numbers: Iterable[int]) -> None:
        """Record that the application has received all arrivals up to this serial.

        Args:
            numbers: the present subscriptions.
        """

    def take_part(self, part: ArrivalPart) -> None:
        """Record that the application has received this part of an arrival."""

    def skip(self, numbers: Iterable[int]) -> None:
        """Take the last arrival if no earlier arrival waits; the application has no part in it."""

    def commit(self, number: int, source: SourceId, last: int) -> None:
        """Commit the deliveries of a subscription up to a publication that was delivered."""


class AutomaticCommits:
    """Commits of all arrivals that the application has received.

    Args:
        records_deliveries: True if deliveries must be on record after a restart.
    """

    reports_silence: ClassVar[bool] = False

    def __init__(self, commitment: Commitment, *, records_deliveries: bool) -> None:
        self._commitment = commitment
        self._records_deliveries = records_deliveries

    def deliver(self, serial: int) -> None:
        if self._records_deliveries:
            self._commitment.deliver(serial)

    def deliver_part(self, part: ArrivalPart) -> None:
        if self._records_deliveries:
            self._commitment.deliver_part(part)

    def retract_delivery(self, part: ArrivalPart) -> None:
        if self._records_deliveries:
            self._commitment.retract_delivery(part)

    def take(self, serial: int, numbers: Iterable[int]) -> None:
        self._commitment.take(serial)

    def take_part(self, part: ArrivalPart) -> None:
        for number in part.subscriptions:
            self._commitment.commit_consumed(number, part.serial, part.source, part.last)

    def skip(self, numbers: Iterable[int]) -> None:
        if len(self._commitment) == 1:
            self.take(self._commitment.serial, numbers)

    def commit(self, number: int, source: SourceId, last: int) -> None:
        """See CommitPolicy: the next request of the application commits."""


class ExplicitCommits:
    """Commits by the application, per subscription and source.

    Announcements behind all committed publications are committed at once.
    """

    reports_silence: ClassVar[bool] = False

    def __init__(self, commitment: Commitment) -> None:
        self._commitment = commitment

    def deliver(self, serial: int) -> None:
        self._commitment.deliver(serial)

    def deliver_part(self, part: ArrivalPart) -> None:
        self._commitment.deliver_part(part)

    def retract_delivery(self, part: ArrivalPart) -> None:
        self._commitment.retract_delivery(part)

    def take(self, serial: int, numbers: Iterable[int]) -> None:
        _take_announcements(self._commitment, serial, numbers)

    def take_part(self, part: ArrivalPart) -> None:
        """See CommitPolicy: the application commits."""

    def skip(self, numbers: Iterable[int]) -> None:
        if len(self._commitment) == 1:
            self.take(self._commitment.serial, numbers)

    def commit(self, number: int, source: SourceId, last: int) -> None:
        self._commitment.commit(number, source, last)


class TransactionalCommits:
    """Commits of all arrivals together, silence included.

    `Progress.commit_through` and `Progress.commit_consumed` commit; an acknowledged position is in
    a token that the application, or its broker, has kept.
    """

    reports_silence: ClassVar[bool] = True

    def __init__(self, commitment: Commitment) -> None:
        self._commitment = commitment

    def deliver(self, serial: int) -> None:
        self._commitment.deliver(serial)

    def deliver_part(self, part: ArrivalPart) -> None:
        raise AssertionError(f"{part}: a transaction receives whole arrivals")

    def retract_delivery(self, part: ArrivalPart) -> None:
        raise AssertionError(f"{part}: a transaction receives whole arrivals")

    def take(self, serial: int, numbers: Iterable[int]) -> None:
        _take_announcements(self._commitment, serial, numbers)

    def take_part(self, part: ArrivalPart) -> None:
        raise AssertionError(f"{part}: a transaction receives whole arrivals")

    def skip(self, numbers: Iterable[int]) -> None:
        self._commitment.release()

    def commit(self, number: int, source: SourceId, last: int) -> None:
        raise AssertionError(f"subscription {number} commits with a token: commit_through")


def policy_of(
    mode: CommitMode, commitment: Commitment, *, records_deliveries: bool
) -> CommitPolicy:
    """Return the policy of a mode; see AutomaticCommits for `records_deliveries`."""
    if mode == "automatic":
        return AutomaticCommits(commitment, records_deliveries=records_deliveries)
    return ExplicitCommits(commitment) if mode == "explicit" else TransactionalCommits(commitment)


def _take_announcements(commitment: Commitment, serial: int, numbers: Iterable[int]) -> None:
    """Record deliveries, and commit the announcements behind all committed publications."""
    commitment.deliver(serial)
    for number in numbers:
        commitment.commit_announcements(number)
    commitment.release()


@dataclass(slots=True)
class _Consumer:
    """A subscription with positions kept by the broker.

    Attributes:
        uncommitted: number of publications that the application receives before it commits.
        requested, answered: numbers of requests.
        last: the last request, until answered.
        positions: committed position of each stream, as answered by the broker.
        is_known: True once the broker has reported the state of an earlier process.
        may_have: by stream, the number of next publications that an earlier process may have
            delivered, and up to which position.
    """

    uncommitted: int
    requested: int = 0
    answered: int = 0
    last: CommitConsumed | None = None
    positions: dict[StreamId, int] = field(default_factory=dict)
    is_known: bool = False
    may_have: dict[StreamId, tuple[int, int]] = field(default_factory=dict)


class CommitRequests:
    """The commit requests of one client, by subscription; the client stores none of them.

    Attributes:
        generation: generation of the client's attachment to its broker, as last reported.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._consumers: dict[int, _Consumer] = {}

    def begin(self, number: int, uncommitted: int) -> None:
        """Add a subscription with positions kept by the broker."""
        self._consumers[number] = _Consumer(uncommitted)

    def forget(self, number: int) -> None:
        """Remove a subscription that has ended."""
        self._consumers.pop(number, None)

    def uncommitted_limit(self, number: int) -> int:
        """Return the limit of uncommitted publications.

        0 if the subscription keeps its own token.
        """
        consumer = self._consumers.get(number)
        return consumer.uncommitted if consumer is not None else 0

    def on_consuming(self, message: Consuming) -> None:
        """Handle the broker's report of a subscription that it continues.

        Deliveries to this process are recorded; only those of an earlier process may be repeated.
        """
        self.generation = max(self.generation, message.generation)
        consumer = self._consumers.get(message.number)
        if consumer is None or consumer.is_known:
            return
        consumer.is_known = True
        for stream, last in message.delivered:
            consumer.may_have[stream] = message.uncommitted, last

    def mark_redeliveries(self, fresh: Iterable[Deliveries]) -> Iterator[Deliveries]:
        """Yield the same deliveries, with possible redeliveries marked."""
        for item in fresh:
            stream = item.run.source
            for number in item.subscriptions:
                consumer = self._consumers.get(number)
                left, last = consumer.may_have.get(stream, (0, 0)) if consumer else (0, 0)
                if consumer is None or not left:
                    continue
                again = item.run.select_through(
                    min(last, item.run.sequences[min(left, len(item.run)) - 1])
                )
                if again is None:
                    del consumer.may_have[stream]
                    continue
                consumer.may_have[stream] = left - len(again), last
                yield Redelivered(again, item.subscriptions)
                rest = item.run.after(again.last)
                if rest is not None:
                    yield Deliveries(rest, item.subscriptions)
                break
            else:
                yield item

    # ------------------------------------------------------------ commits

    def request(self, number: int, positions: Positions) -> CommitConsumed:
        """Return the request to send, now and after each attachment until answered.

        Args:
            positions: all positions; those that the broker has confirmed are left out.
        """
        consumer = self._consumers[number]
        consumer.requested += 1
        fresh = [each for each in positions if consumer.positions.get(each[0], 0) < each[1]]
        consumer.last = CommitConsumed(number, consumer.requested, tuple(fresh))
        return consumer.last

    def unanswered(self) -> list[CommitConsumed]:
        """Return the requests to repeat after the end of a session."""
        return [each.last for each in self._consumers.values() if each.last is not None]

    def on_committed(self, number: int, request: int) -> bool:
        """Return True if the broker may answer that request.

        A repeated request is answered twice.
        """
        consumer = self._consumers.get(number)
        if consumer is None or not 1 <= request <= consumer.requested:
            return consumer is None
        consumer.answered = max(consumer.answered, request)
        if consumer.last is not None and consumer.last.request <= request:
            consumer.positions |= dict(consumer.last.positions)
            consumer.last = None
        return True

    def is_committed(self, number: int, request: int) -> bool:
        """Return True if this request, or a later request, is answered."""
        return self._consumers[number].answered >= request
