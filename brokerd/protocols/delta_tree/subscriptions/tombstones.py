"""Tombstones: which subscriptions are over for ever, in little room.

An id is never given out twice, so what is known to be over only grows: two brokers that know
different parts put them together, and any order of telling gives the same. Ids that follow each
other become one range, across incarnations too, so the table stays as large as what lives,
however often its home restarts and however much it issues.

Paper: none; [DFT11] says nothing of unsubscription.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.protocols.delta_tree.broker.state import LARGEST_BROKER
from brokerd.protocols.delta_tree.messages import Tombstones
from brokerd.protocols.delta_tree.subscriptions.rows import Rows
from brokerd.protocols.interface import Change

TOMBSTONES = "ended"
NUMBER_BITS = 62
LAST_NUMBER = 1 << NUMBER_BITS
"""Above every number that a subscription can have; they begin with 1."""


class TombstoneTable:
    """The tombstones that a broker has, home by home."""

    def __init__(self) -> None:
        self._homes: dict[BrokerNumber, _Home] = {}

    def __contains__(self, subscription: SubscriptionId) -> bool:
        """Whether the subscription is known to be over."""
        home = self._homes.get(subscription.home)
        if home is None:
            return False
        if subscription.incarnation < home.before:
            return True
        serial = _serial(subscription.incarnation, subscription.number)
        return home.over.includes(serial, serial)

    def before(self, home: BrokerNumber) -> int:
        """All incarnations of a home before this one are over."""
        known = self._homes.get(home)
        return known.before if known is not None else 0

    def newest(self, home: BrokerNumber) -> int:
        """Return the newest incarnation of a home that anything known to be over is of."""
        known = self._homes.get(home)
        if known is None:
            return 0
        return max([known.before, *(last >> NUMBER_BITS for _, last in known.over)])

    def add(self, statement: Tombstones) -> bool:
        """Learn of ends; says whether any of them is news."""
        home = self._homes.get(statement.home)
        if home is None:
            home = self._homes[statement.home] = _Home()
        news = False
        if statement.before > home.before:
            home.before = statement.before
            home.over.remove_below(_serial(home.before, 1))
            news = True
        for first, last in _serials(statement, home.before):
            news |= home.over.add(first, last)
        return news

    def includes(self, statement: Tombstones) -> bool:
        """Whether none of a statement would be news."""
        home = self._homes.get(statement.home) or _Home()
        if statement.before > home.before:
            return False
        return all(home.over.includes(*serials) for serials in _serials(statement, home.before))

    def statement(self, home: BrokerNumber) -> Tombstones:
        """All that is known of one home."""
        known = self._homes.get(home) or _Home()
        ranges = tuple((*_id(first), *_id(last)) for first, last in known.over)
        return Tombstones(home, known.before, ranges)

    def statements(self) -> tuple[Tombstones, ...]:
        """All that is known, one statement per home."""
        return tuple(self.statement(home) for home in sorted(self._homes))


def _serial(incarnation: int, number: int) -> int:
    """An id of one home as a number; the last one of an incarnation touches the next one's."""
    return (incarnation << NUMBER_BITS) + number - 1


def _id(serial: int) -> tuple[int, int]:
    """Incarnation and number of an id."""
    return serial >> NUMBER_BITS, serial % LAST_NUMBER + 1


def _serials(statement: Tombstones, before: int) -> Iterator[tuple[int, int]]:
    """The ranges of a statement, without what is said by all before an incarnation being over."""
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
        """Whether all of [first, last] is in it."""
        place = bisect_right(self._firsts, first) - 1
        return place >= 0 and last <= self._lasts[place]

    def add(self, first: int, last: int) -> bool:
        """Add all of [first, last]; says whether any of them is new."""
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
        """Be without what is below."""
        start = bisect_left(self._lasts, lowest)
        del self._firsts[:start], self._lasts[:start]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], lowest)


class _Home:
    """What is known of one home broker: all of incarnations before one, and ranges since."""

    __slots__ = ("before", "over")

    def __init__(self) -> None:
        self.before = 0
        self.over = _Serials()


def only(subscription: SubscriptionId) -> Tombstones:
    """That one subscription is over."""
    home, incarnation, number = subscription
    return Tombstones(home, 0, ((incarnation, number, incarnation, number),))


def all_but(home: BrokerNumber, incarnation: int, living: Iterable[SubscriptionId]) -> Tombstones:
    """What a home broker can say when `incarnation` begins: all it has ever issued is over, but
    for `living`.
    """
    serials = sorted(_serial(each.incarnation, each.number) for each in living)
    before = serials[0] >> NUMBER_BITS if serials else incarnation
    table = TombstoneTable()
    table.add(Tombstones(home, before, ()))
    over = table._homes[home].over
    begin = _serial(before, 1)
    for serial in [*serials, _serial(incarnation, 1)]:
        if begin < serial:
            over.add(begin, serial - 1)
        begin = serial + 1
    return table.statement(home)


def fault_of(statement: Tombstones) -> str:
    """What is wrong with a statement whoever makes it; empty when nothing is."""
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
    """The row with the tombstones of one home."""
    ranges = [list(entry) for entry in statement.ranges]
    return Change(TOMBSTONES, str(statement.home), [statement.before, ranges])


def read_tombstones(recovered: Rows) -> list[Tombstones]:
    """What the rows say.

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
