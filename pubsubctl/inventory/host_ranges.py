"""Compact notation for numbered host names: n01 to n16 as `n[01:16]`."""

import re
from collections.abc import Iterable, Iterator

_NUMBERED = re.compile(r"(.*?)(\d{1,6})([^\d]*)")


def in_ranges(names: Iterable[str]) -> str:
    """Return the names in order, three or more consecutive names as a range: `n[01:08], gw`."""
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
    """Return True if `other` directly follows `one` in a range."""
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
