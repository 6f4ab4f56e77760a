"""The pace of acknowledgements: they are gathered at their origin only.

A write costs sender and receiver about as much as a publication, and no delivery waits for an
acknowledgement. So a subscriber gathers acknowledgements of some publications; the brokers on the
reverse path pass acknowledgements on together with their other writes.
"""

from dataclasses import dataclass
from typing import Final

from brokerd.units import MILLISECOND_NS

SHORTEST_NS: Final = 2 * MILLISECOND_NS
"""Least time between a write and a write that carries nothing but acknowledgements."""
TO_PUBLISHER_NS: Final = MILLISECOND_NS // 2
"""The same if a publisher waits for acknowledgements, unless the publisher sends without pause."""
LONGEST_NS: Final = 10 * MILLISECOND_NS
COMPANY: Final = 32
"""Number of publications for which acknowledgements are sent without further gathering."""


@dataclass(slots=True)
class Pace:
    """The acknowledgements of one connection.

    Attributes:
        is_origin: acknowledgements arise at this end; else this end passes them on.
        to_publisher: acknowledgements end at the other end, which is a client.
        left_ns: time at which all pending acknowledgements were last written.
        held_ns: time at which the first pending acknowledgement was held back; 0 if none is.
    """

    is_origin: bool = False
    to_publisher: bool = False
    left_ns: int = 0
    held_ns: int = 0

    def due_ns(self, now_ns: int, publications: int, heard_ns: int, in_flood: bool = False) -> int:
        """Return the time at which acknowledgements may be sent.

        A time before `now_ns` means at once. In a flood, which a publisher's window and not its
        application holds up, acknowledgements are worth less than the time that a write takes.

        To be called again at the returned time, and for further publications. If nothing has
        arrived since the first acknowledgement was held back (`heard_ns`), the sender may be
        waiting for acknowledgements: its window, which is unknown here, may be exhausted.
        """
        if self.to_publisher and not in_flood:
            return self.left_ns + TO_PUBLISHER_NS
        soonest_ns = self.left_ns + SHORTEST_NS
        if not self.is_origin or publications >= COMPANY:
            return soonest_ns
        latest_ns = self.left_ns + LONGEST_NS
        if not self.held_ns:
            self.held_ns = now_ns
        if heard_ns > self.held_ns:
            return latest_ns
        return min(latest_ns, max(soonest_ns, self.held_ns + SHORTEST_NS))
