"""Tests of S-PRED-1 and S-PRED-2: requests of clients are bounded, and never become code."""

import ast
import random
from pathlib import Path

import pytest

from brokerd.matching.index import MatchingIndex
from brokerd.model.predicate import PredicateError
from brokerd.model.predicate_text import parse_predicate
from results.checker.latency import quantile_of

ROOT = Path(__file__).parents[2]
SEED = 20_261
WORDS = (
    "a", "b", "'x'", "'y z'", "and", "or", "not", "(", ")", "=", "!=", "<", ">=", "in", "prefix",
    "exists", "1", "-2.5", ",", "true", "'" + "q" * 250 + "'", "a" * 250,
)  # fmt: skip


def test_every_accepted_value_is_bounded() -> None:
    draw = random.Random(SEED)
    accepted = longest_refusal = 0
    for _ in range(20_000):
        length = draw.randrange(1, 12)
        text = " ".join(draw.choices(WORDS, k=length))
        try:
            predicate = parse_predicate(text)
        except PredicateError as error:
            longest_refusal = max(longest_refusal, len(str(error)))
            continue
        accepted += 1
        tests = [constraint for conjunction in predicate.any_of for constraint in conjunction]
        assert len(tests) <= 64
        for test in tests:
            values = test.value if isinstance(test.value, tuple) else (test.value,)
            assert len(values) <= 256
            assert all(len(v.encode()) <= 256 for v in (test.attribute, *values) if type(v) is str)
        assert predicate.matches({"a": 1, "b": "x"}) in (True, False)
    assert accepted > 100, f"seed {SEED} shows nothing"
    assert longest_refusal < 400


def test_no_regular_expression_is_compiled_from_input() -> None:
    """A regular expression has no time limit, so all expressions are constants of the program."""
    found = []
    for top in ("brokerd",):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
                if of_re and node.args and not isinstance(node.args[0], ast.Constant):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


QUERIES = ("sql", "expr", "selectExpr", "where", "filter")


def test_no_query_is_built_from_log_contents() -> None:
    """S-SPARK-2: conditions are columns, or constant texts of the program.

    Spark has no function for a quantile of ranks; `quantile_of` asserts the name of its column.
    """
    calls, made = 0, []
    for path in (ROOT / "results").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in QUERIES:
                calls += 1
                is_made = any(
                    isinstance(part, ast.JoinedStr | ast.Mod)
                    or (isinstance(part, ast.Attribute) and part.attr == "format")
                    for argument in node.args
                    for part in ast.walk(argument)
                )
                made += [path.relative_to(ROOT).as_posix()] * is_made
    assert calls > 20, "nothing was looked at"
    assert made == ["results/checker/latency.py"]
    with pytest.raises(AssertionError, match="part of a query"):
        quantile_of("x) FROM t", 0.5)


def test_ten_thousand_near_identical_predicates_are_not_tried_one_by_one() -> None:
    index: MatchingIndex[int] = MatchingIndex()
    for number in range(10_000):
        index.add(number, parse_predicate(f"topic = 't{number}' and price > {number % 7}"))

    class Counting(dict[str, object]):
        looked = 0

        def get(self, key: str, default: object = None) -> object:
            Counting.looked += 1
            return super().get(key, default)

        def __getitem__(self, key: str) -> object:
            Counting.looked += 1
            return super().__getitem__(key)

    assert index.match(Counting({"topic": "t77", "price": 100})) == (77,)  # type: ignore[arg-type]
    assert Counting.looked < 100
