"""The progress of a client in each stream: received, delivered and committed positions.

All state here is by place, stream and position: duplicates, acknowledgements, and the point of
resumption. The application receives publications by their origins, and commits by origins; where
origins and places differ, the parts of this module translate between them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from brokerd.client.commitment import ArrivalPart, Commitment
from brokerd.client.commits import CommitMode, policy_of
from brokerd.client.events import Announced, ClientEvent, GapsAnnounced, Received, Withheld
from brokerd.client.received_positions import ReceivedPositions
from brokerd.client.state import KeptSubscription, Positions, Revision
from brokerd.client.subscriptions import Subscriptions
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    DeliveredItem,
    Deliveries,
    Gap,
    Notice,
    Silence,
)
from brokerd.model.identity import SourceId, StreamId


class Progress:
    """The received, delivered and committed positions of a client's subscriptions.

    The broker keeps a publication until it is committed.

    Args:
        revision: counts changes that must survive a restart.

    Attributes:
        mode: the commit mode.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        revision: Revision,
        mode: CommitMode,
    ) -> None:
        self.mode = mode
        self._wanted = subscriptions.predicates
        self._marks = subscriptions.marks
        self._consumers = subscriptions.commits
        self._revision = revision
        self._received = ReceivedPositions(self._wanted)
        self._commitment = Commitment(self._wanted, revision)
        self._policy = policy_of(mode, self._commitment, records_deliveries=revision.is_kept)

    # ------------------------------------------------------------ the session

    def attach(self) -> None:
        """Begin a new session."""
        self._commitment.attach()

    def detach(self) -> None:
        """End the session; its deliveries may no longer be acknowledged."""
        self._commitment.detach()

    def resume(self, started: Iterable[int] = ()) -> tuple[tuple[int, Positions], ...]:
        """Return the committed positions by subscription and stream.

        Args:
            started: subscriptions that are included even without a position.
        """
        found: dict[int, list[tuple[StreamId, int]]] = {number: [] for number in started}
        for (number, stream), last in self._commitment.positions().items():
            found.setdefault(number, []).append((stream, last))
        return tuple((number, tuple(seen)) for number, seen in found.items())

    def begin_after(self, number: int, positions: Positions) -> None:
        """Begin a subscription; these positions count as received, and later positions are kept."""
        for stream, last in positions:
            self._revision.current += self._received.begin_after(number, stream, last)
            self._revision.current += self._commitment.begin_after(number, stream, last)

    @property
    def duplicates(self) -> int:
        """The number of publications that were withheld as duplicates."""
        return self._received.duplicates

    @property
    def unsent_acknowledgements(self) -> int:
        """The approximate number of publications with an acknowledgement that is not sent yet."""
        return self._commitment.unsent_acknowledgements

    def acknowledgements(self) -> list[Acknowledge]:
        """Return the acknowledgements that are due, once."""
        return self._commitment.acknowledgements()

    def forget(self, number: int) -> None:
        """Remove a subscription that has ended."""
        self._received.forget(number)
        self._commitment.forget(number)

    def take_over(self, predecessor: "Progress") -> None:
        """Continue from the positions of a predecessor, or from later starts of subscriptions here.

        This broker does not repeat publications before these positions. Subscriptions of the
        predecessor alone, as its marks, have ended: their numbers may be reused here.
        """
        self._received.take_over(predecessor._received)
        self._commitment.take_over(predecessor._commitment)

    # ------------------------------------------------------------ receiving

    def on_item(self, item: DeliveredItem) -> list[ClientEvent]:
        """Return the events for the application that follow from an arrival.

        Raises:
            RemoteProtocolError: the broker violated the protocol.
        """
        match item:
            case Deliveries():
                return self._on_deliveries(item)
            case Notice():
                return self._on_notice(item)
            case Silence():
                return self._on_silence(item)
            case Gap():
                return self._on_gap(item)

    def _on_deliveries(self, message: Deliveries) -> list[ClientEvent]:
        run, numbers = message.run, message.subscriptions
        wanted = tuple([number for number in numbers if number in self._wanted])
        fresh: tuple[Deliveries, ...] = ()
        repeated: list[Deliveries] = []
        if wanted:
            message = message if wanted == numbers else Deliveries(run, wanted)
            fresh, repeated = self._received.new_deliveries(message)
        placed = run if run.origins else None
        self._commitment.put(
            run.source, run.first, run.last, wanted, is_new=bool(fresh), placed=placed
        )
        if fresh and self._commitment.delivered_before:
            fresh = tuple(self._commitment.marked(fresh))
        if fresh:
            fresh = tuple(self._consumers.mark_redeliveries(fresh))
        if placed is not None:
            fresh, repeated = tuple(_split_by_origin(fresh)), list(_split_by_origin(repeated))
            self._received.record_origins(run.source, fresh)
        events: list[ClientEvent] = [Withheld(each) for each in repeated]
        if fresh:
            events.append(Received(fresh, self._commitment.serial))
        else:
            self._policy.skip(self._wanted)
        return events

    def _on_notice(self, message: Notice) -> list[ClientEvent]:
        number, source, ranges = message.subscription, message.source, message.ranges
        numbers = [sequence for stretch in ranges for sequence in stretch]
        if not numbers or numbers[0] < 1 or numbers != sorted(numbers):
            raise RemoteProtocolError("broker", f"a notice of {ranges[:10]}")
        fresh: tuple[tuple[int, int], ...] = ()
        if number in self._wanted and number not in self._marks:
            fresh = self._received.new_ranges(message)
        self._commitment.put(
            source, numbers[0], numbers[-1], (number,), is_new=bool(fresh), is_notice=True
        )
        if fresh:
            return [Announced(replace(message, ranges=fresh), self._commitment.serial)]
        self._policy.skip(self._wanted)
        return []

    def _on_silence(self, message: Silence) -> list[ClientEvent]:
        if message.first > message.last:
            raise RemoteProtocolError("broker", f"silence from {message.first} to {message.last}")
        self._skip(message, is_new=self._policy.reports_silence)
        return self._after_silence()

    def _on_gap(self, message: Gap) -> list[ClientEvent]:
        ranges = [(message.first, message.last), *(each[1:] for each in message.origins)]
        if any(first > last for first, last in ranges):
            raise RemoteProtocolError("broker", f"a gap that ends before it begins: {ranges[:10]}")
        numbers = [
            number
            for number in message.subscriptions
            if number in self._wanted and number not in self._marks
        ]
        gaps = self._received.new_gaps(message, numbers)
        self._skip(message, is_new=bool(gaps) or self._policy.reports_silence)
        if gaps:
            return [GapsAnnounced(gaps, self._commitment.serial)]
        return self._after_silence()

    def _skip(self, message: Silence | Gap, *, is_new: bool) -> None:
        """Record that a stream has nothing more up to some position."""
        stream, last = message.stream, message.last
        numbers = tuple([number for number in message.subscriptions if number in self._wanted])
        for number in numbers:
            self._received.advance(number, stream, last)
        self._commitment.put(stream, message.first, last, numbers, is_new=is_new, is_notice=True)

    def _after_silence(self) -> list[ClientEvent]:
        self._policy.skip(self._wanted)
        return [Received((), self._commitment.serial)] if self._policy.reports_silence else []

    # ------------------------------------------------------------ taking and committing

    def record_delivery(self, serial: int) -> None:
        """Record that all arrivals up to this serial are about to be delivered.

        If state is kept, the record must be saved first.
        """
        self._policy.deliver(serial)

    def record_partial_delivery(self, part: ArrivalPart) -> None:
        """Record that a part of an arrival is about to be delivered, behind all parts before.

        If state is kept, the record must be saved first.
        """
        self._policy.deliver_part(part)

    def retract_delivery(self, part: ArrivalPart) -> None:
        """Record that no publication of an arrival behind this part was delivered after all."""
        self._policy.retract_delivery(part)

    def take_part(self, part: ArrivalPart) -> None:
        """Record that the application has received a part of an arrival."""
        self._policy.take_part(part)

    def take(self, serial: int) -> None:
        """Record that the application has received all arrivals up to this serial.

        The broker may release the publications, if taken deliveries are committed.
        """
        self._policy.take(serial, self._wanted)

    def commit(self, number: int, source: SourceId, last: int) -> bool:
        """Commit the deliveries of a subscription up to this publication of a source.

        Includes all earlier publications of the stream, of other sources too.

        Returns:
            True if the publication was delivered; else nothing has changed.
        """
        if not self._commitment.was_delivered(number, source, last):
            return False
        self._policy.commit(number, source, last)
        return True

    def positions_at(self, number: int, serial: int) -> Positions:
        """Return the positions of a subscription after a commit up to this serial."""
        return self._commitment.reached(number, serial)

    def commit_through(self, serial: int) -> None:
        """Commit all arrivals up to this serial, in a transaction of the application."""
        assert self.mode == "transactional", f"a commit of {serial} in mode {self.mode}"
        self._commitment.commit_through(serial)

    def commit_consumed(self, number: int, serial: int, source: SourceId, last: int) -> None:
        """Commit all arrivals before a serial, and the arrival itself up to this publication."""
        self._commitment.commit_consumed(number, serial, source, last)

    # ------------------------------------------------------------ keeping

    def committed_positions(self, number: int) -> Positions:
        """Return the committed positions of a subscription, per stream."""
        return self._commitment.committed(number)

    def delivered_positions(self, number: int) -> Positions:
        """Return the delivered positions of a subscription, over all sessions and restarts."""
        return self._commitment.delivered(number)

    def restore(self, subscriptions: Sequence[KeptSubscription], *, redelivers: bool) -> None:
        """Restore the positions of an earlier process.

        Deliveries that were not committed are delivered again, marked, if the protocol redelivers;
        otherwise they count as committed.
        """
        self._commitment.restore(subscriptions, redelivers=redelivers)
        self._received.restore(self._commitment.positions())


def _split_by_origin(items: Sequence[Deliveries]) -> Iterator[Deliveries]:
    """Yield the same deliveries, each with a run of one source."""
    for item in items:
        for run in item.run.split_by_origin():
            yield type(item)(run, item.subscriptions)
