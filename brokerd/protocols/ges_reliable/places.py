"""The places of storages: the storage of every unit, and the storages that feed each other.

Every unit below the system has a storage, a root. Finer storages are for units inside: a finer
storage takes publications from its parent, the finest coarser storage around it, up to the root.
Roots take the publications of the other units from each other.

Paper: [GES] §4 (replication granularity; servicing storages; storage trees).
"""

from dataclasses import dataclass

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.units import hierarchy_of


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
