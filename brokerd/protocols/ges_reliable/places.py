"""Which brokers are storages, and which of them stores for whom.

Paper: [GES] §4 (replication granularity; servicing storages).
"""

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.places import hierarchy_of


def roots(hierarchy: Hierarchy) -> tuple[BrokerNumber, ...]:
    """The storages of the units below the system."""
    return tuple(broker for broker, level in hierarchy.storages if level == hierarchy.top)


def storages_for(hierarchy: Hierarchy, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
    """All that clients may be stored for at, first the one whose unit a broker is in."""
    unit = hierarchy.addresses[broker][:1]
    found = roots(hierarchy)
    own = [each for each in found if hierarchy.addresses[each][:1] == unit]
    return (*own, *(each for each in found if each not in own))


def check_storages(topology: Topology, where: str) -> None:
    """Make sure that there is a storage, and what is not carried out yet is not asked for.

    Raises:
        ConfigError: says what there is too much or too little of.
    """
    hierarchy = hierarchy_of(topology)
    if not hierarchy.storages:
        raise ConfigError(
            f"{where}: {topology.name} has no storage; give one broker of each unit of level "
            f"{hierarchy.top} that level in [hierarchy.storages]"
        )
    found = roots(hierarchy)
    finer = [topology.brokers[each] for each, _ in hierarchy.storages if each not in found]
    if finer:
        raise ConfigError(
            f"{where}: {', '.join(finer)} would store for less than a unit of level "
            f"{hierarchy.top}, which is not there yet"
        )
    if len(found) > 1:
        names = ", ".join(topology.brokers[each] for each in found)
        raise ConfigError(f"{where}: {names} are several system storages; one is what there is yet")
