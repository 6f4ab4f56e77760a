"""Deliveries under way to clients; unacknowledged ones are dropped at a disconnect."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from brokerd.model.client_messages import Gap, Silence
from brokerd.model.identity import ClientId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.lanes import DurableSubscription, InFlightDelivery, Lane
from brokerd.protocols.gryphon import InFlightEvents
from brokerd.protocols.parts.clients.windows import DeliveryWindows


class DurableWindows(DeliveryWindows[InFlightEvents, DurableSubscription]):
    """See DeliveryWindows: a client that returns receives dropped events from their source."""

    def close(self, client: ClientId) -> Iterator[InFlightEvents]:
        """See DeliveryWindows."""
        self._outlets.pop(client, None)
        yield from ()

    def _advance(self, finished: Iterable[Any]) -> None:
        """See DeliveryWindows: a lane has the position that its client has acknowledged."""

    def queue_events(self, run: PublicationRun, lanes: Sequence[Lane]) -> None:
        """Queue events for subscriptions of a client."""
        self._queue(run, lanes, None)

    def say(self, lane: Lane, last: int, instead: Gap | Silence) -> None:
        """Queue a gap or silence that stands for events through `last`."""
        run = PublicationRun(lane.stream, range(last, last + 1), (b"",), b"\0", 0, ())
        self._queue(run, [lane], instead)

    def _queue(
        self, run: PublicationRun, lanes: Sequence[Lane], instead: Gap | Silence | None
    ) -> None:
        entries = []
        for lane in lanes:
            handed = InFlightDelivery(lane, run.first, run.last, len(run))
            lane.out.append(handed)
            lane.out_events += handed.events
            lane.given = max(lane.given, handed.last)
            entries.append(handed)
        locals_ = tuple(lane.subscription for lane in lanes)
        self.deliver(locals_[0].client, run, locals_, tuple(entries), instead)
