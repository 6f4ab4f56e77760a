"""Definition of delta_tree, and its tolerance: no more than δ consecutive lost brokers of a path.

Paper: [DFT11] §II ("δ-fault-tolerance").
"""

from typing import Final

from brokerd.overlay.outage import Outage, Reached, find_reached_in_tree, longest_lost, row_around
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import Acknowledgement, Excess, Promises, ProtocolDefinition
from brokerd.protocols.delta_tree.messages import KINDS
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.parts.records import pack_positions, unpack_positions

LOG: Final = "publications"
"""The name of a broker's log."""


def excess(
    topology: Topology, parameters: DeltaTreeParameters, lost: FailedElements
) -> Excess | None:
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
    return find_reached_in_tree(topology, outage, topology.delta + 1, relays=relays)


def _acknowledgement(parameters: DeltaTreeParameters) -> Acknowledgement:
    logs = parameters.publication_log
    return Acknowledgement.STORED if logs else Acknowledgement.DELIVERED


DELTA_TREE = ProtocolDefinition(
    name="delta_tree",
    kind="tree",
    parameters=DeltaTreeParameters,
    messages=KINDS,
    promises=Promises(exactly_once=True, members_may_change=True),
    acknowledgement=_acknowledgement,
    logs=lambda parameters: (LOG,) if parameters.publication_log else (),
    bypasses_links=lambda parameters: parameters.assist == "on",
    title="the δ\N{NO-BREAK SPACE}tree",
    recovery=(
        "Every broker keeps a publication until the brokers after it have confirmed it. When a "
        "neighbour or a link fails, up to δ in a row, brokers open sessions past it and send "
        "unconfirmed publications again, in order."
    ),
    wiring=lambda topology, parameters: f"δ = {topology.delta}",
    excess=excess,
    fault_bound=lambda topology, parameters: topology.delta,
    reaches=reaches,
    keeps_loss=lambda topology, parameters, broker: "",
    topology_parameters=("delta",),
    chain_words=("<=delta", ">delta"),
    partition_counters=("publications_withheld", "notifiers_sent"),
    core="brokerd.protocols.delta_tree.relayed_sessions",
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.delta_tree.checks",
)
