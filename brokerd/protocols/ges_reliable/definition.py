"""The definition of ges_reliable for the registry of protocols."""

from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Lost
from brokerd.overlay.topology import ALL_PROTOCOLS, Topology
from brokerd.protocols.definition import (
    Acknowledgement,
    Excess,
    Promises,
    ProtocolDefinition,
    excess_of_routes,
)
from brokerd.protocols.ges.units import KIND, hierarchy_of
from brokerd.protocols.ges_reliable.logs import LOG
from brokerd.protocols.ges_reliable.messages import KINDS
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.places import check_storages
from brokerd.protocols.parts.positions import pack_positions, unpack_positions


def _check_topology(topology: Topology, where: str) -> None:
    """See ProtocolDefinition: storages keep subscriptions for ever, whatever a file contains."""
    for section in (ALL_PROTOCOLS, "ges_reliable"):
        linger_ns = topology.settings_of(section).get("client_linger_ns")
        if linger_ns is not None:
            raise ConfigError(
                f"{where}: client_linger_ns = {linger_ns}: storages of ges_reliable keep "
                "subscriptions until their clients end them; leave it out"
            )
    check_storages(topology, where)


def _excess(topology: Topology, parameters: Any, lost: Lost) -> Excess | None:
    """Return the excess of a loss: storages must return, all other brokers need not."""
    stores = [broker for broker, _ in hierarchy_of(topology).storages if broker in lost.brokers]
    if stores:
        names = ", ".join(topology.brokers[each] for each in stores)
        return Excess(tuple(stores), f"{names} stores for the others")
    return excess_of_routes(topology, parameters, lost)


def _keeps_loss(topology: Topology, parameters: Any, broker: BrokerNumber) -> str:
    """See ProtocolDefinition: only storages keep state for others."""
    if any(broker == storage for storage, _ in hierarchy_of(topology).all_storages):
        return (
            "it is a storage: it lost which subscriptions it stores for and from which epoch on, "
            "and which publications it has stored, so one that is sent again is stored twice"
        )
    return ""


GES_RELIABLE = ProtocolDefinition(
    name="ges_reliable",
    kind=KIND,
    parameters=GesReliableParameters,
    messages=KINDS,
    promises=Promises(
        exactly_once=True,
        members_may_change=True,
        roles_may_change=True,
        resumes_elsewhere=True,
        leaves_freely=True,
    ),
    acknowledgement=lambda parameters: Acknowledgement.STORED,
    logs=lambda parameters: (LOG,),
    bypasses_links=lambda parameters: True,
    check_topology=_check_topology,
    excess=_excess,
    title="GES, reliable",
    recovery=(
        "A storage logs every publication before it is acknowledged, and keeps it until all "
        "subscribers have it. Brokers keep nothing: routes avoid a failed broker, and "
        "its clients resume at other brokers from their positions."
    ),
    keeps_loss=_keeps_loss,
    core="brokerd.protocols.ges_reliable.core",
    pack_positions=pack_positions,
    unpack_positions=unpack_positions,
    checks="brokerd.protocols.ges_reliable.checks",
)
