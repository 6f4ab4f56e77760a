"""The tolerance of the δ tree: no more than δ consecutive lost brokers of any primary path.

Paper: [DFT11] §II ("δ-fault-tolerance").
"""

from brokerd.overlay.outage import Outage, Reached, longest_lost, reached_in_tree, row_around
from brokerd.overlay.routes import Lost
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import Excess
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters


def excess(topology: Topology, parameters: DeltaTreeParameters, lost: Lost) -> Excess | None:
    """Return δ + 1 consecutive lost brokers of a primary path; None without such brokers.

    Links count only in the number of simultaneous failures.
    """
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
    """Return the brokers from which publications arrive, past up to δ brokers."""
    relays = parameters.assist == "on"
    return reached_in_tree(topology, outage, topology.delta + 1, relays=relays)
