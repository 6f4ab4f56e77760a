"""Text of values in messages, and TOML documents within bounds."""

import math
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

LARGEST_TOML: Final = 4 << 20
"""Characters of a TOML document from a user."""
DEEPEST: Final = 32
"""Levels of nested tables and lists in a document from a user."""
_LONGEST_KEY: Final = 4_096


def shown(value: Any, limit: int = 80) -> str:
    """Return a value for a message: quoted, in one line, of bounded length."""
    text = ascii(value) if not str(value).isprintable() else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document, in bounded time and memory.

    Raises:
        ValueError: the document is not TOML, is too large or nested too deeply, or has a number
            that is not finite or does not fit into 64 bits; the text states the place and the valid
            range. A TOMLDecodeError if the document is not TOML.
    """
    if len(text) > LARGEST_TOML:
        raise ValueError(f"larger than {LARGEST_TOML >> 20} MiB")
    for number, line in enumerate(text.splitlines(), start=1):
        if line.count(".", 0, _LONGEST_KEY) > DEEPEST and _is_deep_key(line):
            raise ValueError(f"line {number}: a key with more than {DEEPEST} parts")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} deep") from None
    check_values(document)
    return document


def _is_deep_key(line: str) -> bool:
    """Return True if the key of a line, or a table's name, has too many parts."""
    key = line.partition("=")[0] if not line.lstrip().startswith("[") else line
    return key.count(".") > DEEPEST and not {*key} & {'"', "'", "#"}


def check_values(document: Mapping[str, Any]) -> None:
    """Check that all of a document is within bounds.

    Raises:
        ValueError: a value is nested too deeply, or a number is not finite or does not fit into 64
            bits; the text states the place.
    """
    for place, depth, value in _walk(document):
        if depth > DEEPEST:
            raise ValueError(f"{place[:80]}: nested more than {DEEPEST} deep")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{place[:80]} = {value} is not a finite number")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{place[:80]} = {shown(value)} does not fit into 64 bits")


def _walk(document: Mapping[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """Yield every value of a document with its place and depth; nothing below the depth limit."""
    waiting: list[tuple[str, int, Any]] = [("", 0, document)]
    while waiting:
        place, depth, value = waiting.pop()
        yield place, depth, value
        if isinstance(value, Mapping):
            dot = "." if place else ""
            waiting += [(f"{place}{dot}{key}", depth + 1, each) for key, each in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{place}[{n}]", depth + 1, each) for n, each in enumerate(value)]
