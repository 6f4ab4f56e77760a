"""Attributes as text: `kind=order, price=30, name='a, b'`.

A list of names and values, with commas between. A value is a number, `true` or `false`, a string in
single quotes with quotes doubled inside, or bare text up to the next comma.
"""

import re
from typing import Final

from brokerd.model.predicate import INTEGER_LIMIT, Scalar

MAXIMUM_TEXT: Final = 1 << 16

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
    if len(text) > MAXIMUM_TEXT:
        raise ValueError(f"attributes of {len(text)} characters; at most {MAXIMUM_TEXT}")
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
