"""The definition of ges_reliable for the registry of protocols, and the places of storages.

Every unit below the system has a storage, a root. Finer storages are for units inside: a finer
storage takes publications from its parent, the finest coarser storage around it, up to the root.
Roots take the publications of the other units from each other.

Paper: [GES] §4 (replication granularity; servicing storages; storage trees).
"""

from dataclasses import dataclass
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import ALL_PROTOCOLS, Topology
from brokerd.protocols.definition import (
    Acknowledgement,
    Excess,
    Promises,
    ProtocolDefinition,
    excess_of_routes,
)
from brokerd.protocols.ges import KIND, hierarchy_of
from brokerd.protocols.ges_reliable.messages import KINDS
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.parts.records import pack_positions, unpack_positions

LOG: Final = "storage"
"""The name of the log of a storage."""


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """The place of a storage among the others.

    Attributes:
        parent: the storage that it takes everything from; None for a root.
        siblings: the other roots, for a root.
        children: the storages with this parent.
    """

    parent: BrokerNumber | None
    siblings: tuple[BrokerNumber, ...]
    children: tuple[BrokerNumber, ...]


def root_of(hierarchy: Hierarchy, broker: BrokerNumber) -> BrokerNumber:
    """Return the root that stores the publications of a broker's publishers.

    Paper: [GES] §4 (the system storage of the publisher's own unit).
    """
    return _around(hierarchy, broker)[-1]


def storages_for(hierarchy: Hierarchy, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
    """Return all storages, first the finest around a broker, which stores for its clients.

    Retired storages are included: they still have their logs.

    Paper: [GES] §4 (servicing storage).
    """
    own = _around(hierarchy, broker)[0]
    return (own, *(each for each, _ in hierarchy.all_storages if each != own))


def roots_of(hierarchy: Hierarchy) -> dict[BrokerNumber, BrokerNumber]:
    """Return, by storage, the root of its epochs; storages with the same root are a tree."""
    return {each: root_of(hierarchy, each) for each, _ in hierarchy.all_storages}


def place_of(hierarchy: Hierarchy, storage: BrokerNumber) -> StoragePlace:
    """Return the place of a storage among the others."""
    parent = _parent(hierarchy, storage)
    siblings = [each for each, level in hierarchy.storages if level == hierarchy.top]
    return StoragePlace(
        parent,
        tuple(each for each in siblings if parent is None and each != storage),
        tuple(each for each, _ in hierarchy.all_storages if _parent(hierarchy, each) == storage),
    )


def _parent(hierarchy: Hierarchy, storage: BrokerNumber) -> BrokerNumber | None:
    """Return the finest coarser storage around a storage, as of its addition."""
    before = hierarchy.before(storage)
    levels = dict(hierarchy.all_storages)
    coarser = [each for each in _around(before, storage) if levels[each] > levels[storage]]
    return coarser[0] if coarser else None


def _around(hierarchy: Hierarchy, broker: BrokerNumber) -> list[BrokerNumber]:
    """Return the storages of units around a broker, the finest first, without retired ones."""
    address = hierarchy.addresses[broker]
    found = [
        (level, storage)
        for storage, level in hierarchy.all_storages
        if storage not in hierarchy.retired
        and _unit(hierarchy, storage, level) == address[: len(address) - level]
    ]
    return [storage for _, storage in sorted(found)]


def _unit(hierarchy: Hierarchy, storage: BrokerNumber, level: int) -> Address:
    address = hierarchy.addresses[storage]
    return address[: len(address) - level]


def check_storages(topology: Topology, where: str) -> None:
    """Check that there is a storage, and that none was retired before the finer ones.

    The topology file checks that all units below the system have a storage.

    Raises:
        ConfigError: there is no storage, or a storage takes publications from a retired one.
    """
    hierarchy = hierarchy_of(topology)
    if not hierarchy.storages:
        raise ConfigError(
            f"{where}: {topology.name} has no storage; give one broker of each unit of level "
            f"{hierarchy.top} that level in [hierarchy.storages]"
        )
    for storage, _ in hierarchy.all_storages:
        parent = _parent(hierarchy, storage)
        if parent in hierarchy.retired and storage not in hierarchy.retired:
            names = topology.brokers
            raise ConfigError(
                f"{where}: {names[parent]} is retired, and {names[storage]} takes what it stores "
                f"from it; retire {names[storage]} first"
            )


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


def _excess(topology: Topology, parameters: Any, lost: FailedElements) -> Excess | None:
    """Return the excess of a loss: storages must return, all other brokers need not."""
    stores = [broker for broker, _ in hierarchy_of(topology).storages if broker in lost.brokers]
    if stores:
        names = ", ".join(topology.brokers[each] for each in stores)
        return Excess(tuple(stores), f"{names} stores for the others")
    return excess_of_routes(topology, parameters, lost)


def _keeps_loss(topology: Topology, parameters: Any, broker: BrokerNumber) -> str:
    """See ProtocolDefinition: only storages keep state for others."""
    storages = [storage for storage, _ in hierarchy_of(topology).all_storages]
    if broker in storages and not parameters.fetch_wait_ns:
        return (
            "it is a storage, and fetches wait without a limit (fetch_wait_ns = 0): subscribers "
            "may not be notified of the loss"
        )
    if broker in storages and len(storages) > 1:
        return (
            "it is one of several storages: it lost which subscriptions have moved to others and "
            "what others have fetched, so they would lack publications without a gap"
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
