"""A record of the persistent filtering subsystem: one tick, and the subscriptions it is for.

A record of n subscriptions takes 8 + 16·n bytes: the tick, and per subscription its number and
the index of the record before that has it.

Paper: [DS03] §4.2, footnote 2.
"""

import struct
from collections.abc import MutableMapping, Sequence
from itertools import chain
from typing import Final

NO_RECORD: Final = (1 << 64) - 1
"""In place of an index: no record before has the subscription."""

_WORD: Final = 8
_PACK_ONE: Final = struct.Struct(">3Q").pack


class MatchRecord:
    """A tick that is for these subscriptions."""

    __slots__ = ("_previous", "_subscriptions", "tick")

    def __init__(self, tick: int, subscriptions: Sequence[int], previous: Sequence[int]) -> None:
        self.tick = tick
        self._subscriptions = tuple(subscriptions)
        self._previous = tuple(previous)

    @property
    def subscriptions(self) -> tuple[int, ...]:
        """Whom the tick is for; at least one."""
        return self._subscriptions

    def before(self, subscription: int) -> int:
        """The index of the record before that has this subscription; NO_RECORD if none has.

        Raises:
            ValueError: this record does not have it.
        """
        return self._previous[self._subscriptions.index(subscription)]

    @staticmethod
    def unpack(content: bytes) -> "MatchRecord":
        """Back from the log.

        Raises:
            ValueError: no record gives these bytes.
        """
        count, rest = divmod(len(content), _WORD)
        if rest or count < 3 or count % 2 == 0:
            raise ValueError(f"{len(content)} bytes are no record of a tick and who it is for")
        tick, *pairs = struct.unpack(f">{count}Q", content)
        return MatchRecord(tick, pairs[::2], pairs[1::2])


def pack_matches(
    ticks: Sequence[int],
    whose: Sequence[Sequence[int]],
    first: int,
    newest: MutableMapping[int, int],
) -> list[bytes]:
    """Records as they stand in the log: one per tick, of the subscriptions that it is for.

    Args:
        first: the index of the first of them.
        newest: the index of the newest record of each subscription, which these are then.
    """
    if {*map(len, whose)} != {1}:
        return [
            pack_match(tick, subscriptions, index, newest)
            for index, (tick, subscriptions) in enumerate(zip(ticks, whose, strict=True), first)
        ]
    # Each publication of a run for one of many, as where each subscriber wants a hundredth.
    ones = list(chain.from_iterable(whose))
    previous = []
    for index, one in enumerate(ones, first):
        previous.append(newest.get(one, NO_RECORD))
        newest[one] = index
    return list(map(_PACK_ONE, ticks, ones, previous))


def pack_match(
    tick: int, subscriptions: Sequence[int], index: int, newest: MutableMapping[int, int]
) -> bytes:
    """A record as it stands in the log.

    Args:
        index: of the record.
        newest: the index of the newest record of each subscription, which this one is then.
    """
    words = [tick]
    for each in subscriptions:
        words += each, newest.get(each, NO_RECORD)
        newest[each] = index
    return struct.pack(f">{len(words)}Q", *words)
