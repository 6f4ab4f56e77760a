"""Tests of topics: the topic attribute, all topics, and the topics that a filter matches."""

from pathlib import Path

import pytest

from bench.spec.spec import WORKLOADS, load_experiment
from bench.spec.validation import SpecError
from bench.spec.values import topic_names, topics_of

NAMES = ("a", "b", "c/d")


@pytest.mark.parametrize(
    "predicate, wanted",
    [
        ("topic = 'b'", ("b",)),
        ("topic in ('c/d', 'a')", ("a", "c/d")),
        ("topic prefix 'c'", ("c/d",)),
        ("true", NAMES),
        ("topic = 'nobody'", ()),
        ("topic = 'a' or price > 3", None),
        ("topic = 'a' and price > 3", None),
    ],
)
def test_a_filter_wants_topics_where_it_tests_nothing_else(
    predicate: str, wanted: tuple[str, ...] | None
) -> None:
    assert topics_of(predicate, "topic", NAMES) == wanted


def test_topics_are_the_values_of_the_attribute() -> None:
    assert topic_names("symbol", {"choose": 2}) == ("SYMBOL000", "SYMBOL001")
    assert topic_names("symbol", {"cycle": 1}) == ("SYMBOL000",)
    assert topic_names("symbol", {"choose": ["x", "y", "x"]}) == ("x", "y")


WORKLOAD = """
schema = "pubsubctl/workload/1"
name = "w"
topology = "single"
protocol = "best_effort"
topic = "symbol"
[phases]
measure = "1s"
[attributes]
symbol = {symbol}
price = {{ uniform = [1, 5] }}
[[publishers]]
at = "c1"
rate = "1/s"
[[subscribers]]
at = "c1"
"""


def test_a_written_workload_keeps_its_topic_attribute(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(WORKLOAD.format(symbol="{ choose = 3 }"))
    spec = load_experiment(path)
    again = tmp_path / "again.toml"
    again.write_text(spec.workload_toml())
    assert load_experiment(again).workload.topic == "symbol"


@pytest.mark.parametrize(
    "symbol, typed, said",
    [
        ("{ choose = 3 }", "symbl", "no attribute has this name; did you mean 'symbol'?"),
        ("{ choose = 3 }", "price", "topics are chosen or cycle"),
        ('{ choose = ["a", "b.*"] }', "symbol", "'b.*' is not of letters"),
        ('{ choose = ["a", "b/#"] }', "symbol", "a wildcard is no part of a topic"),
        ('{ choose = ["a", ""] }', "symbol", "topic '' is not of letters"),
        ("{ choose = [1, 2] }", "symbol", "topic 1 is no text"),
    ],
)
def test_an_invalid_topic_attribute_is_named(
    symbol: str, typed: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "w.toml"
    text = WORKLOAD.format(symbol=symbol)
    path.write_text(text.replace('topic = "symbol"', f'topic = "{typed}"'))
    with pytest.raises(SpecError) as error:
        load_experiment(path)
    assert said in str(error.value)


def test_the_topic_must_be_the_topic_attribute_of_the_protocol(tmp_path: Path) -> None:
    written = (WORKLOADS / "proxies.toml").read_text(encoding="utf-8")
    path = tmp_path / "w.toml"
    other = written.replace('topic = "symbol"', 'topic = "place"')
    path.write_text(
        other.replace("[attributes]", '[attributes]\nplace = { choose = ["a", "b"] }'),
        encoding="utf-8",
    )
    with pytest.raises(SpecError, match=r"topic = 'place': multi_proxy on .* topics by 'symbol'"):
        load_experiment(path)
