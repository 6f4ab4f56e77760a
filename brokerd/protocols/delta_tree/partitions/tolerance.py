"""What the δ tree goes on without: no more than δ consecutive brokers of any primary path.

Paper: [DFT11] §II ("δ-fault-tolerance").
"""

from brokerd.overlay.chains import longest_lost, row_around
from brokerd.overlay.outage import Outage, Reached
from brokerd.overlay.routes import Lost
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree_reach import reached_in_tree
from brokerd.protocols.definition import Excess
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters


def excess(topology: Topology, parameters: DeltaTreeParameters, lost: Lost) -> Excess | None:
    """One more than δ consecutive brokers of a primary path that are all lost; None: there are
    none. Links count by how many fail at once only."""
    if lost.latest is None:
        row = longest_lost(topology, lost.brokers)
    else:
        row = row_around(topology, lost.latest, lost.brokers)
    delta = topology.delta
    if len(row) <= delta:
        return None
    return Excess(
        row[: delta + 1],
        f"{delta + 1} consecutive brokers of a primary path, and delta is {delta}",
    )


def reaches(topology: Topology, parameters: DeltaTreeParameters, outage: Outage) -> Reached:
    """Who gets whose publications, up to δ brokers being gone past."""
    relays = parameters.assist == "on"
    return reached_in_tree(topology, outage, topology.delta + 1, relays=relays)
