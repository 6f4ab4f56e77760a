"""How far a client has come: what it was sent, gave on and is done with, in each stream.

Everything here goes by place, stream and position: what was had before, what is acknowledged, and
where to go on after a break. The application gets publications by their origins, and says by
origins what it has committed; where the two differ, this is where one becomes the other.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun

_Places = dict[tuple[int, StreamId], int]
"""The last position by subscription and stream."""


class Progress:
    """What a client's subscriptions were sent, were given and are done with.

    With `commits_by_itself`, what is taken is committed. Else `commit` does that, and until then
    the broker keeps it. With `in_transactions`, `commit_through` alone does, of silence too: what
    is acknowledged is in a token that the application has kept.

    Args:
        wanted: the subscriptions that there are, by number; as they become.
        marks: those of them that the application does not know of.
        revision: told of what must be known after a restart.
        consumers: those whose broker keeps how far they have come.

    Attributes:
        commits_by_itself: whether what is taken is committed.
        in_transactions: whether all that has come is committed together, with a token.
        duplicates: publications kept from the application because it had them.
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

    # ------------------------------------------------------------ the session

    def attach(self) -> None:
        """What comes from now on is of a new session."""
        self._sessions += 1
        self._session = self._sessions

    def detach(self) -> None:
        """The session is over; nothing of it may be acknowledged any more."""
        self._session = 0
        self._acknowledgements.clear()

    def resume(self) -> tuple[tuple[int, Positions], ...]:
        """By subscription, how far it is done with each stream."""
        found: dict[int, list[tuple[StreamId, int]]] = {}
        for (number, stream), last in self._taken.items():
            found.setdefault(number, []).append((stream, last))
        return tuple((number, tuple(seen)) for number, seen in found.items())

    def begin_after(self, number: int, positions: Positions) -> None:
        """A subscription begins; these count as had, and what it has had beyond stays so."""
        for stream, last in positions:
            for places in (self._received, self._given, self._taken):
                if places.get((number, stream), -1) < last:
                    places[number, stream] = last
                    self._revision.current += 1

    @property
    def unsaid_acknowledgements(self) -> int:
        """The numbers in what `acknowledgements` will give, those left out in between too."""
        ranges = [each for told in self._acknowledgements.values() for each in told]
        return sum(last - first + 1 for first, last in ranges)

    def acknowledgements(self) -> list[Acknowledge]:
        """What the broker should be told now, once."""
        told = [
            Acknowledge(stream, first, last)
            for stream, ranges in self._acknowledgements.items()
            for first, last in ranges
        ]
        self._acknowledgements.clear()
        return told

    def forget(self, number: int) -> None:
        """The subscription is over."""
        for places in (self._received, self._taken, self._given, self._given_before):
            for key in [key for key in places if key[0] == number]:
                del places[key]
        for given in [key for key in self._given_origins if key[0] == number]:
            del self._given_origins[given]
        for received in [key for key in self._received_origins if key[0] == number]:
            del self._received_origins[received]

    def take_over(self, predecessor: "Progress") -> None:
        """Go on where another one has come to, or behind where subscriptions begin here.

        What lies before that this broker gives to nobody who asks for it again. What the other one
        alone has asked for, as its marks, is over: here those numbers may be given to others.
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
        self.duplicates += predecessor.duplicates

    def _furthest(self, there: _Places, here: _Places) -> _Places:
        """Of each subscription that there is here the later of two positions."""
        wanted = {key: last for key, last in there.items() if key[0] in self._wanted}
        return wanted | {key: max(last, wanted.get(key, last)) for key, last in here.items()}

    # ------------------------------------------------------------ receiving

    def on_item(self, item: DeliveredItem) -> list[ClientEvent]:
        """What the application should know of what has come.

        Raises:
            RemoteProtocolError: no broker may say that.
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
        if fresh:
            self._serial += 1
        # What was repeated only is acknowledged too, after all that was received before it.
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
            GapAnnounced(number, source, first, last, message.reason)
            for number, before in seen.items()
            if before < message.last
            for source, first, last in self._lacked(number, before, message)
        )
        self._skip(message, is_news=bool(gaps) or self.in_transactions)
        if gaps:
            return [GapsAnnounced(gaps, self._serial)]
        self._take_if_first()
        return [Received((), self._serial)] if self.in_transactions else []

    def _lacked(self, number: int, before: int, gap: Gap) -> Iterator[tuple[SourceId, int, int]]:
        """Of what a gap may have taken, what had not come before it, by origin.

        In a stream each source's numbers go up; several streams may have parts of one source.
        """
        if not gap.origins:
            yield gap.stream, max(gap.first, before + 1), gap.last
        for source, first, last in gap.origins:
            had = self._received_origins.get((number, gap.stream, source), 0)
            if had < last:
                self._received_origins[number, gap.stream, source] = last
                yield source, max(first, had + 1), last

    def _skip(self, message: Silence | Gap, *, is_news: bool) -> None:
        """Nothing more of a stream comes up to some position."""
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
        """The application has no part in what came last, and may have everything before it."""
        if self.in_transactions:
            self._release()
        elif len(self._untaken) == 1:
            self.take(self._serial)

    def _sort_out_duplicates(
        self, message: Deliveries
    ) -> tuple[tuple[Deliveries, ...], list[Deliveries]]:
        """What was not received before, and what was, per subscription and stream."""
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

    def _marked(self, fresh: Sequence[Deliveries]) -> Iterator[Deliveries]:
        """The same, with what was given before a restart told apart."""
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
        """The application is about to be given everything received up to this serial.

        Where state is kept, that has to be saved first.
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
        """The application has everything received up to this serial.

        Its broker may forget it, where that commits it.
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
        """The application is done with what it was given for a subscription, up to this.

        That is all that came before it in its stream, of other sources too.

        Returns:
            Whether it was given that; else nothing has changed.
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
        """How far a subscription is once everything received up to this serial is committed."""
        reached = {stream: last for (each, stream), last in self._taken.items() if each == number}
        for entry in self._untaken:
            if entry.serial > serial:
                break
            if number in entry.subscriptions:
                reached[entry.stream] = max(reached.get(entry.stream, 0), entry.last)
        return tuple(sorted(reached.items()))

    def commit_through(self, serial: int) -> None:
        """The application is done with everything received up to this serial, and knows it."""
        assert self.in_transactions, "what is taken otherwise is committed otherwise"
        for entry in self._untaken:
            if entry.serial > serial:
                break
            for number in entry.subscriptions:
                self._commit_up_to(number, entry.stream, entry.last)
        self._release()

    def commit_consumed(self, number: int, serial: int, source: SourceId, last: int) -> None:
        """The application is done with what came before a serial, and of that up to this."""
        for entry in self._untaken:
            if entry.serial > serial:
                break
            if number not in entry.subscriptions:
                continue
            place = entry.last if entry.serial < serial else _place_in(entry, source, last)
            self._commit_up_to(number, entry.stream, place)
        self._release()

    def _place_of(self, number: int, source: SourceId, last: int) -> tuple[StreamId, int] | None:
        """Where this publication of a source stands; None where that is done.

        If it was not given, as where it is a number that was left out, the last one before it.
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
        """Commit what was said in place of publications, behind all that is committed."""
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
        """Acknowledge what all its subscriptions have committed, in order within a stream."""
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
        """How far the application is done with a subscription, per stream."""
        return _positions_of(number, self._taken)

    def given(self, number: int) -> Positions:
        """How far the application was given a subscription, ever."""
        given = dict(self._given_before)
        for key, last in self._given.items():
            given[key] = max(given.get(key, 0), last)
        return _positions_of(number, given)

    def restore(self, subscriptions: Sequence[KeptSubscription], *, redelivers: bool) -> None:
        """Begin where an earlier process has come to.

        What the application was given and has not committed comes again, marked, where the
        protocol redelivers; elsewhere it counts as committed.
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
    """What one message delivered, until the application has it.

    Attributes:
        placed: the run, where its places are not its origins.
        is_notice: it says something in place of publications.
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
    """Where what an entry has of a source, up to this, stands in its stream; 0: it has none."""
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
    """The same, each with a run of one source."""
    for item in items:
        for run in item.run.by_origin():
            yield type(item)(run, item.subscriptions)


def _positions_of(number: int, positions: Mapping[tuple[int, StreamId], int]) -> Positions:
    found = [(stream, last) for (each, stream), last in positions.items() if each == number]
    return tuple(sorted(found))


def _stretches(
    run: PublicationRun, numbers: tuple[int, ...], positions: Sequence[int]
) -> Iterator[tuple[PublicationRun, tuple[int, ...], tuple[int, ...]]]:
    """The run in parts, with the subscriptions that are not as far as each part, and that are.

    Between two positions it is the same subscriptions.
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
