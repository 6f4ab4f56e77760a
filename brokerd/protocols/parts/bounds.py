"""Bounds of values that no broker can exceed: versions of a peer, and the ends of logs.

A version is an incarnation of a broker, and a number within the incarnation. A version near the end
of the range would leave a broker no later version to answer with, so a peer that states such a
version is refused. From a recorded version a forger can only advance by one bound per message.
"""

from collections.abc import Mapping
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import INCARNATION_LEAP, BrokerNumber, Peer, is_incarnation_leap
from brokerd.protocols.interface import Append, Chop, LogEnds, Read, Truncate


class LogBounds:
    """The records that a core may read, chop and truncate, and the index of its next record.

    An effect outside the bounds is the core's error: an assertion with the values.

    Args:
        ends: the ends in Started.
    """

    def __init__(self, ends: Mapping[str, LogEnds]) -> None:
        self._ends = dict(ends)

    def append(self, effect: Append) -> int:
        """Return the index of the first of the records."""
        ends = self._bounds_of(effect.log)
        self._ends[effect.log] = LogEnds(ends.first, ends.next + len(effect.records))
        return ends.next

    def read(self, effect: Read) -> None:
        """Check that all records of a read exist, and that the range is not empty."""
        ends = self._bounds_of(effect.log)
        assert ends.first <= effect.first < effect.end <= ends.next, f"{effect} in {ends}"

    def chop(self, effect: Chop) -> bool:
        """Return True if records are released; assert that no index beyond the end is chopped."""
        ends = self._bounds_of(effect.log)
        assert effect.first <= ends.next, f"{effect} in {ends}"
        if effect.first <= ends.first:
            return False
        self._ends[effect.log] = LogEnds(effect.first, ends.next)
        return True

    def truncate(self, effect: Truncate) -> bool:
        """Return True if records are dropped; assert that no chopped record is kept."""
        ends = self._bounds_of(effect.log)
        assert ends.first <= effect.next <= ends.next, f"{effect} in {ends}"
        self._ends[effect.log] = LogEnds(ends.first, effect.next)
        return effect.next < ends.next

    def _bounds_of(self, log: str) -> LogEnds:
        ends = self._ends.get(log)
        assert ends is not None, f"no log {log!r} among {list(self._ends)}"
        return ends


NUMBER_LEAP: Final = 1 << 32
"""No broker changes its statement this often between two statements."""


def is_leap(earlier: tuple[int, int], later: tuple[int, int]) -> bool:
    """Return True if a version is later than another one by more than a broker can advance."""
    begins_at = earlier[1] if later[0] == earlier[0] else 0
    is_ahead = later[0] - earlier[0] > INCARNATION_LEAP or later[1] - begins_at > NUMBER_LEAP
    return later > earlier and is_ahead


def check_generation(peer: Peer, number: int, known: int, stated: int) -> None:
    """Check that a counter in a peer's message does not leap from the recorded counter.

    Raises:
        RemoteProtocolError: the counter leaps.
    """
    if is_leap((0, known), (0, stated)):
        raise RemoteProtocolError(peer, f"generation {stated} of {number} leaps from {known}")


def check_incarnation(peer: Peer, broker: BrokerNumber, known: int, stated: int) -> None:
    """Check that an incarnation in a peer's message does not leap from an earlier incarnation.

    Raises:
        RemoteProtocolError: the incarnation leaps.
    """
    if is_incarnation_leap(known, stated):
        raise RemoteProtocolError(
            peer, f"incarnation {stated} of broker {broker} leaps from {known}"
        )
