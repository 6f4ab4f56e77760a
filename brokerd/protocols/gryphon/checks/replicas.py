"""The replicas of a broker's state in simulations: majorities, and copies to restore from."""

from collections.abc import Collection, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import Topology
from brokerd.protocols.gryphon.definition import COPIES
from brokerd.protocols.gryphon.replication import (
    COPIES_LINEAGE,
    REPLICATION,
    majority_of,
    replay,
    replicas_of,
)
from brokerd.protocols.gryphon.routes import cells_of
from brokerd.simulator.checks.planning import DiskHolder


def count_reached(
    topology: Topology,
    parameters: Any,
    broker: BrokerNumber,
    broken: Collection[Link],
    removed: Collection[BrokerNumber],
) -> int:
    """Return the number of replicas that a broker reaches."""
    near = cells_of(topology).surroundings(broker)
    return sum(
        each not in removed and (min(broker, each), max(broker, each)) not in broken
        for each in replicas_of(broker, near, parameters.replicas)
    )


def copies_needed(parameters: Any) -> int:
    """Return the number of copies that have every durable write of a broker among them."""
    found: int = parameters.replicas - majority_of(parameters.replicas) + 1
    return found


def can_restore(
    topology: Topology, parameters: Any, broker: BrokerNumber, brokers: Sequence[DiskHolder]
) -> bool:
    """Return True if the disks of enough replicas have a whole copy of a broker's state."""
    near = cells_of(topology).surroundings(broker)
    replicas = [brokers[each] for each in replicas_of(broker, near, parameters.replicas)]
    whole = [each for each in replicas if _has_copy(each, broker)]
    return len(whole) >= copies_needed(parameters)


def _has_copy(replica: DiskHolder, owner: BrokerNumber) -> bool:
    lineage = replica.rows_of(REPLICATION).get(COPIES_LINEAGE, 0)
    if lineage != replica.lineage:
        return False
    first, records = replica.records_of(COPIES)
    return owner in replay(enumerate(records, first))
