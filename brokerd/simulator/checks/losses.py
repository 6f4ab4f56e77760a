"""State that brokers lost with their disks, and that their operators accepted as lost."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.simulator.checks.streams import Publisher, Stream, StreamRegister, Subscription


class Stretch(NamedTuple):
    """Consecutive positions of a stream."""

    stream: StreamId
    first: int
    last: int


class DiskView(Protocol):
    """The contents of brokers' disks, as far as losses depend on them."""

    def origins_of(
        self, stream: StreamId, first: int, last: int
    ) -> Iterable[tuple[SourceId, int]] | None:
        """Return the publications at positions of a stream that no publisher has; None if unknown.

        See ProtocolChecks.
        """
        ...

    def is_in_gap(
        self, gap: Stretch, source: SourceId, sequence: int, *, is_lost_there: bool
    ) -> bool:
        """Return True if lost positions may have had a publication of the stream's broker.

        See ProtocolChecks.
        """
        ...

    def stores_for(self, broker: BrokerNumber, home: BrokerNumber) -> bool:
        """Return True if a broker has the subscriptions of clients at an access broker on disk."""
        ...

    def keeper_of(self, source: SourceId, sequence: int, home: BrokerNumber) -> BrokerNumber:
        """Return the broker that has an acknowledged publication on disk."""
        ...

    def has_lost(self, source: SourceId, sequence: int) -> bool:
        """Return True if an accepted loss took a publication that no broker has stored again."""
        ...


class AccessBrokerDisks:
    """Disks of a protocol in which each access broker stores for its own clients alone."""

    def origins_of(
        self, stream: StreamId, first: int, last: int
    ) -> Iterable[tuple[SourceId, int]] | None:
        """Return None: positions name no publications."""
        return None

    def is_in_gap(
        self, gap: Stretch, source: SourceId, sequence: int, *, is_lost_there: bool
    ) -> bool:
        """Return True: positions name no publications."""
        return True

    def stores_for(self, broker: BrokerNumber, home: BrokerNumber) -> bool:
        """Return True for the access broker itself."""
        return broker == home

    def keeper_of(self, source: SourceId, sequence: int, home: BrokerNumber) -> BrokerNumber:
        """Return the access broker of the publisher."""
        return home

    def has_lost(self, source: SourceId, sequence: int) -> bool:
        """Return False: lost publications are in the record of their publisher."""
        return False


class StateLosses:
    """The accepted losses of state of one run.

    Attributes:
        are_accepted: the operator has accepted a loss, so gaps with this reason are permitted.
        are_known: the brokers with losses are known; if not, any broker may have had the loss.
        count: the number of accepted losses.
        disk_view: the contents of disks.
        is_owed_everywhere: an acknowledgement means that every owed subscription has the
            publication, so that no loss takes it.
    """

    def __init__(self, register: StreamRegister) -> None:
        self._register = register
        self._brokers: dict[BrokerNumber, int] = {}
        self._clients: dict[ClientId, None] = {}
        self.are_accepted = False
        self.are_known = True
        self.count = 0
        self.is_owed_everywhere = False
        self.disk_view: DiskView = AccessBrokerDisks()

    def copy_disk(self, broker: BrokerNumber, *, is_empty: bool) -> None:
        """Record a copy of a broker's disk, with the publications acknowledged so far."""
        for publisher in self._register.publishers.values():
            here = {n: None for n, home in publisher.kept_at.items() if home == broker}
            copied = {n: None for n in publisher.copied if n not in here}
            publisher.copied = copied if is_empty else copied | here

    def accept(self, broker: BrokerNumber) -> None:
        """Record that a broker lost state, and that its operator accepted the loss.

        The broker may have lost subscriptions of its clients. Then neither it nor other brokers
        wait for these clients, until the clients have requested the subscriptions again. All
        publications remain owed, or must be in an announced gap. Only a client without memory then
        has a new subscription, since neither end has a position.
        """
        register, stores_for = self._register, self.disk_view.stores_for
        self.are_accepted = True
        self.count += 1
        self._brokers[broker] = self.count
        self._clients |= {
            client: None for client, home in register.homes.items() if stores_for(broker, home)
        }
        for publisher in register.publishers.values():
            for number, home in publisher.kept_at.items():
                if home == broker and number not in publisher.copied:
                    publisher.lost[number] = None
        for source, number in self.list_unacknowledged(broker):
            publisher = register.by_source[source]
            if self.disk_view.keeper_of(source, number, broker) == broker:
                publisher.in_transit[number] = publisher.published_again[number] = None
        for subscription in register.subscriptions.values():
            if register.homes[subscription.client] == broker:
                subscription.lost, subscription.before = True, None
        before = register.before
        for key in [key for key in before if stores_for(broker, register.homes[key[0]])]:
            del before[key]

    def restart(self, subscription: Subscription) -> None:
        """Wait for a lost subscription again: a gap may still announce earlier publications."""
        subscription.lost, subscription.is_restarted = False, True
        for publisher in self._register.publishers.values():
            stream = self._register.stream(subscription, publisher)
            stream.lost_until = len(publisher.contents)
            self.excuse_lost(stream, publisher)

    def take(self, publisher: Publisher, sequence: int) -> None:
        """Record a lost publication with an acknowledgement in transit."""
        publisher.lost[sequence] = None
        for subscription in self._register.subscriptions.values():
            self.excuse_lost(self._register.stream(subscription, publisher), publisher)

    def excuse_lost(self, stream: Stream, publisher: Publisher) -> None:
        """Excuse lost publications that all subscriptions have that were owed them.

        The stream of a subscription that starts after the loss may begin before them, and the
        publisher sends no publication again that was acknowledged out of order.
        """
        if self.is_owed_everywhere:
            until = max(stream.requested, stream.lost_until)
            lost = (n for n in publisher.lost if n in stream.ranks and n <= until)
            stream.excused.update(lost)

    def follow(self, client: ClientId, successor: ClientId) -> None:
        """Record that a client continues under another name."""
        if client in self._clients:
            self._clients[successor] = None

    def list_unacknowledged(self, broker: BrokerNumber) -> list[tuple[SourceId, int]]:
        """Return the unacknowledged publications of clients at a broker."""
        return [
            (publisher.source, sequence)
            for publisher in self._register.publishers.values()
            if self._register.homes.get(publisher.client) == broker and publisher.source is not None
            for sequence in range(1, len(publisher.contents) + 1)
            if sequence not in publisher.acknowledged
        ]

    def is_lossy(self, broker: BrokerNumber) -> bool:
        """Return True if a broker has an accepted loss."""
        return broker in self._brokers

    def has_lossy_home(self, client: ClientId) -> bool:
        """Return True if a broker of a client has an accepted loss, now or before a move."""
        if not self.are_known:
            return True
        return client in self._clients or self.is_lossy(self._register.homes.get(client, -1))

    def is_lost_elsewhere(self, client: ClientId) -> bool:
        """Return True if only a broker that stores for a client's broker has an accepted loss."""
        return client in self._clients and not self.is_lossy(self._register.homes.get(client, -1))

    def is_lost_at_home(
        self, subscription: Subscription, publisher: Publisher, sequence: int
    ) -> bool:
        """Return True if a publication may be missing because a subscriber's broker lost state.

        All publications since the broker has started the subscription again are owed. So are those
        since the start of a subscription that was requested after the loss.
        """
        home = self._register.homes.get(subscription.client, -1)
        if not self.has_lossy_home(subscription.client):
            return False
        if subscription.lost or not self.are_known:
            return True
        stores_for = self.disk_view.stores_for
        later = [each for each, at in self._brokers.items() if at > subscription.since]
        if any(stores_for(each, home) for each in later if each != home):
            return True
        if subscription.is_restarted:
            return sequence <= self._register.stream(subscription, publisher).lost_until
        if home in later or (subscription.client in self._clients and later):
            return True
        return sequence <= self._register.stream(subscription, publisher).requested

    def has_lost(self, subscription: Subscription, source: SourceId, sequence: int) -> bool:
        """Return True if lost positions took a publication; else it is published again."""
        publisher = self._register.by_source.get(source)
        if publisher is None:
            return False
        if sequence in publisher.lost:
            return True
        if self.disk_view.has_lost(source, sequence) and sequence not in publisher.acknowledged:
            return False
        return self.is_lost_at_home(subscription, publisher, sequence)

    def list_unexplained(self, publisher: Publisher, missing: list[int]) -> list[int]:
        """Return the missing publications of a publisher that no loss explains."""
        source, lost = publisher.source, dict(publisher.lost)
        if source is not None:
            has_lost = self.disk_view.has_lost
            lost.update((n, None) for n in missing if has_lost(source, n))
        return [n for n in missing if n not in lost]
