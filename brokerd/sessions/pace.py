"""When acknowledgements leave: they wait for company where they arise, and nowhere else.

Each write costs sender and receiver about as much as a publication, and nobody's delivery waits
for an acknowledgement. So a subscriber lets some publications gather; the brokers on the way
back pass on what comes, with whatever else they write.
"""

from dataclasses import dataclass
from typing import Final

from brokerd.units import MILLISECOND_NS

SHORTEST_NS: Final = 2 * MILLISECOND_NS
"""From one write to one that carries nothing but acknowledgements."""
TO_PUBLISHER_NS: Final = MILLISECOND_NS // 2
"""The same where a publisher waits for them, unless it sends as fast as it can."""
LONGEST_NS: Final = 10 * MILLISECOND_NS
COMPANY: Final = 32
"""So many publications are company enough."""


@dataclass(slots=True)
class Pace:
    """The acknowledgements of one connection.

    Attributes:
        is_origin: they arise at this end; else it passes them on.
        to_publisher: they end at the other end, which is a client.
        left_ns: when everything that there was to say was written last.
        held_ns: when the first of those that wait was held back; 0 while none is.
    """

    is_origin: bool = False
    to_publisher: bool = False
    left_ns: int = 0
    held_ns: int = 0

    def due_ns(self, now_ns: int, publications: int, heard_ns: int, in_flood: bool = False) -> int:
        """When acknowledgements of so many publications may leave; not after `now_ns`: at once.

        In a flood, which a publisher's window and not its application holds up, they are worth
        less than the time that a write takes.

        To be asked again then, and whenever there are more. If nothing has come since the first
        of them was held back (`heard_ns`), the sender may be waiting for them to go on: its
        window, which is not known here, may be used up.
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
