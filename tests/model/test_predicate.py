"""Tests of predicates: meaning of the text, matches, and refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.model.predicate import EVERYTHING, Constraint, Predicate, PredicateError
from brokerd.model.predicate_text import format_predicate, parse_predicate
from brokerd.protocols.parts.records import predicate_row, read_predicate
from tests.helpers.strategies import attributes, predicates

IBM = {"symbol": "IBM", "price": 120, "volume": 3}


@pytest.mark.parametrize(
    "text, holds",
    [
        ("true", True),
        ("not true", False),
        ("symbol = 'IBM' and price > 100 or volume in (1, 2)", True),
        ("symbol = 'IBM' and (price > 200 or volume in (1, 2))", False),
        ("volume in (1, 2, 3.0)", True),
        ("not volume in (1, 2)", True),
        ("not volume in ('a', 'b')", False),  # no item is comparable
        ("symbol prefix 'IB' and symbol suffix 'BM' and symbol contains 'B'", True),
        ("not symbol prefix 'X'", True),
        ("not price prefix '1'", False),  # a number has no prefix, negated or not
        ("absent != 1", False),
        ("not absent = 1", False),
        ("absent exists", False),
        ("not absent exists", True),
        ("not (symbol = 'X' or price < 100)", True),
        ("not (symbol = 'IBM' and price < 100)", True),
        ("price = 120.0", True),
        ("price != 'IBM'", False),
        ("price >= 120 and price <= 120", True),
        ("symbol > 'IBL'", True),
        ("symbol = 'it''s'", False),
        ("NOT symbol = 'X' AND TRUE", True),
    ],
)
def test_a_predicate_matches_a_publication_as_specified(text, holds):
    assert parse_predicate(text).matches(IBM) is holds


def test_bool_compares_only_with_bool():
    assert parse_predicate("flag = true").matches({"flag": True})
    assert not parse_predicate("flag = true").matches({"flag": 1})
    assert not parse_predicate("flag = 1").matches({"flag": True})
    assert not parse_predicate("flag in (1, 0)").matches({"flag": True})


ALIKE = (True, 1, 1.0, "1", False, 0, 0.0, -0.0, "", "0", 1 << 53, (1 << 53) + 1, 2.0**53)


def test_predicates_are_equal_by_kind_and_value():
    """Two predicates are equal if and only if a publication with one value matches the other."""
    for one in ALIKE:
        for other in ALIKE:
            wants_one = Predicate(((Constraint("x", "=", one),),))
            wants_other = Predicate(((Constraint("x", "=", other),),))
            same = wants_one.matches({"x": other})
            assert (wants_one == wants_other) is same, f"{one!r} and {other!r}"
            assert len({wants_one, wants_other}) == 2 - same, f"{one!r} and {other!r}"
            assert (
                Constraint("x", "in", (0.5, one)) == Constraint("x", "in", (0.5, other))
            ) is same
    assert Constraint("x", "=", 1) != Constraint("x", "!=", 1)
    assert Constraint("x", "=", 1) != Constraint("y", "=", 1)
    assert Constraint("x", "exists", None) == Constraint("x", "exists", None)
    assert Constraint("x", "=", 1) != "x = 1"


@given(predicates, predicates, attributes)
def test_equal_predicates_match_the_same_publications(one, other, some):
    assert one != other or one.matches(some) == other.matches(some)
    assert one != other or hash(one) == hash(other)
    assert read_predicate(predicate_row(one)) == one


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "character 1: expected an attribute name"),
        ("a =", "character 4: expected a value"),
        ("a = 'x", "character 5: a text stands between single quotes"),
        ('a = "x"', "character 5: a text stands between single quotes"),
        ("a ? 3", "character 3: '?' cannot be read"),
        ("a = 1 && b = 2", "character 7: '&' cannot be read; write `and`"),
        ("a ≤ 3", "character 3: '≤' cannot be read; write `<=`"),
        ("a = ‘x’", "character 5: '‘' cannot be read; texts stand between straight"),
        ("a = 1 b = 2", "character 7: expected `and`, `or` or the end"),
        ("in = 3", "'in' is a word of the language"),
        ("a in 3", "expected '(' after in"),
        ("a in (1", "expected ',' or ')'"),
        ("(a = 1", "expected ')'"),
        ("a 3", "expected one of ="),
        ("a prefix 3", "operator 'prefix' cannot take"),
        ("a = 99999999999999999999", "more than 64 bits"),
        ("a = " + "9" * 5000, "more than 64 bits"),
        ("a = 9223372036854775808", "more than 64 bits"),
        ("a = '" + "x" * 257 + "'", "longer than 256 bytes"),
        ("a in (" + ", ".join(str(i) for i in range(257)) + ")", "1 to 256 items"),
        ("not " * 9 + "a = 1", "nest deeper than 8"),
        ("(" * 9 + "a = 1" + ")" * 9, "nest deeper than 8"),
        (" or ".join(f"a = {i}" for i in range(65)), "more than 64 tests"),
        (" and ".join(f"(a{i} = 1 or b{i} = 2)" for i in range(40)), "more than 64 tests"),
        ("not (" + " or ".join(f"(a{i} = 1 and b{i} = 2)" for i in range(40)) + ")", "64 tests"),
        ("x" * 20_000, "at most 16384"),
    ],
)
def test_a_predicate_that_cannot_be_used_is_refused_with_the_reason(text, reason):
    with pytest.raises(PredicateError) as refused:
        parse_predicate(text)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 300


def test_the_limit_itself_is_allowed():
    parse_predicate(" or ".join(f"a = {i}" for i in range(64)))
    parse_predicate("(" * 8 + "a = 1" + ")" * 8)
    parse_predicate("a = 9223372036854775807 or a = -9223372036854775808")


def test_nan_is_no_value():
    with pytest.raises(PredicateError, match="NaN"):
        Constraint("a", "=", float("nan"))


@pytest.mark.parametrize(
    "operator, value",
    [("~", 1), ("=", None), ("=", (1,)), ("in", 1), ("in", ()), ("exists", 1), ("prefix", 1)],
)
def test_an_operator_that_does_not_fit_its_value_is_refused(operator, value):
    with pytest.raises(PredicateError):
        Constraint("a", operator, value)


@given(st.text(alphabet="ab ='()<>!notandr1.,", max_size=40))
def test_any_text_is_either_read_or_refused(text):
    try:
        predicate = parse_predicate(text)
    except PredicateError:
        return
    assert isinstance(predicate.matches({"a": 1, "b": "x"}), bool)


def test_no_test_at_all_matches_everything_and_no_conjunction_nothing():
    assert EVERYTHING.matches({})
    assert not Predicate(()).matches({})


@given(predicates)
def test_a_formatted_predicate_is_read_as_the_same_one(one):
    assert parse_predicate(format_predicate(one)) == one


@pytest.mark.parametrize(
    "text",
    ["true", "not true", "not n in (1, 2.5, 'it''s', true)", "a exists and b prefix 'x' or c < -1"],
)
def test_a_predicate_is_formatted_as_it_was_written(text):
    assert format_predicate(parse_predicate(text)) == text


@pytest.mark.parametrize(
    "text, hint",
    [
        ("price == 5", "; equality is written with one ="),
        ("price =< 5", "; write `<=`"),
        ("price => 5", "; write `>=`"),
        ("price <> 5", "; write `!=`"),
        ("price <= < 5", ""),
        ("price in (< 5)", ""),
    ],
)
def test_an_operator_of_another_language_is_answered_with_ours(text, hint):
    with pytest.raises(PredicateError) as caught:
        parse_predicate(text)
    assert str(caught.value).endswith(f": expected a number, a 'string', true or false{hint}")
