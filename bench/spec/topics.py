"""Topics: the values of the attribute that a workload names as its topic.

Systems with topics use the value of this attribute as the topic of a publication. A filter is a
subscription to topics if no other attribute is tested. The filter then names some of the existing
topics.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from brokerd.model.predicate import Conjunction
from brokerd.model.predicate_text import parse_predicate

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
