"""Definition of gryphon."""

from typing import Any, Final

from brokerd.protocols.definition import Acknowledgement, Order, Promises, ProtocolDefinition
from brokerd.protocols.gryphon.messages import KINDS
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import KIND, hosts_clients
from brokerd.protocols.parts.records import pack_positions, unpack_positions

LOG: Final = "events"
"""The log of a pubend's broker."""

COPIES: Final = "copies"
"""The log of a replica: copies of other brokers' states."""


def logs_with(parameters: Any) -> tuple[str, ...]:
    """Return the names of the logs of gryphon with the parameters."""
    return (LOG, COPIES) if parameters.replicas > 1 else (LOG,)


GRYPHON = ProtocolDefinition(
    name="gryphon",
    kind=KIND,
    parameters=GryphonParameters,
    messages=KINDS,
    promises=Promises(exactly_once=True, members_may_change=False),
    acknowledgement=lambda parameters: Acknowledgement.STORED,
    logs=logs_with,
    bypasses_links=lambda parameters: False,
    order=lambda parameters: Order(parameters.order),
    hosts_clients=hosts_clients,
    title="Gryphon",
    recovery=(
        "The publisher's broker logs every publication and keeps it until all have acknowledged. "
        "A broker with a gap requests it, and the first broker on the route with them answers."
    ),
    keeps_loss=lambda topology, parameters, broker: "",
    core="brokerd.protocols.gryphon.core",
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.gryphon.checks",
)
