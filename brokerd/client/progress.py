"""The progress of a client in each stream: received, delivered and committed positions.

All state here is by place, stream and position: duplicates, acknowledgements, and the point of
resumption. The application receives publications by their origins, and commits by origins; where
origins and places differ, this module translates between them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from brokerd.client.commit_requests import CommitRequests
from brokerd.client.events import (
    Announced,
    ClientEvent,
    GapAnnounced,
    GapsAnnounced,
    Received,
    Redelivered,
    Withheld,
)
from brokerd.client.state import KeptSubscription, Positions, Revision
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
from brokerd.model.losses import STATE_LOST, is_stream_marker
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun

_Places = dict[tuple[int, StreamId], int]
"""The last position by subscription and stream."""


class Progress:
    """The received, delivered and committed positions of a client's subscriptions.

    With `commits_by_itself`, taken deliveries are committed. Otherwise `commit` commits, and until
    then the broker keeps the publications. With `in_transactions`, only `commit_through` commits,
    silence too: an acknowledged position is in a token that the application has kept.

    Args:
        wanted: the present subscriptions, by number; kept up to date by the caller.
        marks: subscriptions that are hidden from the application.
        revision: counts changes that must survive a restart.
        consumers: subscriptions with positions kept by the broker.

    Attributes:
        commits_by_itself: True if taken deliveries are committed.
        in_transactions: True if all arrivals are committed together, with a token.
        duplicates: number of publications withheld as duplicates.
    """

    def __init__(
        self,
        wanted: Mapping[int, Predicate],
        marks: Mapping[int, None],
        revision: Revision,
        *,
        commits_by_itself: bool,
        keeps_state: bool,
        in_transactions: bool = False,
        consumers: CommitRequests | None = None,
    ) -> None:
        self._commits = consumers
        self.commits_by_itself = commits_by_itself and not in_transactions
        self.in_transactions = in_transactions
        self.duplicates = 0
        self._wanted = wanted
        self._marks = marks
        self._revision = revision
        self._keeps_state = keeps_state
        self._session = self._sessions = 0
        self._serial = self._given_serial = 0
        self._untaken: deque[_Untaken] = deque()
        self._acknowledgements: dict[StreamId, list[tuple[int, int]]] = {}
        self._received: _Places = {}
        self._taken: _Places = {}
        self._given: _Places = {}
        self._given_before: _Places = {}
        self._given_origins: dict[tuple[int, SourceId], int] = {}
        self._received_origins: dict[tuple[int, StreamId, SourceId], int] = {}
        self._lossy: dict[tuple[int, StreamId], None] = {}

    # ------------------------------------------------------------ the session

    def attach(self) -> None:
        """Begin a new session."""
        self._sessions += 1
        self._session = self._sessions

    def detach(self) -> None:
        """End the session; its deliveries may no longer be acknowledged."""
        self._session = 0
        self._acknowledgements.clear()

    def resume(self, started: Iterable[int] = ()) -> tuple[tuple[int, Positions], ...]:
        """Return the committed positions by subscription and stream.

        Args:
            started: subscriptions that are included even without a position.
        """
        found: dict[int, list[tuple[StreamId, int]]] = {number: [] for number in started}
        for (number, stream), last in self._taken.items():
            found.setdefault(number, []).append((stream, last))
        return tuple((number, tuple(seen)) for number, seen in found.items())

    def begin_after(self, number: int, positions: Positions) -> None:
        """Begin a subscription; these positions count as received, and later positions are kept."""
        for stream, last in positions:
            for places in (self._received, self._given, self._taken):
                if places.get((number, stream), -1) < last:
                    places[number, stream] = last
                    self._revision.current += 1

    @property
    def unsaid_acknowledgements(self) -> int:
        """The count of numbers in the next result of `acknowledgements`, with gaps."""
        ranges = [each for told in self._acknowledgements.values() for each in told]
        return sum(last - first + 1 for first, last in ranges)

    def acknowledgements(self) -> list[Acknowledge]:
        """Return the acknowledgements that are due, once."""
        told = [
            Acknowledge(stream, first, last)
            for stream, ranges in self._acknowledgements.items()
            for first, last in ranges
        ]
        self._acknowledgements.clear()
        return told

    def forget(self, number: int) -> None:
        """Remove a subscription that has ended."""
        for places in (self._received, self._taken, self._given, self._given_before):
            for key in [key for key in places if key[0] == number]:
                del places[key]
        for given in [key for key in self._given_origins if key[0] == number]:
            del self._given_origins[given]
        for received in [key for key in self._received_origins if key[0] == number]:
            del self._received_origins[received]
        for lossy in [key for key in self._lossy if key[0] == number]:
            del self._lossy[lossy]

    def take_over(self, predecessor: "Progress") -> None:
        """Continue from the positions of a predecessor, or from later starts of subscriptions here.

        This broker does not repeat publications before these positions. Subscriptions of the
        predecessor alone, as its marks, have ended: their numbers may be reused here.
        """
        self._received = self._furthest(predecessor._received, self._received)
        self._given = self._furthest(predecessor._given, self._given)
        self._taken = self._furthest(predecessor._taken, self._taken)
        self._given_origins = {
            key: last for key, last in predecessor._given_origins.items() if key[0] in self._wanted
        }
        self._received_origins = {
            key: last
            for key, last in predecessor._received_origins.items()
            if key[0] in self._wanted
        }
        self._lossy = {key: None for key in predecessor._lossy if key[0] in self._wanted}
        self.duplicates += predecessor.duplicates

    def _furthest(self, there: _Places, here: _Places) -> _Places:
        """Return the later of two positions, for each present subscription."""
        wanted = {key: last for key, last in there.items() if key[0] in self._wanted}
        return wanted | {key: max(last, wanted.get(key, last)) for key, last in here.items()}

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
            fresh, repeated = self._sort_out_duplicates(message)
        if self._lossy and run.origins:
            fresh, again = self._sort_out_republished(fresh)
            repeated += again
        if fresh:
            self._serial += 1
        # A mere repetition is acknowledged too, after all earlier arrivals.
        placed = run if run.origins else None
        entry = _Untaken(
            self._serial, self._session, run.source, run.first, run.last, wanted, placed
        )
        self._untaken.append(entry)
        if fresh and self._given_before:
            fresh = tuple(self._marked(fresh))
        if fresh and self._commits is not None:
            fresh = tuple(self._commits.marked(fresh))
        if placed is not None:
            fresh, repeated = tuple(_by_origin(fresh)), list(_by_origin(repeated))
            for item in fresh:
                for number in item.subscriptions:
                    self._received_origins[number, run.source, item.run.source] = item.run.last
        events: list[ClientEvent] = [Withheld(each) for each in repeated]
        if fresh:
            events.append(Received(fresh, self._serial))
        else:
            self._take_if_first()
        return events

    def _on_notice(self, message: Notice) -> list[ClientEvent]:
        number, source, ranges = message.subscription, message.source, message.ranges
        numbers = [sequence for stretch in ranges for sequence in stretch]
        if not numbers or numbers[0] < 1 or numbers != sorted(numbers):
            raise RemoteProtocolError("broker", f"a notice of {ranges[:10]}")
        seen = self._received.get((number, source), 0)
        fresh = tuple((max(first, seen + 1), last) for first, last in ranges if last > seen)
        if number in self._wanted and number not in self._marks:
            self._received[number, source] = max(seen, numbers[-1])
        else:
            fresh = ()
        self._in_place_of(source, numbers[0], numbers[-1], (number,), is_news=bool(fresh))
        if fresh:
            return [Announced(replace(message, ranges=fresh), self._serial)]
        self._take_if_first()
        return []

    def _on_silence(self, message: Silence) -> list[ClientEvent]:
        if message.first > message.last:
            raise RemoteProtocolError("broker", f"silence from {message.first} to {message.last}")
        self._skip(message, is_news=self.in_transactions)
        self._take_if_first()
        return [Received((), self._serial)] if self.in_transactions else []

    def _on_gap(self, message: Gap) -> list[ClientEvent]:
        ranges = [(message.first, message.last), *(each[1:] for each in message.origins)]
        if any(first > last for first, last in ranges):
            raise RemoteProtocolError("broker", f"a gap that ends before it begins: {ranges[:10]}")
        seen = {
            number: self._received.get((number, message.stream), 0)
            for number in message.subscriptions
            if number in self._wanted and number not in self._marks
        }
        gaps = tuple(
            gap
            for number, before in seen.items()
            if before < message.last
            for gap in self._lacked(number, before, message)
        )
        if any(gap.reason == STATE_LOST for gap in gaps):
            self._lossy.update(dict.fromkeys((number, message.stream) for number in seen))
        self._skip(message, is_news=bool(gaps) or self.in_transactions)
        if gaps:
            return [GapsAnnounced(gaps, self._serial)]
        self._take_if_first()
        return [Received((), self._serial)] if self.in_transactions else []

    def _lacked(self, number: int, before: int, gap: Gap) -> Iterator[GapAnnounced]:
        """Yield the parts of a gap that had not arrived before, by origin.

        In a stream each source's numbers increase; several streams may have parts of one source. A
        stream's loss marker stands for publications of unknown sources, whatever the gap's reason.
        """
        rest = gap.stream, max(gap.first, before + 1), gap.last
        if not gap.origins:
            yield GapAnnounced(number, *rest, gap.reason)
        for source, first, last in gap.origins:
            had = self._received_origins.get((number, gap.stream, source), 0)
            if had < last:
                self._received_origins[number, gap.stream, source] = last
                if is_stream_marker(source):
                    yield GapAnnounced(number, *rest, STATE_LOST)
                else:
                    yield GapAnnounced(number, source, max(first, had + 1), last, gap.reason)

    def _skip(self, message: Silence | Gap, *, is_news: bool) -> None:
        """Record that a stream has nothing more up to some position."""
        stream, last = message.stream, message.last
        numbers = tuple([number for number in message.subscriptions if number in self._wanted])
        for number in numbers:
            self._received[number, stream] = max(self._received.get((number, stream), 0), last)
        self._in_place_of(stream, message.first, last, numbers, is_news=is_news)

    def _in_place_of(
        self, stream: StreamId, first: int, last: int, numbers: tuple[int, ...], *, is_news: bool
    ) -> None:
        if is_news:
            self._serial += 1
        entry = _Untaken(self._serial, self._session, stream, first, last, numbers, is_notice=True)
        self._untaken.append(entry)

    def _take_if_first(self) -> None:
        """Take the last arrival if no earlier arrival waits; the application has no part in it."""
        if self.in_transactions:
            self._release()
        elif len(self._untaken) == 1:
            self.take(self._serial)

    def _sort_out_duplicates(
        self, message: Deliveries
    ) -> tuple[tuple[Deliveries, ...], list[Deliveries]]:
        """Return new deliveries, and repeated deliveries, per subscription and stream."""
        run, numbers = message.run, message.subscriptions
        stream, first, last = run.source, run.first, run.last
        received = self._received
        seen = [received.get((number, stream), 0) for number in numbers]
        for number, upto in zip(numbers, seen, strict=True):
            received[number, stream] = max(upto, last)
        if max(seen) < first:
            return (message,), []
        fresh: list[Deliveries] = []
        repeated: list[Deliveries] = []
        for stretch, missing, having in _stretches(run, numbers, seen):
            self.duplicates += len(stretch) * len(having)
            if missing:
                fresh.append(Deliveries(stretch, missing))
            if having:
                repeated.append(Deliveries(stretch, having))
        return tuple(fresh), repeated

    def _sort_out_republished(
        self, fresh: Sequence[Deliveries]
    ) -> tuple[tuple[Deliveries, ...], list[Deliveries]]:
        """Return new deliveries, and publications that had arrived at a position that was lost.

        The access broker lost a publication before its publisher received the acknowledgement. The
        publisher publishes it again, and it gets another position.
        """
        news: list[Deliveries] = []
        repeated: list[Deliveries] = []
        for item in fresh:
            for part, missing, having in self._stretches_of_origins(item):
                self.duplicates += len(part) * len(having)
                if missing:
                    news.append(type(item)(part, missing))
                if having:
                    repeated.append(type(item)(part, having))
        return tuple(news), repeated

    def _stretches_of_origins(
        self, item: Deliveries
    ) -> Iterator[tuple[PublicationRun, tuple[int, ...], tuple[int, ...]]]:
        """Yield parts of a run, with the subscriptions that lack them and those that had them."""
        stream, numbers = item.run.source, item.subscriptions
        lossy = [number for number in numbers if (number, stream) in self._lossy]
        places = [(each.source, n) for each in item.run.origins for n in each.sequences]
        had = self._received_origins
        having = [
            tuple(number for number in lossy if had.get((number, stream, source), 0) >= sequence)
            for source, sequence in places
        ]
        start = 0
        for those, group in groupby(having):
            end = start + len(list(group))
            missing = tuple(number for number in numbers if number not in those)
            yield item.run.select(range(start, end)), missing, those
            start = end

    def _marked(self, fresh: Sequence[Deliveries]) -> Iterator[Deliveries]:
        """Yield the same deliveries, with redeliveries after a restart marked."""
        for item in fresh:
            run, numbers = item.run, item.subscriptions
            before = [self._given_before.get((number, run.source), 0) for number in numbers]
            for stretch, new, again in _stretches(run, numbers, before):
                if again:
                    yield Redelivered(stretch, again)
                if new:
                    yield Deliveries(stretch, new)

    def _acknowledge(self, entry: "_Untaken") -> None:
        if entry.session != self._session:
            return
        ranges = self._acknowledgements.setdefault(entry.stream, [])
        if ranges and ranges[-1][1] < entry.first:
            ranges[-1] = (ranges[-1][0], entry.last)
        else:
            ranges.append((entry.first, entry.last))

    # ------------------------------------------------------------ taking and committing

    def give(self, serial: int) -> None:
        """Record that all arrivals up to this serial are about to be delivered.

        If state is kept, the record must be saved first.
        """
        if not self._keeps_state and self.commits_by_itself:
            return
        for entry in self._untaken:
            if entry.serial > serial:
                break
            if entry.serial > self._given_serial:
                self._note_given(entry)
        self._given_serial = max(self._given_serial, serial)
        self._revision.current += 1

    def _note_given(self, entry: "_Untaken") -> None:
        for number in entry.subscriptions:
            if number not in self._wanted:
                continue
            key = (number, entry.stream)
            self._given[key] = max(self._given.get(key, 0), entry.last)
            for source, sequences in entry.placed.origins if entry.placed else ():
                known = self._given_origins.get((number, source), 0)
                self._given_origins[number, source] = max(known, sequences[-1])

    def take(self, serial: int) -> None:
        """Record that the application has received all arrivals up to this serial.

        The broker may release the publications, if taken deliveries are committed.
        """
        if not self.commits_by_itself:
            self.give(serial)
            for number in self._wanted:
                self._commit_told(number)
            self._release()
            return
        self._revision.current += 1
        while self._untaken and self._untaken[0].serial <= serial:
            taken = self._untaken.popleft()
            for number in taken.subscriptions:
                if number in self._wanted:
                    key = (number, taken.stream)
                    self._taken[key] = max(self._taken.get(key, 0), taken.last)
            self._acknowledge(taken)

    def commit(self, number: int, source: SourceId, last: int) -> bool:
        """Commit the deliveries of a subscription up to this publication of a source.

        Includes all earlier publications of the stream, of other sources too.

        Returns:
            True if the publication was delivered; else nothing has changed.
        """
        is_placed = (number, source) in self._given_origins
        given = self._given_origins if is_placed else self._given
        if given.get((number, source), 0) < last:
            return False
        place = self._place_of(number, source, last) if is_placed else (source, last)
        if place is None or self.commits_by_itself:
            return True
        stream, position = place
        if self._taken.get((number, stream), 0) >= position:
            return True
        for entry in self._untaken:
            if entry.serial > self._given_serial:
                break
            if number in entry.subscriptions:
                reached = entry.stream == stream and entry.last >= position
                self._commit_up_to(number, entry.stream, position if reached else entry.last)
                if reached:
                    break
        self._commit_told(number)
        self._release()
        return True

    def reached(self, number: int, serial: int) -> Positions:
        """Return the positions of a subscription after a commit up to this serial."""
        reached = {stream: last for (each, stream), last in self._taken.items() if each == number}
        for entry in self._untaken:
            if entry.serial > serial:
                break
            if number in entry.subscriptions:
                reached[entry.stream] = max(reached.get(entry.stream, 0), entry.last)
        return tuple(sorted(reached.items()))

    def commit_through(self, serial: int) -> None:
        """Commit all arrivals up to this serial, in a transaction of the application."""
        assert self.in_transactions, "what is taken otherwise is committed otherwise"
        for entry in self._untaken:
            if entry.serial > serial:
                break
            for number in entry.subscriptions:
                self._commit_up_to(number, entry.stream, entry.last)
        self._release()

    def commit_consumed(self, number: int, serial: int, source: SourceId, last: int) -> None:
        """Commit all arrivals before a serial, and the arrival itself up to this publication."""
        for entry in self._untaken:
            if entry.serial > serial:
                break
            if number not in entry.subscriptions:
                continue
            place = entry.last if entry.serial < serial else _place_in(entry, source, last)
            self._commit_up_to(number, entry.stream, place)
        self._release()

    def _place_of(self, number: int, source: SourceId, last: int) -> tuple[StreamId, int] | None:
        """Return the place of this publication of a source; None if it is committed already.

        If the number was not delivered, as with a number that was left out, returns the last place
        before it.
        """
        found: tuple[StreamId, int] | None = None
        for entry in self._untaken:
            if entry.serial > self._given_serial:
                break
            if entry.placed is None or number not in entry.subscriptions:
                continue
            before = 0
            for origin, sequences in entry.placed.origins:
                if origin == source and sequences[0] <= last:
                    within = sum(sequence <= last for sequence in sequences)
                    found = entry.stream, entry.placed.sequences[before + within - 1]
                    if last in sequences:
                        return found  # the source may have others in another stream behind it
                before += len(sequences)
        return found

    def _commit_told(self, number: int) -> None:
        """Commit announcements in place of publications, behind all committed publications."""
        for entry in self._untaken:
            if entry.serial > self._given_serial:
                return
            if number not in entry.subscriptions:
                continue
            if entry.is_notice:
                self._commit_up_to(number, entry.stream, entry.last)
            elif self._taken.get((number, entry.stream), 0) < entry.last:
                return

    def _commit_up_to(self, number: int, stream: StreamId, last: int) -> None:
        key = (number, stream)
        if number in self._wanted and self._taken.get(key, 0) < last:
            self._taken[key] = last
            self._revision.current += 1

    def _release(self) -> None:
        """Acknowledge the arrivals that all their subscriptions have committed, in stream order."""
        kept: deque[_Untaken] = deque()
        waiting: dict[StreamId, None] = {}
        for entry in self._untaken:
            if entry.stream in waiting or any(
                self._taken.get((number, entry.stream), 0) < entry.last
                for number in entry.subscriptions
                if number in self._wanted
            ):
                waiting[entry.stream] = None
                kept.append(entry)
            else:
                self._acknowledge(entry)
        self._untaken = kept

    # ------------------------------------------------------------ keeping

    def committed(self, number: int) -> Positions:
        """Return the committed positions of a subscription, per stream."""
        return _positions_of(number, self._taken)

    def given(self, number: int) -> Positions:
        """Return the delivered positions of a subscription, over all sessions and restarts."""
        given = dict(self._given_before)
        for key, last in self._given.items():
            given[key] = max(given.get(key, 0), last)
        return _positions_of(number, given)

    def restore(self, subscriptions: Sequence[KeptSubscription], *, redelivers: bool) -> None:
        """Restore the positions of an earlier process.

        Deliveries that were not committed are delivered again, marked, if the protocol redelivers;
        otherwise they count as committed.
        """
        for kept in subscriptions:
            for stream, last in kept.committed:
                self._taken[kept.number, stream] = last
            for stream, last in kept.given:
                self._given_before[kept.number, stream] = last
        if not redelivers:
            self._taken |= self._given_before
            self._given_before = {}
        self._received = dict(self._taken)
        self._given = dict(self._taken)


@dataclass(slots=True)
class _Untaken:
    """The deliveries of one message, until the application has taken them.

    Attributes:
        placed: the run, if its places are not its origins.
        is_notice: True if the message stands in place of publications.
    """

    serial: int
    session: int
    stream: StreamId
    first: int
    last: int
    subscriptions: tuple[int, ...]
    placed: PublicationRun | None = None
    is_notice: bool = False


def _place_in(entry: _Untaken, source: SourceId, last: int) -> int:
    """Return the last place in the stream of an entry's publications of a source, up to `last`.

    0 if there is none.
    """
    if entry.is_notice:
        return 0
    if entry.placed is None:
        return last if entry.stream == source else 0
    found = before = 0
    for origin, sequences in entry.placed.origins:
        if origin == source and sequences[0] <= last:
            within = sum(sequence <= last for sequence in sequences)
            found = entry.placed.sequences[before + within - 1]
        before += len(sequences)
    return found


def _by_origin(items: Sequence[Deliveries]) -> Iterator[Deliveries]:
    """Yield the same deliveries, each with a run of one source."""
    for item in items:
        for run in item.run.by_origin():
            yield type(item)(run, item.subscriptions)


def _positions_of(number: int, positions: Mapping[tuple[int, StreamId], int]) -> Positions:
    found = [(stream, last) for (each, stream), last in positions.items() if each == number]
    return tuple(sorted(found))


def _stretches(
    run: PublicationRun, numbers: tuple[int, ...], positions: Sequence[int]
) -> Iterator[tuple[PublicationRun, tuple[int, ...], tuple[int, ...]]]:
    """Yield parts of a run, with the subscriptions that are behind each part and those beyond it.

    Between two positions the subscriptions are the same.
    """
    rest: PublicationRun | None = run
    for upto in sorted({*positions, run.last}):
        stretch = rest.up_to(upto) if rest is not None else None
        rest = rest.after(upto) if rest is not None else None
        if stretch is None:
            continue
        behind: list[int] = []
        beyond: list[int] = []
        for number, position in zip(numbers, positions, strict=True):
            (behind if position < stretch.first else beyond).append(number)
        yield stretch, tuple(behind), tuple(beyond)
