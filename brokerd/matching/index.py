"""An index of many predicates that finds the matching predicates without testing all.

Every conjunction is filed under one of its tests, the access test: an equality (or `in`) in a hash
table by value, else a numeric bound, with the opposite bound if there is one, in a list sorted by
that bound, else under the attribute that must be present, else in the set that is always tested.
Conjunctions with the same equal value are sorted by a bound among themselves, if any. A match looks
up the publication's own values, and tests the remaining conditions of the candidates.

The reference implementation is `Predicate.matches`, applied to every predicate; the tests compare
both.
"""

import operator as compare
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Any, Final, Generic, TypeVar

from brokerd.model.predicate import (
    Attributes,
    Conjunction,
    Constraint,
    Predicate,
    Scalar,
    comparison_key,
    holds_for,
    kind,
)

Key = TypeVar("Key", bound=Hashable)
Test = Callable[[Attributes], bool]


@dataclass(slots=True, eq=False)
class _IndexedConjunction:
    """A filed conjunction: the serial number of its predicate and the remaining tests."""

    serial: int
    tests: tuple[Test, ...]


@dataclass(slots=True)
class _Bounds:
    """Conjunctions filed under a numeric bound of one attribute, sorted by the bound.

    The bounds are in a list of their own, so that comparisons are direct. An upper bound is filed
    negated, so that one direction serves both: a filed conjunction may hold for a value from the
    bound to the limit (strictness is left to the remaining tests).

    Attributes:
        reach: the largest limit up to each place, so that a backward search from a value's place
            ends where no earlier limit reaches the value; empty after a change, until the next
            search.
    """

    bounds: list[float] = field(default_factory=list)
    filed: list[tuple[int, float, _IndexedConjunction]] = field(default_factory=list)
    reach: list[float] = field(default_factory=list)

    def add(self, bound: float, limit: float, place: int, filed: _IndexedConjunction) -> None:
        at = bisect_right(self.bounds, bound)
        self.bounds.insert(at, bound)
        self.filed.insert(at, (place, limit, filed))
        self.reach = []

    def remove(self, bound: float, place: int) -> None:
        first, end = bisect_left(self.bounds, bound), bisect_right(self.bounds, bound)
        at = bisect_left(self.filed, place, first, end, key=_place_of)
        del self.bounds[at], self.filed[at]
        self.reach = []

    def candidates(self, value: Any) -> list[_IndexedConjunction]:
        if not self.reach:
            self.reach = list(accumulate((limit for _, limit, _ in self.filed), max))
        reach, filed = self.reach, self.filed
        found: list[_IndexedConjunction] = []
        for at in range(bisect_right(self.bounds, value) - 1, -1, -1):
            if reach[at] < value:
                break
            _, limit, candidate = filed[at]
            if limit >= value:
                found.append(candidate)
        return found


@dataclass(slots=True)
class _Bucket:
    """Conjunctions with one equal value.

    Attributes:
        bounds: conjunctions that also bound another attribute by numbers, by the first bounded
            attribute.
        unbounded: conjunctions without a numeric bound.
    """

    unbounded: dict[int, _IndexedConjunction] = field(default_factory=dict)
    bounds: dict[str, _Bounds] = field(default_factory=dict)

    def candidates(self, attributes: Attributes) -> Collection[_IndexedConjunction]:
        found: Collection[_IndexedConjunction] = self.unbounded.values()
        value: Any
        for attribute, bounds in self.bounds.items():
            value = attributes.get(attribute)
            if type(value) in _NUMBERS:
                more = bounds.candidates(value)
                found = [*found, *more] if found else more
        return found


@dataclass(slots=True)
class _Under:
    """The conjunctions filed under one attribute.

    Attributes:
        equal: by text or number, which never equal each other.
        truths: by boolean, which would equal a number.
    """

    equal: dict[Scalar, _Bucket] = field(default_factory=dict)
    truths: dict[Scalar, _Bucket] = field(default_factory=dict)
    at_least: _Bounds = field(default_factory=_Bounds)
    at_most: _Bounds = field(default_factory=_Bounds)
    present: dict[int, _IndexedConjunction] = field(default_factory=dict)


class MatchingIndex(Generic[Key]):
    """Predicates by key; `match` returns the keys of matching predicates.

    Keys are returned in the order of addition, so that the order is the same in every interpreter.

    Paper: [GD02] ref. 2 and [GES] §2 use an engine of this kind; this engine is a different design.
    """

    def __init__(self) -> None:
        self._serials: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._undo: dict[Key, list[Callable[[], None]]] = {}
        self._next_serial = 0
        self._next_place = 0
        self._under: dict[str, _Under] = {}
        self._always: dict[int, _IndexedConjunction] = {}

    def __len__(self) -> int:
        """Return the number of filed predicates."""
        return len(self._serials)

    def __contains__(self, key: Key) -> bool:
        """Return True if a predicate is filed under `key`."""
        return key in self._serials

    def add(self, key: Key, predicate: Predicate) -> None:
        """File a predicate. The key must be new."""
        assert key not in self._serials, f"{key} is filed already"
        serial = self._next_serial
        self._next_serial += 1
        self._serials[key] = serial
        self._keys[serial] = key
        undo = self._undo[key] = []
        for conjunction in predicate.any_of:
            undo += self._file(serial, conjunction, _FILED_VALUES - len(undo))

    def remove(self, key: Key) -> None:
        """Remove a key and its predicate. The key must be filed."""
        for undo in self._undo.pop(key):
            undo()
        del self._keys[self._serials.pop(key)]

    def keys(self) -> tuple[Key, ...]:
        """Return all keys, in the order they were added."""
        return tuple(self._keys.values())

    def match(self, attributes: Attributes) -> tuple[Key, ...]:
        """Return the distinct keys with a matching predicate, in the order of addition."""
        found: set[int] = set()
        if self._always:
            _try(self._always.values(), attributes, found)
        value: Any
        for attribute, value in attributes.items():
            under = self._under.get(attribute)
            if under is None:
                continue
            equal = (under.truths if value is True or value is False else under.equal).get(value)
            if equal is not None:
                _try(equal.candidates(attributes), attributes, found)
            if type(value) in _NUMBERS:
                if under.at_least.filed:
                    _try(under.at_least.candidates(value), attributes, found)
                if under.at_most.filed:
                    _try(under.at_most.candidates(-value), attributes, found)
            if under.present:
                _try(under.present.values(), attributes, found)
        keys = self._keys
        return tuple([keys[serial] for serial in sorted(found)])

    def match_all(self, tables: Sequence[Attributes]) -> list[tuple[Key, ...]]:
        """Return the result of `match` for each of many; equal adjacent results are one object.

        Iterates over attributes first and publications second, unless the predicates name many more
        attributes than a publication has.
        """
        if len(tables) < 2 or len(self._under) > _NAMES_PER_ATTRIBUTE * (1 + len(tables[0])):
            return [self.match(attributes) for attributes in tables]
        always = self._always.values()
        sure = {filed.serial for filed in always if not filed.tests}
        candidates: list[Sequence[Collection[_IndexedConjunction] | None]] = []
        if unsure := [filed for filed in always if filed.tests]:
            candidates.append([unsure] * len(tables))
        for attribute, under in self._under.items():
            values = [attributes.get(attribute) for attributes in tables]
            if values.count(None) == len(values):
                continue
            if under.equal or under.truths:
                candidates.append(_equal_to(under, values, tables))
            if under.at_least.filed or under.at_most.filed:
                candidates.append([_find_within(under, value) for value in values])
            if under.present:
                present = under.present.values()
                candidates.append([None if value is None else present for value in values])
        found = [sure] * len(tables)
        for of_each in candidates:
            for place, some in enumerate(of_each):
                if some:
                    attributes = tables[place]
                    for filed in some:
                        for test in filed.tests:
                            if not test(attributes):
                                break
                        else:
                            if (own := found[place]) is sure:
                                found[place] = {*sure, filed.serial}
                            else:
                                own.add(filed.serial)
        return self._keys_of(found)

    def _keys_of(self, found: Sequence[set[int]]) -> list[tuple[Key, ...]]:
        keys, matched = self._keys, list[tuple[Key, ...]]()
        before: set[int] | None = None
        for serials in found:
            if serials is not before:
                before = serials
                ordered = sorted(serials) if len(serials) > 1 else serials
                of_these = tuple([keys[serial] for serial in ordered])
            matched.append(of_these)
        return matched

    def _file(self, serial: int, conjunction: Conjunction, room: int) -> list[Callable[[], None]]:
        """File a conjunction in at most `room` places, or in one; return the undoing functions."""
        access = self._choose_access(conjunction, room)
        place = self._next_place
        self._next_place += 1
        if access is None:
            return [_put(self._always, place, _IndexedConjunction(serial, _compile(conjunction)))]
        attribute, value = access.attribute, access.value
        under = self._under.setdefault(attribute, _Under())
        if _is_equality(access, room):
            values: Any = value if isinstance(value, tuple) else (value,)
            rest = tuple(test for test in conjunction if test is not access)
            filed = _IndexedConjunction(serial, _compile(rest))
            return [
                _put_under(
                    under.truths if isinstance(item, bool) else under.equal,
                    item,
                    place,
                    filed,
                    rest,
                )
                for _, item in dict.fromkeys((kind(item), item) for item in values)
            ]
        filed = _IndexedConjunction(serial, _compile(conjunction))
        if _is_bound(access, _UPWARD) or _is_bound(access, _DOWNWARD):
            low, high = _interval(attribute, conjunction)
            upward = _is_bound(access, _UPWARD)
            bounds = under.at_least if upward else under.at_most
            bound, limit = (low, high) if upward else (-high, -low)
            bounds.add(bound, limit, place, filed)
            return [lambda: bounds.remove(bound, place)]
        return [_put(under.present, place, filed)]

    def _choose_access(self, conjunction: Conjunction, room: int) -> Constraint | None:
        """Return the test that leaves the fewest candidates in the present index.

        A list of more than `room` values is no access.
        """
        equalities = [test for test in conjunction if _is_equality(test, room)]
        if equalities:
            return max(equalities, key=lambda test: self._values_of(test.attribute))
        for test in conjunction:
            if _is_bound(test, _UPWARD) or _is_bound(test, _DOWNWARD):
                return test
        for test in conjunction:
            if test.operator != "not exists":
                return test
        return None

    def _values_of(self, attribute: str) -> int:
        under = self._under.get(attribute)
        return len(under.equal) + len(under.truths) if under is not None else 0


def _try(
    candidates: Iterable[_IndexedConjunction], attributes: Attributes, found: set[int]
) -> None:
    for filed in candidates:
        for test in filed.tests:
            if not test(attributes):
                break
        else:
            found.add(filed.serial)


def _equal_to(
    under: _Under, values: Sequence[Any], tables: Sequence[Attributes]
) -> list[Collection[_IndexedConjunction] | None]:
    """Return the candidates filed under each value, if the value is present."""
    if bool not in {*map(type, values)}:
        buckets = list(map(under.equal.get, values))
    else:
        buckets = [
            (under.truths if value is True or value is False else under.equal).get(value)
            for value in values
        ]
    return [
        bucket.candidates(attributes) if bucket is not None else None
        for bucket, attributes in zip(buckets, tables, strict=True)
    ]


def _find_within(under: _Under, value: Any) -> list[_IndexedConjunction] | None:
    """Return the conjunctions filed under a bound that holds for the value."""
    if type(value) not in _NUMBERS:
        return None
    return under.at_least.candidates(value) + under.at_most.candidates(-value)


def _place_of(entry: tuple[int, float, _IndexedConjunction]) -> int:
    return entry[0]


def _put(
    table: dict[int, _IndexedConjunction], place: int, filed: _IndexedConjunction
) -> Callable[[], None]:
    table[place] = filed
    return lambda: table.__delitem__(place)


def _put_under(
    buckets: dict[Scalar, _Bucket],
    key: Scalar,
    place: int,
    filed: _IndexedConjunction,
    rest: Conjunction,
) -> Callable[[], None]:
    """File the remaining tests of a conjunction beside conjunctions with the same equal value."""
    bucket = buckets.setdefault(key, _Bucket())
    bound = next((test for test in rest if _is_bound(test, _BOUNDS)), None)
    if bound is None:
        take_out = _put(bucket.unbounded, place, filed)
    else:
        take_out = _put_between(bucket.bounds, bound.attribute, place, filed, rest)

    def undo() -> None:
        take_out()
        if not bucket.unbounded and not bucket.bounds:
            del buckets[key]

    return undo


def _put_between(
    bounds: dict[str, _Bounds],
    attribute: str,
    place: int,
    filed: _IndexedConjunction,
    rest: Conjunction,
) -> Callable[[], None]:
    low, high = _interval(attribute, rest)
    of_attribute = bounds.setdefault(attribute, _Bounds())
    of_attribute.add(low, high, place, filed)

    def undo() -> None:
        of_attribute.remove(low, place)
        if not of_attribute.filed:
            del bounds[attribute]

    return undo


_UPWARD: Final = {">": compare.gt, ">=": compare.ge}
_DOWNWARD: Final = {"<": compare.lt, "<=": compare.le}
_BOUNDS: Final = {**_UPWARD, **_DOWNWARD}
_NUMERIC: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": compare.eq,
    "!=": compare.ne,
    **_BOUNDS,
}
_NUMBERS: Final = (int, float)
_NAMES_PER_ATTRIBUTE: Final = 4
_FILED_VALUES: Final = 512
"""Largest number of places of one predicate: a subscription must not delay others for long."""


def _is_equality(test: Constraint, room: int) -> bool:
    """Return True for an equality, and for a list of at most `room` values."""
    is_list = test.operator == "in" and isinstance(test.value, tuple)
    return test.operator == "=" or (is_list and len(test.value) <= room)  # type: ignore[arg-type]


def _is_bound(test: Constraint, operators: Collection[str]) -> bool:
    return test.operator in operators and kind(test.value) == "number"


def _bounds(attribute: str, conjunction: Conjunction, operators: Collection[str]) -> list[Any]:
    return [
        test for test in conjunction if test.attribute == attribute and _is_bound(test, operators)
    ]


def _interval(attribute: str, conjunction: Conjunction) -> tuple[float, float]:
    """Return the closed interval that the attribute must be in for the conjunction to hold."""
    low: list[Any] = [test.value for test in _bounds(attribute, conjunction, _UPWARD)]
    high: list[Any] = [test.value for test in _bounds(attribute, conjunction, _DOWNWARD)]
    return max(low, default=-inf), min(high, default=inf)


def _compile(constraints: Sequence[Constraint]) -> tuple[Test, ...]:
    """Return functions that all hold if, and only if, all constraints do.

    Common tests are specialised.
    """
    tests: list[Test] = []
    rest = list(constraints)
    while rest:
        test = rest.pop(0)
        opposite = _opposite(test, rest)
        if opposite is not None:
            rest.remove(opposite)
            tests.append(_match_between(test, opposite))
        else:
            tests.append(_compile_one(test))
    return tuple(tests)


def _opposite(test: Constraint, others: Sequence[Constraint]) -> Constraint | None:
    """Return the first other bound that forms an interval with a bound."""
    for own, wanted in ((_UPWARD, _DOWNWARD), (_DOWNWARD, _UPWARD)):
        if _is_bound(test, own):
            return next(iter(_bounds(test.attribute, tuple(others), wanted)), None)
    return None


def _match_between(first: Constraint, second: Constraint) -> Test:
    """Return a test of both bounds that reads the value once."""
    attribute, one, other = first.attribute, first.value, second.value
    compare_one, compare_other = _NUMERIC[first.operator], _NUMERIC[second.operator]

    def test(attributes: Attributes) -> bool:
        value: Any = attributes.get(attribute)
        return type(value) in _NUMBERS and compare_one(value, one) and compare_other(value, other)

    return test


def _match_list(attribute: str, items: frozenset[object], wanted: bool) -> Test:
    """Return a test of `in` or `not in` that takes the same time for lists of any length.

    Args:
        items: kind and value of each item.
        wanted: true for `in`.
    """
    kinds = {each[0] for each in items if isinstance(each, tuple)}

    def test(attributes: Attributes) -> bool:
        value = attributes.get(attribute)
        if value is None or (own := kind(value)) not in kinds:
            return False
        return ((own, value) in items) is wanted

    return test


def _compile_one(constraint: Constraint) -> Test:
    attribute, operator, reference = constraint.attribute, constraint.operator, constraint.value
    if operator in _NUMERIC and kind(reference) == "number":
        compare_numbers = _NUMERIC[operator]
        return lambda attributes: (
            type(value := attributes.get(attribute)) in _NUMBERS
            and compare_numbers(value, reference)
        )
    if operator == "not exists":
        return lambda attributes: attribute not in attributes
    if isinstance(reference, tuple):
        return _match_list(attribute, frozenset(comparison_key(reference)), operator == "in")
    return lambda attributes: (
        (value := attributes.get(attribute)) is not None and holds_for(operator, value, reference)
    )
