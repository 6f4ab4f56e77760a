"""The clients of a broker: their subscriptions by topic, and their publications.

Paper: [MP22] §2 (operations), §4. Deviates: clients are pushed to, and a subscription is a
predicate, which is followed in all topics where it may hold.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from brokerd.model.client_messages import Connect, Gap, Publish
from brokerd.model.identity import BrokerNumber, SourceId, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.gets import Gets, Heads, InFlightDelivery
from brokerd.protocols.multi_proxy.messages import LOST, Lost, Owner
from brokerd.protocols.multi_proxy.owners import Owners
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.puts import Puts
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.protocols.parts.clients.own_service import (
    OwnClient,
    OwnSubscription,
    OwnSubscriptions,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability

BEGINS: Final = "begins"
"""Per started subscription, the position in each topic after which it begins."""

RESTARTED: Final = "restarted"
"""Subscriptions that started again after this broker had lost them, behind gaps."""


class Clients(OwnSubscriptions[InFlightDelivery]):
    """See ClientService."""

    keeps_subscriptions = True
    unseen_first = 1

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        topics: Topics,
        owners: Owners,
        puts: Puts,
        gets: Gets,
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters, decode_attributes, counters)
        self._topics = topics
        self._owners = owners
        self._puts = puts
        self._gets = gets
        self._followed: dict[OwnSubscription, tuple[int, ...]] = {}
        self._deferred: dict[OwnSubscription, None] = {}

    # ------------------------------------------------------------ subscriptions

    def _take_over(
        self, client: OwnClient, local: OwnSubscription, recovered: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """See OwnSubscriptions: a started subscription is followed, and continues.

        After a loss, the client states if a subscription without a start had started before.
        """
        key = f"{local.client}/{local.number}"
        row = recovered.get(BEGINS, {}).get(key)
        if row is None and self.lineage:
            self._deferred[local] = None
            return
        if row is None:
            self._on_kept(client, local)
            return
        local.is_restarted = key in recovered.get(RESTARTED, {})
        local.begins_after = {StreamId(*stream): position for *stream, position in row}
        owners = [Owner(each.publisher, each.broker) for each in local.begins_after]
        self._owners.remember(owners)
        self._follow(local, None)
        self._start(local)

    def _claim(self, client: OwnClient, subscription: OwnSubscription) -> None:
        super()._claim(client, subscription)
        if subscription in self._deferred:
            del self._deferred[subscription]
            self._on_kept(client, subscription)

    def _on_kept(self, client: OwnClient, local: OwnSubscription) -> None:
        """See OwnSubscriptions; starts once the servers of all topics have confirmed."""
        if not local.is_over:
            self._follow(local, partial(self._on_followed, client, local))

    def _follow(self, local: OwnSubscription, then: Callable[[Heads], None] | None) -> None:
        topics = self._topics.topics_of_predicate(local.predicate)

        def follow() -> None:
            if not local.is_over:
                self._followed[local] = topics
                self._gets.follow(topics, then)

        self._owners.call_when_known(topics, follow)

    def _on_followed(self, client: OwnClient, local: OwnSubscription, heads: Heads) -> None:
        """Start a subscription; no later publication is missed.

        A subscription that this broker had lost receives all publications from here on, before its
        start is on disk. Publications that have arrived since the heads are in its gaps.
        """
        if local.is_over:
            return
        if local.number in client.forgotten:
            local.is_restarted = True
            heads = {each: max(head, self._gets.arrived(each)) for each, head in heads.items()}
        key = f"{local.client}/{local.number}"
        row = [[*stream, position] for stream, position in heads.items()]
        changes = [Change(BEGINS, key, row)]
        if local.is_restarted:
            changes.append(Change(RESTARTED, key, True))
            self._begin_after(local, heads)
            self._start(local)

        def begin() -> None:
            if local.is_over:
                return
            if not local.is_restarted:
                self._begin_after(local, heads)
                self._start(local)
            self._claim_begun(client, local)

        self._disk.commit(changes, begin)

    @staticmethod
    def _begin_after(local: OwnSubscription, heads: Heads) -> None:
        for stream, head in heads.items():
            local.begins_after[stream] = max(head, local.begins_after.get(stream, 0))

    def _end(
        self,
        client: OwnClient,
        over: Sequence[OwnSubscription],
        then: Callable[[], None],
        *,
        drain: bool = False,
    ) -> None:
        """See OwnSubscriptions."""
        super()._end(client, over, then, drain=drain)
        for local in over:
            self._deferred.pop(local, None)
            if local in self._followed:
                self._gets.unfollow(self._followed.pop(local))

    def _rows_over(self, key: str) -> Sequence[Change]:
        rows = (*super()._rows_over(key), Change(BEGINS, key, None))
        return (*rows, Change(RESTARTED, key, None)) if self.lineage else rows

    def deliver_gaps(self, message: Lost, handed: InFlightDelivery) -> None:
        """Deliver gaps to followers of a topic, and count the deliveries.

        A gap names everything lost, because its predicates can no longer be tested.
        """
        stream = StreamId(message.part, message.topic, 0)
        last = message.last
        run = PublicationRun(stream, range(last, last + 1), (b"",), b"\0", 0, ())
        for local, topics in self._followed.items():
            had = max(handed.first - 1, local.begins_after.get(stream, 0))
            if message.topic not in topics or not local.started or had >= last:
                continue
            lacked = [rest for each in message.runs if (rest := each.after(had)) is not None]
            origins = tuple((rest.source, rest.first, rest.last) for rest in lacked)
            gap = Gap((local.number,), stream, had + 1, last, LOST, origins)
            handed.open += 1
            self.windows.deliver(local.client, run, (local,), (handed,), gap)

    def _on_done(self, entry: InFlightDelivery) -> None:
        self._gets.done(entry)

    # ------------------------------------------------------------ publications

    def _publish(self, client: OwnClient, message: Publish) -> None:
        run = message.run
        self.check_run(run, client.name)
        parts = list(self._topics.parts(run, client.name))
        client.submitted = max(client.submitted, run.last)
        self._puts.put(run.source, parts)
        self.acknowledge_through(client, self._puts.done(run.source))

    def tell_stored(self, source: SourceId) -> None:
        """Report the stored publications to a publisher at this broker."""
        client = self._clients.get(self._publishers.name_of(source.publisher))
        if client is not None and client.source == source:
            self.acknowledge_through(client, self._puts.done(source))

    def _resume(self, client: OwnClient, message: Connect) -> None:
        super()._resume(client, message)
        if client.source is not None:
            self._puts.add_publisher(client.source, message.next_sequence - 1)

    def _on_gone(self, client: OwnClient) -> None:
        super()._on_gone(client)
        if client.source is not None:
            self._puts.remove_publisher(client.source)
