"""The kinds of overlays, with the readers of their sections of a topology file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.bipartite import Bipartite, read_bipartite
from brokerd.overlay.cells import CellGraph, read_cells
from brokerd.overlay.hierarchy import RETIRED, Hierarchy, read_hierarchy
from brokerd.overlay.hierarchy_changes import (
    read_changes,
    with_broker,
    with_storage,
    without_broker,
    without_storage,
)
from brokerd.overlay.routes import Link, Route
from brokerd.overlay.tree_section import TreeOverlay, TreeSection, read_tree

Section = TreeSection | CellGraph | Hierarchy | Bipartite


class Overlay(Protocol):
    """The links between brokers, and the routes of streams."""

    @property
    def links(self) -> tuple[Link, ...]:
        """The possible connections that carry streams."""

    def role(self, broker: BrokerNumber) -> str:
        """Return the role of a broker in the overlay, for people."""

    def surroundings(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the brokers that a broker may dial, or be dialled by, in ascending order."""

    def facts(self) -> Mapping[str, int | float]:
        """Return figures of the overlay for review before a deployment."""

    def route(self, origin: BrokerNumber, home: BrokerNumber) -> Route:
        """Return the route of a stream from an origin to a home."""


@dataclass(frozen=True, slots=True)
class OverlayKind:
    """A kind of overlay.

    Attributes:
        name: name in topology files, also of the section.
        has_links_of_file: True if the links are the file's own `links`; else the section defines
            links.
        read: returns the checked section, given the file's brokers and links and the place in the
            file.
        members_may_change: True if brokers may join and leave.
    """

    name: str
    has_links_of_file: bool
    read: Callable[[Any, Sequence[str], Sequence[Link], str], Section]
    members_may_change: bool = False

    def overlay(self, section: Section, links: tuple[Link, ...]) -> Overlay:
        """Return the overlay that the section describes.

        Args:
            links: links of the file.
        """
        return TreeOverlay(links, section.delta) if isinstance(section, TreeSection) else section


def as_deployed(section: Section) -> Section:
    """Return a section before all changes at run time."""
    return section.as_deployed() if isinstance(section, Hierarchy) else section


def with_role(section: Section, broker: str, role: str, where: str) -> Section:
    """Return the section with the role of a broker changed at run time.

    Args:
        role: in a hierarchy a level, for a storage of the unit of that level, or `retired`.

    Raises:
        ConfigError: the role is impossible, or roles never change in this kind of overlay; names
            `where`.
    """
    if not isinstance(section, Hierarchy):
        raise ConfigError(f"{where}: in {section.kind} overlays no broker changes its role")
    if role == RETIRED:
        return without_storage(section, broker, where)
    return with_storage(section, broker, int(role) if role.isdecimal() else role, where)


def with_joined(
    section: Section, name: str, near: Sequence[BrokerNumber], place: str, where: str
) -> Section:
    """Return the section after a broker joined at run time, with the next number.

    Args:
        near: brokers that the new broker is linked to.
        place: in a hierarchy the address, or "" for a free address; "" in a tree.

    Raises:
        ConfigError: the broker cannot join; names `where`.
    """
    if isinstance(section, Hierarchy):
        return with_broker(section, name, near, place, where)
    if place or len(near) != 1:
        raise ConfigError(f"{where}: {name} joins a tree with one link, and without an address")
    return section


def left(section: Section, name: str, near: Sequence[str], where: str) -> Section:
    """Return the section after a broker left at run time.

    Args:
        near: brokers that the departed broker was linked to.

    Raises:
        ConfigError: the broker cannot leave; names `where`.
    """
    if isinstance(section, Hierarchy):
        return without_broker(section, name, where)
    if len(near) != 1:
        raise ConfigError(
            f"{where}: {name} is linked to {', '.join(near) or 'no broker'}; only a leaf can leave"
        )
    return section


def place_of(section: Section, broker: BrokerNumber) -> str:
    """Return a broker's address in a hierarchy; "" in other overlays."""
    if not isinstance(section, Hierarchy):
        return ""
    return ".".join(map(str, section.addresses[broker]))


def without_changes(section: Section) -> Section:
    """Return a section as if all joined brokers had been deployed, and none had left."""
    return section.without_changes() if isinstance(section, Hierarchy) else section


def with_changes(section: Section, values: Any, where: str) -> Section:
    """Return the section with the changes of roles at run time that a file lists.

    Raises:
        ConfigError: an impossible change; names `where`.
    """
    return read_changes(section, values, where) if isinstance(section, Hierarchy) else section


def roles(section: Section) -> object:
    """Return the changes of roles at run time, for comparison."""
    return section.changes if isinstance(section, Hierarchy) else ()


def follows(section: Section, before: Section) -> bool:
    """Return True if a section may result from `before` by changes at run time."""
    if isinstance(section, Hierarchy) and isinstance(before, Hierarchy):
        return section.follows(before)
    return section == before


KINDS: Final[Mapping[str, OverlayKind]] = {
    kind.name: kind
    for kind in (
        OverlayKind("tree", True, read_tree, members_may_change=True),
        OverlayKind("cells", False, read_cells),
        OverlayKind("hierarchy", False, read_hierarchy, members_may_change=True),
        OverlayKind("bipartite", False, read_bipartite),
    )
}
"""The kinds by name."""
