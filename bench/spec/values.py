"""Values of workload files: rates and topics.

Rates of publication are read as people write them: "25/s", "1.5k/s" or "max".

Topics are the values of the attribute that a workload names as its topic. Systems with topics use
the value of this attribute as the topic of a publication. A filter is a
subscription to topics if no other attribute is tested. The filter then names some of the existing
topics.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from typing import Any, Final

from brokerd.model.predicate import Conjunction
from brokerd.model.predicate_text import parse_predicate
from brokerd.text import shown
from brokerd.units import format_duration, parse_duration_ns

FASTEST_SIMULATED: Final = Fraction(1_000)
"""Publications per second of a simulated publisher at rate "max"."""
_PERIODS_S = {"s": 1, "min": 60, "h": 3600}
_THOUSANDS = {"": 1, "k": 1_000, "M": 1_000_000}

_NUMBER = r"(?P<number>\d+(?:\.\d+)?)"
_RATE = re.compile(rf"{_NUMBER}\s*(?P<thousand>[kM]?)/(?P<unit>{'|'.join(_PERIODS_S)})", re.ASCII)


RAMP_STAIRS: Final = 20
"""The stairs of equal length that a ramp consists of."""
SHORTEST_STEP_NS: Final = 100_000_000
Segment = tuple[int, int, int]
"""A time of one rate: length in ns, and numerator and denominator of the rate per second."""


@dataclass(frozen=True, slots=True)
class RateStep:
    """A step of a rate shape.

    Attributes:
        at: rate per second; 0 for a pause.
        to: rate at the end of a ramp; None for a step of one rate.
        text: the step as its file has it.
    """

    length_ns: int
    at: Fraction
    to: Fraction | None
    text: tuple[tuple[str, str], ...]

    def stairs(self) -> list[Segment]:
        """Return the step as times of one rate; a ramp rises or falls in stairs."""
        if self.to is None:
            return [(self.length_ns, self.at.numerator, self.at.denominator)]
        found = []
        for stair in range(RAMP_STAIRS):
            rate = self.at + (self.to - self.at) * Fraction(2 * stair + 1, 2 * RAMP_STAIRS)
            begin = self.length_ns * stair // RAMP_STAIRS
            end = self.length_ns * (stair + 1) // RAMP_STAIRS
            found.append((end - begin, rate.numerator, rate.denominator))
        return found


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of publication.

    Attributes:
        per_second: None for "max", the highest rate of the publisher; the mean of a shape.
        steps: the steps of a shape, which repeats; () for a rate that is always the same.
    """

    per_second: Fraction | None
    steps: tuple[RateStep, ...] = ()

    def as_pair(self) -> tuple[int, int]:
        """Return numerator and denominator per second; (0, 1) for "max", the peak of a shape."""
        rate = Fraction(0) if self.per_second is None else self.per_second
        if self.steps:
            rate = max(max(step.at, step.to or step.at) for step in self.steps)
        return rate.numerator, rate.denominator

    def segments(self, lead_ns: int, duration_ns: int) -> tuple[Segment, ...]:
        """Return the times of one rate of a shape; () without a shape.

        Args:
            lead_ns: the warm-up, which has the first rate of the shape.
            duration_ns: the time after the warm-up, in which the shape repeats.
        """
        if not self.steps:
            return ()
        found: list[Segment] = []
        stairs = [each for step in self.steps for each in step.stairs()]
        if lead_ns:
            found.append((lead_ns, *stairs[0][1:]))
        left_ns = duration_ns
        for length_ns, numerator, denominator in cycle(stairs):
            if left_ns <= 0:
                break
            found.append((min(length_ns, left_ns), numerator, denominator))
            left_ns -= length_ns
        return tuple(found)

    def written(self) -> str | list[dict[str, str]]:
        """Return the rate as a file has it."""
        return [dict(step.text) for step in self.steps] if self.steps else str(self)

    def __str__(self) -> str:
        if self.per_second is None:
            return "max"
        for name, seconds in _PERIODS_S.items():
            if text := _decimal(self.per_second * seconds):
                return f"{text}/{name}"
        raise AssertionError(f"this rate has no exact text form: {self.per_second}")


_GUESSED: Final = re.compile(
    r"\s*(\d+(?:\.\d+)?(?:\s*[kM])?)\s*(?:/|per)?\s*([A-Za-z]*)\s*", re.ASCII
)
_PERIOD_WORDS: Final = {
    "": "s", "sec": "s", "second": "s", "hz": "s", "m": "min", "minute": "min", "hour": "h",
    **{period: period for period in _PERIODS_S},
}  # fmt: skip


def _guess_rate(text: object) -> str:
    """Return `; did you mean "25/s"?` for a number with a usual name of a period; "" otherwise."""
    if isinstance(text, str) and text.strip().lower() in ("max", "unlimited", "inf"):
        return '; did you mean "max"?'
    is_number = isinstance(text, str | int | float) and not isinstance(text, bool)
    found = _GUESSED.fullmatch(str(text)) if is_number else None
    if found is None:
        return ""
    word = found[2].lower()
    period = _PERIOD_WORDS.get(word) or _PERIOD_WORDS.get(word.removesuffix("s"))
    return f'; did you mean "{found[1]}/{period}"?' if period else ""


def parse_rate(text: object) -> Rate:
    """Return the rate of text such as "25/s", "1.5k/s" or "max".

    Raises:
        ValueError: the text is no rate, or nothing is published at it.
    """
    if text == "max":
        return Rate(None)
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(
            'a rate has a number and a period (s, min, h): "25/s", "1.5k/s", or "max"'
            f"{_guess_rate(text)}"
        )
    number = Fraction(match["number"]) * _THOUSANDS[match["thousand"]]
    if number == 0:
        raise ValueError("a rate is more than nothing")
    return Rate(number / _PERIODS_S[match["unit"]])


def read_rate(value: object) -> Rate:
    """Return a rate of a workload: a text, or a shape such as [{ for = "10s", at = "50/s" }].

    Raises:
        ValueError: the value is neither; names the step, key and valid values.
    """
    if not isinstance(value, list | tuple):
        return parse_rate(value)
    if not value:
        raise ValueError('a shape has steps, such as { for = "10s", at = "50/s" }')
    steps = tuple(_read_step(number, step) for number, step in enumerate(value))
    stairs = [each for step in steps for each in step.stairs()]
    total = sum((Fraction(n, d) * length_ns for length_ns, n, d in stairs), Fraction(0))
    if not total:
        raise ValueError("every step is a pause; a rate is more than nothing")
    return Rate(total / sum(length_ns for length_ns, _, _ in stairs), steps)


def _read_step(number: int, step: object) -> RateStep:
    keys = set(step) if isinstance(step, Mapping) else set()
    if not isinstance(step, Mapping) or not {"for", "at"} <= keys <= {"for", "at", "to"}:
        raise ValueError(
            f'step {number}: {{ for = "10s", at = "50/s" }}, with `to` for a ramp, not '
            f"{shown(step)}"
        )
    try:
        length_ns = parse_duration_ns(step["for"])
        at = _read_step_rate(step["at"])
        to = _read_step_rate(step["to"]) if "to" in step else None
    except ValueError as error:
        raise ValueError(f"step {number}: {error}") from None
    shortest_ns = SHORTEST_STEP_NS * (1 if to is None else RAMP_STAIRS)
    if length_ns < shortest_ns:
        raise ValueError(
            f"step {number}: for = {step['for']!r}: at least {format_duration(shortest_ns)}"
            f"{'' if to is None else ' for a ramp'}"
        )
    return RateStep(length_ns, at, to, tuple((key, str(step[key])) for key in step))


def _read_step_rate(text: object) -> Fraction:
    """Return a rate per second; 0 for a pause.

    Raises:
        ValueError: the text is no rate, or "max".
    """
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is not None and Fraction(found["number"]) == 0:
        return Fraction(0)
    rate = parse_rate(text).per_second
    if rate is None:
        raise ValueError('"max" is no rate of a step')
    return rate


def _decimal(number: Fraction) -> str:
    """Return a number as an exact decimal, or "" if it has more than 9 places."""
    scaled = number * 10**9
    if scaled.denominator != 1:
        return ""
    whole, part = divmod(int(scaled), 10**9)
    return f"{whole}.{part:09d}".rstrip("0").rstrip(".")


LONGEST_TOPIC: Final = 64
_TOPIC = re.compile(r"[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*")


def topic_names(attribute: str, definition: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the topics that an attribute with this definition can have, without duplicates.

    Raises:
        ValueError: a value is no valid topic name; names the value and the reason.
    """
    ((way, argument),) = definition.items()
    if way == "cycle" or (way == "choose" and isinstance(argument, int)):
        names: Sequence[object] = [f"{attribute.upper()}{place:03d}" for place in range(argument)]
    elif way == "choose":
        names = argument
    else:
        raise ValueError(f"attribute {attribute!r} is drawn by {way!r}; topics are chosen or cycle")
    for name in names:
        _check_topic(name)
    return tuple(dict.fromkeys(map(str, names)))


def topics_of(predicate: str, attribute: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the topics that a filter selects; None if the filter tests other attributes.

    Raises:
        PredicateError: the filter cannot be read.
    """
    any_of = parse_predicate(predicate).any_of
    if any(test.attribute != attribute for conjunction in any_of for test in conjunction):
        return None
    return tuple(name for name in names if any(_holds(each, attribute, name) for each in any_of))


def _holds(conjunction: Conjunction, attribute: str, name: str) -> bool:
    return all(test.holds({attribute: name}) for test in conjunction)


def _check_topic(name: object) -> None:
    if not isinstance(name, str):
        raise ValueError(f"topic {name!r} is no text")
    if len(name) > LONGEST_TOPIC:
        raise ValueError(f"topic {name[:20]!r}… is longer than {LONGEST_TOPIC} characters")
    if not _TOPIC.fullmatch(name):
        wildcard = " (a wildcard is no part of a topic)" if re.search(r"[*#+>]", name) else ""
        raise ValueError(f"topic {name!r} is not of letters, digits, '_', '-', '.', '/'{wildcard}")
