"""Tests of attributes on a command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.model.predicate_text import parse_attributes


@pytest.mark.parametrize(
    "text, attributes",
    [
        ("kind=order", {"kind": "order"}),
        ("kind=order, price=30", {"kind": "order", "price": 30}),
        ("price=1.5e3,left=-7,more=+2", {"price": 1500.0, "left": -7, "more": 2}),
        ("ok=true,open=False", {"ok": True, "open": False}),
        ("text='true',number='30'", {"text": "true", "number": "30"}),
        ("name='a, ''b'' = c'", {"name": "a, 'b' = c"}),
        ("path=a=b,none=", {"path": "a=b", "none": ""}),
        ("least=-9223372036854775808", {"least": -(1 << 63)}),
        ("", {}),
    ],
)
def test_a_text_names_attributes_with_values_of_their_kinds(
    text: str, attributes: dict[str, object]
) -> None:
    found = parse_attributes(text)
    assert found == attributes
    assert [*map(type, found.values())] == [*map(type, attributes.values())]


@pytest.mark.parametrize(
    "text, fault",
    [
        ("order", "character 1: expected `name=value`"),
        ("kind=order,price", "character 12: expected `name=value`"),
        ("kind=order,,price=1", "character 12: expected `name=value`"),
        ("=3", "character 1: expected `name=value`"),
        ("kind='order", "character 1: expected `name=value`"),
        ("kind=a'b", "character 1: expected `name=value`"),
        ("kind=a,kind=b", "character 8: 'kind' stands there twice"),
        ("price=9223372036854775808", "'price': an integer of more than 64 bits"),
        (f"price={'9' * 5000}", "'price': an integer of more than 64 bits"),
        (f"a={'x' * (1 << 16)}", "65538 characters; at most 65536"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="attribute") as refused:
        parse_attributes(text)
    assert fault in str(refused.value)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(max_size=20)))
def test_quoted_values_may_be_any_text(attributes: dict[str, str]) -> None:
    quoted = {name: value.replace("'", "''") for name, value in attributes.items()}
    text = ",".join(f"{name}='{value}'" for name, value in quoted.items())
    assert parse_attributes(text) == attributes
