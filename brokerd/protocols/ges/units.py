"""Units by address: a broker is the unit of level 0 whose address is its own.

Paper: [GES] §2 (contexts).
"""

from brokerd.overlay.hierarchy import Address

Unit = Address
"""What the addresses of all brokers in it begin with; the system's is ()."""


class Place:
    """Where a broker is, and what other brokers and units are from there.

    Attributes:
        address: its own.
        top: the level of the units below the system.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.top = len(address) - 1

    def level(self, unit: Unit) -> int:
        """0 for a broker, 1 for a cluster, and so on."""
        return len(self.address) - len(unit)

    def own(self, level: int) -> Unit:
        """The unit of a level that this broker is in."""
        return self.address[: len(self.address) - level]

    def is_in(self, unit: Unit) -> bool:
        """Whether this broker is in a unit, or is the unit."""
        return is_inside(self.address, unit)

    def seen_as(self, address: Address) -> Unit:
        """What this broker knows of another: the largest unit around it that it is not in itself.

        Paper: [GES] §3 (abbreviated system views).
        """
        if address == self.address:
            return address
        return address[: shared(self.address, address) + 1]

    def link_level(self, a: Unit, b: Unit) -> int:
        """The level at which two units that do not lie in each other are apart.

        Paper: [GES] §2.
        """
        return self.top - shared(a, b)


def is_inside(inner: Unit, outer: Unit) -> bool:
    """Whether a unit is in another one, or the same."""
    return inner[: len(outer)] == outer


def shared(a: Unit, b: Unit) -> int:
    """How many parts two addresses begin with together."""
    length = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        length += 1
    return length
