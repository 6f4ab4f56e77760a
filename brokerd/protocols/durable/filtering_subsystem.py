"""The persistent filtering subsystem: the ticks of a stream that each subscription is owed.

The log has a record per tick with a match, and none for other ticks. A record names, per
subscription, the previous record with that subscription; so missed ticks are found by going back,
without reading other subscriptions' records, and events are neither stored nor matched again.

A record of n subscriptions takes 8 + 16·n bytes: the tick, and per subscription its number and the
index of the previous record with that subscription.

Paper: [DS03] §4.2 (the PFS; here one of its log streams), footnote 2.
"""

import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Container, Iterable, MutableMapping, Sequence
from itertools import chain
from typing import Final

from brokerd.errors import StorageCorrupt
from brokerd.protocols.interface import (
    Append,
    Chop,
    LogEffect,
    LogEnds,
    LogRecord,
    Read,
    RecordsRead,
    Truncate,
)

NO_RECORD: Final = (1 << 64) - 1
"""In place of an index: no previous record has the subscription."""

_WORD: Final = 8
_PACK_ONE: Final = struct.Struct(">3Q").pack


class MatchRecord:
    """A tick and the subscriptions that are owed it."""

    __slots__ = ("_previous", "_subscriptions", "tick")

    def __init__(self, tick: int, subscriptions: Sequence[int], previous: Sequence[int]) -> None:
        self.tick = tick
        self._subscriptions = tuple(subscriptions)
        self._previous = tuple(previous)

    @property
    def subscriptions(self) -> tuple[int, ...]:
        """The subscriptions; at least one."""
        return self._subscriptions

    def before(self, subscription: int) -> int:
        """Return the index of the previous record with a subscription, or NO_RECORD.

        Raises:
            ValueError: this record does not have the subscription.
        """
        return self._previous[self._subscriptions.index(subscription)]

    @staticmethod
    def unpack(content: bytes) -> "MatchRecord":
        """Return a record from the log.

        Raises:
            ValueError: no record gives these bytes.
        """
        count, rest = divmod(len(content), _WORD)
        if rest or count < 3 or count % 2 == 0:
            raise ValueError(
                f"{len(content)} bytes are not a record of a tick and its subscriptions"
            )
        tick, *pairs = struct.unpack(f">{count}Q", content)
        return MatchRecord(tick, pairs[::2], pairs[1::2])


def pack_matches(
    ticks: Sequence[int],
    matching: Sequence[Sequence[int]],
    first: int,
    newest: MutableMapping[int, int],
) -> list[bytes]:
    """Return records for the log, one per tick, with its subscriptions.

    Args:
        first: the index of the first record.
        newest: the index of the newest record of each subscription, which is updated.
    """
    if {*map(len, matching)} != {1}:
        return [
            pack_match(tick, subscriptions, index, newest)
            for index, (tick, subscriptions) in enumerate(zip(ticks, matching, strict=True), first)
        ]
    # Each publication of a run for one of many, as where each subscriber wants a hundredth.
    ones = list(chain.from_iterable(matching))
    previous = []
    for index, one in enumerate(ones, first):
        previous.append(newest.get(one, NO_RECORD))
        newest[one] = index
    return list(map(_PACK_ONE, ticks, ones, previous))


def pack_match(
    tick: int, subscriptions: Sequence[int], index: int, newest: MutableMapping[int, int]
) -> bytes:
    """Return a record for the log.

    Args:
        index: of the record.
        newest: the index of the newest record of each subscription, which is updated.
    """
    words = [tick]
    for each in subscriptions:
        words += each, newest.get(each, NO_RECORD)
        newest[each] = index
    return struct.pack(f">{len(words)}Q", *words)


PAGE_RECORDS: Final = 64
"""The number of records in a read."""

CACHED_PAGES: Final = 64


class FilterLog:
    """The records of a stream, the newest of which are also in memory.

    Methods return the effects on the log. No record is durable before a later Append with a token
    is.

    Args:
        name: of the log.
        cached_pages: how many pages stay in memory; 0 for CACHED_PAGES.

    Attributes:
        name: of the log.
        last_tick: the tick of the newest record; 0 if there never was a record.
        chopped_tick: matches through this tick are not available.
        is_read: True once the log of earlier incarnations is read.
    """

    def __init__(self, name: str, cached_pages: int = 0) -> None:
        self.name = name
        self.last_tick = 0
        self.chopped_tick = 0
        self.is_read = True
        self._first = self._next = 1
        self._end = 1
        self._keep_through = 0
        self._ticks = array("Q")
        self._newest: dict[int, int] = {}
        self._owed: defaultdict[int, array[int]] = defaultdict(lambda: array("Q"))
        self._pages: OrderedDict[int, dict[int, MatchRecord | bytes]] = OrderedDict()
        self._cached_pages = cached_pages or CACHED_PAGES
        self._requests: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of records."""
        return self._next - self._first

    @property
    def next(self) -> int:
        """The index of the next record."""
        return self._next

    # ------------------------------------------------------------ recovery

    def recover(
        self, ends: LogEnds, keep_through: int, chopped_tick: int, least_next: int = 1
    ) -> list[LogEffect]:
        """Read the log, and truncate records after a tick: their events are matched again.

        Args:
            keep_through: the delivered tick of the last commit.
            chopped_tick: records through this tick may be missing.
            least_next: `next` at the last commit.

        Raises:
            StorageCorrupt: records are missing.

        Paper: [DS03] §4.1 ("resumes delivery to … the PFS from latestDelivered onwards").
        """
        if ends.next < least_next:
            raise StorageCorrupt(
                f"log {self.name} ends before record {ends.next}; it was written up to {least_next}"
            )
        self._first = self._next = ends.first
        self._end = ends.next
        self._keep_through, self.chopped_tick = keep_through, chopped_tick
        self.is_read = ends.first == ends.next
        return [] if self.is_read else [Read(self.name, ends.first, ends.next)]

    def on_records(self, event: RecordsRead) -> list[LogEffect]:
        """Take a page that was requested.

        Raises:
            StorageCorrupt: the log has other content than this class writes.
        """
        records = [_unpack(self.name, *each) for each in enumerate(event.records, event.first)]
        if self.is_read:
            return self._on_page(event.first, records)
        for record in records:
            if record.tick > self._keep_through:
                self.is_read = True
                return [Truncate(self.name, self._next)]
            self._take(record)
        if self._next < self._end:
            return [Read(self.name, self._next, self._end)]
        self.is_read = True
        return []

    # ------------------------------------------------------------ writing

    def write(self, ticks: Iterable[int], subscriptions: Sequence[int]) -> list[LogEffect]:
        """See `records`, which are appended."""
        all_ticks = [*ticks]
        packed = self.records(all_ticks, [subscriptions] * len(all_ticks))
        return [Append(self.name, tuple(packed), None)] if packed else []

    def records(self, ticks: Sequence[int], matching: Sequence[Sequence[int]]) -> list[LogRecord]:
        """Return records of ticks for subscriptions; other ticks up to the last have no match.

        A tick that is present is not written again: a stream that restarts repeats the same
        matches.

        Args:
            ticks: in order.
            matching: the subscriptions per tick; at least one.

        Returns:
            The records to append to the log, in this order, before any others.
        """
        known = bisect_right(ticks, self.last_tick)
        ticks, matching = ticks[known:], matching[known:]
        if not ticks:
            return []
        assert all(matching), f"one of the ticks from {ticks[0]} to {ticks[-1]} has no subscription"
        packed = pack_matches(ticks, matching, self._next, self._newest)
        owed = self._owed
        for tick, subscriptions in zip(ticks, matching, strict=True):
            for each in subscriptions:
                owed[each].append(tick)
        self._ticks.extend(ticks)
        self._cache_packed(self._next, packed)
        self._next += len(packed)
        self.last_tick = ticks[-1]
        return list(zip(packed))

    def _take(self, record: MatchRecord) -> None:
        if record.tick <= self.last_tick and len(self):
            raise StorageCorrupt(f"log {self.name}: {record.tick} after {self.last_tick}")
        index = self._next
        for each in record.subscriptions:
            self._newest[each] = index
            self._owed[each].append(record.tick)
        self._ticks.append(record.tick)
        self._next += 1
        self.last_tick = max(self.last_tick, record.tick)
        self._cache(index, record)

    def forget(self, subscription: int) -> None:
        """Forget an ended subscription; it will not be read any more."""
        self._newest.pop(subscription, None)
        self._owed.pop(subscription, None)

    def forget_absent(self, present: Container[int]) -> None:
        """Forget ended subscriptions, which recovered records name; all others are present."""
        for each in [each for each in (*self._newest, *self._owed) if each not in present]:
            self.forget(each)

    def note_acknowledged(self, subscription: int, through: int) -> None:
        """Count the matches of a subscription through a tick no longer in `owed`."""
        ticks = self._owed.get(subscription)
        if ticks and ticks[0] <= through:
            del ticks[: bisect_right(ticks, through)]

    def owed(self, subscription: int, behind: int) -> int:
        """Return the number of ticks behind `behind` that a subscription is owed."""
        ticks = self._owed.get(subscription)
        return len(ticks) - bisect_right(ticks, behind) if ticks else 0

    def chop(self, through: int) -> list[LogEffect]:
        """Truncate the records through a tick."""
        dropped = bisect_right(self._ticks, through)
        if not dropped:
            return []
        self.chopped_tick = max(self.chopped_tick, self._ticks[dropped - 1])
        del self._ticks[:dropped]
        self._first += dropped
        for each in self._owed:
            self.note_acknowledged(each, through)
        whole = self._first // PAGE_RECORDS
        for page in [each for each in self._pages if each < whole]:
            del self._pages[page]
        for index in range(whole * PAGE_RECORDS, self._first):
            self._pages.get(whole, {}).pop(index, None)
        return [Chop(self.name, self._first)]

    # ------------------------------------------------------------ reading

    def newest(self, subscription: int) -> int:
        """Return the index of the newest record with a subscription; NO_RECORD without one."""
        return self._newest.get(subscription, NO_RECORD)

    def has(self, index: int) -> bool:
        """Return True if there is a record with this index, not truncated."""
        return self._first <= index < self._next

    def record(self, index: int) -> MatchRecord | None:
        """Return an existing record; None if it has to be read first."""
        page = index // PAGE_RECORDS
        found = self._pages.get(page, {}).get(index)
        if found is None:
            return None
        self._pages.move_to_end(page)
        if isinstance(found, bytes):  # few of those that are written are ever asked for
            found = self._pages[page][index] = MatchRecord.unpack(found)
        return found

    def read(self, index: int) -> list[LogEffect]:
        """Return the read of the records around an index, unless under way already."""
        assert self.has(index), f"record {index} of [{self._first}, {self._next})"
        page = index // PAGE_RECORDS
        if page in self._requests:
            return []
        start = page * PAGE_RECORDS
        end = self._requests[page] = min(start + PAGE_RECORDS, self._next)
        return [Read(self.name, max(start, self._first), end)]

    def _on_page(self, first: int, records: Sequence[MatchRecord]) -> list[LogEffect]:
        for index, record in enumerate(records, first):
            self._cache(index, record)
        page = first // PAGE_RECORDS
        after = max(first + len(records), self._first)
        if after < self._requests[page]:
            return [Read(self.name, after, self._requests[page])]
        del self._requests[page]
        return []

    def _cache_packed(self, first: int, packed: Sequence[bytes]) -> None:
        """Cache the newest records, except those that would be evicted at once."""
        end = first + len(packed)
        least = ((end - 1) // PAGE_RECORDS - self._cached_pages + 1) * PAGE_RECORDS
        start = max(first, least)
        while start < end:
            page = start // PAGE_RECORDS
            stop = min(end, (page + 1) * PAGE_RECORDS)
            inside = packed[start - first : stop - first]
            self._page(page).update(zip(range(start, stop), inside, strict=True))
            start = stop

    def _cache(self, index: int, record: MatchRecord) -> None:
        self._page(index // PAGE_RECORDS)[index] = record

    def _page(self, page: int) -> dict[int, MatchRecord | bytes]:
        """Return the cached records of a page; evict the oldest page if there is no room."""
        if page not in self._pages:
            if len(self._pages) >= self._cached_pages:
                self._pages.popitem(last=False)
            self._pages[page] = {}
        return self._pages[page]


def _unpack(log: str, index: int, content: bytes) -> MatchRecord:
    try:
        return MatchRecord.unpack(content)
    except ValueError as error:
        raise StorageCorrupt(f"log {log}, record {index}: {error}") from error
