"""The deliveries of a client until they are taken, committed and acknowledged."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from brokerd.client.events import Redelivered
from brokerd.client.received_positions import (
    Places,
    furthest,
    remove_subscription,
    set_later,
    stretches,
)
from brokerd.client.state import KeptSubscription, Positions, Revision
from brokerd.model.client_messages import Acknowledge, Deliveries
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun


@dataclass(slots=True)
class Untaken:
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


@dataclass(frozen=True, slots=True)
class ArrivalPart:
    """The first publications of an arrival, up to `last` of a source, for these subscriptions."""

    serial: int
    source: SourceId
    last: int
    subscriptions: tuple[int, ...]


class Commitment:
    """The delivered and committed positions of a client, and the deliveries in between.

    Every arrival has a serial number. The application takes arrivals in order; an arrival is
    acknowledged after the commits of all subscriptions.

    Args:
        wanted: the present subscriptions, by number; kept up to date by the caller.
        revision: counts changes that must survive a restart.

    Attributes:
        serial: serial number of the last arrival with news for the application.
        delivered_before: positions that an earlier process delivered and did not commit.
    """

    def __init__(self, wanted: Mapping[int, Predicate], revision: Revision) -> None:
        self.serial = 0
        self.delivered_before: Places = {}
        self._wanted = wanted
        self._revision = revision
        self._session = self._sessions = 0
        self._delivered_serial = 0
        self._partial_serial = 0
        self._untaken: deque[Untaken] = deque()
        self._acknowledgements: dict[StreamId, list[tuple[int, int]]] = {}
        self._processed: Places = {}
        self._delivered: Places = {}
        self._delivered_origins: dict[tuple[int, SourceId], int] = {}
        self._predecessor: Commitment | None = None

    def __len__(self) -> int:
        return len(self._untaken)

    # ------------------------------------------------------------ the session

    def attach(self) -> None:
        """Begin a new session."""
        self._sessions += 1
        self._session = self._sessions

    def detach(self) -> None:
        """End the session; earlier deliveries may no longer be acknowledged."""
        self._session = 0
        self._acknowledgements.clear()

    def begin_after(self, number: int, stream: StreamId, last: int) -> int:
        """Begin a subscription behind a position; return the number of positions that changed."""
        return sum(
            set_later(places, number, stream, last) for places in (self._delivered, self._processed)
        )

    def put(
        self,
        stream: StreamId,
        first: int,
        last: int,
        numbers: tuple[int, ...],
        *,
        is_new: bool,
        placed: PublicationRun | None = None,
        is_notice: bool = False,
    ) -> None:
        """Add an arrival behind all others.

        A mere repetition is acknowledged too, after all earlier arrivals.

        Args:
            is_new: True if the application receives a part of it.
            placed, is_notice: see Untaken.
        """
        if is_new:
            self.serial += 1
        self._untaken.append(
            Untaken(self.serial, self._session, stream, first, last, numbers, placed, is_notice)
        )

    @property
    def unsent_acknowledgements(self) -> int:
        """The count of numbers in the next result of `acknowledgements`, with gaps."""
        ranges = [each for of_stream in self._acknowledgements.values() for each in of_stream]
        return sum(last - first + 1 for first, last in ranges)

    def acknowledgements(self) -> list[Acknowledge]:
        """Return the acknowledgements that are due, once."""
        due = [
            Acknowledge(stream, first, last)
            for stream, ranges in self._acknowledgements.items()
            for first, last in ranges
        ]
        self._acknowledgements.clear()
        return due

    def _acknowledge(self, entry: Untaken) -> None:
        if entry.session != self._session:
            return
        ranges = self._acknowledgements.setdefault(entry.stream, [])
        if ranges and ranges[-1][1] < entry.first:
            ranges[-1] = (ranges[-1][0], entry.last)
        else:
            ranges.append((entry.first, entry.last))

    # ------------------------------------------------------------ delivering and taking

    def marked(self, fresh: Sequence[Deliveries]) -> Iterator[Deliveries]:
        """Yield the same deliveries, with redeliveries after a restart marked."""
        for item in fresh:
            run, numbers = item.run, item.subscriptions
            before = [self.delivered_before.get((number, run.source), 0) for number in numbers]
            for stretch, new, again in stretches(run, numbers, before):
                if again:
                    yield Redelivered(stretch, again)
                if new:
                    yield Deliveries(stretch, new)

    def deliver(self, serial: int) -> None:
        """Record that all arrivals up to this serial are about to be delivered."""
        for entry in self._untaken:
            if entry.serial > serial:
                break
            if entry.serial > self._delivered_serial:
                self._record_delivered(entry)
        self._delivered_serial = max(self._delivered_serial, serial)
        self._revision.current += 1

    def deliver_part(self, part: ArrivalPart) -> None:
        """Record that this part, and all arrivals before, are about to be delivered."""
        self.deliver(part.serial - 1)
        entry = self._entry_of(part)
        self._partial_serial = part.serial
        place = _place_in(entry, part.source, part.last)
        for number in part.subscriptions:
            if number in self._wanted:
                _raise_to(self._delivered, (number, entry.stream), place)
                if entry.placed is not None:
                    _raise_to(self._delivered_origins, (number, part.source), part.last)

    def retract_delivery(self, part: ArrivalPart) -> None:
        """Record that no publication of an arrival behind this part was delivered after all."""
        entry = self._entry_of(part)
        place = _place_in(entry, part.source, part.last)
        for number in part.subscriptions:
            if number in self._wanted:
                self._delivered[number, entry.stream] = place
                if entry.placed is not None:
                    self._delivered_origins[number, part.source] = part.last
        self._revision.current += 1

    def _entry_of(self, part: ArrivalPart) -> Untaken:
        return next(each for each in self._untaken if each.serial == part.serial)

    def _record_delivered(self, entry: Untaken) -> None:
        for number in entry.subscriptions:
            if number not in self._wanted:
                continue
            _raise_to(self._delivered, (number, entry.stream), entry.last)
            for source, sequences in entry.placed.origins if entry.placed else ():
                _raise_to(self._delivered_origins, (number, source), sequences[-1])

    def take(self, serial: int) -> None:
        """Commit and acknowledge all arrivals up to this serial."""
        self._revision.current += 1
        while self._untaken and self._untaken[0].serial <= serial:
            taken = self._untaken.popleft()
            for number in taken.subscriptions:
                if number in self._wanted:
                    key = (number, taken.stream)
                    self._processed[key] = max(self._processed.get(key, 0), taken.last)
            self._acknowledge(taken)

    # ------------------------------------------------------------ committing

    def was_delivered(self, number: int, source: SourceId, last: int) -> bool:
        """Return True if the application has received this publication of a source."""
        return self._has_delivered(number, source, last) or (
            self._predecessor is not None
            and number in self._wanted
            and self._predecessor.was_delivered(number, source, last)
        )

    def commit(self, number: int, source: SourceId, last: int) -> None:
        """Commit the deliveries of a subscription up to a publication that was given.

        Includes all earlier publications of the stream, of other sources too.
        """
        if self._predecessor is not None and not self._has_delivered(number, source, last):
            self._predecessor.commit(number, source, last)
            self._processed = furthest(self._predecessor._processed, self._processed, self._wanted)
            self.release()
            return
        is_placed = (number, source) in self._delivered_origins
        place = self._place_of(number, source, last) if is_placed else (source, last)
        if place is None:
            return
        stream, position = place
        if self._processed.get((number, stream), 0) >= position:
            return
        for entry in self._delivered_entries():
            if number in entry.subscriptions:
                is_reached = entry.stream == stream and entry.last >= position
                self._commit_up_to(number, entry.stream, position if is_reached else entry.last)
                if is_reached:
                    break
        self.commit_announcements(number)
        self.release()

    def reached(self, number: int, serial: int) -> Positions:
        """Return the positions of a subscription after a commit up to this serial."""
        reached = {
            stream: last for (each, stream), last in self._processed.items() if each == number
        }
        for entry in self._through(serial):
            if number in entry.subscriptions:
                reached[entry.stream] = max(reached.get(entry.stream, 0), entry.last)
        return tuple(sorted(reached.items()))

    def commit_through(self, serial: int) -> None:
        """Commit all arrivals up to this serial."""
        for entry in self._through(serial):
            for number in entry.subscriptions:
                self._commit_up_to(number, entry.stream, entry.last)
        self.release()

    def commit_consumed(self, number: int, serial: int, source: SourceId, last: int) -> None:
        """Commit all arrivals before a serial, and the arrival itself up to this publication."""
        for entry in self._through(serial):
            if number in entry.subscriptions:
                place = entry.last if entry.serial < serial else _place_in(entry, source, last)
                self._commit_up_to(number, entry.stream, place)
        self.release()

    def commit_announcements(self, number: int) -> None:
        """Commit announcements in place of publications, behind all committed publications."""
        for entry in self._delivered_entries():
            if number not in entry.subscriptions:
                continue
            if entry.is_notice:
                self._commit_up_to(number, entry.stream, entry.last)
            elif self._processed.get((number, entry.stream), 0) < entry.last:
                return

    def release(self) -> None:
        """Acknowledge the arrivals that all their subscriptions have committed, in stream order."""
        kept: deque[Untaken] = deque()
        waiting: dict[StreamId, None] = {}
        for entry in self._untaken:
            if entry.stream in waiting or self._lacks(entry):
                waiting[entry.stream] = None
                kept.append(entry)
            else:
                self._acknowledge(entry)
        self._untaken = kept

    def _lacks(self, entry: Untaken) -> bool:
        """Return True if a present subscription has not committed all of an arrival."""
        return any(
            self._processed.get((number, entry.stream), 0) < entry.last
            for number in entry.subscriptions
            if number in self._wanted
        )

    def _has_delivered(self, number: int, source: SourceId, last: int) -> bool:
        """Return True if this publication has arrived here, and not at the predecessor alone."""
        return self._delivered_of(number, source).get((number, source), 0) >= last

    def _delivered_of(self, number: int, source: SourceId) -> Mapping[tuple[int, SourceId], int]:
        return (
            self._delivered_origins
            if (number, source) in self._delivered_origins
            else self._delivered
        )

    def _delivered_entries(self) -> Iterator[Untaken]:
        return self._through(max(self._delivered_serial, self._partial_serial))

    def _through(self, serial: int) -> Iterator[Untaken]:
        for entry in self._untaken:
            if entry.serial > serial:
                return
            yield entry

    def _place_of(self, number: int, source: SourceId, last: int) -> tuple[StreamId, int] | None:
        """Return the place of this publication of a source; None if it is committed already.

        If the number was left out and not delivered, returns the last place before.
        """
        found: tuple[StreamId, int] | None = None
        for entry in self._delivered_entries():
            if entry.placed is None or number not in entry.subscriptions:
                continue
            for sequences, place in _places_in(entry.placed, source, last):
                found = entry.stream, place
                if last in sequences:
                    return found  # the source may have others in another stream behind it
        return found

    def _commit_up_to(self, number: int, stream: StreamId, last: int) -> None:
        key = (number, stream)
        if number in self._wanted and self._processed.get(key, 0) < last:
            self._processed[key] = last
            self._revision.current += 1

    # ------------------------------------------------------------ ends, moves, restarts

    def positions(self) -> Places:
        return self._processed

    def committed(self, number: int) -> Positions:
        """Return the committed positions of a subscription, per stream."""
        return _positions_of(number, self._processed)

    def delivered(self, number: int) -> Positions:
        """Return the delivered positions of a subscription, over all sessions and restarts."""
        given = dict(self.delivered_before)
        for key, last in self._delivered.items():
            given[key] = max(given.get(key, 0), last)
        return _positions_of(number, given)

    def forget(self, number: int) -> None:
        """Remove a subscription that has ended."""
        for places in (self._processed, self._delivered, self.delivered_before):
            remove_subscription(places, number)
        for given in [key for key in self._delivered_origins if key[0] == number]:
            del self._delivered_origins[given]

    def take_over(self, predecessor: "Commitment") -> None:
        """Continue from the positions of a predecessor, or from later starts here.

        The application may still receive, and commit, arrivals of predecessors that have ended.
        Predecessors without any are dropped.
        """
        self._delivered = furthest(predecessor._delivered, self._delivered, self._wanted)
        self._processed = furthest(predecessor._processed, self._processed, self._wanted)
        self._delivered_origins = {
            key: last
            for key, last in predecessor._delivered_origins.items()
            if key[0] in self._wanted
        }
        self._predecessor, link = None, self
        former: Commitment | None = predecessor
        while former is not None:
            if any(map(self._lacks, former._untaken)):
                link._predecessor, link = former, former
            former = former._predecessor
        link._predecessor = None

    def restore(self, subscriptions: Sequence[KeptSubscription], *, redelivers: bool) -> None:
        """Restore the positions of an earlier process; see Progress.restore."""
        for kept in subscriptions:
            for stream, last in kept.committed:
                self._processed[kept.number, stream] = last
            for stream, last in kept.given:
                self.delivered_before[kept.number, stream] = last
        if not redelivers:
            # Silence is committed without a delivery, so a committed position may be the later one.
            for key, last in self.delivered_before.items():
                _raise_to(self._processed, key, last)
            self.delivered_before = {}
        self._delivered = dict(self._processed)


def _raise_to(places: dict[tuple[int, SourceId], int], key: tuple[int, SourceId], to: int) -> None:
    places[key] = max(places.get(key, 0), to)


def _places_in(
    run: PublicationRun, source: SourceId, last: int
) -> Iterator[tuple[Sequence[int], int]]:
    """Yield the stretches of a source that begin by `last`, with the last place up to `last`."""
    before = 0
    for origin, sequences in run.origins:
        if origin == source and sequences[0] <= last:
            within = sum(sequence <= last for sequence in sequences)
            yield sequences, run.sequences[before + within - 1]
        before += len(sequences)


def _place_in(entry: Untaken, source: SourceId, last: int) -> int:
    """Return the last place in the stream of an entry's publications of a source, up to `last`.

    0 if there is none.
    """
    if entry.is_notice:
        return 0
    if entry.placed is None:
        return last if entry.stream == source else 0
    return max((place for _, place in _places_in(entry.placed, source, last)), default=0)


def _positions_of(number: int, positions: Mapping[tuple[int, StreamId], int]) -> Positions:
    found = [(stream, last) for (each, stream), last in positions.items() if each == number]
    return tuple(sorted(found))
