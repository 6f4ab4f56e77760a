"""Ranges of names.

`b[1:500]`, `b[1:500:2]` for every second name, `n[01:16]` with leading zeros.
"""

import re
from typing import Final

MOST_NAMES: Final = 4096

_RANGE = re.compile(r"\[(\d{1,20}):(\d{1,20})(?::(\d{1,20}))?\]")


def expanded(text: str) -> list[str]:
    """Return the names that a range stands for; a name without a range is returned as is.

    Raises:
        ValueError: the range is invalid; the text states the fault.
    """
    ranges = list(_RANGE.finditer(text))
    if not ranges:
        if "[" in text or "]" in text:
            raise ValueError("a range is written [1:16], [01:16] or [1:16:2]")
        return [text]
    if len(ranges) > 1:
        raise ValueError("only one range")
    found = ranges[0]
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if last < first:
        raise ValueError(f"the range runs backwards, from {first} to {last}")
    if step == 0:
        raise ValueError("a range of steps of 0 has no end")
    if (count := (last - first) // step + 1) > MOST_NAMES:
        raise ValueError(f"{count:,} names; a range has at most {MOST_NAMES:,}")
    numbers = range(first, last + 1, step)
    width = len(found[1]) if found[1].startswith("0") else 0
    before, after = text[: found.start()], text[found.end() :]
    return [f"{before}{number:0{width}d}{after}" for number in numbers]


def is_range(text: str) -> bool:
    """Return True if `expanded` returns several names."""
    return _RANGE.search(text) is not None


def expanded_list(value: object) -> object:
    """Return a list with every range expanded; other values are left for later checks to refuse.

    Raises:
        ValueError: a range is invalid; the text states the fault.
    """
    if not isinstance(value, list):
        return value
    return [
        name for text in value for name in (expanded(text) if isinstance(text, str) else [text])
    ]
