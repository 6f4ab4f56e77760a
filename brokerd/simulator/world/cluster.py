"""A whole simulated cluster, with verbs for the authors of stories.

cluster = SimulatedCluster(topology, protocol, seed=7)
oil = cluster.subscribe("b3", "topic = 'oil'")
cluster.run_until_quiet()
cluster.link("b1", "b2").cut()
cluster.publish("b1", topic="oil")

`membership` changes the overlay, `population` has the clients, `transfers` attach clients to other
brokers, `restoration` has copies of disks, and `inspection` checks the cores on request. All of
them share one `ClusterState`.
"""

from random import Random
from typing import Any, Self

from brokerd.model.identity import BrokerNumber, ClientId
from brokerd.model.predicate import Predicate, Scalar
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree, graph_of, tree_of
from brokerd.protocols.definition import Acknowledgement
from brokerd.protocols.interface import Instant
from brokerd.protocols.registry import DEFAULT, check_runs_on, definition_of, parameters_on
from brokerd.simulator.checks.invariants import StepChecker, Watcher
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.protocol_checks import (
    CheckedWorld,
    make_checks,
    make_observer,
    make_position_checks,
)
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.broker_factory import BrokerFactory, Inspection
from brokerd.simulator.world.client_transfers import ClientTransfers
from brokerd.simulator.world.clients import ClientObserver, Observers, SimulatedClient
from brokerd.simulator.world.clock import AdversarialSchedule, Schedule, TimedSchedule, WallClocks
from brokerd.simulator.world.handles import (
    BrokerHandle,
    LinkHandle,
    PublicationHandle,
    Subscription,
)
from brokerd.simulator.world.membership import Membership
from brokerd.simulator.world.network import LinkFaults, Network
from brokerd.simulator.world.population import ClientPopulation
from brokerd.simulator.world.restoration import DiskRestoration
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.simulator.world.state import ClusterState, Waits
from brokerd.simulator.world.trace import Trace
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attributes, encode_attributes


class NotQuietError(Exception):
    """A cluster has not become quiet in time; the message lists the unfinished work."""


class SimulatedCluster:
    """Brokers, links and clients under one virtual clock.

    Args:
        topology: parameters of the protocol in the topology apply, unless `parameters` override
            them.
        seed: the same seed, calls and code give the same history.
        strict: raise InvariantViolated as soon as a promise is broken.
        trace: keep the last steps and a digest of all steps.
        adversarial: no durations; see AdversarialSchedule.
        own_clocks: without durations, each broker has a clock of its own, advanced by the author of
            the story, and each client's application takes its deliveries at its own time. The
            checks examine each broker after each of its steps.
        make_network: class of the network, for tests.
        watcher: called with every step of every broker.

    Attributes:
        oracle: judges deliveries; `oracle.judge_end()` reports missing deliveries.
        graph: the overlay of the protocol.
        link_faults: injects faults of links.
        brokers: brokers by number.
        clients: clients by name.
        removed: brokers that were decommissioned, and their clients with them, or are lost.
        checker: judges single steps.
        waits: the waits of brokers and clients for sessions and answers.
        state: the shared state of the parts of the cluster.
    """

    def __init__(
        self,
        topology: Topology,
        protocol: str = DEFAULT,
        *,
        seed: int = 0,
        parameters: Any = None,
        network: NetworkParameters | None = None,
        strict: bool = True,
        trace: bool = True,
        adversarial: bool = False,
        own_clocks: bool = False,
        make_network: type[Network] = Network,
        watcher: Watcher | None = None,
        observer: ClientObserver | None = None,
    ) -> None:
        assert adversarial or not own_clocks, "where there are durations there is one clock"
        check_runs_on(topology, protocol)
        definition = definition_of(protocol)
        self.protocol = protocol
        self.random = Random(seed)
        self.parameters = parameters or parameters_on(topology, protocol)
        self.graph = graph_of(topology, definition.kind)
        # A stream of its own: given choices instead of drawn choices leave the network's stream
        # alone.
        order = Random(f"order {seed}")
        self.schedule: Schedule = AdversarialSchedule(order) if adversarial else TimedSchedule()
        network = network or NetworkParameters(session=topology.session_parameters())
        self.network = make_network(self.schedule, self.random, network)
        self.link_faults = LinkFaults(self.network)
        self.oracle = Oracle(
            decode_attributes,
            strict,
            definition.promises_with(self.parameters),
            None if own_clocks else lambda: self.schedule.now_ns,
        )
        acknowledgement = definition.acknowledgement(self.parameters)
        self.oracle.logged = acknowledgement is Acknowledgement.STORED
        self.trace = Trace() if trace else None
        self.removed: dict[BrokerNumber, None] = {}
        self.brokers: list[SimulatedBroker] = []
        self.clients: dict[ClientId, SimulatedClient] = {}
        self.checker = _make_checker(self, strict, watcher)
        self.oracle.losses.disk_view = self.checker.own
        self.waits = Waits(self.brokers, self.clients, self.network, self.graph, self.removed)
        self.state = ClusterState(
            protocol=protocol,
            parameters=self.parameters,
            topology=topology,
            graph=self.graph,
            own_clocks=own_clocks,
            random=self.random,
            schedule=self.schedule,
            network=self.network,
            oracle=self.oracle,
            checker=self.checker,
            trace=self.trace,
            brokers=self.brokers,
            clients=self.clients,
            removed=self.removed,
        )
        is_watched = strict or trace or watcher is not None
        self.factory = BrokerFactory(
            self.state,
            self.checker if is_watched else None,
            definition.all_logs(topology, self.parameters),
            WallClocks(seed),
        )
        self.transfers = ClientTransfers(self.state)
        observed = self.oracle if observer is None else Observers(self.oracle, observer)
        self.population = ClientPopulation(self.state, self.transfers, observed)
        self.membership = Membership(self.state, self.factory)
        self.restoration = DiskRestoration(self.state, self.population.redeliveries)
        self.inspection = Inspection(self.state, self.factory)
        for name in topology.brokers:
            self.factory.add_broker(name)

    @property
    def topology(self) -> Topology:
        return self.state.topology

    @property
    def tree(self) -> PrimaryTree:
        """The graph as a tree, for protocols on trees."""
        return tree_of(self.graph)

    def start(self) -> Self:
        """Start every broker."""
        for broker in self.brokers:
            if not broker.alive:
                broker.start()
        if self.state.own_clocks:  # checks examine all cores, so all must exist
            self.checker.looks_at = self.brokers
        return self

    def join(self, name: str, at: str, *further: str, place: str = "") -> BrokerHandle:
        """Link a new broker to `at`, without a start of the broker; see Membership."""
        self.membership.join(name, at, *further, place=place)
        return self.broker(name)

    def leave(self, name: str) -> None:
        """Stop a broker without clients, and notify other brokers; see Membership."""
        self.membership.leave(name)

    # ------------------------------------------------------------ names

    def broker(self, name: str) -> BrokerHandle:
        """Return the verbs of a broker."""
        return BrokerHandle(self.state, self.restoration, self.state.broker(name))

    def link(self, a: str, b: str) -> LinkHandle:
        """Return the verbs of all sessions between two brokers, or a client and its broker."""
        return LinkHandle(self.state, self.link_faults, self.state.peer(a), self.state.peer(b))

    # ------------------------------------------------------------ clients

    def client(self, name: ClientId, broker: str, publishes: bool = False) -> SimulatedClient:
        """Return the client with this name; a new client is created and dials."""
        return self.population.client(name, broker, publishes)

    def subscribe(
        self, broker: str, predicate: str | Predicate = "true", client: ClientId | None = None
    ) -> Subscription:
        """Return a new subscription at a broker, for a new client unless `client` is given."""
        name = client or f"s{sum(key.startswith('s') for key in self.clients) + 1}-{broker}"
        subscriber = self.client(name, broker)
        number = self.population.subscribe(subscriber, predicate)
        return Subscription(self.state, subscriber, number)

    def consume(
        self, broker: str, predicate: str | Predicate = "true", *, uncommitted: int
    ) -> Subscription:
        """Return the subscription of a new client without state, with a token at the broker.

        Args:
            uncommitted: number of publications that the client takes before a commit.
        """
        consumers = self.population.consumers
        name = f"c{len(consumers) + 1}-{broker}"
        consumers[name] = uncommitted
        return self.subscribe(broker, predicate, name)

    def unsubscribe(self, client: ClientId, number: int = 1) -> None:
        """End a subscription of a client."""
        self.population.unsubscribe(client, number)

    def publish(
        self, broker: str, *, client: ClientId | None = None, **attributes: Scalar
    ) -> PublicationHandle:
        """Publish one publication at a broker, by default as the client `p-<broker>`."""
        blob = encode_attributes(attributes)
        return self.publish_run(broker, [(blob, b"")], client)[0]

    def publish_run(
        self, broker: str, contents: list[tuple[bytes, bytes]], client: ClientId | None = None
    ) -> list[PublicationHandle]:
        """Publish (attribute blob, payload) pairs as one run."""
        publisher = self.client(client or f"p-{broker}", broker, publishes=True)
        first = self.population.publish(publisher, contents)
        return [PublicationHandle(publisher.name, first + place) for place in range(len(contents))]

    # ------------------------------------------------------------ time

    def run_for(self, seconds: float) -> None:
        """Run for this virtual time."""
        assert isinstance(self.schedule, TimedSchedule), "without durations no time can pass"
        self.schedule.run_until(self.schedule.now_ns + int(seconds * SECOND_NS))

    def step(self, until_ns: Instant) -> bool:
        """Perform the next event; return False if no event is due up to `until_ns`."""
        assert isinstance(self.schedule, TimedSchedule), "an adversary has no clock"
        next_ns = self.schedule.next_ns()
        if next_ns is None or next_ns > until_ns:
            return False
        return self.schedule.step()

    def run_until_quiet(self, limit_s: float = 60.0) -> None:
        """Run until nothing is in flight except retries towards unreachable endpoints.

        Raises:
            NotQuietError: the cluster is not quiet within `limit_s` of virtual time.
        """
        assert isinstance(self.schedule, TimedSchedule), "an adversary is never quiet"
        until_ns = self.schedule.now_ns + int(limit_s * SECOND_NS)
        while not self.is_quiet():
            if self.schedule.now_ns > until_ns:
                left = self.waits.describe_unsettled() or [
                    f"{self.schedule.pending} messages are on their way"
                ]
                raise NotQuietError(f"not quiet after {limit_s:g} s: {'; '.join(left)}")
            for _ in range(max(1, self.schedule.pending)):
                if not self.schedule.step():
                    return

    def is_quiet(self) -> bool:
        """Return True if nothing is in flight and every possible session is established.

        Links may stay broken: once a broker has failed to reach another broker, further attempts,
        as long as no attempt can succeed, are ignored.
        """
        return self.schedule.pending == 0 and not self.waits.describe_unsettled()

    # ------------------------------------------------------------ records

    def statistics(self) -> dict[str, int]:
        """Return the sum of all live brokers' counters."""
        total: dict[str, int] = {}
        for broker in self.brokers:
            if broker.alive:
                for name, value in broker.core.statistics().items():
                    total[name] = total.get(name, 0) + value
        return total


def _make_checker(cluster: SimulatedCluster, strict: bool, watcher: Watcher | None) -> StepChecker:
    brokers, clients = cluster.brokers, cluster.clients

    def has_publishers(number: BrokerNumber) -> bool:
        return any(each.broker == number and each.publishes for each in clients.values())

    world = CheckedWorld(
        schedule=cluster.schedule,
        graph=cluster.graph,
        oracle=cluster.oracle,
        parameters=cluster.parameters,
        brokers=lambda: brokers,
        has_publishers=has_publishers,
        is_gone=cluster.removed.__contains__,
        strict=strict,
    )
    return StepChecker(
        cluster.schedule,
        cluster.graph,
        cluster.oracle,
        cluster.trace,
        strict,
        watcher,
        make_checks(cluster.protocol, world),
        make_position_checks(cluster.protocol),
        make_observer(cluster.protocol, cluster.graph),
    )
