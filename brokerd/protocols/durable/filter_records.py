"""A record of the filtering subsystem: a tick, and the subscriptions that are owed it.

A record of n subscriptions takes 8 + 16·n bytes: the tick, and per subscription its number and the
index of the previous record with that subscription.

Paper: [DS03] §4.2, footnote 2.
"""

import struct
from collections.abc import MutableMapping, Sequence
from itertools import chain
from typing import Final

NO_RECORD: Final = (1 << 64) - 1
"""In place of an index: no previous record has the subscription."""

_WORD: Final = 8
_PACK_ONE: Final = struct.Struct(">3Q").pack


class MatchRecord:
    """A tick and the subscriptions that are owed it."""

    __slots__ = ("_previous", "_subscriptions", "tick")

    def __init__(self, tick: int, subscriptions: Sequence[int], previous: Sequence[int]) -> None:
        self.tick = tick
        self._subscriptions = tuple(subscriptions)
        self._previous = tuple(previous)

    @property
    def subscriptions(self) -> tuple[int, ...]:
        """The subscriptions; at least one."""
        return self._subscriptions

    def before(self, subscription: int) -> int:
        """Return the index of the previous record with a subscription, or NO_RECORD.

        Raises:
            ValueError: this record does not have the subscription.
        """
        return self._previous[self._subscriptions.index(subscription)]

    @staticmethod
    def unpack(content: bytes) -> "MatchRecord":
        """Return a record from the log.

        Raises:
            ValueError: no record gives these bytes.
        """
        count, rest = divmod(len(content), _WORD)
        if rest or count < 3 or count % 2 == 0:
            raise ValueError(
                f"{len(content)} bytes are not a record of a tick and its subscriptions"
            )
        tick, *pairs = struct.unpack(f">{count}Q", content)
        return MatchRecord(tick, pairs[::2], pairs[1::2])


def pack_matches(
    ticks: Sequence[int],
    whose: Sequence[Sequence[int]],
    first: int,
    newest: MutableMapping[int, int],
) -> list[bytes]:
    """Return records for the log, one per tick, with its subscriptions.

    Args:
        first: the index of the first record.
        newest: the index of the newest record of each subscription, which is updated.
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
    """Return a record for the log.

    Args:
        index: of the record.
        newest: the index of the newest record of each subscription, which is updated.
    """
    words = [tick]
    for each in subscriptions:
        words += each, newest.get(each, NO_RECORD)
        newest[each] = index
    return struct.pack(f">{len(words)}Q", *words)
