"""The hierarchy in a topology or overlay."""

from typing import Any, Final

from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.topology import Topology

KIND: Final = "hierarchy"


def hierarchy_of(topology: Topology) -> Hierarchy:
    """Return the hierarchy of a topology that has one."""
    return hierarchy_from(topology.overlay(KIND))


def hierarchy_from(overlay: Any) -> Hierarchy:
    """Return an overlay that is a hierarchy."""
    assert isinstance(overlay, Hierarchy), f"{overlay} is no hierarchy"
    return overlay
