"""The received positions of a client's subscriptions: duplicates, repetitions, gaps."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from brokerd.client.events import GapAnnounced
from brokerd.model.client_messages import Deliveries, Gap, Notice
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.losses import STATE_LOST, is_stream_marker
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun

Places = dict[tuple[int, StreamId], int]
"""The last position by subscription and stream."""

Stretch = tuple[PublicationRun, tuple[int, ...], tuple[int, ...]]
"""Part of a run, the subscriptions without it, and the subscriptions that have received it."""

Range = tuple[int, int]
"""The first and the last number of consecutive publications of a source."""

RANGE_LIMIT: Final = 64
"""Number of ranges of a source that are kept per subscription and stream."""


class SourceRanges:
    """The numbers of sources that a subscription has received, or was announced as missing.

    A stream delivers the numbers of a source in order, so a number between two deliveries has no
    match. A loss ends that: publications that survived in caches may follow others that are lost.
    So the first delivery after a loss of unknown publications begins another range.

    The two earliest of too many ranges are joined. A later gap then omits the numbers between them;
    they lie many losses, or many releases after a loss, behind the last delivery.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, StreamId, SourceId], int] = {}
        self._losses: dict[tuple[int, StreamId], int] = {}
        self._opened: dict[tuple[int, StreamId, SourceId], tuple[int, int]] = {}
        self._closed: dict[tuple[int, StreamId, SourceId], list[Range]] = {}

    def last(self, number: int, stream: StreamId, source: SourceId) -> int:
        """Return the highest number; 0 without one."""
        return self._last.get((number, stream, source), 0)

    def extend(self, number: int, stream: StreamId, run: PublicationRun) -> None:
        """Add the deliveries of a run of one source, and the numbers without a match before it."""
        key = number, stream, run.source
        if self._losses and (losses := self._losses.get((number, stream))):
            lost, first = self._opened.get(key, (0, 1))
            if lost < losses:
                if key in self._last:
                    self._close(key, (first, self._last[key]))
                self._opened[key] = losses, run.first
        self._last[key] = run.last

    def _close(self, key: tuple[int, StreamId, SourceId], received: Range) -> None:
        closed = self._closed.setdefault(key, [])
        closed.append(received)
        if len(closed) >= RANGE_LIMIT:
            closed[:2] = [(closed[0][0], closed[1][1])]

    def on_loss(self, number: int, stream: StreamId) -> None:
        """Begin another range with the next delivery of each source of a stream."""
        place = number, stream
        self._losses[place] = self._losses.get(place, 0) + 1

    def add_gap(self, number: int, stream: StreamId, source: SourceId, gap: Range) -> list[Range]:
        """Add the numbers in a gap; return those that were in no range."""
        key = number, stream, source
        lost, first = self._opened.get(key, (0, 1))
        ranges = [*self._closed.get(key, ())]
        if key in self._last:
            ranges.append((first, self._last[key]))
        *closed, (first, self._last[key]) = _join([*ranges, gap])
        if closed or first > 1 or key in self._opened:
            self._opened[key] = lost, first
            self._closed[key] = []
            for each in closed:
                self._close(key, each)
        return _cut(gap, ranges)

    def forget(self, number: int) -> None:
        """Remove a subscription."""
        for places in (self._last, self._losses, self._opened, self._closed):
            remove_subscription(places, number)

    def take_over(self, predecessor: "SourceRanges", wanted: Mapping[int, Predicate]) -> None:
        """Continue from the ranges of a predecessor, for the present subscriptions."""
        self._last = {key: last for key, last in predecessor._last.items() if key[0] in wanted}
        self._losses = {key: n for key, n in predecessor._losses.items() if key[0] in wanted}
        self._opened = {key: at for key, at in predecessor._opened.items() if key[0] in wanted}
        self._closed = {
            key: [*ranges] for key, ranges in predecessor._closed.items() if key[0] in wanted
        }


def _join(ranges: Sequence[Range]) -> list[Range]:
    """Return the union of ranges, lowest first."""
    joined: list[Range] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


def _cut(gap: Range, ranges: Sequence[Range]) -> list[Range]:
    """Return the parts of a gap that are in none of some ranges, lowest first."""
    missing, start = [], gap[0]
    for low, high in ranges:
        if start < low:
            missing.append((start, min(low - 1, gap[1])))
        start = max(start, high + 1)
    return [(first, last) for first, last in [*missing, (start, gap[1])] if first <= last]


class ReceivedPositions:
    """The last received position of each subscription in each stream.

    Args:
        wanted: the present subscriptions, by number; kept up to date by the caller.

    Attributes:
        duplicates: number of publications withheld as duplicates.
    """

    def __init__(self, wanted: Mapping[int, Predicate]) -> None:
        self.duplicates = 0
        self._wanted = wanted
        self._received: Places = {}
        self._origins = SourceRanges()
        self._lossy: dict[tuple[int, StreamId], None] = {}

    def advance(self, number: int, stream: StreamId, last: int) -> None:
        """Count all positions up to `last` as received."""
        self._received[number, stream] = max(self._received.get((number, stream), 0), last)

    def begin_after(self, number: int, stream: StreamId, last: int) -> bool:
        """Begin a subscription behind a position; return True if that is news."""
        return set_later(self._received, number, stream, last)

    # ------------------------------------------------------------ deliveries

    def new_deliveries(
        self, message: Deliveries
    ) -> tuple[tuple[Deliveries, ...], list[Deliveries]]:
        """Record an arrival; return the new deliveries, and the repeated deliveries.

        Both are per subscription and stream.
        """
        run, numbers = message.run, message.subscriptions
        stream, first, last = run.source, run.first, run.last
        received = self._received
        seen = [received.get((number, stream), 0) for number in numbers]
        for number, upto in zip(numbers, seen, strict=True):
            received[number, stream] = max(upto, last)
        fresh: tuple[Deliveries, ...] = (message,)
        repeated: list[Deliveries] = []
        if max(seen) >= first:
            new, repeated = self._sort_out(message, stretches(run, numbers, seen))
            fresh = tuple(new)
        if self._lossy and run.origins:
            fresh, again = self._without_republished(fresh)
            repeated += again
        return fresh, repeated

    def record_origins(self, stream: StreamId, fresh: Sequence[Deliveries]) -> None:
        """Record numbers by source; a run has one source."""
        for item in fresh:
            for number in item.subscriptions:
                self._origins.extend(number, stream, item.run)

    def _without_republished(
        self, fresh: Sequence[Deliveries]
    ) -> tuple[tuple[Deliveries, ...], list[Deliveries]]:
        """Return new deliveries, and publications that had arrived at a position that was lost.

        The access broker lost a publication before its publisher received the acknowledgement. The
        publisher publishes again, at another position.
        """
        unseen: list[Deliveries] = []
        repeated: list[Deliveries] = []
        for item in fresh:
            new, again = self._sort_out(item, self._stretches_of_origins(item))
            unseen += new
            repeated += again
        return tuple(unseen), repeated

    def _sort_out(
        self, item: Deliveries, parts: Iterator[Stretch]
    ) -> tuple[list[Deliveries], list[Deliveries]]:
        """Return the parts of a delivery that are new, and the repeated parts."""
        fresh: list[Deliveries] = []
        repeated: list[Deliveries] = []
        for part, missing, having in parts:
            self.duplicates += len(part) * len(having)
            if missing:
                fresh.append(type(item)(part, missing))
            if having:
                repeated.append(type(item)(part, having))
        return fresh, repeated

    def _stretches_of_origins(self, item: Deliveries) -> Iterator[Stretch]:
        """Yield parts of a run, with the subscriptions that miss them and that had them."""
        stream, numbers = item.run.source, item.subscriptions
        lossy = [number for number in numbers if (number, stream) in self._lossy]
        places = [(each.source, n) for each in item.run.origins for n in each.sequences]
        had = self._origins
        having = [
            tuple(number for number in lossy if had.last(number, stream, source) >= sequence)
            for source, sequence in places
        ]
        start = 0
        for those, group in groupby(having):
            end = start + len(list(group))
            missing = tuple(number for number in numbers if number not in those)
            yield item.run.select(range(start, end)), missing, those
            start = end

    # ------------------------------------------------------------ announcements

    def new_ranges(self, notice: Notice) -> tuple[tuple[int, int], ...]:
        """Record a notice; return the new parts of the ranges."""
        number, source = notice.subscription, notice.source
        seen = self._received.get((number, source), 0)
        self._received[number, source] = max(seen, notice.ranges[-1][1])
        return tuple((max(first, seen + 1), last) for first, last in notice.ranges if last > seen)

    def new_gaps(self, gap: Gap, numbers: Sequence[int]) -> tuple[GapAnnounced, ...]:
        """Return the parts of a gap that had not arrived, for each of the subscriptions."""
        gaps = tuple(
            part
            for number in numbers
            if (before := self._received.get((number, gap.stream), 0)) < gap.last
            for part in self._lacked(number, before, gap)
        )
        if any(part.reason == STATE_LOST for part in gaps):
            self._lossy.update(dict.fromkeys((number, gap.stream) for number in numbers))
        return gaps

    def _lacked(self, number: int, before: int, gap: Gap) -> Iterator[GapAnnounced]:
        """Yield the parts of a gap that had not arrived before, by origin.

        In a stream each source's numbers increase; several streams may have parts of one source. A
        stream's loss marker stands for publications of unknown sources, whatever the gap's reason.
        """
        rest = gap.stream, max(gap.first, before + 1), gap.last
        if not gap.origins:
            yield GapAnnounced(number, *rest, gap.reason)
        is_unknown = not gap.origins
        for source, *ends in gap.origins:
            missing = self._origins.add_gap(number, gap.stream, source, (ends[0], ends[1]))
            if is_stream_marker(source):
                is_unknown = True
                if missing:
                    yield GapAnnounced(number, *rest, STATE_LOST)
                continue
            for first, last in missing:
                yield GapAnnounced(number, source, first, last, gap.reason)
        if is_unknown:
            self._origins.on_loss(number, gap.stream)

    # ------------------------------------------------------------ ends, moves, restarts

    def forget(self, number: int) -> None:
        """Remove a subscription that has ended."""
        remove_subscription(self._received, number)
        self._origins.forget(number)
        for lossy in [key for key in self._lossy if key[0] == number]:
            del self._lossy[lossy]

    def take_over(self, predecessor: "ReceivedPositions") -> None:
        """Continue from the positions of a predecessor, or from later starts here."""
        self._received = furthest(predecessor._received, self._received, self._wanted)
        self._origins.take_over(predecessor._origins, self._wanted)
        self._lossy = {key: None for key in predecessor._lossy if key[0] in self._wanted}
        self.duplicates += predecessor.duplicates

    def restore(self, taken: Places) -> None:
        """Restore the positions of an earlier process, which took these deliveries."""
        self._received = dict(taken)


def set_later(places: Places, number: int, stream: StreamId, last: int) -> bool:
    """Set a position that is later than the present one; return True if it was."""
    if places.get((number, stream), -1) >= last:
        return False
    places[number, stream] = last
    return True


def remove_subscription(places: dict[Any, Any], number: int) -> None:
    """Remove the keys of one subscription, which begin with its number."""
    for key in [key for key in places if key[0] == number]:
        del places[key]


def furthest(there: Places, here: Places, wanted: Mapping[int, Predicate]) -> Places:
    """Return the later of two positions, for each present subscription."""
    kept = {key: last for key, last in there.items() if key[0] in wanted}
    return kept | {key: max(last, kept.get(key, last)) for key, last in here.items()}


def stretches(
    run: PublicationRun, numbers: tuple[int, ...], positions: Sequence[int]
) -> Iterator[Stretch]:
    """Yield parts of a run, with the subscriptions behind and beyond a part.

    Between two positions the subscriptions are the same.
    """
    rest: PublicationRun | None = run
    for upto in sorted({*positions, run.last}):
        stretch = rest.select_through(upto) if rest is not None else None
        rest = rest.after(upto) if rest is not None else None
        if stretch is None:
            continue
        behind: list[int] = []
        beyond: list[int] = []
        for number, position in zip(numbers, positions, strict=True):
            (behind if position < stretch.first else beyond).append(number)
        yield stretch, tuple(behind), tuple(beyond)
