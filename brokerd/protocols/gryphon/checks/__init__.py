"""Simulation of gryphon: marks, checks, planning and wording."""

from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.gryphon.checks.marks import MARKS, GryphonMarks
from brokerd.protocols.gryphon.checks.planning import GryphonPlanning, copies_needed, count_reached
from brokerd.protocols.gryphon.checks.steps import RECOUNTS, GryphonChecks
from brokerd.protocols.gryphon.checks.words import GryphonWording
from brokerd.protocols.gryphon.replication import majority_of
from brokerd.protocols.gryphon.routes import hosts_clients
from brokerd.protocols.gryphon.state import FILTERED, PUBLISHED, RELEASED, RESERVED
from brokerd.simulator.checks.growth import LATE, ContainerLimits, Limit
from brokerd.simulator.checks.protocol_checks import Reach, SimulatedProtocol
from brokerd.simulator.checks.recounts import Position


class GryphonReach(Reach):
    """See Reach: a publication on a majority of its disks is acknowledged, whatever is reached.

    In total order no publication arrives at a broker that a pubend cannot reach.
    """

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        if self._parameters.is_total:
            return self._is_whole(home)
        return self._writes(source) and self._writes(home) and super().reaches(source, home)

    def starts(self, home: BrokerNumber) -> bool:
        """See Reach: with filters a subscription waits for all pubends."""
        if self._parameters.filters:
            return self._is_whole(home)
        return self._writes(home) and super().starts(home)

    def ends(self, home: BrokerNumber) -> bool:
        """See Reach: the end of a subscription is durable first."""
        return self._writes(home)

    def drains(self, home: BrokerNumber) -> bool:
        """See Reach: a client that moves is owed publications of all pubends."""
        return self._is_whole(home)

    def _is_whole(self, home: BrokerNumber) -> bool:
        topology = self._graph.topology
        hosts = [n for n in self._graph.present if hosts_clients(topology, n)]
        if not all(map(self._writes, hosts)):
            return False
        return all(super(GryphonReach, self).reaches(each, home) for each in hosts)

    def _writes(self, broker: BrokerNumber) -> bool:
        return self._reaches_replicas(broker, majority_of(self._parameters.replicas) - 1)

    def recovers(self, broker: BrokerNumber) -> bool:
        """See Reach: a broker with a lost disk needs the copies of its replicas."""
        return self._reaches_replicas(broker, copies_needed(self._parameters))

    def _reaches_replicas(self, broker: BrokerNumber, needed: int) -> bool:
        parameters, topology = self._parameters, self._graph.topology
        if parameters.replicas == 1 or not hosts_clients(topology, broker):
            return True
        return count_reached(topology, parameters, broker, self._broken, self._removed) >= needed

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """See Reach: in total order a pubend begins when all brokers with clients wait for it."""
        return self._is_whole(source) if self._parameters.is_total else self._writes(source)


SIMULATED = SimulatedProtocol(
    canaries=("M01-horizon-ignored",),
    marks=MARKS,
    make_observer=GryphonMarks,
    make_reach=GryphonReach,
    make_wording=GryphonWording,
    kept=ContainerLimits(
        streams="pubends",
        empty=(
            "Gryphon._deferred",
            "Pubends._logged",
            "RetainedEvents._runs",
            "RetainedEvents._firsts",
            "GapTable.pieces",
            "Subend._open",
            "Durability._when_durable",
            "Outlet.sent",
            "Outlet.parked",
            "ReplicatedState._written",
            "ReplicatedState._tokens",
        ),
        paired=(
            "StateCopy.logs",
            "ReplicatedState._ends",
            "ReplicatedState._begun",
            "OwnSubscription.acknowledged",
            "OwnSubscription.begins_after",
            "Streams._streams",
            "Stream._done",
            "Stream.sent_through",
            "Stream.waits_for",
            "published",
            "released",
        ),
        positions=("a row of restarted", "a row of subscriber_progress"),
        bounded=(
            "ChangeRoutes.owed[][]",
            "StateCopy.rows",
            "LogCopy.spans",
            "ReplicatedState._rows",
        ),
    ),
    limits=(
        Limit("brokerd.protocols.gryphon.pubend", "_LOGGED_RECORDS", (1, 8)),
        Limit("brokerd.protocols.gryphon.pubend", "_LOGGED_TOGETHER", (2, 8)),
        Limit("brokerd.protocols.gryphon.knowledge", "_SCATTERED", (1, 4)),
        Limit("brokerd.protocols.gryphon.knowledge", "_RUN_EVENTS", (2, 5)),
        Limit("brokerd.protocols.gryphon.filters", "_TESTS_PER_MESSAGE", (1, 3)),
        Limit("brokerd.protocols.gryphon.forwarding", "JOINED_BYTES", (1, 300)),
        Limit("brokerd.protocols.gryphon.flow_control", "PROBES", (2, 4), LATE),
        Limit("brokerd.protocols.gryphon.filter_routes", "MOST_OWED", (1, 3), LATE),
        Limit("brokerd.protocols.gryphon.filter_routes", "HOLD_NS", (1_000_000,), LATE),
        Limit("brokerd.protocols.gryphon.copies", "SNAPSHOT_BYTES", (1, 300), LATE),
        Limit("brokerd.protocols.gryphon.copies", "PLACES_PER_READ", (2, 8), LATE),
        Limit("brokerd.protocols.gryphon.copies", "FILL_WINDOW", (1, 2), LATE),
        Limit("brokerd.protocols.gryphon.replicated_state", "FILL_RECORDS", (16, 64), LATE),
    ),
    positions=(
        Position(RELEASED),
        Position(PUBLISHED),
        Position(RESERVED),
        Position(FILTERED),
    ),
    make_checks=GryphonChecks,
    recounts=RECOUNTS,
    make_planning=GryphonPlanning,
)
