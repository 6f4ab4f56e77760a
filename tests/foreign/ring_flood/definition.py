"""ring_flood, as everybody else sees it."""

from brokerd.model.message_kind import MessageKind, of_run
from brokerd.protocols.definition import Acknowledgement, CoreContext, Promises, ProtocolDefinition
from brokerd.protocols.parts.positions import pack_positions, unpack_positions
from brokerd.protocols.ring_flood import messages
from brokerd.protocols.ring_flood.core import RingFlood
from brokerd.protocols.ring_flood.log import LOG
from brokerd.protocols.ring_flood.parameters import RingFloodParameters

KIND = "hierarchy"
"""One unit of it, whose links are a ring: a stream comes by any way that is left."""


def _make_core(context: CoreContext) -> RingFlood:
    links = context.topology.overlay(KIND).links
    neighbours = [a if b == context.broker else b for a, b in links if context.broker in (a, b)]
    return RingFlood(
        context.broker, tuple(neighbours), context.parameters, context.decode_attributes
    )


RING_FLOOD = ProtocolDefinition(
    name="ring_flood",
    kind=KIND,
    parameters=RingFloodParameters,
    messages=(of_run(240, messages.Flooded), MessageKind(241, messages.StoredThrough)),
    promises=Promises(exactly_once=True, members_may_change=False),
    acknowledgement=lambda parameters: Acknowledgement.STORED,
    logs=lambda parameters: (LOG,),
    bypasses_links=lambda parameters: True,
    make_core=_make_core,
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.ring_flood.checks",
)
