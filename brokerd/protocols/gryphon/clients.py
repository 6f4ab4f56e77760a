"""The clients of one broker, with subscriptions that only this broker has.

Paper: [GD02] §2.3 (delivery). Deviates: a publication is final at a client's acknowledgement, not
at its entry into the client's queue, and subscriptions are on disk, so that a restart of the broker
ends none.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Connect, Publish
from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.own_filter import BEGINS, OwnFilter
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.state import InFlightEvents
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.own_subscriptions import (
    OwnClient,
    OwnSubscription,
    OwnSubscriptions,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability


class Clients(OwnSubscriptions[InFlightEvents]):
    """See ClientService.

    Args:
        publish: logs a run, and calls a function once all of the run is on disk.
        durable: returns the last sequence number of a source that is on disk.
        on_done: called when clients have acknowledged an entry.
        on_unwanted: called after the end of the last subscription.
        is_host: whether this broker may have clients.
        streams: the streams of all pubends, in order.
        is_total: the streams are merged into one.
        position: returns the tick through which a stream was delivered here.
        own_filter: the start of subscriptions in other brokers' streams; None: at the present
            position.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: GryphonParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        publish: Callable[[PublicationRun, Callable[[], None]], None],
        durable: Callable[[SourceId], int],
        on_done: Callable[[InFlightEvents], None],
        on_unwanted: Callable[[], None],
        is_host: bool,
        streams: Sequence[StreamId],
        is_total: bool,
        position: Callable[[StreamId], int],
        own_filter: OwnFilter | None,
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters, decode_attributes, counters)
        self._publish_run = publish
        self._durable = durable
        self._on_done_with = on_done
        self._on_unwanted = on_unwanted
        self._is_host = is_host
        self._streams = tuple(streams)
        self._merged = self._streams if is_total else ()
        self._position = position
        self._own_filter = own_filter

    keeps_subscriptions = True

    def on_connect(self, name: ClientId, message: Connect) -> None:
        """See ClientService; a cell of several brokers has no clients.

        Messages for such a cell arrive at one member only.
        """
        if not self._is_host:
            raise RemoteProtocolError(name, "this broker is one of a cell of several: no clients")
        super().on_connect(name, message)

    def deliver(self, stream: StreamId, run: PublicationRun) -> InFlightEvents | None:
        """Deliver events to all matching subscriptions; return None without a match."""
        entry = InFlightEvents(stream, run.first)
        self.hand_out(run, entry)
        entry.open -= 1
        return entry if entry.open else None

    def _take_over(
        self, client: OwnClient, local: OwnSubscription, recovered: Mapping[str, Mapping[str, Any]]
    ) -> None:
        row = recovered.get(BEGINS, {}).get(f"{local.client}/{local.number}")
        if self._own_filter is None:
            self._start(local)
        elif row is None:
            self._on_kept(client, local)
        else:
            self._own_filter.recover(local, row)
            self._start(local)

    def _on_kept(self, client: OwnClient, local: OwnSubscription) -> None:
        """See OwnSubscriptions; a subscription starts once all pubends have announced its ticks."""
        if self._own_filter is None:
            super()._on_kept(client, local)
        elif not local.is_over:
            self._own_filter.add(local, partial(self._begin_one, client, local))

    def _resume(self, client: OwnClient, message: Connect) -> None:
        """See OwnSubscriptions; a client behind the beginning has not taken the gap before it."""
        for number, seen in message.resume:
            local = client.subscriptions.get(number)
            if local is not None and local.started:
                begun = local.begins_after
                local.is_restarted |= any(last < begun.get(stream, 0) for stream, last in seen)
        super()._resume(client, message)

    def _starts_after(
        self, client: OwnClient, subscription: OwnSubscription
    ) -> Mapping[StreamId, int]:
        """See OwnSubscriptions: no filter decides where streams of own pubends begin."""
        had = client.forgotten.get(subscription.number, {})
        begun = {
            stream: max(had[stream] + 1 if stream in had else 0, self._position(stream))
            for stream in self._streams
            if self._own_filter is None or stream.broker == self._broker
        }
        return {**subscription.begins_after, **begun}

    def _begins_after(self, local: OwnSubscription) -> tuple[tuple[StreamId, int], ...]:
        """Return, in total order, the positions of all streams from which a client continues.

        The client states the positions when reconnecting. After a restart here, events are
        delivered again for other clients, and an event older than received events of another pubend
        is out of order.
        """
        waiting = self.windows.first_waiting(local) if self._merged else {}
        found = []
        for stream in self._merged:
            handed_out = self._position(stream)
            if stream in waiting:
                handed_out = min(handed_out, waiting[stream] - 1)
            if last := max(handed_out, local.begins_after.get(stream, 0)):
                found.append((stream, last))
        return tuple(found)

    def _end(
        self,
        client: OwnClient,
        over: Sequence[OwnSubscription],
        then: Callable[[], None],
        *,
        drain: bool = False,
    ) -> None:
        """See OwnSubscriptions; the predicates stay in the filter until the end is durable."""
        own_filter = self._own_filter
        if own_filter is None:
            super()._end(client, over, then, drain=drain)
            return

        def ended() -> None:
            for local in over:
                own_filter.release(local)
            then()

        for local in over:
            own_filter.on_ended(local)
        super()._end(client, over, ended, drain=drain)

    def _rows_over(self, key: str) -> Sequence[Change]:
        rows = super()._rows_over(key)
        return rows if self._own_filter is None else (*rows, Change(BEGINS, key, None))

    def _on_ended(self, over: Sequence[OwnSubscription]) -> None:
        if not self.started:
            self._on_unwanted()

    def _publish(self, client: OwnClient, message: Publish) -> None:
        self.check_run(message.run, client.name)
        client.submitted = max(client.submitted, message.run.last)
        self._publish_run(message.run, partial(self._acknowledge_durable, client.name))

    def _durable_of(self, source: SourceId) -> int | None:
        return self._durable(source)

    def _publish_marker(self, client: OwnClient, run: PublicationRun) -> None:
        self._publish_run(run, lambda: None)

    def _acknowledge_durable(self, name: ClientId) -> None:
        """Acknowledge the durable publications of a publisher, if connected."""
        client = self._clients.get(name)
        if client is not None and client.source is not None:
            self.acknowledge_through(client, self._durable(client.source))

    def _on_done(self, entry: InFlightEvents) -> None:
        self._on_done_with(entry)
