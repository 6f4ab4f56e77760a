"""The definition of ring_flood, as other packages import it."""

from brokerd.model.message_kind import MessageKind, run_kind
from brokerd.protocols.definition import Acknowledgement, Promises, ProtocolDefinition
from brokerd.protocols.parts.records import pack_positions, unpack_positions
from brokerd.protocols.ring_flood import messages
from brokerd.protocols.ring_flood.log import LOG
from brokerd.protocols.ring_flood.parameters import RingFloodParameters

RING_FLOOD = ProtocolDefinition(
    name="ring_flood",
    # One unit with a ring of links: a stream arrives over any remaining path.
    kind="hierarchy",
    parameters=RingFloodParameters,
    messages=(run_kind(240, messages.Flooded), MessageKind(241, messages.StoredThrough)),
    promises=Promises(exactly_once=True, members_may_change=False),
    acknowledgement=lambda parameters: Acknowledgement.STORED,
    logs=lambda parameters: (LOG,),
    bypasses_links=lambda parameters: True,
    core="brokerd.protocols.ring_flood.core",
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.ring_flood.checks",
)
