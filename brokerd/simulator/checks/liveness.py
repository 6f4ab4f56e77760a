"""Deliveries that a cluster owes: while links stay broken, and within time limits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.registry import definition_of
from brokerd.simulator.checks.protocol_checks import planning_of, simulation_of
from brokerd.simulator.search.client_moves import Reattachment, Relocation
from brokerd.simulator.search.moves import FaultInjection
from brokerd.simulator.search.plan import Plan
from brokerd.simulator.world.broker import DISK_NS
from brokerd.simulator.world.clients import RECONNECT_NS
from brokerd.simulator.world.clock import NEVER_NS
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS

Pair = tuple[BrokerNumber, BrokerNumber]


class WhileBroken:
    """The demands on a cluster with these links broken, from this moment on."""

    def __init__(self, cluster: SimulatedCluster, broken: Iterable[Pair]) -> None:
        self._cluster = cluster
        self._reach = simulation_of(cluster.protocol).make_reach(
            cluster.graph, cluster.parameters, broken, cluster.removed
        )
        self._excluded = {
            broker.number
            for broker in (cluster.brokers[number] for number in cluster.graph.present)
            if not self._reach.includes_recovering and broker.core.status().state != "running"
        }

    def missing(self) -> list[str]:
        """Return the unmet demands, in words."""
        return [
            *self._cluster.waits.describe_unsettled(
                all_attempts=False,
                may_request=self._reach.ends,
                may_drain=self._reach.drains,
                may_start=self._reach.starts,
            ),
            *self._describe_unfinished(),
            *self._describe_undelivered(),
            *self._describe_unacknowledged(),
        ]

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """Return True if publications of one broker reach another broker."""
        return self._reach.reaches(source, home)

    def _describe_unfinished(self) -> Iterator[str]:
        for number in self._cluster.graph.present:
            broker = self._cluster.brokers[number]
            state = broker.core.status().state
            if state == "running" or not self._reach.recovers(number):
                continue
            if number not in self._excluded:
                yield f"{broker.name} is {state}"

    def _describe_undelivered(self) -> Iterator[str]:
        clients = self._cluster.clients
        for subscriber, number, started, lacking in self._cluster.oracle.obligations.find_lacking():
            home = clients[subscriber].broker
            if home in self._excluded or subscriber in self._cluster.population.held:
                continue
            must_start = self._reach.starts(home)
            if not started and must_start:
                yield f"{subscriber}/{number} has not started"
            if not must_start and number not in clients[subscriber].started_numbers:
                continue  # started at an earlier broker, and may not start at this one
            for publisher, missing in lacking if started else ():
                source = clients[publisher].broker
                if missing and source not in self._excluded and self.reaches(source, home):
                    yield f"{subscriber}/{number} misses {missing[:6]} of {publisher}"

    def _describe_unacknowledged(self) -> Iterator[str]:
        clients = self._cluster.clients
        if self._cluster.population.held:
            return  # held publications are not acknowledged, and may wait for broken links
        homes = [
            clients[subscriber].broker for subscriber in self._cluster.oracle.register.subscribers()
        ]
        for publisher, sequences in self._cluster.oracle.obligations.unacknowledged():
            source = clients[publisher].broker
            if source in self._excluded:
                continue
            if self._excluded.isdisjoint(homes) and self._reach.acknowledges(source, homes):
                yield f"{publisher} has no acknowledgement of {sequences[:6]}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Durations from the end of the last obstacle.

    Attributes:
        sessions_ns: until every wanted session between brokers is established, and every client is
            connected.
        gates_ns: until no gate of a subscription is closed.
        everything_ns: until all publications are delivered, acknowledged and released.
        announcing_ns: from then on, until brokers have sent their periodic announcements.
    """

    sessions_ns: int
    gates_ns: int
    everything_ns: int
    announcing_ns: int


def bounds_of(plan: Plan) -> Bounds:
    """Return the time limits of a plan on a clock."""
    parameters, network, session = plan.parameters, plan.network, plan.network.session
    planning = planning_of(plan.protocol)
    bypasses_links = definition_of(plan.protocol).bypasses_links(parameters)
    delays = [int(move.on[-1]) for move in _find_failing(plan, "delay")]
    message_ns = network.latency_highest_ns + network.jitter_ns
    slowest_ns = message_ns + max(delays, default=0) * MILLISECOND_NS
    disk_ns = 2 * DISK_NS
    brokers = len(plan.topology.brokers)
    # A dead session is detected, an attempt that is too early fails, and after the longest wait
    # another attempt follows: hello, answer, Summary.
    broker_ns = (
        session.suspicion_ns + session.connect_timeout_ns + planning.retry_limit_ns(parameters)
    ) + 4 * slowest_ns
    client_ns = (
        session.suspicion_ns + session.connect_timeout_ns + 2 * RECONNECT_NS + disk_ns
    ) + 5 * slowest_ns
    sessions_ns = broker_ns + client_ns
    if bypasses_links:  # a direct session replaces the relayed session, as another instance
        sessions_ns += broker_ns
    # Recoveries end one after the other; then subscriptions are sent, confirmations return, and
    # notifiers return, each broker on the path waiting for its disk.
    gates_ns = sessions_ns + brokers * (4 * message_ns + 2 * disk_ns)
    slow = [int(move.on[-1]) for move in _find_failing(plan, "slow_client")]
    window = planning.client_window(parameters)
    windows = 1 + (plan.publications // window if window else 0)
    window_ns = 2 * message_ns + max(slow, default=0) * MILLISECOND_NS
    everything_ns = gates_ns + windows * window_ns + 2 * brokers * message_ns
    if any(type(move) in (Relocation, Reattachment) for move in plan.moves):
        everything_ns += 2 * gates_ns  # restart elsewhere, then drain of the old broker
    everything_ns += planning.discovery_ns(parameters)
    everything_ns += planning.turns(parameters, plan.publications) * (message_ns + disk_ns)
    if parameters.client_linger_ns < NEVER_NS:  # subscriptions without a repeated request end then
        everything_ns += parameters.client_linger_ns
    # A new interval, a further interval, and an answer that a slow client may delay.
    announcing_ns = (
        planning.announce_within_ns(parameters) + 2 * window_ns + 2 * slowest_ns + disk_ns
    )
    return Bounds(sessions_ns, gates_ns, everything_ns, announcing_ns)


def _find_failing(plan: Plan, kind: str) -> list[FaultInjection]:
    return [move for move in plan.moves if type(move) is FaultInjection and move.kind == kind]
