"""gryphon, as everybody else sees it."""

from brokerd.protocols.definition import (
    Acknowledgement,
    CoreContext,
    Order,
    Promises,
    ProtocolDefinition,
)
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.messages import KINDS
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubends import LOG
from brokerd.protocols.gryphon.routes import KIND, Routes, hosts_clients
from brokerd.protocols.parts.positions import pack_positions, unpack_positions


def _make_core(context: CoreContext) -> Gryphon:
    parameters: GryphonParameters = context.parameters
    routes = Routes(context.broker, context.topology, parameters.pubends)
    return Gryphon(context.broker, routes, parameters, context.decode_attributes)


GRYPHON = ProtocolDefinition(
    name="gryphon",
    kind=KIND,
    parameters=GryphonParameters,
    messages=KINDS,
    promises=Promises(exactly_once=True, members_may_change=False),
    acknowledgement=lambda parameters: Acknowledgement.STORED,
    logs=lambda parameters: (LOG,),
    bypasses_links=lambda parameters: False,
    order=lambda parameters: Order(parameters.order),
    hosts_clients=hosts_clients,
    title="Gryphon",
    recovery=(
        "The publisher's broker logs every publication and keeps it until all are done with it. "
        "Whoever lacks some of a stream asks for it, and whoever knows it on the way answers."
    ),
    make_core=_make_core,
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.gryphon.checks",
)
