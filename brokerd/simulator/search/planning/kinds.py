"""Values of different kinds that a language may treat as equal: `true` and `1`, `1` and `'1'`.

In half of the plans the attribute `kind` has such values in place of letters, one value per letter.
Subscriptions match the same publications as drawn. A broker that confuses two kinds loses some
publications, or delivers others.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Final

from brokerd.model.predicate import Scalar
from brokerd.simulator.search.moves import Move, PublicationRun, SubscriptionRequest

LETTERS: Final = "abcd"
ALIKE: Final[tuple[tuple[Scalar, ...], ...]] = (
    (True, "1", False, 1),
    (1, "True", 0, True),
    (0, "0", "", False),
    (False, "False", True, 0),
    ("1", True, "true", 1),
    (1 << 53, "9007199254740992", True, (1 << 53) + 1),
)
"""Values in place of each letter. Predicates test the first and the last value alone."""

_LETTER: Final = re.compile(r"'([abcd])'")


def draw_alike(random: Random, moves: Iterable[Move]) -> list[Move]:
    """Return the moves with values that are alike across kinds, in half of the plans."""
    if random.random() < 0.5:
        return [*moves]
    values = dict(zip(LETTERS, random.choice(ALIKE), strict=True))

    def drawn(letter: Scalar) -> Scalar:
        value = values[str(letter)]
        is_number = type(value) in (int, float)
        # Integers and floats compare as numbers: 1 and 1.0 are one value.
        return (
            float(value) if is_number and float(value) == value and random.random() < 0.3 else value
        )

    def changed(move: Move) -> Move:
        if type(move) is PublicationRun:
            contents = [replace(each, kind=drawn(each.kind)) for each in move.contents]
            return replace(move, contents=tuple(contents))
        if type(move) is SubscriptionRequest:
            predicate = _LETTER.sub(lambda found: predicate_value(drawn(found[1])), move.predicate)
            return replace(move, predicate=predicate)
        return move

    return [changed(move) for move in moves]


def predicate_value(value: Scalar) -> str:
    """Return a value in the syntax of predicates."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)
