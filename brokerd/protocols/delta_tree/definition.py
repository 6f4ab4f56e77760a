"""Definition of delta_tree.

Paper: [DFT11].
"""

from brokerd.protocols.definition import Acknowledgement, Promises, ProtocolDefinition
from brokerd.protocols.delta_tree.messages import KINDS
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.partitions.tolerance import excess, reaches
from brokerd.protocols.delta_tree.storage.logs import LOG
from brokerd.protocols.parts.positions import pack_positions, unpack_positions


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
    core="brokerd.protocols.delta_tree.relays.assist",
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.delta_tree.checks",
)
