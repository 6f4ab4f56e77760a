"""Tests of the expected content of a run against the generator's tables and the broker's matching.

The checker's reading of the rules and the other readings were written independently from the same
paragraph. These tests show a mistake in any of them.
"""

import random

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load import content
from brokerd.model.predicate import Predicate, PredicateError
from brokerd.model.predicate_text import parse_predicate as parse_as_brokers_do
from results.reference.contents import Contents
from results.reference.predicates import wants
from results.rules.expectation import (
    ExpectationError,
    ExpectedContent,
    attribute_table,
    encode_attributes,
    parse_predicate,
    payload_table,
    splitmix64,
)
from results.tables.record_readers import compute_expected_columns
from tests.helpers.strategies import attributes

WORKLOAD = {
    "seed": 11,
    "attributes": {
        "sets": 20,
        "symbol": {"choose": 10},
        "side": {"choose": ["buy", "sell", True, 1, "1"]},
        "price": {"uniform": [1, 500]},
        "weight": {"uniform": [0, 2.5]},
    },
    "publishers": [
        {"at": ["p1", "p2"], "count": 2, "size": "100B"},
        {"at": "p1", "size": "1KiB"},
    ],
}


def test_splitmix64_yields_the_published_series() -> None:
    state, found = 1234567, []
    for _ in range(3):
        found.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_contents_are_those_the_load_generator_prepares() -> None:
    expected = ExpectedContent.from_workload(WORKLOAD, "run-1")
    definitions = {k: v for k, v in WORKLOAD["attributes"].items() if k != "sets"}
    sets = content.draw_attribute_sets(11, definitions, 20)
    assert list(expected.attribute_sets) == sets
    assert [(p.name, p.index, p.size_bytes) for p in expected.publishers.values()] == [
        ("p1-pub-1", 0, 100), ("p1-pub-2", 1, 100), ("p2-pub-1", 2, 100), ("p2-pub-2", 3, 100),
        ("p1-pub-3", 4, 1024),
    ]  # fmt: skip
    for publisher in expected.publishers.values():
        assert payload_table(11, publisher.size_bytes) == tuple(
            content.draw_payloads(11, publisher.size_bytes)
        )
        tables = content.ContentTables.build(
            11,
            sets,
            publisher.size_bytes,
            lambda attributes: cbor2.dumps(attributes, canonical=True),
        )
        for incarnation in (0, 3):
            source = content.SourceContent(tables, 11, publisher.index, incarnation)
            for sequence in (*range(1, 40), 2**40, 2**63 - 1):
                assert expected.choice(publisher.index, incarnation, sequence) == source.choice(
                    sequence
                )
            block = source.block_of(1)
            assert [
                expected.digest(publisher, incarnation, 1 + n, fence=False) for n in range(16)
            ] == list(block.digests[:16])


@pytest.mark.parametrize("name", ["a", "serial", "z" * 30])
@pytest.mark.parametrize("start", [0, 20, 250, 65_000, 2**32 - 5])
def test_no_two_publications_have_the_same_attributes_where_one_counts(
    name: str, start: int
) -> None:
    ways = {"symbol": {"choose": 3}, name: {"sequence": start}, "price": {"uniform": [1, 9.5]}}
    workload = {**WORKLOAD, "attributes": {"sets": 20, **ways}}
    expected = ExpectedContent.from_workload(workload, "run-1")
    referee = Contents.from_workload(workload, "run-1")
    sets = content.draw_attribute_sets(11, ways, 20)
    assert list(expected.attribute_sets) == sets == list(referee.attribute_sets)
    tables = content.ContentTables.build(11, sets, 100, encode_attributes, ways)
    source = content.SourceContent(tables, 11, 0, 3)
    publisher, judged = expected.publishers["p1-pub-1"], referee.publishers["p1-pub-1"]
    seen = set()
    for first in (1, 1 + 200 * source.block_size):
        block = source.block_of(first)
        for place in range(0, len(block), 5):
            sequence = first + place
            blob = block.blobs[place]
            wanted = {**sets[source.choice(sequence)[0]], name: start + sequence - 1}
            assert blob == source.blob(sequence) == cbor2.dumps(wanted, canonical=True)
            digest = expected.digest(publisher, 3, sequence, fence=False)
            assert digest == block.digests[place]
            assert digest == referee.digest(judged, 3, sequence, fence=False)
            seen.add(blob)
    assert len(seen) == 2 * len(range(0, source.block_size, 5))
    rows = np.zeros(4, [("incarnation", "<i4"), ("sequence", "<i8"), ("attribute_set", "<i4")])
    rows["incarnation"], rows["sequence"] = 3, [1, 2, 3, 4]
    rows["attribute_set"] = [0, 0, 0, expected.fence_set]
    judged_digests = [referee.digest(judged, 3, n, fence=n == 4) for n in (1, 2, 3, 4)]
    assert compute_expected_columns(expected, "p1-pub-1", rows)[1].tolist() == judged_digests


def test_an_unsupported_attribute_definition_is_refused() -> None:
    with pytest.raises(ExpectationError, match="zipf"):
        attribute_table(1, {"x": {"zipf": 1.1}}, 1)


@given(st.dictionaries(st.text(max_size=40), st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.text(max_size=300), st.booleans(),
    st.floats(allow_nan=False), st.floats(allow_nan=False, width=16),
), max_size=30))  # fmt: skip
def test_attributes_are_encoded_as_canonical_cbor(attributes: dict) -> None:
    assert encode_attributes(attributes) == cbor2.dumps(attributes, canonical=True)


VALUES = ("1", "-2", "2.0", "0.5", "'ab'", "''", "'a''b'", "true", "FALSE", "1e2", "'ä'")
NAMES = ("price", "symbol", "volume", "flag", "a.b-c", "trueness", "not_here")


def random_predicate(rng: random.Random, depth: int = 0) -> str:
    shape = rng.random()
    if depth < 3 and shape < 0.5:
        parts = [random_predicate(rng, depth + 1) for _ in range(rng.choice((2, 2, 3)))]
        text = rng.choice((" and ", " or ")).join(parts)
        return rng.choice((text, f"({text})", f"not ({text})"))
    name = rng.choice(NAMES[:4])
    test = rng.choice((
        f"{name} {rng.choice(('=', '!=', '<', '<=', '>', '>='))} {rng.choice(VALUES)}",
        f"{name} in ({', '.join(rng.choices(VALUES, k=rng.randint(1, 3)))})",
        f"{name} {rng.choice(('prefix', 'suffix', 'contains'))} {rng.choice(VALUES[4:7])}",
        f"{name} exists", "true",
    ))  # fmt: skip
    return rng.choice((test, test, f"not {test}", f"not not {test}"))


def random_attributes(rng: random.Random) -> dict:
    values = (1, -2, 2, 2.0, 0.5, 0, 100, "ab", "", "a'b", "abab", True, False, "ä", "ä2")
    return {name: rng.choice(values) for name in NAMES[:4] if rng.random() < 0.7}


def test_both_readings_of_the_predicate_rules_agree() -> None:
    seed = 20_240
    rng = random.Random(seed)
    compared = held = refused = 0
    while compared < 20_000:
        text = random_predicate(rng)
        try:
            theirs: Predicate = parse_as_brokers_do(text)
        except PredicateError:  # larger than brokers take
            refused += 1
            continue
        ours = parse_predicate(text)
        for _ in range(5):
            attributes = random_attributes(rng)
            holds = ours.holds(attributes)
            assert holds == theirs.matches(attributes), (seed, text, attributes)
            compared += 1
            held += holds
    assert 0.2 < held / compared < 0.8
    assert refused < compared / 50


@pytest.mark.parametrize("text, attributes, holds", [
    ("price > 100", {"price": 100.5}, True),
    ("not price > 100", {}, False),
    ("not price > 100", {"price": "dear"}, False),
    ("price != 1", {"price": True}, False),
    ("price = 1", {"price": 1.0}, True),
    ("flag = true", {"flag": 1}, False),
    ("not price exists", {}, True),
    ("price not in ('a', 'b')", {"price": 3}, False),
    ("price not in ('a', 4)", {"price": 3}, True),
    ("not (price > 1 and symbol = 'a')", {"symbol": "b"}, True),
    ("not (price > 1 or symbol = 'a')", {"symbol": "b"}, False),
    ("a = 1 or b = 1 and c = 1", {"a": 1}, True),
    ("symbol < 'b'", {"symbol": "B"}, True),
    ("price > 1 or fence = 'r'", {"fence": "r"}, True),
])  # fmt: skip
def test_predicates_hold_as_the_rules_specify(text: str, attributes: dict, holds: bool) -> None:
    assert parse_predicate(text).holds(attributes) is holds


@pytest.mark.parametrize("text", [
    "", "price", "price >", "price > 1 and", "price in ()", "price in (1", "(price > 1",
    "price > 1)", "price ~ 1", "'a' = price", "price > 1 price < 2", "price = 'a",
])  # fmt: skip
def test_an_unparsable_predicate_raises_an_error(text: str) -> None:
    with pytest.raises(ExpectationError):
        parse_predicate(text)


@given(attributes)
def test_a_predicate_and_its_negation_never_both_hold(attributes: dict) -> None:
    for text in ("price > 0", "symbol contains 'a'", "price in (1, 'a')", "flag exists"):
        assert not (
            parse_predicate(text).holds(attributes)
            and parse_predicate(f"not {text}").holds(attributes)
        )


@pytest.mark.parametrize("opened, closed", [("(", ")"), ("not ", ""), ("NOT ", "")])
def test_both_readers_refuse_predicates_behind_the_same_depth(opened: str, closed: str) -> None:
    depths = {1: True, 99: True, 100: True, 101: False, 5_000: False}
    for depth, is_read in depths.items():
        text = opened * depth + "price = 1" + closed * depth
        for read in (parse_predicate, wants):
            if is_read:
                read(text)
                continue
            refused = "nest deeper|at most"
            with pytest.raises((ExpectationError, ValueError), match=refused):
                read(text)


@pytest.mark.parametrize(
    "text",
    [
        *("a = ''", "a = ''''", "a = 'it''s'", "a = 'it''''s'", "a = '''", "a = 'it", "a = it'"),
        *("a='x'or a=''", "a>1and a='x'or a=''", "a=.5or a=''", "a=1e1or not a exists"),
        *("a='x'or a='y'", "a in ('x','y''')", "not(a='x')", "a = 'x' ", "a prefix 'it''"),
        *(f"a = '{'x' * 16_378}'", f"a = '{'x' * 16_379}'"),
    ],
    ids=lambda text: text[:16] + str(len(text)),
)
def test_both_judges_read_quotes_and_lengths_alike(text: str) -> None:
    values = ["", "'", "it's", "it''s", "x", "y", "y'", "it'", "x" * 16_378]
    found: list[list[bool] | None] = []
    for read in (lambda: parse_predicate(text).holds, lambda: wants(text)):
        try:
            holds = read()
        except (ValueError, ExpectationError):
            found.append(None)
        else:
            found.append([holds({"a": value}) for value in values])
    assert found[0] == found[1]
    assert (found[0] is None) == (text.count("'") % 2 == 1 or len(text) > 16_384)
