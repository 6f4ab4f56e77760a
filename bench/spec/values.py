"""Values of workload files: rates and topics.

Rates of publication as people write them: "25/s", "1.5k/s" or "max".

Topics: the values of the attribute that a workload names as its topic.

Systems with topics use the value of this attribute as the topic of a publication. A filter is a
subscription to topics if no other attribute is tested. The filter then names some of the existing
topics.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from brokerd.model.predicate import Conjunction
from brokerd.model.predicate_text import parse_predicate

FASTEST_SIMULATED: Final = Fraction(1_000)
"""Publications per second of a simulated publisher at rate "max"."""
_PERIODS_S = {"s": 1, "min": 60, "h": 3600}
_THOUSANDS = {"": 1, "k": 1_000, "M": 1_000_000}

_NUMBER = r"(?P<number>\d+(?:\.\d+)?)"
_RATE = re.compile(rf"{_NUMBER}\s*(?P<thousand>[kM]?)/(?P<unit>{'|'.join(_PERIODS_S)})")


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate of publication; `per_second` is None for "max", the highest rate of the publisher."""

    per_second: Fraction | None

    def as_pair(self) -> tuple[int, int]:
        """Return numerator and denominator per second; (0, 1) for "max"."""
        rate = Fraction(0) if self.per_second is None else self.per_second
        return rate.numerator, rate.denominator

    def __str__(self) -> str:
        if self.per_second is None:
            return "max"
        for name, seconds in _PERIODS_S.items():
            if text := _decimal(self.per_second * seconds):
                return f"{text}/{name}"
        raise AssertionError(f"this rate has no exact text form: {self.per_second}")


def parse_rate(text: object) -> Rate:
    """Return the rate of text such as "25/s", "1.5k/s" or "max".

    Raises:
        ValueError: the text is no rate, or nothing is published at it.
    """
    if text == "max":
        return Rate(None)
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError('a rate has a number and a period (s, min, h): "25/s", "1.5k/s", or "max"')
    number = Fraction(match["number"]) * _THOUSANDS[match["thousand"]]
    if number == 0:
        raise ValueError("a rate is more than nothing")
    return Rate(number / _PERIODS_S[match["unit"]])


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
