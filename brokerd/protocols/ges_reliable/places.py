"""Which brokers are storages, which of them stores for whom, and which take from which.

Each unit below the system has a storage, a root. Finer ones store for units inside it: each takes
what it stores from its parent, the finest coarser one around it, up to the root. Roots take from
each other what is published in their units.

Paper: [GES] §4 (replication granularity; servicing storages; storage trees).
"""

from dataclasses import dataclass

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.places import hierarchy_of


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """Where a storage stands among the others.

    Attributes:
        parent: whom it takes all that it stores from; None for a root.
        siblings: the other roots, for a root.
        children: who takes from it so.
    """

    parent: BrokerNumber | None
    siblings: tuple[BrokerNumber, ...]
    children: tuple[BrokerNumber, ...]


def root_of(hierarchy: Hierarchy, broker: BrokerNumber) -> BrokerNumber:
    """The root that stores what is published at a broker.

    Paper: [GES] §4 (the system storage of the publisher's own unit).
    """
    return _around(hierarchy, broker)[-1]


def storages_for(hierarchy: Hierarchy, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
    """All storages; first the finest one whose unit a broker is in, which stores for its clients.

    Retired ones are among them: they have what they have stored.

    Paper: [GES] §4 (servicing storage).
    """
    own = _around(hierarchy, broker)[0]
    return (own, *(each for each, _ in hierarchy.all_storages if each != own))


def roots_of(hierarchy: Hierarchy) -> dict[BrokerNumber, BrokerNumber]:
    """By storage, the root whose epochs it has: those with the same are a tree."""
    return {each: root_of(hierarchy, each) for each, _ in hierarchy.all_storages}


def place_of(hierarchy: Hierarchy, storage: BrokerNumber) -> StoragePlace:
    """Where a storage stands among the others."""
    parent = _parent(hierarchy, storage)
    siblings = [each for each, level in hierarchy.storages if level == hierarchy.top]
    return StoragePlace(
        parent,
        tuple(each for each in siblings if parent is None and each != storage),
        tuple(each for each, _ in hierarchy.all_storages if _parent(hierarchy, each) == storage),
    )


def _parent(hierarchy: Hierarchy, storage: BrokerNumber) -> BrokerNumber | None:
    """The finest coarser one around it that there was when it came; it stays that."""
    before = hierarchy.before(storage)
    levels = dict(hierarchy.all_storages)
    coarser = [each for each in _around(before, storage) if levels[each] > levels[storage]]
    return coarser[0] if coarser else None


def _around(hierarchy: Hierarchy, broker: BrokerNumber) -> list[BrokerNumber]:
    """The storages of units that a broker is in, the finest one first; but for retired ones."""
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
    """Make sure that there is a storage, and that none was retired before those below it.

    That each unit below the system has one is its file's.

    Raises:
        ConfigError: there is none, or one takes what it stores from a retired one.
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
