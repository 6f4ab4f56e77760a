"""Tests of the rules by which a message continues the message before, and is joined with it."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from brokerd.model.identity import SourceId
from brokerd.model.message_kind import numbers_kind, ranges_kind, run_kind
from brokerd.model.publication import PublicationRun


@dataclass(frozen=True)
class Numbers:
    first: int
    last: int
    place: str = "a"


@dataclass(frozen=True)
class Ranges:
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Run:
    run: PublicationRun
    place: str = "a"


def run(first: int, last: int, publisher: int = 0) -> PublicationRun:
    count = last - first + 1
    return PublicationRun(
        SourceId(1, publisher, 1), range(first, last + 1), (b"t",), bytes(count), 1, (b"x" * count,)
    )


@pytest.mark.parametrize(
    "message, continues",
    [
        (Numbers(4, 9), True),
        (Numbers(3, 9), False),
        (Numbers(5, 9), False),
        (Numbers(4, 9, "b"), False),
    ],
)
def test_numbers_continue_with_the_next_number_at_the_same_place(
    message: Numbers, *, continues: bool
) -> None:
    joining: Any = numbers_kind(1, Numbers, lambda each: each.place).joining
    assert joining.continues(Numbers(1, 3), message) == continues
    assert joining.join([Numbers(1, 3), Numbers(4, 4), Numbers(5, 9)]) == Numbers(1, 9)


@pytest.mark.parametrize(
    "message, continues",
    [
        (Run(run(4, 6)), True),
        (Run(run(9, 9)), True),
        (Run(run(3, 6)), False),
        (Run(run(1, 2)), False),
        (Run(run(4, 6, publisher=1)), False),
        (Run(run(4, 6), "b"), False),
    ],
)
def test_a_run_continues_with_later_publications_of_its_source(
    message: Run, *, continues: bool
) -> None:
    joining: Any = run_kind(1, Run, lambda each: each.place).joining
    before = Run(run(2, 3))
    assert joining.continues(before, message) == continues
    if continues:
        joined = joining.join([before, message])
        assert [*joined.run.sequences] == [*before.run.sequences, *message.run.sequences]
        assert replace(joined, run=before.run) == before
        assert joining.items(joined) == len(joined.run)


def test_ranges_are_joined_in_order() -> None:
    joining: Any = ranges_kind(1, Ranges).joining
    assert joining.join([Ranges(((1, 2),)), Ranges(((7, 9), (3, 4)))]) == Ranges(
        ((1, 2), (7, 9), (3, 4))
    )
    assert joining.items(Ranges(((1, 2), (3, 4)))) == 2
