"""Durations and sizes: constants, and text as people write it, always with a unit.

Durations and sizes each have a parser and a formatter. An error of a parser names the valid texts.
A formatted text parses to the same value.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

MICROSECOND_NS: Final = 1_000
MILLISECOND_NS: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS
HOUR_NS: Final = 60 * MINUTE_NS

LONGEST_H: Final = 10_000
LONGEST_NS: Final = LONGEST_H * HOUR_NS
"""The longest duration that a file or an option may state."""

_DURATIONS_NS: Final = {
    "ns": 1,
    "us": MICROSECOND_NS,
    "ms": MILLISECOND_NS,
    "s": SECOND_NS,
    "min": MINUTE_NS,
    "h": HOUR_NS,
}
_SIZES_BYTES: Final = {"B": 1, "kB": 1_000, "KiB": 1 << 10, "MB": 1_000_000, "MiB": 1 << 20}
_DURATION: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(ns|us|ms|s|min|h)", re.ASCII)
_DURATIONS: Final = re.compile(r"(?:\d{1,20}(?:\.\d{1,20})?\s*(?:ns|us|ms|s|min|h))+", re.ASCII)
_SIZE: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(B|kB|KiB|MB|MiB)", re.ASCII)


_GUESSED: Final = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-zµ]*)\s*", re.ASCII)
_DURATION_WORDS: Final = {
    "": "s", "sec": "s", "second": "s", "msec": "ms", "milli": "ms", "millisecond": "ms",
    "µs": "us", "usec": "us", "m": "min", "minute": "min", "hr": "h", "hour": "h",
    **{unit: unit for unit in _DURATIONS_NS},
}  # fmt: skip
_SIZE_WORDS: Final = {
    "": "B", "byte": "B", "k": "kB", "m": "MB", "ki": "KiB", "mi": "MiB",
    **{unit.lower(): unit for unit in _SIZES_BYTES},
}  # fmt: skip


def _guess(text: object, words: Mapping[str, str], usual_unit: str = "") -> str:
    """Return `; did you mean "10s"?` for a number with a usual name of a unit; "" otherwise.

    Args:
        usual_unit: the unit of a bare number, if it is not the unit of "" in `words`.
    """
    found = _GUESSED.fullmatch(str(text)) if isinstance(text, str | int | float) else None
    if found is None or isinstance(text, bool):
        return ""
    word = found[2].lower()
    unit = words.get(word) or words.get(word.removesuffix("s"))
    if not word:
        unit = usual_unit or unit
    return f'; did you mean "{found[1]}{unit}"?' if unit else ""


def parse_duration_ns(text: object, step_ns: int = 1, usual_unit: str = "s") -> int:
    """Return the nanoseconds of text such as "250ms", "2.5s" or "1min30s".

    Args:
        step_ns: the duration must be a multiple of it: 1, or a millisecond.
        usual_unit: the unit that an error suggests for a number without one.

    Raises:
        ValueError: the text is no duration, or one that is too long or too precise.
    """
    if not isinstance(text, str) or not _DURATIONS.fullmatch(text):
        units = ", ".join(_DURATIONS_NS)
        hint = _guess(text, _DURATION_WORDS, usual_unit)
        raise ValueError(f'a duration has a number and a unit ({units}): "250ms", "1min30s"{hint}')
    exact = sum(Fraction(number) * _DURATIONS_NS[unit] for number, unit in _DURATION.findall(text))
    if exact % step_ns:
        unit = "milliseconds" if step_ns == MILLISECOND_NS else "nanoseconds"
        raise ValueError(f"a duration is a whole number of {unit} here")
    if exact > LONGEST_NS:
        raise ValueError(f"a duration is at most {LONGEST_H}h")
    return int(exact)


def parse_latency_ns(text: object) -> int:
    """Return the nanoseconds of a latency; see `parse_duration_ns`. Its usual unit is ms."""
    return parse_duration_ns(text, usual_unit="ms")


def format_duration(duration_ns: int) -> str:
    """Return the shortest exact text for a duration: "2min", "2.5s", "250ms"."""
    if duration_ns and duration_ns % MINUTE_NS == 0:
        return f"{duration_ns // MINUTE_NS}min"
    if duration_ns == 0 or duration_ns >= SECOND_NS:
        whole, part = divmod(duration_ns, SECOND_NS)
        return f"{whole}.{part:09d}".rstrip("0").rstrip(".") + "s"
    unit = next(unit for unit in ("ms", "us", "ns") if duration_ns % _DURATIONS_NS[unit] == 0)
    return f"{duration_ns // _DURATIONS_NS[unit]}{unit}"


def parse_size_bytes(text: object) -> int:
    """Return the bytes of text such as "100B" or "4KiB".

    Raises:
        ValueError: the text is no size, or no whole number of bytes.
    """
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        units, hint = ", ".join(_SIZES_BYTES), _guess(text, _SIZE_WORDS)
        raise ValueError(f'a size has a number and a unit ({units}): "100B"{hint}')
    exact = Fraction(match[1]) * _SIZES_BYTES[match[2]]
    if exact.denominator != 1:
        raise ValueError("a size is a whole number of bytes")
    return int(exact)


def format_size(size_bytes: int) -> str:
    """Return the shortest exact text for a size."""
    for unit in ("MiB", "KiB"):
        if size_bytes and size_bytes % _SIZES_BYTES[unit] == 0:
            return f"{size_bytes // _SIZES_BYTES[unit]}{unit}"
    return f"{size_bytes}B"
