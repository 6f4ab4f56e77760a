"""Which of many predicates hold for a publication, without trying them all.

Each conjunction is filed under one of its tests, its access test: an equality (or `in`) in a
hash table by value, else a numeric bound in a list sorted by that bound, else under the
attribute that must be present, else with those that are always tried. A match looks up the
publication's own values, and tries the remaining tests of what it finds.

The dumb twin is `Predicate.matches`, tried on everything; the tests compare the two.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from brokerd.model.predicate import (
    Attributes,
    Conjunction,
    Constraint,
    Predicate,
    Scalar,
    holds_for,
    kind,
)

Key = TypeVar("Key", bound=Hashable)
Test = Callable[[Attributes], bool]


@dataclass(slots=True, eq=False)
class _Filed:
    """One conjunction where it was filed: whose it is and what is left to test."""

    serial: int
    tests: tuple[Test, ...]


@dataclass(slots=True)
class _Bounds:
    """Conjunctions filed under a numeric bound of one attribute, sorted by the bound.

    An upper bound is filed negated, so that one direction serves both: what is filed holds for
    `value` when its bound is at most `value` (strictness is left to the remaining tests).
    """

    bounds: list[tuple[float, int]] = field(default_factory=list)
    filed: dict[int, _Filed] = field(default_factory=dict)

    def add(self, bound: float, place: int, filed: _Filed) -> None:
        insort(self.bounds, (bound, place))
        self.filed[place] = filed

    def remove(self, bound: float, place: int) -> None:
        del self.bounds[bisect_left(self.bounds, (bound, place))]
        del self.filed[place]

    def candidates(self, value: float) -> list[_Filed]:
        filed = self.filed
        end = bisect_right(self.bounds, value, key=lambda item: item[0])
        return [filed[place] for _, place in self.bounds[:end]]


class MatchingIndex(Generic[Key]):
    """Predicates by key; `match` gives the keys of those that hold.

    Keys come back in the order in which they were added, so that every interpreter sees the
    same order.

    Paper: [GD02] ref. 2 and [GES] §2 use one such engine each; this one is not theirs.
    """

    def __init__(self) -> None:
        self._serials: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._undo: dict[Key, list[Callable[[], None]]] = {}
        self._next_serial = 0
        self._next_place = 0
        self._equal: dict[str, dict[tuple[str, Scalar], dict[int, _Filed]]] = {}
        self._at_least: dict[str, _Bounds] = {}
        self._at_most: dict[str, _Bounds] = {}
        self._present: dict[str, dict[int, _Filed]] = {}
        self._always: dict[int, _Filed] = {}

    def __len__(self) -> int:
        """How many predicates are filed."""
        return len(self._serials)

    def __contains__(self, key: Key) -> bool:
        """Whether a predicate is filed under `key`."""
        return key in self._serials

    def add(self, key: Key, predicate: Predicate) -> None:
        """File a predicate. The key must be new."""
        assert key not in self._serials, f"{key} is filed already"
        serial = self._next_serial
        self._next_serial += 1
        self._serials[key] = serial
        self._keys[serial] = key
        self._undo[key] = [
            undo for conjunction in predicate.any_of for undo in self._file(serial, conjunction)
        ]

    def remove(self, key: Key) -> None:
        """Forget a key and its predicate. The key must be filed."""
        for undo in self._undo.pop(key):
            undo()
        del self._keys[self._serials.pop(key)]

    def match(self, attributes: Attributes) -> tuple[Key, ...]:
        """The keys whose predicate holds, each once, in the order they were added."""
        found: dict[int, None] = {}
        for filed in self._always.values():
            _try(filed, attributes, found)
        for attribute, value in attributes.items():
            by_value = self._equal.get(attribute)
            if by_value is not None:
                for filed in by_value.get((kind(value), value), _NOTHING).values():
                    _try(filed, attributes, found)
            if isinstance(value, int | float) and not isinstance(value, bool):
                if attribute in self._at_least:
                    for filed in self._at_least[attribute].candidates(value):
                        _try(filed, attributes, found)
                if attribute in self._at_most:
                    for filed in self._at_most[attribute].candidates(-value):
                        _try(filed, attributes, found)
            for filed in self._present.get(attribute, _NOTHING).values():
                _try(filed, attributes, found)
        return tuple(self._keys[serial] for serial in sorted(found))

    def _file(self, serial: int, conjunction: Conjunction) -> list[Callable[[], None]]:
        access = self._choose_access(conjunction)
        rest = tuple(_compile(test) for test in conjunction if test is not access)
        place = self._next_place
        self._next_place += 1
        if access is None:
            return [_put(self._always, place, _Filed(serial, rest))]
        attribute, operator, value = access.attribute, access.operator, access.value
        if operator in ("=", "in"):
            by_value = self._equal.setdefault(attribute, {})
            values: Any = value if isinstance(value, tuple) else (value,)
            filed = _Filed(serial, rest)
            return [
                _put_under(by_value, key, place, filed)
                for key in dict.fromkeys((kind(item), item) for item in values)
            ]
        filed = _Filed(serial, (*rest, _compile(access)))
        if operator in (">", ">=", "<", "<=") and kind(value) == "number":
            assert isinstance(value, int | float)
            upward = operator.startswith(">")
            table = self._at_least if upward else self._at_most
            bounds = table.setdefault(attribute, _Bounds())
            bound = value if upward else -value
            bounds.add(bound, place, filed)
            return [lambda: bounds.remove(bound, place)]
        return [_put(self._present.setdefault(attribute, {}), place, filed)]

    def _choose_access(self, conjunction: Conjunction) -> Constraint | None:
        """The test that leaves the fewest candidates, judged by what is filed so far."""
        equalities = [test for test in conjunction if test.operator in ("=", "in")]
        if equalities:
            return max(equalities, key=lambda test: len(self._equal.get(test.attribute, ())))
        ranges = [test for test in conjunction if test.operator in (">", ">=", "<", "<=")]
        for test in ranges:
            if kind(test.value) == "number":
                return test
        for test in conjunction:
            if test.operator != "not exists":
                return test
        return None


_NOTHING: dict[int, _Filed] = {}


def _try(filed: _Filed, attributes: Attributes, found: dict[int, None]) -> None:
    if filed.serial in found:
        return
    for test in filed.tests:
        if not test(attributes):
            return
    found[filed.serial] = None


def _put(table: dict[int, _Filed], place: int, filed: _Filed) -> Callable[[], None]:
    table[place] = filed
    return lambda: table.__delitem__(place)


def _put_under(
    tables: dict[tuple[str, Scalar], dict[int, _Filed]],
    key: tuple[str, Scalar],
    place: int,
    filed: _Filed,
) -> Callable[[], None]:
    tables.setdefault(key, {})[place] = filed

    def undo() -> None:
        del tables[key][place]
        if not tables[key]:
            del tables[key]

    return undo


def _compile(constraint: Constraint) -> Test:
    """The constraint as a function; the common ones without a detour over operator names."""
    attribute, operator, reference = constraint.attribute, constraint.operator, constraint.value
    if kind(reference) == "number" and operator in _NUMERIC and not isinstance(reference, tuple):
        compare = _NUMERIC[operator]
        return lambda attributes: (
            _is_number(value := attributes.get(attribute)) and compare(value, reference)
        )
    if operator == "not exists":
        return lambda attributes: attribute not in attributes
    return lambda attributes: (
        (value := attributes.get(attribute)) is not None and holds_for(operator, value, reference)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_NUMERIC: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda value, reference: value == reference,
    "!=": lambda value, reference: value != reference,
    "<": lambda value, reference: value < reference,
    "<=": lambda value, reference: value <= reference,
    ">": lambda value, reference: value > reference,
    ">=": lambda value, reference: value >= reference,
}
