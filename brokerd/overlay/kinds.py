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
    read_hierarchy,
    with_storage,
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
    """

    name: str
    has_links_of_file: bool
    read: Callable[[Any, Sequence[str], Sequence[Link], str], Section]

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


def follows(section: Section, before: Section) -> bool:
    """Whether a section may have come to be this while brokers ran."""
    if isinstance(section, Hierarchy) and isinstance(before, Hierarchy):
        return section.follows(before)
    return section == before


KINDS: Final[Mapping[str, OverlayKind]] = {
    kind.name: kind
    for kind in (
        OverlayKind("tree", True, read_tree),
        OverlayKind("cells", False, read_cells),
        OverlayKind("hierarchy", False, read_hierarchy),
        OverlayKind("bipartite", False, read_bipartite),
    )
}
"""By name."""
