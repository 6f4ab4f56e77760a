"""Predicates and attributes as text: `symbol = 'IBM' and price > 100`, `price=30`.

Grammar of predicates, loosest first: `or`, `and`, `not`, then a bracket, `true`, or one test. `not`
and brackets are resolved into an OR of conjunctions before the limits are applied.

Attributes are a list of names and values, with commas between. A value is a number, `true` or
`false`, a string in single quotes with quotes doubled inside, or bare text up to the next comma.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from brokerd.model.predicate import (
    INTEGER_LIMIT,
    MAXIMUM_DEPTH,
    MAXIMUM_TERMS,
    Conjunction,
    Constraint,
    Predicate,
    PredicateError,
    Scalar,
)

MAXIMUM_TEXT = 16_384

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
      | (?P<string>'(?:[^']|'')*')
      | (?P<word>[A-Za-z_][A-Za-z0-9_.-]*)
      | (?P<symbol><=|>=|!=|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_WORD_OPERATORS = ("in", "prefix", "suffix", "contains", "exists")
_RESERVED = ("and", "or", "not", "true", "false", *_WORD_OPERATORS)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse_predicate(text: str) -> Predicate:
    """Return the predicate that `text` describes.

    Strings are in single quotes, with quotes doubled inside. `not` before a comparison such as `=`
    inverts the comparison; `not` before `in`, `prefix`, `suffix`, `contains`, `exists` negates the
    test.

    Raises:
        PredicateError: the text cannot be parsed, or the predicate breaks a limit; the text states
            the position, counted from 1.
    """
    if len(text) > MAXIMUM_TEXT:
        raise PredicateError(f"a predicate of {len(text)} characters; at most {MAXIMUM_TEXT}")
    parser = _Parser(text)
    conjunctions = parser.disjunction(negated=False, depth=0)
    parser.expect_end()
    return Predicate(tuple(conjunctions))


def format_predicate(predicate: Predicate) -> str:
    """Return the text of a predicate; `parse_predicate` returns an equal one."""
    parts = [" and ".join(map(_format_test, each)) or "true" for each in predicate.any_of]
    return " or ".join(parts) or "not true"


def _format_test(test: Constraint) -> str:
    plain = test.operator.removeprefix("not ")
    words = ["not"] * (plain != test.operator) + [test.attribute, plain]
    if isinstance(test.value, tuple):
        words.append(f"({', '.join(map(predicate_value, test.value))})")
    elif test.value is not None:
        words.append(predicate_value(test.value))
    return " ".join(words)


def predicate_value(value: Scalar) -> str:
    """Return a value in the syntax of predicates."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0

    def disjunction(self, *, negated: bool, depth: int) -> list[Conjunction]:
        parts = [self._conjunction(negated=negated, depth=depth)]
        while self._take_word("or"):
            parts.append(self._conjunction(negated=negated, depth=depth))
        return _all_of(parts) if negated else _disjoin(parts)

    def _conjunction(self, *, negated: bool, depth: int) -> list[Conjunction]:
        parts = [self._factor(negated=negated, depth=depth)]
        while self._take_word("and"):
            parts.append(self._factor(negated=negated, depth=depth))
        return _disjoin(parts) if negated else _all_of(parts)

    def _factor(self, *, negated: bool, depth: int) -> list[Conjunction]:
        if depth > MAXIMUM_DEPTH:
            raise PredicateError(f"brackets and `not` nest deeper than {MAXIMUM_DEPTH}")
        if self._take_word("not"):
            return self._factor(negated=not negated, depth=depth + 1)
        if self._take_symbol("("):
            inner = self.disjunction(negated=negated, depth=depth + 1)
            if not self._take_symbol(")"):
                raise self._error("expected ')'")
            return inner
        if self._take_word("true"):
            return [] if negated else [()]
        return [(self._test(negated=negated),)]

    def _test(self, *, negated: bool) -> Constraint:
        attribute = self._take("word", "an attribute name")
        if attribute.text.lower() in _RESERVED:
            raise self._error(f"{attribute.text!r} is a word of the language", attribute.at)
        if self._take_word("exists"):
            return Constraint(attribute.text, "not exists" if negated else "exists", None)
        for word in _WORD_OPERATORS:
            if self._take_word(word):
                operator = f"not {word}" if negated else word
                return Constraint(
                    attribute.text, operator, self._list() if word == "in" else self._value()
                )
        if self._peek() is not None and self._peek_text() in _NEGATED:
            operator = self._tokens[self._next].text
            self._next += 1
            return Constraint(
                attribute.text, _NEGATED[operator] if negated else operator, self._value()
            )
        raise self._error("expected one of = != < <= > >= in prefix suffix contains exists")

    def _list(self) -> tuple[Scalar, ...]:
        if not self._take_symbol("("):
            raise self._error("expected '(' after in")
        values = [self._value()]
        while self._take_symbol(","):
            values.append(self._value())
        if not self._take_symbol(")"):
            raise self._error("expected ',' or ')'")
        return tuple(values)

    def _value(self) -> Scalar:
        token = self._peek()
        if token is None:
            raise self._error("expected a value")
        self._next += 1
        if token.kind == "string":
            return token.text[1:-1].replace("''", "'")
        if token.kind == "number":
            if any(character in token.text for character in ".eE"):
                return float(token.text)
            if len(token.text) > 20:
                raise self._error("an integer needs more than 64 bits", token.at)
            return int(token.text)
        if token.kind == "word" and token.text.lower() in ("true", "false"):
            return token.text.lower() == "true"
        before = self._tokens[self._next - 2].text
        hint = _OTHER_OPERATORS.get(f"{before}{token.text}", "")
        if token.kind == "word":
            hint = f"; a text stands in single quotes: '{token.text}'"
        raise self._error(f"expected a number, a 'string', true or false{hint}", token.at)

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _peek_text(self) -> str:
        token = self._peek()
        return token.text if token is not None and token.kind == "symbol" else ""

    def _take(self, kind: str, expected: str) -> _Token:
        token = self._peek()
        if token is None or token.kind != kind:
            raise self._error(f"expected {expected}")
        self._next += 1
        return token

    def _take_word(self, word: str) -> bool:
        token = self._peek()
        found = token is not None and token.kind == "word" and token.text.lower() == word
        self._next += found
        return found

    def _take_symbol(self, symbol: str) -> bool:
        found = self._peek_text() == symbol
        self._next += found
        return found

    def expect_end(self) -> None:
        if self._peek() is not None:
            raise self._error("expected `and`, `or` or the end")

    def _error(self, problem: str, at: int | None = None) -> PredicateError:
        token = self._peek()
        where = at if at is not None else token.at if token is not None else len(self._text)
        return PredicateError(f"predicate, character {where + 1}: {problem}")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at, end)
        if match is None:
            skipped = len(text[at:]) - len(text[at:].lstrip())
            place = f"predicate, character {at + skipped + 1}"
            if text[at + skipped] in "'\"":
                raise PredicateError(f"{place}: a text stands between single quotes")
            raise PredicateError(f"{place}: {_explain_unknown(text[at + skipped :])}")
        assert match.lastgroup is not None
        yield _Token(match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup))
        at = match.end()


_OTHER_OPERATORS: Final = {
    "==": "; equality is written with one =", "=<": "; write `<=`", "=>": "; write `>=`",
    "<>": "; write `!=`",
}  # fmt: skip
_OTHER_NOTATION: Final = {
    "&": "write `and`", "|": "write `or`", "!": "write `not`",
    "≤": "write `<=`", "≥": "write `>=`", "≠": "write `!=`", "×": "there is no arithmetic",
    **dict.fromkeys("‘’‚“”„`´", "texts stand between straight single quotes"),
}  # fmt: skip


def _explain_unknown(rest: str) -> str:
    """Return why a predicate cannot be read from a character on, with our notation for it."""
    hint = _OTHER_NOTATION.get(rest[0])
    return f"{rest[0]!r} cannot be read{f'; {hint}' if hint else ''}"


def _disjoin(parts: list[list[Conjunction]]) -> list[Conjunction]:
    conjunctions = [conjunction for part in parts for conjunction in part]
    _check_size(conjunctions)
    return conjunctions


def _all_of(parts: list[list[Conjunction]]) -> list[Conjunction]:
    conjunctions: list[Conjunction] = [()]
    for part in parts:
        conjunctions = [left + right for left in conjunctions for right in part]
        _check_size(conjunctions)
    return conjunctions


def _check_size(conjunctions: list[Conjunction]) -> None:
    """Check the size after every product, so that no product grows past the square of the limit."""
    if sum(max(1, len(conjunction)) for conjunction in conjunctions) > MAXIMUM_TERMS:
        raise PredicateError(
            f"more than {MAXIMUM_TERMS} tests once `not` and brackets are resolved"
        )


MAXIMUM_ATTRIBUTE_TEXT: Final = 1 << 16

_PAIR: Final = re.compile(
    r"""\s*(?P<name>[^=,']*?)\s*=\s*(?:
        (?P<string>'(?:[^']|'')*')
      | (?P<bare>[^,']*?)
    )\s*(?:,|$)""",
    re.VERBOSE,
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_MOST_DIGITS: Final = 20
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TRUTHS: Final = {"true": True, "false": False}


def parse_attributes(text: str) -> dict[str, Scalar]:
    """Return the attributes that a text describes.

    Raises:
        ValueError: the text cannot be read, has a name twice, or an integer of more than 64 bits;
            states the position, counted from 1.
    """
    if len(text) > MAXIMUM_ATTRIBUTE_TEXT:
        raise ValueError(f"attributes of {len(text)} characters; at most {MAXIMUM_ATTRIBUTE_TEXT}")
    found: dict[str, Scalar] = {}
    at = 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None or not match["name"]:
            raise ValueError(f"attributes, character {at + 1}: expected `name=value`")
        name = match["name"]
        if name in found:
            raise ValueError(f"attributes, character {at + 1}: {name!r} stands there twice")
        if match["string"] is not None:
            found[name] = match["string"][1:-1].replace("''", "'")
        else:
            found[name] = _value_of(name, match["bare"])
        at = match.end()
    return found


def _value_of(name: str, text: str) -> Scalar:
    """Return the value of an attribute that stands without quotes."""
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if _INTEGER.fullmatch(text):
        if len(text) > _MOST_DIGITS or not -INTEGER_LIMIT <= int(text) < INTEGER_LIMIT:
            raise ValueError(f"attribute {name!r}: an integer of more than 64 bits")
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text
