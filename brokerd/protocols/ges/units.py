"""Units by address: a broker is the unit of level 0 with the address of the broker.

Paper: [GES] §2 (contexts).
"""

from typing import Any, Final

from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.topology import Topology

Unit = Address
"""The common beginning of the addresses of all brokers in it; () for the system."""


class Place:
    """The place of a broker, and other brokers and units as seen from there.

    Attributes:
        address: the broker's own.
        top: the level of the units below the system.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.top = len(address) - 1

    def level(self, unit: Unit) -> int:
        """Return the level: 0 for a broker, 1 for a cluster, and so on."""
        return len(self.address) - len(unit)

    def own_unit(self, level: int) -> Unit:
        """Return the unit of a level that this broker is in."""
        return self.address[: len(self.address) - level]

    def is_in(self, unit: Unit) -> bool:
        """Return True if this broker is in a unit, or is the unit."""
        return is_inside(self.address, unit)

    def outermost_unit_of(self, address: Address) -> Unit:
        """Return the largest unit around another broker that does not contain this broker.

        Paper: [GES] §3 (abbreviated system views).
        """
        if address == self.address:
            return address
        return address[: common_length(self.address, address) + 1]

    def link_level(self, a: Unit, b: Unit) -> int:
        """Return the level at which two units that do not lie in each other differ.

        Paper: [GES] §2.
        """
        return self.top - common_length(a, b)


def is_inside(inner: Unit, outer: Unit) -> bool:
    """Return True if a unit is in another one, or the same."""
    return inner[: len(outer)] == outer


def common_length(a: Unit, b: Unit) -> int:
    """Return the number of parts in the common beginning of two addresses."""
    length = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        length += 1
    return length


Version = tuple[int, int]
"""The incarnation of the broker, and a counter within it."""

FIRST = 0
_STEP = 2


def after(number: int) -> int:
    """Return the number of the next own statement of a broker, after any number."""
    return number + _STEP - number % _STEP


def substitute_version(version: Version) -> Version:
    """Return the version of a statement in the place of a broker with this latest version."""
    incarnation, number = version
    return incarnation, number + 1


def is_its_own(version: Version) -> bool:
    """Return True if the broker itself made the statement."""
    return version[1] % _STEP == 0


KIND: Final = "hierarchy"


def hierarchy_of(topology: Topology) -> Hierarchy:
    """Return the hierarchy of a topology that has one."""
    return hierarchy_from(topology.overlay(KIND))


def hierarchy_from(overlay: Any) -> Hierarchy:
    """Return an overlay that is a hierarchy."""
    assert isinstance(overlay, Hierarchy), f"{overlay} is no hierarchy"
    return overlay


def unit_text(unit: Unit) -> str:
    """Return the text of an address: its numbers, separated by dots."""
    return ".".join(map(str, unit))
