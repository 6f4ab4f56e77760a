"""Tests of the matching index against a plain twin, and of the memo in front."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.matching import index as index_module
from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import AT_ONCE, MatchMemo
from brokerd.model import predicate as predicate_module
from brokerd.model.predicate import EVERYTHING, Constraint, Predicate
from brokerd.model.predicate_text import parse_predicate
from tests.helpers.strategies import attributes, predicates


@given(
    filed=st.lists(predicates, max_size=12),
    removed=st.lists(st.integers(0, 11), max_size=6),
    event=attributes,
)
def test_the_index_finds_all_matching_predicates(filed, removed, event):
    index = MatchingIndex[int]()
    for key, predicate in enumerate(filed):
        index.add(key, predicate)
    gone = [key for key in dict.fromkeys(removed) if key < len(filed)]
    for key in gone:
        index.remove(key)
    dumb = [k for k, predicate in enumerate(filed) if k not in gone and predicate.matches(event)]
    assert list(index.match(event)) == dumb
    assert len(index) == len(filed) - len(gone)


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 6)), max_size=20),
    prices=st.lists(st.integers(-1, 16), min_size=1, max_size=3),
    by_symbol=st.booleans(),
)
def test_intervals_can_be_added_and_removed_between_matches(steps, prices, by_symbol):
    index, filed = MatchingIndex[int](), dict[int, Predicate]()
    for key, (comes, low, width) in enumerate(steps):
        if comes or not filed:
            text = f"price >= {low} and price < {low + width}"
            filed[key] = parse_predicate(f"symbol = 'x' and {text}" if by_symbol else text)
            index.add(key, filed[key])
        else:
            gone = [*filed][low % len(filed)]
            del filed[gone]
            index.remove(gone)
        for price in prices:
            event = {"symbol": "x", "price": price}
            assert [*index.match(event)] == [k for k, each in filed.items() if each.matches(event)]


@given(
    filed=st.lists(predicates, max_size=12),
    first=attributes,
    others=st.lists(attributes, max_size=5),
    alike=st.booleans(),
)
def test_many_are_matched_as_each_of_them_is(filed, first, others, alike):
    index = MatchingIndex[int]()
    for key, predicate in enumerate(filed):
        index.add(key, predicate)
    events = [first, *others]
    if alike:
        values = [value for event in events for value in event.values()]
        rows = [values[place:] + values[:place] for place in range(len(values))]
        events = [dict(zip(first, row, strict=False)) for row in rows] or [first, first]
    assert index.match_all(events) == [index.match(event) for event in events]


def test_a_removed_predicate_leaves_nothing_that_matches():
    index = MatchingIndex[str]()
    index.add(
        "a", parse_predicate("price > 1 or symbol in ('x', 'y') or not volume exists or true")
    )
    assert index.match({"price": 2}) == ("a",)
    index.remove("a")
    assert index.match({"price": 2, "symbol": "x"}) == ()


def test_a_value_listed_twice_is_filed_and_removed_once():
    index = MatchingIndex[str]()
    index.add("a", Predicate(((Constraint("price", "in", (0, 0.0, 0)),),)))
    assert index.match({"price": 0}) == ("a",)
    index.remove("a")
    assert index.match({"price": 0}) == ()


def test_a_bool_and_the_number_one_are_filed_apart():
    index = MatchingIndex[str]()
    index.add("bool", parse_predicate("flag = true"))
    index.add("number", parse_predicate("flag = 1"))
    assert index.match({"flag": True}) == ("bool",)
    assert index.match({"flag": 1}) == ("number",)
    assert index.match({"flag": 1.0}) == ("number",)


VALUES = (True, False, 1, 0, -1, 1.0, 0.0, -0.0, 0.5, float("inf"), "", "a", "true", "0")
TESTS = (
    *(Constraint("x", operator, value) for operator in ("=", "!=") for value in VALUES),
    *(
        Constraint("x", operator, value)
        for operator in ("<", "<=", ">", ">=")
        for value in VALUES
        if not isinstance(value, bool)
    ),
    *(Constraint("x", "in", values) for values in combinations(VALUES, 2)),
    Constraint("x", "exists", None),
    Constraint("x", "not exists", None),
)


@pytest.mark.parametrize("more", ["", "y = 1", "y >= 1"])
def test_every_test_of_every_value_is_as_in_a_plain_table(more):
    """A test that is drawn seldom meets an equal value, above all a boolean."""
    beside = parse_predicate(more).any_of[0] if more else ()
    index, filed = MatchingIndex[int](), {}
    for key, test in enumerate(TESTS):
        filed[key] = Predicate(((test, *beside),))
        index.add(key, filed[key])
    events = [{}, *({"x": value, "y": y} for value in VALUES for y in (0, 1))]
    plain = [tuple(k for k, each in filed.items() if each.matches(event)) for event in events]
    assert [index.match(event) for event in events] == plain
    assert index.match_all(events) == plain


def test_matching_keys_are_returned_in_the_order_of_their_addition():
    index = MatchingIndex[str]()
    for key in ("zebra", "ant", "moth"):
        index.add(key, EVERYTHING)
    index.remove("ant")
    index.add("ant", EVERYTHING)
    assert index.match({}) == ("zebra", "moth", "ant")


class Looks(dict):
    """Attributes that count the lookups of a test."""

    def __init__(self, attributes):
        super().__init__(attributes)
        self.looks = 0

    def get(self, name, default=None):
        self.looks += 1
        return super().get(name, default)


def held(index):
    """Return the number of entries in an index, of all kinds."""
    filed = len(index._always)
    for under in index._under.values():
        for bucket in (*under.equal.values(), *under.truths.values()):
            filed += len(bucket.unbounded)
            filed += sum(len(bounds.filed) for bounds in bucket.bounds.values())
        filed += len(under.at_least.filed) + len(under.at_most.filed) + len(under.present)
    return filed


LONGEST = tuple(range(256))


@pytest.mark.parametrize("operator", ["in", "not in"])
@pytest.mark.parametrize("value", [7, 7.0, True, "7", 300, -0.0])
def test_a_test_of_the_longest_list_compares_once(monkeypatch, operator, value):
    tests = tuple(Constraint("price", operator, LONGEST) for _ in range(63))
    predicate = Predicate(((Constraint("price", "exists", None), *tests),))
    index = MatchingIndex[int]()
    index.add(1, Predicate(tuple(((each,)) for each in tests)))
    index.add(2, predicate)
    wanted = tuple(key for key in (1, 2) if predicate.matches({"price": value}))
    compared = 0

    def count(value):
        nonlocal compared
        compared += 1
        return plain(value)

    plain = predicate_module.kind
    monkeypatch.setattr(predicate_module, "kind", count)
    monkeypatch.setattr(index_module, "kind", count)
    assert index.match({"price": value}) == wanted
    assert compared <= 2 * 63


def test_the_widest_predicate_is_filed_in_few_places():
    index = MatchingIndex[int]()
    lists = [tuple(range(256 * n, 256 * n + 256)) for n in range(64)]
    index.add(1, Predicate(tuple((Constraint("price", "in", each),) for each in lists)))
    assert held(index) < 600
    values = [-1, 0, 511, 512, 16_383, 16_384, "0", True]
    found = [price for price in values if index.match({"price": price})]
    assert found == [0, 511, 512, 16_383]
    index.remove(1)
    assert held(index) == 0


@pytest.mark.parametrize(
    "predicate",
    [
        "symbol = {n} and price > 10",
        "price >= {n} and price < {n} + 1",
        "price < {n} + 1 and symbol exists and price >= {n}",
        "kind = 'a' and price < {n} + 1 and price >= {n}",
    ],
)
def test_a_match_among_ten_thousand_similar_predicates_tests_only_candidates(predicate):
    index = MatchingIndex[int]()
    for key in range(10_000):
        text = predicate.replace("{n} + 1", str(key + 1)).replace("{n}", str(key))
        index.add(key, parse_predicate(text))
    event = Looks({"symbol": 77, "price": 77.5, "kind": "a"})
    assert index.match(event) == (77,)
    assert event.looks <= 2
    others = [Looks({"symbol": key, "price": key + 0.5, "kind": "a"}) for key in range(70, 90)]
    assert index.match_all([event, *others]) == [(77,), *((key,) for key in range(70, 90))]
    assert sum(each.looks for each in others) <= 4 * len(others)
    assert held(index) <= 2 * 10_000
    for key in range(10_000):
        if key != 77:
            index.remove(key)
    assert held(index) <= 2
    assert index.match({"symbol": 77, "price": 77.5, "kind": "a"}) == (77,)
    assert index.match({"symbol": 78, "price": 78.5, "kind": "a"}) == ()
    index.remove(77)
    assert held(index) == 0


def test_the_memo_decodes_each_blob_once_and_forgets_on_change():
    decoded = []

    def decode(blobs):
        decoded.extend(blobs)
        return [{"price": len(blob)} for blob in blobs]

    index = MatchingIndex[str]()
    index.add("dear", parse_predicate("price > 2"))
    memo = MatchMemo(index, decode)
    assert [memo.match(b"xxx"), memo.match(b"xxx"), memo.match(b"x")] == [("dear",), ("dear",), ()]
    assert decoded == [b"xxx", b"x"]
    assert (memo.hits, memo.misses) == (1, 2)
    index.add("all", EVERYTHING)
    memo.forget()
    assert memo.match(b"xxx") == ("dear", "all")


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_conclusions_are_shared_and_drawn_anew_after_a_change(limit):
    """A conclusion may depend on more than the keys, such as on the routes of a broker."""
    drawn = []

    def conclude(keys):
        drawn.append(keys)
        return [*keys, len(drawn)]

    index = MatchingIndex[str]()
    index.add("all", EVERYTHING)
    memo = MatchMemo(index, lambda blobs: [{"n": len(b)} for b in blobs], limit, conclude)
    for turn in (1, 2, 3):
        first, second = memo.match(b"x"), memo.match(b"yy")
        assert first == ["all", turn]
        assert first is second, "the same keys have one conclusion"
        memo.forget()


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=6))
def test_the_memo_matches_many_blobs_as_single_blobs(asked):
    """The memo is small, and is therefore cleared between blobs."""

    def decode(blobs):
        return [{"price": blob[0]} for blob in blobs]

    index = MatchingIndex[str]()
    for limit in (5, 10, 20):
        index.add(f"above {limit}", parse_predicate(f"price > {limit}"))
    memo, single = MatchMemo(index, decode, limit=4), MatchMemo(index, decode)
    for numbers in asked:
        blobs = [bytes([number]) for number in numbers]
        assert memo.match_all(blobs) == [single.match(blob) for blob in blobs]
        assert len(memo._results) <= 4


def test_new_attributes_cost_one_decoding_each_and_bounded_memory():
    decoded, at_once = 0, []

    def decode(blobs):
        nonlocal decoded
        decoded += len(blobs)
        at_once.append(len(blobs))
        return [{"n": int.from_bytes(blob)} for blob in blobs]

    index = MatchingIndex[int]()
    for key in range(500):
        index.add(key, parse_predicate(f"n >= {key * 20_000} and n < {(key + 1) * 20_000}"))
    memo = MatchMemo(index, decode, limit=1_000)
    for first in range(0, 40_000, 8_000):
        blobs = [number.to_bytes(3) for number in range(first, first + 8_000)]
        assert memo.match_all(blobs) == [
            (number // 20_000,) for number in range(first, first + 8_000)
        ]
        assert len(memo._results) <= 1_000
        assert len(memo._by_keys) <= 1_000
    assert (decoded, memo.misses, memo.hits) == (40_000, 40_000, 0)
    assert max(at_once) <= AT_ONCE


def test_the_memo_never_holds_more_than_its_limit():
    memo = MatchMemo(MatchingIndex[str](), lambda blobs: [{} for _ in blobs], limit=10)
    for number in range(1000):
        memo.match(number.to_bytes(2, "big"))
        assert len(memo._results) <= 10
    assert memo.misses == 1000
    for first in range(1000, 2000, 50):
        memo.match_all([number.to_bytes(2, "big") for number in range(first, first + 50)])
        assert len(memo._results) <= 10
    assert memo.misses == 2000


def test_a_blob_that_cannot_be_decoded_is_not_remembered():
    def decode(blobs):
        raise ValueError("not an attribute map")

    memo = MatchMemo(MatchingIndex[str](), decode)
    for _ in range(2):
        with pytest.raises(ValueError, match="not an attribute map"):
            memo.match(b"bad")
