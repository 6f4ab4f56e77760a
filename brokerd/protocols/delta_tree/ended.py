"""Which subscriptions are over for ever, in little room.

An id is never given out twice, so what is known to be over only grows: two brokers that know
different parts put them together, and any order of telling gives the same. Numbers that follow
each other become one range, and once nothing of an incarnation lives, one number stands for all
of it and of those before; so the table stays about as large as what lives.

Paper: none; [DFT11] says nothing of unsubscription.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.protocols.delta_tree.messages import EndedSubscriptions
from brokerd.protocols.delta_tree.rows import Rows
from brokerd.protocols.delta_tree.state import LARGEST_BROKER
from brokerd.protocols.interface import Change

ENDED = "ended"
LAST_NUMBER = (1 << 62) - 1
"""Above every number that a subscription can have."""


class EndedTable:
    """What is known to be over, home by home."""

    def __init__(self) -> None:
        self._homes: dict[BrokerNumber, _Home] = {}

    def __contains__(self, subscription: SubscriptionId) -> bool:
        """Whether the subscription is known to be over."""
        home = self._homes.get(subscription.home)
        if home is None:
            return False
        if subscription.incarnation < home.before:
            return True
        ranges = home.ranges.get(subscription.incarnation)
        return ranges is not None and subscription.number in ranges

    def before(self, home: BrokerNumber) -> int:
        """All incarnations of a home before this one are over."""
        known = self._homes.get(home)
        return known.before if known is not None else 0

    def add(self, statement: EndedSubscriptions) -> bool:
        """Learn of ends; says whether any of them is news."""
        home = self._homes.get(statement.home)
        if home is None:
            home = self._homes[statement.home] = _Home()
        news = False
        if statement.before > home.before:
            home.before = statement.before
            news = True
            for incarnation in [each for each in home.ranges if each < home.before]:
                del home.ranges[incarnation]
        for incarnation, first, last in statement.ranges:
            if incarnation >= home.before:
                news |= home.ranges.setdefault(incarnation, _Numbers()).add(first, last)
        return news

    def includes(self, statement: EndedSubscriptions) -> bool:
        """Whether none of a statement would be news."""
        home = self._homes.get(statement.home) or _Home()
        if statement.before > home.before:
            return False
        return all(
            incarnation < home.before
            or (incarnation in home.ranges and home.ranges[incarnation].includes(first, last))
            for incarnation, first, last in statement.ranges
        )

    def statement(self, home: BrokerNumber) -> EndedSubscriptions:
        """All that is known of one home."""
        known = self._homes.get(home) or _Home()
        ranges = [
            (incarnation, first, last)
            for incarnation in sorted(known.ranges)
            for first, last in known.ranges[incarnation]
        ]
        return EndedSubscriptions(home, known.before, tuple(ranges))

    def statements(self) -> tuple[EndedSubscriptions, ...]:
        """All that is known, one statement per home."""
        return tuple(self.statement(home) for home in sorted(self._homes))


class _Numbers:
    """Numbers as ranges that neither overlap nor touch, in order."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        return self.includes(number, number)

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


class _Home:
    """What is known of one home broker: all of incarnations before one, and ranges since."""

    __slots__ = ("before", "ranges")

    def __init__(self) -> None:
        self.before = 0
        self.ranges: dict[int, _Numbers] = {}


def all_but(
    home: BrokerNumber, incarnation: int, living: Iterable[SubscriptionId]
) -> EndedSubscriptions:
    """What a home broker can say when `incarnation` begins: all it has ever issued is over, but
    for `living`.
    """
    numbers: dict[int, list[int]] = {}
    for subscription in living:
        numbers.setdefault(subscription.incarnation, []).append(subscription.number)
    before = min(numbers, default=incarnation)
    ranges: list[tuple[int, int, int]] = []
    for past in range(before, incarnation):
        first = 1
        for number in sorted(numbers.get(past, ())):
            if first < number:
                ranges.append((past, first, number - 1))
            first = number + 1
        ranges.append((past, first, LAST_NUMBER))
    return EndedSubscriptions(home, before, tuple(ranges))


def fault_of(statement: EndedSubscriptions) -> str:
    """What is wrong with a statement whoever makes it; empty when nothing is."""
    if not 0 <= statement.home <= LARGEST_BROKER:
        return f"no broker has the number {statement.home}"
    at = (statement.before, 0)
    for incarnation, first, last in statement.ranges:
        if not 1 <= first <= last or (incarnation, first) <= at:
            return f"ends of broker {statement.home} out of order: {incarnation}, {first}-{last}"
        at = (incarnation, last + 1)
    return ""


def ended_change(statement: EndedSubscriptions) -> Change:
    """The row that remembers what is over of one home."""
    ranges = [list(entry) for entry in statement.ranges]
    return Change(ENDED, str(statement.home), [statement.before, ranges])


def read_ended(recovered: Rows) -> list[EndedSubscriptions]:
    """What the rows say.

    Raises:
        StorageCorrupt: a row is not one that this broker writes.
    """
    found: list[EndedSubscriptions] = []
    for key, value in recovered.get(ENDED, {}).items():
        try:
            before, ranges = value
            statement = EndedSubscriptions(int(key), before, tuple(_range(row) for row in ranges))
            wrong = fault_of(statement)
        except (TypeError, ValueError) as error:
            wrong = str(error)
        if wrong:
            raise StorageCorrupt(f"table {ENDED}, row {key!r}: {wrong}")
        found.append(statement)
    return found


def _range(row: Any) -> tuple[int, int, int]:
    incarnation, first, last = row
    return incarnation, first, last
