"""The ends of a core's logs as its effects move them: what every driver holds a core to."""

from collections.abc import Mapping

from brokerd.protocols.interface import Append, Chop, LogEnds, Read, Truncate


class LogBounds:
    """Which records a core may read, chop and truncate, and which index its next one gets.

    What is beyond is the core's error: an assertion with the values in it.

    Args:
        ends: as Started said.
    """

    def __init__(self, ends: Mapping[str, LogEnds]) -> None:
        self._ends = dict(ends)

    def append(self, effect: Append) -> int:
        """The index of the first of the records."""
        ends = self._of(effect.log)
        self._ends[effect.log] = LogEnds(ends.first, ends.next + len(effect.records))
        return ends.next

    def read(self, effect: Read) -> None:
        """See that all of it is there, and that it is something."""
        ends = self._of(effect.log)
        assert ends.first <= effect.first < effect.end <= ends.next, f"{effect} in {ends}"

    def chop(self, effect: Chop) -> bool:
        """Whether anything goes; what was never appended cannot."""
        ends = self._of(effect.log)
        assert effect.first <= ends.next, f"{effect} in {ends}"
        if effect.first <= ends.first:
            return False
        self._ends[effect.log] = LogEnds(effect.first, ends.next)
        return True

    def truncate(self, effect: Truncate) -> bool:
        """Whether anything goes; what was chopped cannot come again."""
        ends = self._of(effect.log)
        assert ends.first <= effect.next <= ends.next, f"{effect} in {ends}"
        self._ends[effect.log] = LogEnds(ends.first, effect.next)
        return effect.next < ends.next

    def _of(self, log: str) -> LogEnds:
        ends = self._ends.get(log)
        assert ends is not None, f"no log {log!r} among {list(self._ends)}"
        return ends
