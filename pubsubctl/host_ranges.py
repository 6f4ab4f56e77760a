"""Names of hosts with numbers in them: `n[01:16]` for n01 to n16, and back."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

MOST_HOSTS: Final = 4096
_RANGE = re.compile(r"\[(\d{1,6}):(\d{1,6})\]")
_NUMBERED = re.compile(r"(.*?)(\d{1,6})([^\d]*)")


def expanded(text: str) -> list[str]:
    """A name with `[01:16]` in it as the single names; leading zeros are kept.

    Raises:
        ValueError: says what is wrong with the range.
    """
    ranges = list(_RANGE.finditer(text))
    if not ranges:
        if "[" in text or "]" in text:
            raise ValueError("a range is written [1:16] or [01:16]")
        return [text]
    if len(ranges) > 1:
        raise ValueError("only one range")
    found = ranges[0]
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise ValueError(f"the range runs backwards, from {first} to {last}")
    if last - first >= MOST_HOSTS:
        raise ValueError(f"more than {MOST_HOSTS} hosts")
    width = len(found[1]) if found[1].startswith("0") else 0
    before, after = text[: found.start()], text[found.end() :]
    return [f"{before}{number:0{width}d}{after}" for number in range(first, last + 1)]


def is_range(text: str) -> bool:
    """Whether `expanded` makes several names of it."""
    return _RANGE.search(text) is not None


def in_ranges(names: Iterable[str]) -> str:
    """Names in their order, three or more in a row as a range: `n[01:08], gw`."""
    return ", ".join(_shortened(row) for row in _rows(names))


def _rows(names: Iterable[str]) -> Iterator[list[str]]:
    row: list[str] = []
    for name in names:
        if row and _follows(row[-1], name):
            row.append(name)
            continue
        if row:
            yield row
        row = [name]
    if row:
        yield row


def _follows(one: str, other: str) -> bool:
    """Whether `other` is the next name of a range that `one` is in."""
    before, after = _NUMBERED.fullmatch(one), _NUMBERED.fullmatch(other)
    if before is None or after is None or before[1] != after[1] or before[3] != after[3]:
        return False
    return after[2] == str(int(before[2]) + 1).zfill(len(before[2]))


def _shortened(row: list[str]) -> str:
    if len(row) < 3:
        return ", ".join(row)
    first, last = _NUMBERED.fullmatch(row[0]), _NUMBERED.fullmatch(row[-1])
    assert first is not None, row
    assert last is not None, row
    return f"{first[1]}[{first[2]}:{last[2]}]{first[3]}"
