"""The requested ranges of a stream, by broker, and recent requests upstream.

Paper: [DS03] §3, §4.1 (nacks are consolidated).
"""

from brokerd.protocols.gryphon import IntervalSet, Stream
from brokerd.protocols.interface import Instant


class Questions(Stream):
    """See Stream; answers are forwarded and not stored, so the same may be requested again.

    The wait counts from the last request.
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
