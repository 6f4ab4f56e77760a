"""Definition of delta_tree.

Paper: [DFT11].
"""

from brokerd.model.message_kind import MessageKind, of_ranges, of_run
from brokerd.protocols.definition import Acknowledgement, Promises, ProtocolDefinition
from brokerd.protocols.delta_tree import messages
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
    messages=(
        MessageKind(48, messages.Summary),
        MessageKind(49, messages.SyncEnd),
        MessageKind(50, messages.RecoveryFlag),
        MessageKind(51, messages.SubscriptionCopy),
        MessageKind(52, messages.UpstreamCopy),
        MessageKind(53, messages.SubscriptionConfirmation),
        of_run(54, messages.PublicationCopy, beside=lambda message: message.path),
        of_ranges(55, messages.PublicationConfirmation),
        MessageKind(56, messages.RecoveryNotifier),
        MessageKind(57, messages.Unsubscription),
        MessageKind(58, messages.PartitionNew),
        MessageKind(59, messages.PartitionGone),
        MessageKind(60, messages.Relay),
    ),
    promises=Promises(exactly_once=True, members_may_change=True),
    acknowledgement=_acknowledgement,
    logs=lambda parameters: (LOG,) if parameters.publication_log else (),
    bypasses_links=lambda parameters: parameters.assist == "on",
    title="the δ\N{NO-BREAK SPACE}tree",
    recovery=(
        "Every broker keeps a publication until the brokers after it have confirmed it. When a "
        "neighbour or a link is gone, up to δ in a row, sessions past it are opened and what was "
        "not confirmed is sent again, in order."
    ),
    wiring=lambda topology, parameters: f"δ = {topology.delta}",
    excess=excess,
    fault_bound=lambda topology, parameters: topology.delta,
    reaches=reaches,
    keeps_loss=lambda topology, parameters, broker: "",
    core="brokerd.protocols.delta_tree.relays.assist",
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.delta_tree.checks",
)
