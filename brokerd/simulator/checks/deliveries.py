"""Deliveries to applications: each judged on its arrival, and present, missing or excused."""

from bisect import bisect_right
from collections.abc import Iterator

from brokerd.model.identity import ClientId, SourceId
from brokerd.model.publication import Buffer
from brokerd.protocols.definition import Order, Promises
from brokerd.simulator.checks.losses import StateLosses
from brokerd.simulator.checks.streams import (
    Publisher,
    Stream,
    StreamRegister,
    Subscription,
    TotalOrder,
)
from brokerd.simulator.checks.violations import Violations


class Obligations:
    """The owed deliveries of a run, by the promises of its protocol."""

    def __init__(self, register: StreamRegister, promises: Promises) -> None:
        self._register = register
        self._promises = promises

    def describe_undelivered(self) -> list[str]:
        """Return the owed deliveries that are missing, in words, one line per stream."""
        lines = []
        for subscription in self._register.subscriptions.values():
            name = f"{subscription.client}/{subscription.number}"
            if not subscription.started or subscription.given_up or subscription.lost:
                lines.append(f"{name} has not started")
                continue
            for publisher, stream in self._register.streams(subscription):
                missing = self.owed(stream, publisher)
                if missing:
                    lines.append(f"{name} misses {list_numbers(missing)} of {publisher.name}")
                if unexplained := sorted(stream.unexplained):
                    subject = f"the loss of {list_numbers(unexplained)} of {publisher.name}"
                    lines.append(f"{name} received no gap for {subject}")
        for publisher in self._register.current.values():
            left = len(publisher.contents) - len(publisher.acknowledged)
            if left:
                lines.append(f"{publisher.client} has {left} publications unacknowledged")
        return lines

    def find_lacking(
        self,
    ) -> Iterator[tuple[ClientId, int, bool, list[tuple[ClientId, list[int]]]]]:
        """Yield (client, number, started, missing publications) of each subscription.

        A subscription that its broker lost has not started until the broker starts it again.
        """
        for subscription in self._register.subscriptions.values():
            if subscription.draining:
                continue
            owed = [
                (publisher.client, missing)
                for publisher, stream in self._register.streams(subscription)
                if (missing := self.owed(stream, publisher))
            ]
            started = subscription.started and not (subscription.given_up or subscription.lost)
            yield subscription.client, subscription.number, started, owed

    def unacknowledged(self) -> Iterator[tuple[ClientId, list[int]]]:
        """Yield each client that has unacknowledged publications, with these publications."""
        for publisher in self._register.current.values():
            sequences = range(1, len(publisher.contents) + 1)
            left = [number for number in sequences if number not in publisher.acknowledged]
            if left:
                yield publisher.client, left

    def got(self, subscriber: ClientId, client: ClientId, sequence: int) -> bool:
        """Return True if all matching subscriptions of a client have a publication."""
        streams = [
            self._register.stream(subscription, self._register.current[client])
            for subscription in self._register.subscriptions.values()
            if subscription.client == subscriber
        ]
        return all(sequence in stream.got for stream in streams if sequence in stream.ranks)

    def list_owed_subscribers(self, client: ClientId, sequence: int) -> list[ClientId]:
        """Return the started subscribers with a predicate that matches a publication."""
        return [
            subscription.client
            for subscription in self._register.subscriptions.values()
            if subscription.started
            and not subscription.given_up
            and sequence
            in self._register.stream(subscription, self._register.current[client]).ranks
        ]

    def has(self, subscription: Subscription, publisher: Publisher, sequence: int) -> bool:
        """Return True if the subscription has the publication, or is not owed it."""
        if not subscription.started or subscription.draining or subscription.given_up:
            return True
        stream = self._register.stream(subscription, publisher)
        if subscription.lost or sequence <= stream.lost_until:
            return True
        rank = stream.ranks.get(sequence)
        if rank is None:
            return True
        if sequence in stream.excused:
            return True
        if not self._promises.order.is_of_sources and sequence in stream.got:
            return True
        if stream.at is None or not self._promises.order.is_of_sources:
            return stream.fence is None or sequence <= stream.fence
        return rank <= stream.at

    def owed(self, stream: Stream, publisher: Publisher) -> list[int]:
        """Return the publications that must still arrive."""
        missing = self.missing(stream)
        if publisher.is_over:
            return [sequence for sequence in missing if sequence in publisher.acknowledged]
        return missing

    def missing(self, stream: Stream) -> list[int]:
        """Return the publications that the stream owes and has not delivered."""
        if not self._promises.order.is_of_sources:
            owed = [n for n in stream.matching if stream.fence is not None and n > stream.fence]
            return [n for n in self.list_owed_after(stream, owed) if n not in stream.got]
        if stream.at is not None:
            return self.list_owed_after(stream, stream.matching[stream.at + 1 :])
        if stream.fence is None:
            return []
        return self.list_owed_after(
            stream, stream.matching[bisect_right(stream.matching, stream.fence) :]
        )

    def list_owed_after(self, stream: Stream, sequences: list[int]) -> list[int]:
        """Return the publications behind a delivered publication that must not be missing.

        A reliable stream has no holes, from any start. An unreliable stream counts from the start
        of the subscription.
        """
        if stream.excused:
            sequences = [n for n in sequences if n not in stream.excused]
        if self._promises.exactly_once and stream.old_until:
            old_until = stream.old_until
            return [n for n in sequences if 0 <= old_until < n]
        if self._promises.exactly_once:
            return sequences
        return [n for n in sequences if stream.fence is not None and n > stream.fence]


def list_numbers(sequences: list[int]) -> str:
    """Return sequence numbers in words: a few numbers, and the count of the rest."""
    more = f" and {len(sequences) - 6} more" if len(sequences) > 6 else ""
    return ", ".join(map(str, sequences[:6])) + more


class DeliveryJudge:
    """The judge of deliveries: no phantom, no duplicate, in order, and without a silent gap.

    Attributes:
        redelivered: number of permitted redeliveries.
        total_order: the order of the deliveries of all subscriptions.
    """

    def __init__(
        self,
        register: StreamRegister,
        promises: Promises,
        obligations: Obligations,
        losses: StateLosses,
        violations: Violations,
    ) -> None:
        self._register = register
        self._promises = promises
        self._obligations = obligations
        self._losses = losses
        self._violations = violations
        self.redelivered = 0
        self.total_order = TotalOrder()

    def judge(
        self,
        client: ClientId,
        number: int,
        source: SourceId,
        sequence: int,
        blob: bytes,
        payload: Buffer,
        *,
        again: bool,
    ) -> None:
        """Judge a delivery to the application, with `again` marked as a possible redelivery."""
        publisher = self._register.by_source.get(source)
        text = f"{client}/{number} got {tuple(source)} {sequence}"
        subscription = self._register.subscriptions.get((client, number))
        if subscription is None:
            self._violations.add("ended", f"{text} after its end")
            return
        if publisher is None or not 1 <= sequence <= len(publisher.contents):
            self._violations.add("phantom", f"{text}, which was never published")
            return
        if publisher.contents[sequence - 1] != (blob, bytes(payload)):
            self._violations.add("phantom", f"{text} with contents that were not published")
        if self._promises.exactly_once and not subscription.started:
            self._violations.add("early", f"{text} before its start was announced")
        if self._register.is_closed(subscription, publisher):
            self._violations.add("closed gate", f"{text} through a closed gate")
        stream = self._register.stream(subscription, publisher)
        rank = stream.ranks.get(sequence)
        if rank is None:
            predicate = subscription.predicate
            self._violations.add("unwanted", f"{text}, which does not match {predicate}")
            return
        may_repeat = again and self._promises.redelivers and not stream.is_committed(sequence)
        if again and sequence in stream.got:
            self.redelivered += may_repeat
            if not may_repeat:
                self._violations.add("duplicate", f"{text} again, which it may not")
            return
        if sequence in stream.gaps and not may_repeat:
            self._violations.add("gap delivered", f"{text}, which was announced as a gap")
        if self._promises.order is Order.TOTAL and sequence not in stream.got:
            self._compare_orders(subscription, publisher, sequence, text)
        if not self._promises.order.is_of_sources:
            if sequence in stream.got:
                self._violations.add("duplicate", f"{text} twice")
        else:
            if sequence <= stream.had:
                self._violations.add("duplicate", f"{text}, which it had before it moved")
            self._check_rank(stream, publisher, rank, text)
        stream.got.add(sequence)
        stream.at = rank if stream.at is None else max(stream.at, rank)

    def _check_rank(self, stream: Stream, publisher: Publisher, rank: int, text: str) -> None:
        """Check that a delivery is the next publication of its stream.

        A publication that survived a loss of its source broker elsewhere may come before the gap
        that announces the loss.
        """
        sequence = stream.matching[rank]
        if stream.at is None:
            self._check_first(stream, publisher, rank, text)
        elif sequence <= stream.withheld:
            self._violations.add("order", f"{text}, which was withheld")
        elif rank == stream.at:
            self._violations.add("duplicate", f"{text} twice in a row")
        elif rank < stream.at:
            self._violations.add("order", f"{text} after {stream.matching[stream.at]}")
        elif rank > stream.at + 1:
            missing = self._obligations.list_owed_after(
                stream, stream.matching[stream.at + 1 : rank]
            )
            missing = self._put_lost_aside(stream, publisher, missing)
            if missing:
                self._violations.add(
                    "gap",
                    f"{text} after {stream.matching[stream.at]}, without {list_numbers(missing)}",
                )

    def _check_first(self, stream: Stream, publisher: Publisher, rank: int, text: str) -> None:
        """Check that no owed publication lies before the first delivery."""
        owed = self._obligations.missing(stream)
        before = [sequence for sequence in owed if sequence < stream.matching[rank]]
        before = self._put_lost_aside(stream, publisher, before)
        if before:
            self._violations.add(
                "gap", f"{text} first, without {list_numbers(before)}, published after the start"
            )
        if self._promises.exactly_once:
            silent = [
                sequence
                for sequence in stream.matching[:rank]
                if sequence > max(stream.requested, stream.withheld, stream.had)
                and sequence not in stream.excused
                and sequence not in stream.unexplained
            ]
            if silent:
                numbers = list_numbers(silent)
                self._violations.add("silent", f"{text} first, without a notice of {numbers}")

    def _put_lost_aside(
        self, stream: Stream, publisher: Publisher, missing: list[int]
    ) -> list[int]:
        """Return missing publications that no loss of state explains; others await their gap."""
        unexplained = self._losses.list_unexplained(publisher, missing)
        stream.unexplained.update(n for n in missing if n not in unexplained)
        return unexplained

    def _compare_orders(
        self, subscription: Subscription, publisher: Publisher, sequence: int, text: str
    ) -> None:
        if sequence in publisher.published_again:
            return
        if self.total_order.got(subscription.log, (publisher.name, sequence)):
            text = f"{text} in another order than another subscriber"
            self._violations.add("total order", text)
