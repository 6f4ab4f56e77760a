"""What is known of a type of message besides its fields: its number, and how it travels.

Whoever defines a message says here what may be done to it on the way: how neighbours are joined
when a receiver is behind, how one that is too large for a frame is split, and whether it may wait
for others to go with it. Sessions and codec do so without knowing any message by name.
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
    """When neighbours of one type in a session can be one message that says the same.

    Attributes:
        most: how many items (publications, ranges) a joined message may have.
        items: how many a message has.
        size_bytes: about how large a message is; joined ones have JOINED_BYTES at most.
        continues: whether a message says what comes right after the one before it.
        join: the one message; of two at least, each of which continues the one before.
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
        number: its type number; never given to another message once it was used.
        type: a frozen dataclass.
        joining: None where each message stays what it is.
        split: a message in two that say the same one after the other, or nothing where it
            cannot be less; None where every message fits into a frame.
        may_wait: whether it may wait for messages that leave soon.
        may_follow: whether it may be taken behind messages that were sent after it, where these
            are joined with some that were sent before it.
    """

    number: int
    type: type
    joining: Joining | None = None
    split: Callable[[Any], Sequence[Any]] | None = None
    may_wait: bool = False
    may_follow: bool = False


def of_run(
    number: int, kind: type, beside: Callable[[Any], object] = lambda message: None
) -> MessageKind:
    """A message about each publication of its `run` and about nothing else.

    Args:
        beside: what must be equal for two of them to be joined, besides the runs' source.
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
        Joining(JOINED_PUBLICATIONS, _publications, _run_bytes, continues, _joined_runs),
        _halves,
    )


def of_ranges(number: int, kind: type) -> MessageKind:
    """An acknowledgement of `ranges`, its only field; it may wait for more of them."""

    def join(messages: Sequence[Any]) -> Any:
        return kind(tuple(chain.from_iterable([message.ranges for message in messages])))

    joining = Joining(JOINED_RANGES, _ranges, _nothing, lambda before, message: True, join)
    return MessageKind(number, kind, joining, may_wait=True)


def of_numbers(
    number: int, kind: type, beside: Callable[[Any], object] = lambda message: None
) -> MessageKind:
    """An acknowledgement of the numbers from `first` to `last`; it may wait for more of them."""

    def continues(before: Any, message: Any) -> bool:
        follows: bool = message.first == before.last + 1
        return follows and beside(before) == beside(message)

    def join(messages: Sequence[Any]) -> Any:
        return replace(messages[0], last=messages[-1].last)

    return MessageKind(
        number, kind, Joining(JOINED_RANGES, _nothing, _nothing, continues, join), may_wait=True
    )


def _publications(message: Any) -> int:
    return len(message.run)


def _ranges(message: Any) -> int:
    return len(message.ranges)


def _nothing(message: Any) -> int:
    return 0


def _run_bytes(message: Any) -> int:
    run: PublicationRun = message.run
    return run.payload_bytes() + sum(map(len, run.attribute_table))


def _joined_runs(messages: Sequence[Any]) -> Any:
    return replace(messages[0], run=merge_runs([message.run for message in messages]))


def _halves(message: Any) -> Sequence[Any]:
    run: PublicationRun = message.run
    half = len(run) // 2
    if not half:
        return ()
    positions = (range(half), range(half, len(run)))
    return [replace(message, run=run.select(part)) for part in positions]
