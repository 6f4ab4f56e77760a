"""Many names in one: `b[1:500]`, `b[1:500:2]` for every other one, `n[01:16]` with the zero."""

import re
from typing import Final

MOST_NAMES: Final = 4096

_RANGE = re.compile(r"\[(\d{1,20}):(\d{1,20})(?::(\d{1,20}))?\]")


def expanded(text: str) -> list[str]:
    """A name with a range in it as the single names; one without as it is.

    Raises:
        ValueError: says what is wrong with the range.
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
    """Whether `expanded` makes several names of it."""
    return _RANGE.search(text) is not None


def expanded_list(value: object) -> object:
    """A list with every range in it expanded; what is no list of text is left for others to refuse.

    Raises:
        ValueError: says what is wrong with a range.
    """
    if not isinstance(value, list):
        return value
    return [
        name for text in value for name in (expanded(text) if isinstance(text, str) else [text])
    ]
