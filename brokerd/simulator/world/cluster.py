"""A whole simulated cluster, with verbs for the authors of stories.

cluster = SimulatedCluster(topology, protocol, seed=7)
oil = cluster.subscribe("b3", "topic = 'oil'")
cluster.run_until_quiet()
cluster.link("b1", "b2").cut()
cluster.publish("b1", topic="oil")
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Self

from brokerd.client.broker_choice import Brokers
from brokerd.client.core import ClientCore
from brokerd.client.state import Home, Positions
from brokerd.errors import ConfigError
from brokerd.model.client_messages import Refused
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.operator_acts import DECOMMISSION
from brokerd.model.predicate import NOTHING, Predicate, Scalar
from brokerd.model.predicate_text import parse_predicate
from brokerd.overlay.topology import JoinedBroker, Topology
from brokerd.overlay.tree import PrimaryTree, graph_of, tree_of
from brokerd.protocols.definition import Acknowledgement
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    CoreStatus,
    DecommissioningProtocol,
    DeliveryProtocol,
    Farewell,
    Instant,
    OverlayChanged,
    TopologyGrown,
    TopologyShrunk,
)
from brokerd.protocols.registry import (
    DEFAULT,
    check_runs_on,
    definition_of,
    make_protocol,
    parameters_on,
)
from brokerd.sessions.messages import StateMark
from brokerd.simulator.checks.invariants import StepChecker, Watcher
from brokerd.simulator.checks.oracle import InvariantViolated, Oracle
from brokerd.simulator.checks.protocol_checks import (
    CheckedWorld,
    make_checks,
    make_observer,
    make_position_checks,
    simulation_of,
)
from brokerd.simulator.checks.recounts import check_recounts
from brokerd.simulator.world.authority import AUTHORITY, make_signature
from brokerd.simulator.world.broker import OwnClock, SimulatedBroker
from brokerd.simulator.world.client_moves import ClientMove
from brokerd.simulator.world.clients import ClientObserver, Observers, SimulatedClient
from brokerd.simulator.world.clock import AdversarialSchedule, Schedule, TimedSchedule, WallClocks
from brokerd.simulator.world.consumers import Redeliveries, SimulatedConsumer
from brokerd.simulator.world.link_faults import LinkFaults, WhichWay
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.simulator.world.trace import Trace
from brokerd.simulator.world.waits import Waits
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table, decode_attributes, encode_attributes


@dataclass(frozen=True, slots=True)
class PublicationHandle:
    """One publication, identified by its publisher."""

    client: ClientId
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.sequence}"


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
        held: moving clients that withhold their deliveries from the application.
        removed: brokers that were decommissioned, and their clients with them, or are lost.
        checker: judges single steps.
        waits: the waits of brokers and clients for sessions and answers.
        redirected: number of clients that followed a redirect.
        losses_accepted, losses_refused: number of proved losses of state, by the operator's answer.
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
        self.topology = topology
        self.protocol = protocol
        self.random = Random(seed)
        check_runs_on(topology, protocol)
        self.parameters = parameters or parameters_on(topology, protocol)
        self.graph = graph_of(topology, definition_of(protocol).kind)
        self.schedule: Schedule
        # A stream of its own: given choices instead of drawn choices leave the network's stream
        # alone.
        order = Random(f"order {seed}")
        self.schedule = AdversarialSchedule(order) if adversarial else TimedSchedule()
        network = network or NetworkParameters(session=topology.session_parameters())
        assert adversarial or not own_clocks, "where there are durations there is one clock"
        self._own_clocks = own_clocks
        self.network = make_network(self.schedule, self.random, network)
        self.link_faults = LinkFaults(self.network)
        self.oracle = Oracle(
            decode_attributes,
            strict,
            definition_of(protocol).promises_with(self.parameters),
            None if own_clocks else lambda: self.schedule.now_ns,
        )
        self._logs = definition_of(protocol).all_logs(topology, self.parameters)
        acknowledgement = definition_of(protocol).acknowledgement(self.parameters)
        self.oracle.logged = acknowledgement is Acknowledgement.STORED
        self._wall_clocks = WallClocks(seed)
        self._observer: ClientObserver = self.oracle
        if observer is not None:
            self._observer = Observers(self.oracle, observer)
        self.trace = Trace() if trace else None
        self.removed: dict[BrokerNumber, None] = {}
        watched = strict or trace or watcher is not None
        seen = CheckedWorld(
            schedule=self.schedule,
            graph=self.graph,
            oracle=self.oracle,
            parameters=self.parameters,
            brokers=lambda: self.brokers,
            has_publishers=self._has_publishers,
            is_gone=self.removed.__contains__,
            strict=strict,
        )
        self.checker = StepChecker(
            self.schedule,
            self.graph,
            self.oracle,
            self.trace,
            strict,
            watcher,
            make_checks(protocol, seen),
            make_position_checks(protocol),
            make_observer(protocol, self.graph),
        )
        self.oracle.origins_of = self.checker.own.origins_of
        self.oracle.keeper_of = self.checker.own.keeper_of
        self.oracle.has_lost = self.checker.own.has_lost
        self.oracle.stores_for = self.checker.own.stores_for
        self._topologies: dict[BrokerNumber, Topology] = {}
        self._watched = watched
        self._predicates: dict[str, Predicate] = {}
        self.clients: dict[ClientId, SimulatedClient] = {}
        self._requests: dict[ClientId, list[Predicate]] = {}
        self._forgot: dict[ClientId, int] = {}
        self.resumed = self.redirected = 0
        self.losses_accepted = self.losses_refused = 0
        self.consumers: dict[ClientId, int] = {}
        self.redeliveries = Redeliveries()
        self.held: dict[ClientId, None] = {}
        self.brokers: list[SimulatedBroker] = []
        self.waits = Waits(self.brokers, self.clients, self.network, self.graph, self.removed)
        for name in topology.brokers:
            self._add_broker(name)

    @property
    def tree(self) -> PrimaryTree:
        """The graph as a tree, for protocols on trees."""
        return tree_of(self.graph)

    def start(self) -> Self:
        """Start every broker."""
        for broker in self.brokers:
            if not broker.alive:
                broker.start()
        if self._own_clocks:  # checks examine all cores, so all must exist
            self.checker.looks_at = self.brokers
        return self

    def join(self, name: str, at: str, *further: str, place: str = "") -> "BrokerHandle":
        """Link a new broker to `at`, without a start of the broker.

        In a tree the new broker is a leaf, and all near brokers are notified. In a hierarchy all
        brokers are notified, and the new broker may have `further` links and an address, `place`.

        Raises:
            ConfigError: the broker cannot join; the cluster is unchanged.
        """
        before = self.topology
        self._change(before.with_joined(JoinedBroker(name, at, "", place, further), "join"))
        number = self._add_broker(name)
        self.note(" ".join(("join", name, "at", at, *further)))
        self.checker.on_joined(number)
        grown = TopologyGrown(number, self.topology.number_of(at))
        self._announce_change(before, grown, self._near(number))
        return self.broker(name)

    def leave(self, name: str) -> None:
        """Stop a broker without clients, and notify all near brokers, or all brokers.

        Raises:
            ConfigError: the broker cannot leave; the cluster is unchanged.
        """
        number, before = self.topology.number_of(name), self.topology
        near = [other for other in self._near(number) if other.alive]
        topology = before.without(name, "leave")
        if self.brokers[number].alive:
            self.broker(name).kill()
        self._change(topology)
        self.note(f"{name} has left")
        self._announce_change(before, TopologyShrunk(number), near)

    def _announce_change(
        self, before: Topology, links: TopologyGrown | TopologyShrunk, near: list[SimulatedBroker]
    ) -> None:
        """Notify near brokers of links, or all brokers of a section of the overlay."""
        if self.topology.sections == before.sections:
            for broker in near:
                broker.operate(links)
            return
        for broker in self.brokers:
            if broker.alive:
                broker.operate(OverlayChanged(self.graph.overlay))

    def change_role(self, name: str, role: str) -> bool:
        """Change the role of a broker and notify all; return False if impossible."""
        definition = definition_of(self.protocol)
        try:
            topology = self.topology.with_role(name, role, "role")
            definition.check_topology(topology, "role")
        except ConfigError:
            return False
        self._change(topology)
        self.note(f"role {name} {role}")
        for broker in self.brokers:
            if broker.alive:
                broker.operate(OverlayChanged(self.graph.overlay))
        return True

    def decommission(self, name: str) -> list[str]:
        """Decommission a broker that is down, for all other brokers, as an operator does.

        The clients of the broker end, because no other broker has their owed publications.

        Returns:
            Reasons against the decommission, in words; the cluster is then unchanged.
        """
        number = self.topology.number_of(name)
        others = [each for each in self.brokers if each.number not in (number, *self.removed)]
        down = [each for each in others if not each.is_responsive]
        refusals = [f"{each.name} does not answer" for each in down]
        if self.brokers[number].alive:
            refusals.append(f"{name} is up")
        refusals += [
            f"{each.name}: {why}"
            for each in others
            if each not in down
            for why in _farewell(each, number).refusals
        ]
        if not refusals:
            self.note(f"decommission {name}")
            self.removed[number] = None
            for client in self.clients.values():
                if client.broker == number and not client.detached:
                    self._end_client(client)
            for each in others:
                each.operate(BrokerDecommissioned(number, make_signature(DECOMMISSION, name)))
        return refusals

    @property
    def staying(self) -> list[SimulatedBroker]:
        """The brokers that have neither left nor were decommissioned."""
        present = [self.brokers[number] for number in self.graph.present]
        return [each for each in present if each.number not in self.removed]

    def _end_client(self, client: SimulatedClient) -> None:
        """End a client with its broker, without further owed publications."""
        for number in client.core.subscriptions:
            self.oracle.on_unsubscribed(client.name, number)
        client.leave()
        client.detached = True

    # ------------------------------------------------------------ names

    def broker(self, name: str) -> "BrokerHandle":
        """Return the verbs of a broker."""
        return BrokerHandle(self, self.brokers[self.topology.number_of(name)])

    def link(self, a: str, b: str) -> "LinkHandle":
        """Return the verbs of all sessions between two brokers, or a client and its broker."""
        return LinkHandle(self, self._peer(a), self._peer(b))

    def _peer(self, name: str) -> Peer:
        return name if name in self.clients else self.topology.number_of(name)

    # ------------------------------------------------------------ clients

    def client(self, name: ClientId, broker: str, publishes: bool = False) -> SimulatedClient:
        """Return the client with this name; a new client is created and dials."""
        client = self.clients.get(name)
        if client is None:
            client = self._add_client(name, broker, publishes)
        return client

    def _add_client(
        self, name: ClientId, broker: str, publishes: bool, core: ClientCore | None = None
    ) -> SimulatedClient:
        number = self.topology.number_of(broker)
        make: Callable[..., SimulatedClient] = SimulatedClient
        if name in self.consumers:
            make = partial(
                SimulatedConsumer,
                uncommitted=self.consumers[name],
                redeliveries=self.redeliveries,
            )
            core = core or SimulatedConsumer.make_core(name)
        client = make(name, number, self.network, self.random, self._observer, publishes, core)
        client.take_after_ns = int(self._own_clocks)
        if self.oracle.promises.gaps and name not in self.consumers:
            client.tokens = deque(maxlen=8)
        self.clients[name] = client
        self.network.endpoints[name] = client
        self.checker.client_added(name, number)
        client.on_refused = partial(self._on_refused, client)
        client.on_redirected = partial(self._on_redirected, client)
        client.dial()
        return client

    def subscribe(
        self, broker: str, predicate: str | Predicate = "true", client: ClientId | None = None
    ) -> "Subscription":
        """Return a new subscription at a broker, for a new client unless `client` is given."""
        name = client or f"s{sum(key.startswith('s') for key in self.clients) + 1}-{broker}"
        subscriber = self.client(name, broker)
        wanted = self._parse(predicate) if isinstance(predicate, str) else predicate
        number = subscriber.subscribe(wanted)
        self._requests.setdefault(name, []).append(wanted)
        self.oracle.on_subscribed(name, number, wanted)
        self.note(f"subscribe {name}/{number} {predicate if isinstance(predicate, str) else ''}")
        return Subscription(self, subscriber, number)

    def consume(
        self, broker: str, predicate: str | Predicate = "true", *, uncommitted: int, name: str = ""
    ) -> "Subscription":
        """Return the subscription of a new client without state, with a token at the broker.

        Args:
            uncommitted: number of publications that the client takes before a commit.
        """
        name = name or f"c{len(self.consumers) + 1}-{broker}"
        self.consumers[name] = uncommitted
        return self.subscribe(broker, predicate, name)

    def unsubscribe(self, client: ClientId, number: int = 1) -> None:
        """End a subscription of a client."""
        self.oracle.on_unsubscribed(client, number)
        self.note(f"unsubscribe {client}/{number}")
        self.clients[client].unsubscribe(number)

    def detach(self, client: ClientId) -> None:
        """Detach a client for good; all its publications must be complete."""
        state = self.clients[client]
        for number in state.core.subscriptions:
            self.oracle.on_unsubscribed(client, number)
        self.note(f"detach {client}")
        state.detach()

    def forget(self, client: ClientId, keeps: int | None = None) -> SimulatedClient:
        """Restart a client's process without its memory, and repeat its requests.

        Args:
            keeps: number of requests to repeat, from the first request on; None for all.
        """
        old = self.clients[client]
        wanted = self._requests.get(client, [])[:keeps]
        token = self._older_token(old)
        self.note(f"forget {client} {len(wanted)}")
        old.leave()
        self._forgot[client] = self._forgot.get(client, 1) + 1
        self.oracle.on_memory_loss(client)
        counts_anew = old.publishes or self.clients_leave_freely
        core = ClientCore(
            client,
            publishes=old.publishes,
            incarnation=1 if counts_anew else old.core.attachment.incarnation,
            instance=b"%d" % self._forgot[client],
            mode="transactional" if client in self.consumers else "automatic",
        )
        self._requests[client] = []
        new = self._add_client(client, self.brokers[old.broker].name, old.publishes, core)
        for predicate in wanted:
            subscription = self.subscribe(self.brokers[old.broker].name, predicate, client)
            new.core.progress.begin_after(subscription.number, token.get(subscription.number, ()))
        return new

    def _older_token(self, client: SimulatedClient) -> Mapping[int, Positions]:
        """Return older positions as the token of a restarted process, in half of the cases.

        Only if the protocol reports released publications to clients that return with a token.
        """
        random = Random(f"token of {client.name} at {self.schedule.now_ns}")
        if not client.tokens or random.random() < 0.5:
            return {}
        self.resumed += 1
        return random.choice(client.tokens)

    def _on_refused(self, client: SimulatedClient, refused: Refused) -> None:
        """Accept a refusal if the client has too many subscriptions or lost its memory."""
        number, most = refused.number, self.parameters.client_subscriptions
        if refused.request != "subscribe" or (number <= most and client.name not in self._forgot):
            raise InvariantViolated("refused", f"{client.name}: {refused}")
        if client.core.subscriptions.predicates.get(number) == NOTHING:
            if client.name not in self._forgot:
                raise InvariantViolated("refused", f"{client.name} cannot move: {refused}")
            client.unsubscribe(number)  # the client retries with the next number
            return
        if number in client.core.subscriptions:
            self.unsubscribe(client.name, number)

    def _on_redirected(self, client: SimulatedClient, addresses: Sequence[str]) -> None:
        """Follow a redirect to the first present broker, if free of cost.

        A client stays if all brokers of an old redirect have been removed since.
        """
        core = client.core
        if core.attachment.home is None:
            core.move_to(self._home(self.brokers[client.broker].name))
        here = [each for each in addresses if int(each) in self.graph.present]
        here = [each for each in here if int(each) not in self.removed]
        begun = all(each in client.started_numbers for each in core.subscriptions)
        waits = core.subscriptions.ending or not begun
        if (
            client.is_moving
            or not core.can_follow_redirect
            or (waits and not core.attachment.leaves_freely)
        ):
            return
        if client.brokers is None:
            all_there_are = [str(each) for each in self.graph.present]
            client.brokers = Brokers([str(client.broker)], all_there_are)
        client.brokers.address = str(client.broker)
        if client.brokers.on_redirect(here, self.schedule.now_ns / SECOND_NS):
            self.redirected += 1
            self.reattach(client.name, self.brokers[int(client.brokers.address)].name)

    def move(
        self,
        client: ClientId,
        broker: str,
        over: Callable[[ClientId, bool], bool],
        arrived: Callable[[], None] = lambda: None,
    ) -> ClientMove:
        """Move a client to another broker, under another name.

        Args:
            over: called at the end of the move with the new name, and True if the old broker has
                delivered everything; returns True if the client's streams must continue without a
                gap.
            arrived: called when the client has received its kept publications.
        """
        name = f"{client.partition('-')[0]}.-{broker}"

        def make(old: SimulatedClient) -> SimulatedClient:
            core = old.core.successor()
            new = self._add_client(name, broker, old.publishes, core)
            for number, predicate in core.subscriptions.predicates.items():
                self.oracle.on_subscribed(name, number, predicate)
            self._requests[name] = self._requests.get(old.name, [])
            self.held[name] = None
            new.is_moving = True
            return new

        def is_over(old: SimulatedClient, new: SimulatedClient, all_delivered: bool) -> None:
            self.note(f"moved {old.name} {new.name} {all_delivered}")
            del self.held[new.name]
            new.is_moving = False
            self.oracle.on_moved(old.name, new.name, whole=over(new.name, all_delivered))

        self.note(f"move {client} {name}")
        self.clients[client].is_moving = True
        move = ClientMove(
            self.clients[client],
            make,
            lambda: self.oracle.on_drain(client),
            is_over,
            arrived,
        )
        move.advance()
        return move

    @property
    def clients_leave_freely(self) -> bool:
        """True if a client may leave for another broker with any requests."""
        return definition_of(self.protocol).promises.leaves_freely

    def reattach(self, client: ClientId, broker: str) -> None:
        """Attach a client to another broker under the same name, without notice to the old broker.

        All subscriptions of the client have started once, and no request is unanswered, unless
        clients of the protocol leave freely.
        """
        self.note(f"reattach {client} {broker}")
        number = self.topology.number_of(broker)
        self.checker.client_added(client, number)
        self.clients[client].move_to(self._home(broker), number)

    def _home(self, broker: str) -> Home:
        """Return the client's view of its new broker."""
        promises = definition_of(self.protocol).promises
        return Home(
            broker,
            "",
            self.protocol,
            may_lose=not promises.exactly_once,
            resumes_elsewhere=promises.resumes_elsewhere,
            leaves_freely=promises.leaves_freely,
        )

    def publish(
        self,
        broker: str,
        *,
        client: ClientId | None = None,
        payload: bytes = b"",
        **attributes: Scalar,
    ) -> PublicationHandle:
        """Publish one publication at a broker, by default as the client `p-<broker>`."""
        blob = encode_attributes(attributes)
        return self.publish_run(broker, [(blob, payload)], client)[0]

    def publish_run(
        self, broker: str, contents: list[tuple[bytes, bytes]], client: ClientId | None = None
    ) -> list[PublicationHandle]:
        """Publish (attribute blob, payload) pairs as one run."""
        publisher = self.client(client or f"p-{broker}", broker, publishes=True)
        first = publisher.publish(contents)
        for sequence, (blob, payload) in enumerate(contents, first):
            self.oracle.published(publisher.name, sequence, blob, payload)
        self.note(f"publish {publisher.name} {first}-{first + len(contents) - 1}")
        return [PublicationHandle(publisher.name, first + place) for place in range(len(contents))]

    def name_of(self, source: SourceId) -> ClientId:
        """Return the client that publishes under a source."""
        return next(name for name, client in self.clients.items() if client.core.source == source)

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

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.note(self.schedule.now_ns, what)

    def reasons(self, broker: str) -> list[str]:
        """Return the reasons of a core for withheld, refused or ignored items, in order."""
        records = self.brokers[self.topology.number_of(broker)].recorded
        return [str(details["reason"]) for _, details in records if "reason" in details]

    def statistics(self) -> dict[str, int]:
        """Return the sum of all live brokers' counters."""
        total: dict[str, int] = {}
        for broker in self.brokers:
            if broker.alive:
                for name, value in broker.core.statistics().items():
                    total[name] = total.get(name, 0) + value
        return total

    @property
    def broker_events(self) -> int:
        """The number of events that the cores of all brokers have handled."""
        return sum(broker.events for broker in self.brokers)

    # ------------------------------------------------------------ internals

    def _add_broker(self, name: str) -> BrokerNumber:
        number = len(self.brokers)
        observer = self.checker if self._watched else None
        clock = OwnClock() if self._own_clocks else None
        broker = SimulatedBroker(
            number,
            name,
            self.network,
            self.random,
            self._make_core,
            observer,
            self._logs,
            self._wall_clocks,
            clock,
        )
        broker.joins = number >= len(self.topology.as_deployed().brokers)
        self.brokers.append(broker)
        self.network.endpoints[number] = broker
        return number

    def _change(self, topology: Topology) -> None:
        self.topology = topology
        self.graph.change(topology)

    def _near(self, number: BrokerNumber) -> list[SimulatedBroker]:
        near = map(self.brokers.__getitem__, self.graph.near(number))
        return [broker for broker in near if broker.alive]

    def _make_core(self, number: BrokerNumber) -> DeliveryProtocol:
        self._topologies[number] = self.topology
        return self._fresh_core(number)

    def _fresh_core(self, number: BrokerNumber) -> DeliveryProtocol:
        """Return a core equal to a broker's core at its start."""
        return make_protocol(
            self.protocol,
            number,
            self._topologies[number],
            self.parameters,
            decode_attribute_table,
            AUTHORITY,
        )

    def repeat_events(self, number: BrokerNumber) -> None:
        """Check I17: the kept events of a broker give a fresh core the same effects.

        Raises:
            InvariantViolated: the effects differ.
        """
        broker = self.brokers[number]
        core = self._fresh_core(number)
        for event, now_ns, effects in broker.history or ():
            again = core.handle(event, now_ns)
            core.next_deadline()
            if again != effects:
                raise InvariantViolated(
                    "purity", f"{broker.name} on {event}: first {effects}, then {again}"
                )

    def recount(self) -> int:
        """Recompute the counters of brokers and clients; the cluster must be at rest.

        Returns:
            The number of recomputed counters.

        Raises:
            InvariantViolated: a counter is wrong; names the counter.
        """
        recounts = simulation_of(self.protocol).recounts
        living = [broker for broker in self.staying if broker.alive]
        counted = sum(check_recounts(each.name, each.core, recounts) for each in living)
        clients = self.clients.values()
        return counted + sum(check_recounts(each.name, each.core, ()) for each in clients)

    def check_internals(self) -> None:
        """Check the internal state of every broker after random steps."""
        self.checker.look_into(self.brokers)

    def _has_publishers(self, number: BrokerNumber) -> bool:
        return any(client.broker == number and client.publishes for client in self.clients.values())

    def _parse(self, text: str) -> Predicate:
        predicate = self._predicates.get(text)
        if predicate is None:
            predicate = self._predicates[text] = parse_predicate(text)
        return predicate


def _farewell(broker: SimulatedBroker, leaving: BrokerNumber) -> Farewell:
    core: Any = broker.protocol
    protocol: DecommissioningProtocol = core
    return protocol.farewell(leaving)


class BrokerHandle:
    """The verbs of a broker; each verb returns the handle."""

    def __init__(self, cluster: SimulatedCluster, broker: SimulatedBroker) -> None:
        self._cluster = cluster
        self.broker = broker

    def kill(self) -> Self:
        """Kill the process, with the loss of all volatile state."""
        return self._perform("kill", self.broker.kill)

    def start(self) -> Self:
        """Start a new incarnation on the same disk."""
        return self._perform("start", self.broker.start)

    def copy(self, *, is_empty: bool) -> tuple[Any, ...] | None:
        """Return a copy of the disk, for `restore`; None for an empty disk."""
        self._cluster.oracle.disk_copied(self.broker.number, is_empty=is_empty)
        self._cluster.redeliveries.disk_copied(self._clients(), is_empty=is_empty)
        return None if is_empty else self.broker.disk.copy()

    def _clients(self) -> list[ClientId]:
        number = self.broker.number
        return [each.name for each in self._cluster.clients.values() if each.broker == number]

    def put_back(self, copy: tuple[Any, ...] | None) -> Self:
        """Replace the disk by an older copy, or by an empty disk, and accept the loss."""
        self._cluster.oracle.state_lost(self.broker.number)
        self.broker.disk.put_back(copy)
        return self._perform("accept-loss", self.broker.accept_loss)

    def restore(self, copy: tuple[Any, ...] | None, witnessed: StateMark | None) -> Self:
        """Start on an older copy of the disk, or on an empty disk, as an operator does.

        A loss that a neighbour's mark proves ends the broker with the event `state_lost`. The
        operator then accepts the loss or, if the broker cannot announce the loss, puts the newest
        disk back. A loss that no neighbour can prove is no subject of this fault: the newest disk
        is put back.

        Args:
            witnessed: the newest mark that a neighbour has; None if no neighbour has one.

        Raises:
            InvariantViolated: the broker does not detect a loss that the mark proves, or detects a
                loss that did not happen.
        """
        broker, disk = self.broker, self.broker.disk
        if witnessed is None:
            return self.start()
        newest = disk.copy()
        disk.put_back(copy)
        disk.begin(broker.incarnation + 1)
        present = disk.ledger.present
        missing = max(witnessed.commits - present.commits, witnessed.groups - present.groups)
        cause = disk.ledger.loss(witnessed)
        if (missing > 0 or copy is None) != (cause is not None):
            raise InvariantViolated(
                "state lost",
                f"{broker.name} starts on a disk without {missing} durable writes that its "
                f"neighbours prove, and detects: {cause}",
            )
        if cause is None:
            return self.start()
        broker.recorded.append(("state_lost", {"cause": cause}))
        self._cluster.note(f"{broker.name} refuses to serve: {cause}")
        cluster, definition = self._cluster, definition_of(self._cluster.protocol)
        if definition.keeps_loss(cluster.topology, cluster.parameters, broker.number):
            self._cluster.losses_refused += 1
            disk.put_back(newest)
            return self.start()
        self._cluster.losses_accepted += 1
        self._cluster.oracle.state_lost(broker.number)
        unacknowledged = self._cluster.oracle.unacknowledged_at(broker.number)
        self._cluster.redeliveries.state_lost(self._clients(), unacknowledged)
        return self._perform("accept-loss", broker.accept_loss)

    def restart(self) -> Self:
        """Kill and start, without a pause."""
        return self.kill().start()

    def absorb(self) -> Self:
        """Receive everything and send only signs of life."""
        return self._perform("absorb", self.broker.absorb)

    def omit_sends(self) -> Self:
        """Handle everything and send only signs of life."""
        return self._perform("send-omission", self.broker.omit_sends)

    def release(self) -> Self:
        """Handle and send the absorbed messages, in order."""
        return self._perform("release", self.broker.release)

    def freeze(self) -> Self:
        """Stop the time of the broker."""
        return self._perform("freeze", self.broker.freeze)

    def thaw(self) -> Self:
        """Resume the time of the broker."""
        return self._perform("thaw", self.broker.thaw)

    def status(self) -> CoreStatus[BrokerNumber]:
        """Return the status of the core."""
        return self.broker.core.status()

    def _perform(self, verb: str, action: Any) -> Self:
        self._cluster.note(f"{verb} {self.broker.name}")
        action()
        return self


class LinkHandle:
    """The verbs of the sessions between two endpoints; each verb returns the handle."""

    def __init__(self, cluster: SimulatedCluster, a: Peer, b: Peer) -> None:
        self._cluster = cluster
        self._network = cluster.network
        self._a = a
        self._b = b

    def cut(self, which: WhichWay = "both") -> Self:
        """Cut the link and lose messages in flight; `out` is from first to second."""
        self._note(f"cut {which}")
        self._cluster.link_faults.cut(self._a, self._b, which)
        return self

    def blackhole(self, which: WhichWay = "both") -> Self:
        """Block all messages without a loss."""
        self._note(f"blackhole {which}")
        self._cluster.link_faults.blackhole(self._a, self._b, which)
        return self

    def absorb(self, which: WhichWay = "both") -> Self:
        """Pass only signs of life; `out` is from the first to the second."""
        self._note("absorb" if which == "both" else f"absorb {which}")
        self._cluster.link_faults.absorb(self._a, self._b, which)
        return self

    def release_one(self) -> bool:
        """Deliver the first absorbed message from the first to the second end."""
        self._note("let one pass")
        return self._cluster.link_faults.pass_one(self._a, self._b)

    def delay(self, delay_ns: int) -> Self:
        """Delay every message."""
        self._note(f"delay {delay_ns}")
        self._cluster.link_faults.delay(self._a, self._b, delay_ns)
        return self

    def heal(self) -> Self:
        """End all faults of the link."""
        self._note("heal")
        self._cluster.link_faults.heal(self._a, self._b)
        return self

    def suspect(self) -> Self:
        """Suspect the second end at the first end."""
        self._note("suspect")
        end = self._network.endpoints[self._a].ends.get(self._b)
        if end is not None:
            self._network.suspect(end)
        return self

    def _note(self, verb: str) -> None:
        self._cluster.note(f"{verb} {self._a}-{self._b}")


class Subscription:
    """A subscription with the view of its application."""

    def __init__(self, cluster: SimulatedCluster, client: SimulatedClient, number: int) -> None:
        self._cluster = cluster
        self.client = client
        self.number = number

    @property
    def received(self) -> list[PublicationHandle]:
        """Deliveries to the application, in order."""
        return list(self._on_received())

    @property
    def started(self) -> bool:
        """True if the client was notified of the start."""
        return self.number in self.client.started_numbers

    def _on_received(self) -> Iterator[PublicationHandle]:
        for source, sequence in self.client.received[self.number]:
            yield PublicationHandle(self._cluster.name_of(source), sequence)
