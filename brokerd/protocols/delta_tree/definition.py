"""delta_tree, as everybody else sees it.

Paper: [DFT11].
"""

from brokerd.model.message_kind import MessageKind, of_ranges, of_run
from brokerd.overlay.tree import primary_tree
from brokerd.protocols.definition import Acknowledgement, CoreContext, Promises, ProtocolDefinition
from brokerd.protocols.delta_tree import messages
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.partitions.tolerance import excess, reaches
from brokerd.protocols.delta_tree.relays.assist import AssistedDeltaTree
from brokerd.protocols.delta_tree.storage.publication_log import LOG
from brokerd.protocols.interface import DeliveryProtocol
from brokerd.protocols.parts.positions import pack_positions, unpack_positions


def _make_core(context: CoreContext) -> DeliveryProtocol:
    around = primary_tree(context.topology).surroundings(context.broker)
    core = DeltaTree(context.broker, around, context.parameters, context.decode_attributes)
    if context.parameters.assist == "on":
        return AssistedDeltaTree(core, context.parameters)
    return core


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
    make_core=_make_core,
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.delta_tree.checks",
)
