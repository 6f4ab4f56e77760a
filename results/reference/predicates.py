"""Predicates on publications, in three values: an impossible test is neither true nor false.

The syntax is `symbol = 'IBM' and price > 100 or volume in (1, 2)`; also `!=`, `prefix`, `suffix`,
`contains`, `exists`, `true`, brackets, and `not` before a bracket, a test or its word. `and` binds
tighter than `or`. A test of an absent attribute, or of two kinds that are not comparable, is
neither true nor false, and neither is its negation. Only a true predicate matches. Integers and
floats are a common kind.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

Attributes = Mapping[str, Any]
Ternary = bool | None
Test = Callable[[Attributes], Ternary]

_LONGEST, _DEEPEST = 16_384, 100
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SIGNS = ("<=", ">=", "!=", "=", "<", ">", "(", ")", ",")
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OF_TEXT: Mapping[str, Callable[[str, str], bool]] = {
    "prefix": str.startswith,
    "suffix": str.endswith,
    "contains": operator.contains,
}


@cache
def wants(text: str) -> Callable[[Attributes], bool]:
    """Return a function that returns True if a predicate matches attributes.

    Raises:
        ValueError: the text cannot be read.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"a predicate of {len(text)} characters; at most {_LONGEST}")
    words = _words(text)
    _check_depth(words)
    test = _disjoin(words)
    if words:
        raise ValueError(f"{text!r}: {words[0]!r} is too much")
    return lambda attributes: test(attributes) is True


def _check_depth(words: Sequence[str]) -> None:
    """Refuse predicates that nest deeper than any broker permits; a `not` ends with its test."""
    depth = nots = 0
    for word in map(str.lower, words):
        depth += (word == "(") - (word == ")")
        nots = nots + 1 if word == "not" else nots if word == "(" else 0
        if depth + nots > _DEEPEST:
            raise ValueError(f"brackets and `not` nest deeper than {_DEEPEST}")


def _words(text: str) -> list[str]:
    """Return the words of a text; a quoted word keeps only its opening quote."""
    words: list[str] = []
    rest = text.strip()
    while rest:
        if rest[0] == "'":
            end = 1
            while rest[end : end + 1] != "'" or rest[end + 1 : end + 2] == "'":
                end += 1 if rest[end : end + 1] != "'" else 2
                if end >= len(rest):
                    raise ValueError(f"{text!r}: a quote is not closed")
            words.append("'" + rest[1:end].replace("''", "'"))
            end += 1
        elif sign := next((sign for sign in _SIGNS if rest.startswith(sign)), ""):
            words.append(sign)
            end = len(sign)
        elif number := _NUMBER.match(rest):
            words.append(number[0])
            end = number.end()
        else:
            end = 0
            while end < len(rest) and (rest[end].isalnum() or rest[end] in "_.-"):
                end += 1
            if not end:
                raise ValueError(f"{text!r}: {rest[0]!r} cannot be read")
            words.append(rest[:end])
        rest = rest[end:].lstrip()
    return words


def _take(words: list[str], *wanted: str) -> bool:
    """Remove the next word and return True if the word is among `wanted`."""
    found = bool(words) and words[0].lower() in wanted
    if found:
        del words[0]
    return found


def _disjoin(words: list[str]) -> Test:
    tests = [_all(words)]
    while _take(words, "or"):
        tests.append(_all(words))
    return lambda attributes: _combine([test(attributes) for test in tests], decisive=True)


def _all(words: list[str]) -> Test:
    tests = [_one(words)]
    while _take(words, "and"):
        tests.append(_one(words))
    return lambda attributes: _combine([test(attributes) for test in tests], decisive=False)


def _combine(values: Sequence[Ternary], *, decisive: bool) -> Ternary:
    """Return `decisive` if present; else None if present; else the opposite."""
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def _opposite(test: Test) -> Test:
    def opposite(attributes: Attributes) -> Ternary:
        value = test(attributes)
        return None if value is None else not value

    return opposite


def _one(words: list[str]) -> Test:
    if _take(words, "not"):
        return _opposite(_one(words))
    if _take(words, "("):
        inside = _disjoin(words)
        _need(words, ")")
        return inside
    if _take(words, "true"):
        return lambda attributes: True
    if not words or not (words[0][0].isalpha() or words[0][0] == "_"):
        raise ValueError(f"an attribute was expected, not {words[:1]}")
    name = words.pop(0)
    if _take(words, "not"):
        return _opposite(_test(name, words))
    return _test(name, words)


def _need(words: list[str], sign: str) -> None:
    if not _take(words, sign):
        raise ValueError(f"{sign!r} was expected, not {words[:1]}")


def _test(name: str, words: list[str]) -> Test:
    if _take(words, "exists"):
        return lambda attributes: name in attributes
    if _take(words, "in"):
        _need(words, "(")
        wanted = [_value(words)]
        while _take(words, ","):
            wanted.append(_value(words))
        _need(words, ")")

        def is_one_of(attributes: Attributes) -> Ternary:
            made = [_compare("=", attributes, name, value) for value in wanted]
            known = [outcome for outcome in made if outcome is not None]
            return any(known) if known else None

        return is_one_of
    how = words.pop(0).lower() if words else "nothing"
    if how not in _COMPARED and how not in _OF_TEXT:
        raise ValueError(f"{how!r} is no test of {name!r}")
    value = _value(words)
    return lambda attributes: _compare(how, attributes, name, value)


def _compare(how: str, attributes: Attributes, name: str, wanted: Any) -> Ternary:
    if name not in attributes:
        return None
    found = attributes[name]
    if _kind(found) != _kind(wanted):
        return None
    if how in _COMPARED:
        return _COMPARED[how](found, wanted)
    return _OF_TEXT[how](found, wanted) if isinstance(found, str) else None


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def _value(words: list[str]) -> Any:
    if not words:
        raise ValueError("a value was expected, and there is nothing")
    word = words.pop(0)
    if word.startswith("'"):
        return word[1:]
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    return int(word) if word.lstrip("+-").isdecimal() else float(word)
