"""The kinds of overlay that there are: how each reads its section of a topology file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.bipartite import Bipartite, read_bipartite
from brokerd.overlay.cells import CellGraph, read_cells
from brokerd.overlay.hierarchy import (
    RETIRED,
    Hierarchy,
    read_changes,
    read_hierarchy,
    with_broker,
    with_storage,
    without_broker,
    without_storage,
)
from brokerd.overlay.routes import Link, Route
from brokerd.overlay.tree_section import TreeOverlay, TreeSection, read_tree

Section = TreeSection | CellGraph | Hierarchy | Bipartite


class Overlay(Protocol):
    """Who is next to whom, and how a stream comes from one to another."""

    @property
    def links(self) -> tuple[Link, ...]:
        """Between whom there may be a connection that carries streams."""

    def role(self, broker: BrokerNumber) -> str:
        """What a broker is in the overlay, for people."""

    def surroundings(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Whom a broker may know, dial, and be dialled by, in ascending order; not itself."""

    def facts(self) -> Mapping[str, int | float]:
        """What one wants to know of it before deploying it."""

    def route(self, origin: BrokerNumber, home: BrokerNumber) -> Route:
        """What a stream needs on its way from an origin to a home."""


@dataclass(frozen=True, slots=True)
class OverlayKind:
    """A kind of overlay.

    Attributes:
        name: in topology files, where its section is called so, too.
        has_links_of_file: its links are the file's own `links`; else its section gives them.
        read: its section, checked, given the file's brokers and links and where that stands.
        members_may_change: brokers may join and leave.
    """

    name: str
    has_links_of_file: bool
    read: Callable[[Any, Sequence[str], Sequence[Link], str], Section]
    members_may_change: bool = False

    def overlay(self, section: Section, links: tuple[Link, ...]) -> Overlay:
        """What the section describes.

        Args:
            links: the file's.
        """
        return TreeOverlay(links, section.delta) if isinstance(section, TreeSection) else section


def as_deployed(section: Section) -> Section:
    """A section before anything changed while brokers ran."""
    return section.as_deployed() if isinstance(section, Hierarchy) else section


def with_role(section: Section, broker: str, role: str, where: str) -> Section:
    """The section where a broker comes to be something else while brokers run.

    Args:
        role: in a hierarchy a level, whose unit it stores for from then on, or `retired`.

    Raises:
        ConfigError: it cannot be that, or nobody changes in an overlay of this kind; names `where`.
    """
    if not isinstance(section, Hierarchy):
        raise ConfigError(f"{where}: in {section.kind} overlays nobody comes to be something else")
    if role == RETIRED:
        return without_storage(section, broker, where)
    return with_storage(section, broker, int(role) if role.isdecimal() else role, where)


def joined(
    section: Section, name: str, near: Sequence[BrokerNumber], place: str, where: str
) -> Section:
    """The section where a broker joins while others run; it has the next number.

    Args:
        near: whom it is linked to.
        place: in a hierarchy its address, or "" for one that is free; "" in a tree.

    Raises:
        ConfigError: it cannot; names `where`.
    """
    if isinstance(section, Hierarchy):
        return with_broker(section, name, near, place, where)
    if place or len(near) != 1:
        raise ConfigError(f"{where}: {name} joins a tree with one link, and without an address")
    return section


def left(section: Section, name: str, near: Sequence[str], where: str) -> Section:
    """The section where a broker has left while others run.

    Args:
        near: whom it is linked to.

    Raises:
        ConfigError: it cannot; names `where`.
    """
    if isinstance(section, Hierarchy):
        return without_broker(section, name, where)
    if len(near) != 1:
        raise ConfigError(
            f"{where}: {name} is linked to {', '.join(near) or 'nobody'}; only a leaf can leave"
        )
    return section


def place_of(section: Section, broker: BrokerNumber) -> str:
    """Where a broker is in a hierarchy: its address; "" elsewhere."""
    if not isinstance(section, Hierarchy):
        return ""
    return ".".join(map(str, section.addresses[broker]))


def at_once(section: Section) -> Section:
    """A section as if all who joined had been deployed with the others, and nobody had left."""
    return section.at_once() if isinstance(section, Hierarchy) else section


def changed(section: Section, values: Any, where: str) -> Section:
    """The section with what a file says of who came to be something else while brokers ran.

    Raises:
        ConfigError: it cannot have been; names `where`.
    """
    return read_changes(section, values, where) if isinstance(section, Hierarchy) else section


def roles(section: Section) -> object:
    """Who has come to be what while brokers ran, to be compared."""
    return section.changes if isinstance(section, Hierarchy) else ()


def follows(section: Section, before: Section) -> bool:
    """Whether a section may have come to be this while brokers ran."""
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
"""By name."""
