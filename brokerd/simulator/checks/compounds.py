"""Compound faults that seeds count: moves that meet at one broker, or between the same two units.

Most draws choose each target independently, so these pairs are rare without draws of their own; see
`search/planning/compounds`.
"""

from collections.abc import Mapping
from typing import Final

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.simulator.checks.marks import Mark

Units = tuple[tuple[int, ...], tuple[int, ...]]


RESTORED_THEN_REMOVED: Final = "restored-then-removed"
JOINED_FAILED: Final = "joined-failed"
JOINED_BESIDE_REMOVAL: Final = "joined-beside-removal"
ABSENT_CLIENT_REMOVED: Final = "absent-client-removed"
PARALLEL_LINKS_FAILED: Final = "parallel-links-failed"

COMPOUNDS: Final[Mapping[str, str]] = {
    RESTORED_THEN_REMOVED: "a broker with an accepted loss was lost, decommissioned, or departed",
    JOINED_FAILED: "a joined broker failed",
    JOINED_BESIDE_REMOVAL: "a broker joined after a removal, or was present at the removal",
    ABSENT_CLIENT_REMOVED: "a broker was lost or decommissioned in the absence of its client",
    PARALLEL_LINKS_FAILED: "two links between the same two units were down at once",
}
"""The events of compound faults, in a sentence, by mark."""


def make_marks(seeds: Mapping[str, int]) -> tuple[Mark, ...]:
    """Return the marks of compound faults, each reached once in a number of seeds."""
    return tuple(Mark(name, COMPOUNDS[name], number) for name, number in seeds.items())


def units_between(topology: Topology, a: BrokerNumber, b: BrokerNumber) -> Units | None:
    """Return the largest units at both ends of a link, in order; None outside of a hierarchy."""
    if topology.kind != "hierarchy":
        return None
    section = topology.restrict_to_kind("hierarchy").section
    assert isinstance(section, Hierarchy), f"{topology.name} is no hierarchy"
    one, other = sorted((section.addresses[a], section.addresses[b]))
    depth = next((n for n, (x, y) in enumerate(zip(one, other, strict=True), 1) if x != y), 0)
    return (one[:depth], other[:depth])
