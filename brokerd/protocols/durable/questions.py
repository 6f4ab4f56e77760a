"""What of one stream is over and wanted, by whom, and what of that was asked for lately.

Paper: [DS03] §3, §4.1 (nacks are consolidated).
"""

from brokerd.protocols.gryphon.intervals import IntervalSet
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import Instant


class Questions(Stream):
    """See Stream; here an answer is passed on and not kept, so the same may be asked for anew.

    That counts from when it was asked for last.
    """

    __slots__ = ()

    def forget_asked(self, now_ns: Instant) -> Instant | None:
        """See Stream."""
        waiting = self._asked_until
        if waiting and waiting[0][2] <= now_ns:
            while waiting and waiting[0][2] <= now_ns:
                waiting.popleft()
            later = IntervalSet((start, end) for start, end, _ in waiting)
            self.asked = IntervalSet(each for asked in self.asked for each in later.within(*asked))
        return super().forget_asked(now_ns)
