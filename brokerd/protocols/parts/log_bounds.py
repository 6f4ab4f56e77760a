"""The ends of a core's logs after its effects: every driver checks a core with them."""

from collections.abc import Mapping

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
