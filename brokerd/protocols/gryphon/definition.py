"""Definition of gryphon."""

from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import (
    Acknowledgement,
    Order,
    Promises,
    ProtocolDefinition,
)
from brokerd.protocols.gryphon.messages import KINDS
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import KIND, cells_of, hosts_clients
from brokerd.protocols.parts.records import pack_positions, unpack_positions
from brokerd.text import counted

LOG: Final = "events"
"""The log of a pubend's broker."""

COPIES: Final = "copies"
"""The log of a replica: copies of other brokers' states."""


def logs_with(parameters: Any) -> tuple[str, ...]:
    """Return the names of the logs of gryphon with these parameters."""
    return (LOG, COPIES) if parameters.replicas > 1 else (LOG,)


def restores_state(topology: Topology, parameters: Any, broker: BrokerNumber) -> bool:
    """Return True if a broker restores lost state from replicas."""
    return parameters.replicas > 1 and hosts_clients(topology, broker)


def most_disks(topology: Topology) -> tuple[int, str]:
    """Return the largest number of replicas, and the broker with clients that sets this bound."""
    graph = cells_of(topology)
    return min(
        (len(graph.surroundings(broker)) + 1, name)
        for broker, name in enumerate(topology.brokers)
        if hosts_clients(topology, broker)
    )


def check_replicas(topology: Topology, parameters: Any, where: str) -> None:
    """Check that each broker with clients has enough linked brokers for its replicas.

    Raises:
        ConfigError: a broker has too few; names the largest valid value.
    """
    most, name = most_disks(topology)
    if parameters.replicas > most:
        raise ConfigError(
            f"{where}: replicas = {parameters.replicas}; {name} has clients and is linked to "
            f"{counted(most - 1, 'broker')}, so at most {most}"
        )


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
    restores=restores_state,
    check_parameters=check_replicas,
    core="brokerd.protocols.gryphon.core",
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.gryphon.checks",
)
