"""Tombstones: permanently ended subscriptions in compact form.

An id is never assigned twice, so the set of ended ids only grows: two brokers with
different parts merge the parts, and any order of statements gives the same. Consecutive ids
become a range, even across incarnations, so the table stays as large as the set of living ids,
for any number of restarts and ids of a home.

Paper: none; [DFT11] does not cover unsubscription.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.protocols.delta_tree.messages import Tombstones
from brokerd.protocols.delta_tree.regions import LARGEST_BROKER
from brokerd.protocols.delta_tree.state import Rows
from brokerd.protocols.interface import Change

TOMBSTONES = "ended"


NUMBER_BITS = 62


LAST_NUMBER = 1 << NUMBER_BITS
"""Above every number of a subscription; numbers begin with 1."""


class TombstoneTable:
    """The tombstones that a broker has, home by home."""

    def __init__(self) -> None:
        self._homes: dict[BrokerNumber, _Home] = {}

    def __contains__(self, subscription: SubscriptionId) -> bool:
        """Return True if the subscription has ended."""
        home = self._homes.get(subscription.home)
        if home is None:
            return False
        if subscription.incarnation < home.before:
            return True
        serial = _serial(subscription.incarnation, subscription.number)
        return home.ended.includes(serial, serial)

    def before(self, home: BrokerNumber) -> int:
        """Return the incarnation of a home before which all have ended."""
        known = self._homes.get(home)
        return known.before if known is not None else 0

    def newest(self, home: BrokerNumber) -> int:
        """Return the newest incarnation of a home with an ended subscription."""
        known = self._homes.get(home)
        if known is None:
            return 0
        return max([known.before, *(last >> NUMBER_BITS for _, last in known.ended)])

    def add(self, statement: Tombstones) -> bool:
        """Add ended subscriptions; return True if any of them is new."""
        home = self._homes.get(statement.home)
        if home is None:
            home = self._homes[statement.home] = _Home()
        is_new = False
        if statement.before > home.before:
            home.before = statement.before
            home.ended.remove_below(_serial(home.before, 1))
            is_new = True
        for first, last in _serials(statement, home.before):
            is_new |= home.ended.add(first, last)
        return is_new

    def includes(self, statement: Tombstones) -> bool:
        """Return True if a statement contains nothing new."""
        home = self._homes.get(statement.home) or _Home()
        if statement.before > home.before:
            return False
        return all(home.ended.includes(*serials) for serials in _serials(statement, home.before))

    def statement(self, home: BrokerNumber) -> Tombstones:
        """Return all tombstones of a home."""
        known = self._homes.get(home) or _Home()
        ranges = tuple((*_id(first), *_id(last)) for first, last in known.ended)
        return Tombstones(home, known.before, ranges)

    def statements(self) -> tuple[Tombstones, ...]:
        """Return all tombstones, one statement per home."""
        return tuple(self.statement(home) for home in sorted(self._homes))


def _serial(incarnation: int, number: int) -> int:
    """Return an id of a home as a number; consecutive incarnations are adjacent."""
    return (incarnation << NUMBER_BITS) + number - 1


def _id(serial: int) -> tuple[int, int]:
    """Return incarnation and number of an id."""
    return serial >> NUMBER_BITS, serial % LAST_NUMBER + 1


def _serials(statement: Tombstones, before: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a statement, except ids of incarnations below `before`."""
    lowest = _serial(before, 1)
    for begin, first, end, last in statement.ranges:
        serials = max(lowest, _serial(begin, first)), _serial(end, last)
        if serials[0] <= serials[1]:
            yield serials


class _Serials:
    """Serials as ranges that neither overlap nor touch, in order."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def includes(self, first: int, last: int) -> bool:
        """Return True if the set contains all of [first, last]."""
        place = bisect_right(self._firsts, first) - 1
        return place >= 0 and last <= self._lasts[place]

    def add(self, first: int, last: int) -> bool:
        """Add all of [first, last]; return True if any of them is new."""
        if self.includes(first, last):
            return False
        start = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if start < end:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[end - 1])
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]
        return True

    def remove_below(self, lowest: int) -> None:
        start = bisect_left(self._lasts, lowest)
        del self._firsts[:start], self._lasts[:start]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], lowest)


class _Home:
    """The ended ids of a home broker: all before an incarnation, and ranges since."""

    __slots__ = ("before", "ended")

    def __init__(self) -> None:
        self.before = 0
        self.ended = _Serials()


def single_statement(subscription: SubscriptionId) -> Tombstones:
    home, incarnation, number = subscription
    return Tombstones(home, 0, ((incarnation, number, incarnation, number),))


def all_but(home: BrokerNumber, incarnation: int, living: Iterable[SubscriptionId]) -> Tombstones:
    """Return a home broker's statement at the begin of `incarnation`.

    All earlier ids have ended, except `living`.
    """
    serials = sorted(_serial(each.incarnation, each.number) for each in living)
    before = serials[0] >> NUMBER_BITS if serials else incarnation
    table = TombstoneTable()
    table.add(Tombstones(home, before, ()))
    ended = table._homes[home].ended
    begin = _serial(before, 1)
    for serial in [*serials, _serial(incarnation, 1)]:
        if begin < serial:
            ended.add(begin, serial - 1)
        begin = serial + 1
    return table.statement(home)


def fault_of(statement: Tombstones) -> str:
    """Return the fault of a statement, independent of its sender; empty without one."""
    if not 0 <= statement.home <= LARGEST_BROKER:
        return f"no broker has the number {statement.home}"
    lowest = _serial(statement.before, 1)
    for begin, first, end, last in statement.ranges:
        serials = _serial(begin, first), _serial(end, last)
        possible = 1 <= first <= LAST_NUMBER and 1 <= last <= LAST_NUMBER
        if not possible or not lowest <= serials[0] <= serials[1]:
            return (
                f"ends of broker {statement.home} out of order: {begin}, {first} to {end}, {last}"
            )
        lowest = serials[1] + 2
    return ""


def tombstone_change(statement: Tombstones) -> Change:
    """Return the row with the tombstones of a home."""
    ranges = [list(entry) for entry in statement.ranges]
    return Change(TOMBSTONES, str(statement.home), [statement.before, ranges])


def read_tombstones(recovered: Rows) -> list[Tombstones]:
    """Return the statements in the rows.

    Raises:
        StorageCorrupt: a row is not one that this broker writes.
    """
    found: list[Tombstones] = []
    for key, value in recovered.get(TOMBSTONES, {}).items():
        try:
            before, ranges = value
            statement = Tombstones(int(key), before, tuple(_range(row) for row in ranges))
            wrong = fault_of(statement)
        except (TypeError, ValueError) as error:
            wrong = str(error)
        if wrong:
            raise StorageCorrupt(f"table {TOMBSTONES}, row {key!r}: {wrong}")
        found.append(statement)
    return found


def _range(row: Any) -> tuple[int, int, int, int]:
    begin, first, end, last = row
    return begin, first, end, last
