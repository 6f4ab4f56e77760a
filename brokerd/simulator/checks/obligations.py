"""Deliveries that are owed to subscriptions: present, missing, or excused."""

from bisect import bisect_right
from collections.abc import Iterator

from brokerd.model.identity import ClientId
from brokerd.protocols.definition import Promises
from brokerd.simulator.checks.streams import Publisher, Stream, StreamRegister, Subscription


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
