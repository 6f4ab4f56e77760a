"""Properties of a message type besides its fields: its number, and its handling in transit.

The definition of a message states the permitted handling in transit: joining of neighbours when a
receiver is behind, splitting of a message that is too large for a frame, and delay until other
messages are sent. Sessions and codec apply these properties without naming any message.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from brokerd.model.publication import PublicationRun, merge_runs

JOINED_BYTES: Final = 1 << 19
JOINED_PUBLICATIONS: Final = 8_192
JOINED_RANGES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Joining:
    """The rule by which adjacent messages of a type form one equivalent message.

    Attributes:
        most: number of items (publications, ranges) that a joined message may have.
        items: returns the number of items of a message.
        size_bytes: returns the approximate size of a message; joined messages have JOINED_BYTES at
            most.
        continues: returns True if a message directly continues the message before.
        join: returns the joined message; of two at least, where each continues the message before.
    """

    most: int
    items: Callable[[Any], int]
    size_bytes: Callable[[Any], int]
    continues: Callable[[Any, Any], bool]
    join: Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class MessageKind:
    """A type of message.

    Attributes:
        number: the type number; never assigned to another message after its first use.
        type: a frozen dataclass.
        joining: None if messages are never joined.
        split: returns two messages that are equivalent in sequence, or nothing if a message is
            indivisible; None if every message fits into a frame.
        may_wait: True if the message may wait for messages that are sent soon.
        may_follow: True if the message may be handled behind messages that were sent later, if
            those are joined with messages that were sent earlier.
    """

    number: int
    type: type
    joining: Joining | None = None
    split: Callable[[Any], Sequence[Any]] | None = None
    may_wait: bool = False
    may_follow: bool = False


def run_kind(
    number: int, kind: type, beside: Callable[[Any], object] = lambda message: None
) -> MessageKind:
    """Return the kind of a message about each publication of its `run` and about nothing else.

    Args:
        beside: returns the fields that must be equal for two messages to be joined, besides the
            runs' source.
    """

    def continues(before: Any, message: Any) -> bool:
        runs: tuple[PublicationRun, PublicationRun] = (before.run, message.run)
        return (
            runs[0].source == runs[1].source
            and runs[1].first > runs[0].last
            and beside(before) == beside(message)
        )

    return MessageKind(
        number,
        kind,
        Joining(JOINED_PUBLICATIONS, _publications, _run_bytes, continues, _join_runs),
        _halves,
    )


def ranges_kind(number: int, kind: type) -> MessageKind:
    """Return the kind of an acknowledgement with `ranges` as its only field, which may wait."""

    def join(messages: Sequence[Any]) -> Any:
        return kind(tuple(chain.from_iterable([message.ranges for message in messages])))

    joining = Joining(JOINED_RANGES, _ranges, _has_nothing, lambda before, message: True, join)
    return MessageKind(number, kind, joining, may_wait=True)


def numbers_kind(
    number: int, kind: type, beside: Callable[[Any], object] = lambda message: None
) -> MessageKind:
    """Return the kind of an acknowledgement of numbers `first` to `last`, which may wait."""

    def continues(before: Any, message: Any) -> bool:
        follows: bool = message.first == before.last + 1
        return follows and beside(before) == beside(message)

    def join(messages: Sequence[Any]) -> Any:
        return replace(messages[0], last=messages[-1].last)

    return MessageKind(
        number,
        kind,
        Joining(JOINED_RANGES, _has_nothing, _has_nothing, continues, join),
        may_wait=True,
    )


def _publications(message: Any) -> int:
    return len(message.run)


def _ranges(message: Any) -> int:
    return len(message.ranges)


def _has_nothing(message: Any) -> int:
    return 0


def _run_bytes(message: Any) -> int:
    run: PublicationRun = message.run
    return run.payload_bytes() + sum(map(len, run.attribute_table))


def _join_runs(messages: Sequence[Any]) -> Any:
    return replace(messages[0], run=merge_runs([message.run for message in messages]))


def _halves(message: Any) -> Sequence[Any]:
    run: PublicationRun = message.run
    half = len(run) // 2
    if not half:
        return ()
    positions = (range(half), range(half, len(run)))
    return [replace(message, run=run.select(part)) for part in positions]
