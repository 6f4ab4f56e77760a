"""The retained publications of a topic, and the numbers of the lost ones.

A server releases what all followers have acknowledged. What it releases before, by age or by size
(`followers.py`), is lost: the server keeps the sources and numbers of lost publications, for the
gaps that followers receive.

Paper: none. [MP22] §4 keeps everything until each subscriber has fetched it, so that a subscriber
that never returns fills the disk.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.model.identity import SourceId
from brokerd.model.losses import has_marker, lost_range, split_by_markers
from brokerd.model.publication import PublicationRun, merge_runs, stretches
from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.multi_proxy.messages import LostRun
from brokerd.protocols.multi_proxy.state import LOST_ROWS, Part, TopicState


@dataclass(slots=True)
class LostRecord:
    """A record of the log that is not retained.

    Attributes:
        is_written: True if there is a row, which is removed once no broker needs it.
    """

    runs: tuple[LostRun, ...]
    is_written: bool = False


@dataclass(slots=True)
class LostRecords:
    """The lost records of a topic, by last positions, ascending; reported to followers as gaps.

    Attributes:
        suffix: of the keys of its rows, which separates the positions of several servers.
    """

    topic: int
    suffix: str = ""
    _records: dict[int, LostRecord] = field(default_factory=dict)

    def add(self, run: PublicationRun) -> None:
        """Add a run that is not retained any more."""
        self._records[run.last] = LostRecord(tuple(list_lost_runs(run)))

    def carry(self, runs: Sequence[LostRun]) -> Iterator[Change]:
        """Add another server's lost runs, and return the changes on disk."""
        rows: list[Change] = []
        for run in runs:
            self._records[run.end] = LostRecord((run,))
            row = self.row(run.end)
            rows += [row] if row is not None else []
        self._sort()
        return iter(rows)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def first(self) -> int | None:
        """The lowest position; None if nothing is lost that a follower lacks."""
        return next((record.runs[0].position for record in self._records.values()), None)

    def after(self, position: int) -> list[LostRun]:
        """Return the runs after a position; the first run may begin before it."""
        found: list[LostRun] = []
        for last, record in self._records.items():
            for run in record.runs if last > position else ():
                before = found[-1] if found else None
                if before is not None and before.continues_in(run):
                    found[-1] = before._replace(last=run.last)
                else:
                    found.append(run)
        return found

    def row(self, last: int) -> Change | None:
        """Return the row that must be durable before a record is truncated, or None."""
        record = self._records.get(last)
        if record is None:
            return None
        record.is_written = True
        value = [[run.position, *run.source, run.first, run.last] for run in record.runs]
        return Change(LOST_ROWS, self._key(last), value)

    def forget(self, through: int) -> Iterator[Change]:
        """Forget records through a position that no follower lacks; return the changes on disk."""
        forgotten = [last for last in self._records if last <= through]
        written = [last for last in forgotten if self._records.pop(last).is_written]
        return iter([Change(LOST_ROWS, self._key(last), None) for last in written])

    def _key(self, last: int) -> str:
        return f"{self.topic}.{last}{self.suffix}"

    def recover(self, last: int, row: Sequence[Sequence[Any]]) -> None:
        """Restore a row of an earlier incarnation."""
        runs = [LostRun(place, SourceId(*source), low, high) for place, *source, low, high in row]
        self._records[last] = LostRecord(tuple(runs), is_written=True)
        self._sort()

    def _sort(self) -> None:
        """Restore the order by position; rows of a disk and records of another server have none."""
        self._records = dict(sorted(self._records.items()))


def list_lost_runs(run: PublicationRun) -> Iterator[LostRun]:
    """Yield the sources of a topic's run, with their numbers and positions.

    A loss marker stands for positions, which it names.
    """
    for part in split_by_markers(run):
        if has_marker(part):
            stream, first, last = lost_range(part)
            yield LostRun(first, stream, first, last)
            continue
        position = part.first
        for source, sequences in part.origins:
            for first, last in stretches(sequences):
                yield LostRun(position, source, first, last)
                position += last - first + 1


@dataclass(slots=True)
class Topic:
    """A topic, or the part of a topic that another server has assigned.

    Attributes:
        is_here: True if access brokers may follow the topic here; else the topic is about to
            arrive.
        is_frozen: True while the topic moves to another server and must not change.
        assigned: the last assigned position, durable or not.
        durable: the last durable position; later positions are not sent.
        released: publications through this position are not needed.
        put: the last publication of every source with a position.
        stored: the last durable publication of every source.
        runs: durable and not released, in order; sequences are positions.
        retained_bytes: of their payloads.
        age: of positions of earlier owners: an older owner has the higher age.
        since: the times of retention, with the last position of each.
        lost: released publications that a follower has not acknowledged.
    """

    part: Part
    suffix: str = ""
    is_here: bool = True
    is_frozen: bool = False
    lost: LostRecords = field(init=False)
    assigned: int = 0
    durable: int = 0
    released: int = 0
    put: dict[SourceId, int] = field(default_factory=dict)
    stored: dict[SourceId, int] = field(default_factory=dict)
    runs: deque[PublicationRun] = field(default_factory=deque)
    retained_bytes: int = 0
    age: int = 0
    since: deque[tuple[int, Instant]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.lost = LostRecords(self.number, self.suffix)

    @property
    def number(self) -> int:
        return self.part.topic

    @property
    def key(self) -> str:
        return f"{self.number}{self.suffix}"

    def state(self) -> TopicState:
        return TopicState(
            self.assigned,
            self.durable,
            self.released,
            self.count_retained(),
            len(self.lost),
            self.is_here,
            self.is_frozen,
        )

    def begin_behind(self, position: int) -> None:
        """Begin after a position; nothing through it is ever needed here."""
        self.assigned = self.durable = self.released = position

    def on_durable(self, source: SourceId, sequence: int) -> None:
        """Record the durable number of a source."""
        sequence = max(sequence, self.put.get(source, 0))
        self.put[source] = self.stored[source] = sequence

    def retain(self, run: PublicationRun, now_ns: Instant) -> None:
        """Retain durable publications until they are released."""
        self.durable = run.last
        if run.last > self.released:
            self.runs.append(run)
            self.retained_bytes += run.payload_bytes()
            self.since.append((run.last, now_ns))

    def after(self, position: int, most: int) -> PublicationRun | None:
        """Return at most `most` publications after a position, in one run, or None."""
        place = bisect_right(self.runs, position, key=lambda run: run.last)
        found: list[PublicationRun] = []
        count = 0
        while place < len(self.runs) and count < most:
            run = self.runs[place].after(position)
            assert run is not None, f"{self.runs[place].sequences} ends at {position}"
            found.append(run.select(range(min(len(run), most - count))))
            count += len(found[-1])
            place += 1
        return merge_runs(found) if found else None

    def release(self, through: int) -> None:
        """Release publications through a position."""
        self.released = max(self.released, through)
        while self.runs and self.runs[0].last <= self.released:
            self.retained_bytes -= self.runs.popleft().payload_bytes()
        while self.since and self.since[0][0] <= self.released:
            self.since.popleft()

    def count_retained(self) -> int:
        """Return the number of retained publications."""
        begun = max(0, self.released - self.runs[0].first + 1) if self.runs else 0
        return sum(len(run) for run in self.runs) - begun

    @property
    def needed_position(self) -> int:
        """The position through which no follower needs anything, not even a gap."""
        first = self.lost.first
        return self.released if first is None else first - 1

    def old_through(self, before_ns: Instant) -> int:
        """Return the position through which publications are retained since an instant."""
        through = self.released
        for last, since_ns in self.since:
            if since_ns > before_ns:
                break
            through = last
        return through

    def expire(self, through: int) -> None:
        """Release publications through a position, and record them as lost."""
        for run in self.runs:
            if run.last > through:
                break
            self.lost.add(run)
        self.release(through)
