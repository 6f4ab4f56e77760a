"""A whole simulated cluster, with verbs for whoever writes its story.

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

from brokerd.client.brokers import Brokers
from brokerd.client.core import ClientCore
from brokerd.client.state import Home, Positions
from brokerd.errors import ConfigError
from brokerd.model.client_messages import Refused
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.operator_acts import DECOMMISSION
from brokerd.model.predicate import NOTHING, Predicate, Scalar
from brokerd.model.predicate_text import parse_predicate
from brokerd.overlay.topology import Joined, Topology
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
from brokerd.simulator.checks.invariants import StepChecker, Watcher
from brokerd.simulator.checks.oracle import InvariantViolated, Oracle
from brokerd.simulator.checks.protocol_checks import (
    CheckedWorld,
    make_checks,
    make_observer,
    make_position_checks,
    simulated,
)
from brokerd.simulator.checks.recounts import check_recounts
from brokerd.simulator.checks.redeliveries import Redeliveries
from brokerd.simulator.world.authority import AUTHORITY, signed
from brokerd.simulator.world.broker import OwnClock, SimulatedBroker
from brokerd.simulator.world.clients import ClientObserver, Observers, SimulatedClient
from brokerd.simulator.world.clock import AdversarialSchedule, Schedule, TimedSchedule
from brokerd.simulator.world.consumers import SimulatedConsumer
from brokerd.simulator.world.moving import ClientMove
from brokerd.simulator.world.network import Network, NetworkParameters, WhichWay
from brokerd.simulator.world.trace import Trace
from brokerd.simulator.world.wall_clock import WallClocks
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table, decode_attributes, encode_attributes


@dataclass(frozen=True, slots=True)
class Published:
    """One publication, as its publisher knows it."""

    client: ClientId
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.sequence}"


class NotQuietError(Exception):
    """A cluster has not come to rest in the time it was given; says who still waits for what."""


class SimulatedCluster:
    """Brokers, links and clients under one virtual clock.

    Args:
        topology: what it sets of the protocol rules, unless `parameters` say otherwise.
        seed: the same seed, calls and code give the same history.
        strict: raise InvariantViolated as soon as something promised does not hold.
        trace: keep the last steps and a digest of all.
        adversarial: no durations; see AdversarialSchedule.
        own_clocks: without durations, each broker goes by a clock of its own, which whoever writes
            the story moves, and each client's application takes what it gets in its own time.
            Each broker is looked into after each of its steps.
        make_network: of another kind, for tests.
        watcher: told of every step of every broker.

    Attributes:
        oracle: judges deliveries; `oracle.judge_end()` says what is missing.
        graph: the overlay that the protocol runs on.
        brokers: by number.
        clients: by name.
        held: clients on their way that keep to themselves what they receive.
        gone: brokers that were decommissioned, and their clients with them, or are lost.
        checker: judges single steps.
        redirected: how often a client has gone where its broker told it to.
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
        # Its own stream: choices that are given instead of drawn leave the network's alone.
        order = Random(f"order {seed}")
        self.schedule = AdversarialSchedule(order) if adversarial else TimedSchedule()
        network = network or NetworkParameters(session=topology.session_parameters())
        assert adversarial or not own_clocks, "where there are durations there is one clock"
        self._own_clocks = own_clocks
        self.network = make_network(self.schedule, self.random, network)
        self.oracle = Oracle(
            decode_attributes,
            strict,
            definition_of(protocol).promised(self.parameters),
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
        self.gone: dict[BrokerNumber, None] = {}
        watched = strict or trace or watcher is not None
        seen = CheckedWorld(
            schedule=self.schedule,
            graph=self.graph,
            oracle=self.oracle,
            parameters=self.parameters,
            brokers=lambda: self.brokers,
            has_publishers=self._has_publishers,
            is_gone=self.gone.__contains__,
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
        self._topologies: dict[BrokerNumber, Topology] = {}
        self._watched = watched
        self._predicates: dict[str, Predicate] = {}
        self.clients: dict[ClientId, SimulatedClient] = {}
        self._asked: dict[ClientId, list[Predicate]] = {}
        self._forgot: dict[ClientId, int] = {}
        self.resumed = self.redirected = 0
        self.consumers: dict[ClientId, int] = {}
        self.redeliveries = Redeliveries()
        self.held: dict[ClientId, None] = {}
        self.brokers: list[SimulatedBroker] = []
        for name in topology.brokers:
            self._add_broker(name)

    @property
    def tree(self) -> PrimaryTree:
        """Its graph, where the protocol runs on a tree."""
        return tree_of(self.graph)

    def start(self) -> Self:
        """Start every broker."""
        for broker in self.brokers:
            if not broker.alive:
                broker.start()
        if self._own_clocks:  # checks look at all cores, so all must be there
            self.checker.looks_at = self.brokers
        return self

    def join(self, name: str, at: str, *further: str, place: str = "") -> "BrokerHandle":
        """A new broker is to be linked to `at`; it has yet to start.

        In a tree it is a leaf, and all near are told; in a hierarchy all are, and it may have
        `further` links and an address, `place`.

        Raises:
            ConfigError: it cannot join so; nothing has changed then.
        """
        before = self.topology
        self._change(before.with_joined(Joined(name, at, "", place, further), "join"))
        number = self._add_broker(name)
        self.note(" ".join(("join", name, "at", at, *further)))
        self.checker.joined(number)
        grown = TopologyGrown(number, self.topology.number_of(at))
        self._tell_change(before, grown, self._near(number))
        return self.broker(name)

    def leave(self, name: str) -> None:
        """A broker, which has no clients any more, stops, and all near are told, or simply all.

        Raises:
            ConfigError: it cannot leave; nothing has changed then.
        """
        number, before = self.topology.number_of(name), self.topology
        near = [other for other in self._near(number) if other.alive]
        topology = before.without(name, "leave")
        if self.brokers[number].alive:
            self.broker(name).kill()
        self._change(topology)
        self.note(f"{name} has left")
        self._tell_change(before, TopologyShrunk(number), near)

    def _tell_change(
        self, before: Topology, links: TopologyGrown | TopologyShrunk, near: list[SimulatedBroker]
    ) -> None:
        """Of other links tell all near; of another section of the overlay's kind tell all."""
        if self.topology.sections == before.sections:
            for broker in near:
                broker.tell(links)
            return
        for broker in self.brokers:
            if broker.alive:
                broker.tell(OverlayChanged(self.graph.overlay))

    def change_role(self, name: str, role: str) -> bool:
        """A broker comes to be something else in the overlay, and all are told; or it cannot."""
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
                broker.tell(OverlayChanged(self.graph.overlay))
        return True

    def decommission(self, name: str) -> list[str]:
        """Have all others go on for good without a broker that is down, as an operator does.

        Its clients end with it: what they are owed nobody has any more.

        Returns:
            Why that cannot be now, in words; nothing has changed then.
        """
        number = self.topology.number_of(name)
        others = [each for each in self.brokers if each.number not in (number, *self.gone)]
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
            self.gone[number] = None
            for client in self.clients.values():
                if client.broker == number and not client.detached:
                    self._lose(client)
            for each in others:
                each.tell(BrokerDecommissioned(number, signed(DECOMMISSION, name)))
        return refusals

    @property
    def staying(self) -> list[SimulatedBroker]:
        """The brokers that have neither left nor were decommissioned."""
        present = [self.brokers[number] for number in self.graph.present]
        return [each for each in present if each.number not in self.gone]

    def _lose(self, client: SimulatedClient) -> None:
        """A client ends with its broker, and is owed nothing any more."""
        for number in client.core.subscriptions:
            self.oracle.unsubscribed(client.name, number)
        client.leave()
        client.detached = True

    # ------------------------------------------------------------ names

    def broker(self, name: str) -> "BrokerHandle":
        """The verbs of a broker."""
        return BrokerHandle(self, self.brokers[self.topology.number_of(name)])

    def link(self, a: str, b: str) -> "LinkHandle":
        """The verbs of whatever sessions two brokers have, or a client and its broker."""
        return LinkHandle(self, self._peer(a), self._peer(b))

    def _peer(self, name: str) -> Peer:
        return name if name in self.clients else self.topology.number_of(name)

    # ------------------------------------------------------------ clients

    def client(self, name: ClientId, broker: str, publishes: bool = False) -> SimulatedClient:
        """The client called so; made, and dialling, when it is new."""
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
        """A new subscription at a broker, of a client of its own unless one is named."""
        name = client or f"s{sum(key.startswith('s') for key in self.clients) + 1}-{broker}"
        subscriber = self.client(name, broker)
        wanted = self._parse(predicate) if isinstance(predicate, str) else predicate
        number = subscriber.subscribe(wanted)
        self._asked.setdefault(name, []).append(wanted)
        self.oracle.subscribed(name, number, wanted)
        self.note(f"subscribe {name}/{number} {predicate if isinstance(predicate, str) else ''}")
        return Subscription(self, subscriber, number)

    def consume(
        self, broker: str, predicate: str | Predicate = "true", *, uncommitted: int, name: str = ""
    ) -> "Subscription":
        """The subscription of a new client that keeps nothing, and has its broker keep a token.

        Args:
            uncommitted: how many publications it takes before it commits.
        """
        name = name or f"c{len(self.consumers) + 1}-{broker}"
        self.consumers[name] = uncommitted
        return self.subscribe(broker, predicate, name)

    def unsubscribe(self, client: ClientId, number: int = 1) -> None:
        """A client ends one of its subscriptions."""
        self.oracle.unsubscribed(client, number)
        self.note(f"unsubscribe {client}/{number}")
        self.clients[client].unsubscribe(number)

    def detach(self, client: ClientId) -> None:
        """A client leaves for good, and says so; it has published what it had to."""
        state = self.clients[client]
        for number in state.core.subscriptions:
            self.oracle.unsubscribed(client, number)
        self.note(f"detach {client}")
        state.detach()

    def forget(self, client: ClientId, keeps: int | None = None) -> SimulatedClient:
        """A client's process dies with its memory; another one of that name asks again.

        Args:
            keeps: for how many of all that it has ever asked for, from the first on; None for all.
        """
        old = self.clients[client]
        wanted = self._asked.get(client, [])[:keeps]
        token = self._older_token(old)
        self.note(f"forget {client} {len(wanted)}")
        old.leave()
        self._forgot[client] = self._forgot.get(client, 1) + 1
        self.oracle.forgot(client)
        core = ClientCore(
            client,
            publishes=old.publishes,
            incarnation=1 if old.publishes else old.core.incarnation,
            instance=b"%d" % self._forgot[client],
            in_transactions=client in self.consumers,
        )
        self._asked[client] = []
        new = self._add_client(client, self.brokers[old.broker].name, old.publishes, core)
        for predicate in wanted:
            subscription = self.subscribe(self.brokers[old.broker].name, predicate, client)
            new.core.go_on_behind(subscription.number, token.get(subscription.number, ()))
        return new

    def _older_token(self, client: SimulatedClient) -> Mapping[int, Positions]:
        """Where a process that begins anew finds that the one before had come to, in half of them.

        Only where the protocol tells who comes back with it what is not kept any more.
        """
        random = Random(f"token of {client.name} at {self.schedule.now_ns}")
        if not client.tokens or random.random() < 0.5:
            return {}
        self.resumed += 1
        return random.choice(client.tokens)

    def _on_refused(self, client: SimulatedClient, refused: Refused) -> None:
        """The application makes do without: it has too many, or had others before it forgot."""
        number, most = refused.number, self.parameters.client_subscriptions
        if refused.request != "subscribe" or (number <= most and client.name not in self._forgot):
            raise InvariantViolated("refused", f"{client.name}: {refused}")
        if client.core.predicates.get(number) == NOTHING:
            if client.name not in self._forgot:
                raise InvariantViolated("refused", f"{client.name} cannot move: {refused}")
            client.unsubscribe(number)  # it tries again with the next number
            return
        if number in client.core.subscriptions:
            self.unsubscribe(client.name, number)

    def _on_redirected(self, client: SimulatedClient, addresses: Sequence[str]) -> None:
        """As the client library does: go to the first that is known, where that costs nothing.

        One that is told so long ago that the broker is gone for good meanwhile stays.
        """
        core = client.core
        if core.home is None:
            core.go_to(self._home(self.brokers[client.broker].name))
        here = [each for each in addresses if int(each) in self.graph.present]
        here = [each for each in here if int(each) not in self.gone]
        begun = all(each in client.started_numbers for each in core.subscriptions)
        waits = core.ending or not begun
        if client.is_moving or not core.may_go or (waits and not core.leaves_freely):
            return
        if client.brokers is None:
            all_there_are = [str(each) for each in self.graph.present]
            client.brokers = Brokers([str(client.broker)], all_there_are)
        client.brokers.address = str(client.broker)
        if client.brokers.redirected(here, self.schedule.now_ns / SECOND_NS):
            self.redirected += 1
            self.reattach(client.name, self.brokers[int(client.brokers.address)].name)

    def move(
        self,
        client: ClientId,
        broker: str,
        over: Callable[[ClientId, bool], bool],
        arrived: Callable[[], None] = lambda: None,
    ) -> ClientMove:
        """A client moves to another broker, where it has another name.

        Args:
            over: told the name, and whether the old broker has delivered all it had, when the
                move is over; says whether the client's streams must go on without a step.
            arrived: called when it has what was kept for it.
        """
        name = f"{client.partition('-')[0]}.-{broker}"

        def make(old: SimulatedClient) -> SimulatedClient:
            core = old.core.successor()
            new = self._add_client(name, broker, old.publishes, core)
            for number, predicate in core.predicates.items():
                self.oracle.subscribed(name, number, predicate)
            self._asked[name] = self._asked.get(old.name, [])
            self.held[name] = None
            new.is_moving = True
            return new

        def is_over(old: SimulatedClient, new: SimulatedClient, all_delivered: bool) -> None:
            self.note(f"moved {old.name} {new.name} {all_delivered}")
            del self.held[new.name]
            new.is_moving = False
            self.oracle.moved(old.name, new.name, whole=over(new.name, all_delivered))

        self.note(f"move {client} {name}")
        self.clients[client].is_moving = True
        move = ClientMove(
            self.clients[client],
            make,
            lambda: self.oracle.draining(client),
            is_over,
            arrived,
        )
        move.advance()
        return move

    @property
    def clients_leave_freely(self) -> bool:
        """Whether a client may go to another broker whatever it has asked for."""
        return definition_of(self.protocol).promises.leaves_freely

    def reattach(self, client: ClientId, broker: str) -> None:
        """A client goes on at another broker under its own name, without asking the one it leaves.

        Its subscriptions have all started once, and nothing that it has asked for is unanswered;
        unless its protocol has clients leave freely.
        """
        self.note(f"reattach {client} {broker}")
        number = self.topology.number_of(broker)
        self.checker.client_added(client, number)
        self.clients[client].go_to(self._home(broker), number)

    def _home(self, broker: str) -> Home:
        """What a client knows of a broker that it has gone to."""
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
    ) -> Published:
        """One publication at a broker; by default of the client `p-<broker>`."""
        blob = encode_attributes(attributes)
        return self.publish_run(broker, [(blob, payload)], client)[0]

    def publish_run(
        self, broker: str, contents: list[tuple[bytes, bytes]], client: ClientId | None = None
    ) -> list[Published]:
        """Publications (attribute blob, payload) that leave as one run."""
        publisher = self.client(client or f"p-{broker}", broker, publishes=True)
        first = publisher.publish(contents)
        for sequence, (blob, payload) in enumerate(contents, first):
            self.oracle.published(publisher.name, sequence, blob, payload)
        self.note(f"publish {publisher.name} {first}-{first + len(contents) - 1}")
        return [Published(publisher.name, first + place) for place in range(len(contents))]

    def name_of(self, source: SourceId) -> ClientId:
        """Which client publishes under a source."""
        return next(name for name, client in self.clients.items() if client.core.source == source)

    # ------------------------------------------------------------ time

    def run_for(self, seconds: float) -> None:
        """Let this much virtual time pass."""
        assert isinstance(self.schedule, TimedSchedule), "without durations no time can pass"
        self.schedule.run_until(self.schedule.now_ns + int(seconds * SECOND_NS))

    def step(self, until_ns: Instant) -> bool:
        """Let the next thing happen; False when there is none up to `until_ns`."""
        assert isinstance(self.schedule, TimedSchedule), "an adversary knows no instants"
        next_ns = self.schedule.next_ns()
        if next_ns is None or next_ns > until_ns:
            return False
        return self.schedule.step()

    def run_until_quiet(self, limit_s: float = 60.0) -> None:
        """Run until nothing is under way but retries towards what cannot be reached.

        Raises:
            NotQuietError: it does not become quiet within `limit_s` of virtual time.
        """
        assert isinstance(self.schedule, TimedSchedule), "an adversary is never quiet"
        until_ns = self.schedule.now_ns + int(limit_s * SECOND_NS)
        while not self.is_quiet():
            if self.schedule.now_ns > until_ns:
                left = self.unsettled() or [f"{self.schedule.pending} messages are on their way"]
                raise NotQuietError(f"not quiet after {limit_s:g} s: {'; '.join(left)}")
            for _ in range(max(1, self.schedule.pending)):
                if not self.schedule.step():
                    return

    def is_quiet(self) -> bool:
        """Whether nothing is under way and everyone has the sessions that can be had.

        Links may stay broken: once a broker has found out that it cannot reach another one, its
        further attempts, as long as they cannot succeed, disturb nobody.
        """
        return self.schedule.pending == 0 and not self.unsettled()

    def unsettled(
        self,
        *,
        all_attempts: bool = True,
        may_ask: Callable[[BrokerNumber], bool] = lambda broker: True,
    ) -> list[str]:
        """Who still waits for a session or an answer that can be had, in words.

        Args:
            all_attempts: whether an attempt counts that cannot succeed, until it has failed. One
                that is made again after a wait never does.
            may_ask: whether clients of a broker get an answer there to what they end.
        """
        lines = []
        for broker in self.brokers:
            if not broker.alive or broker.frozen:
                continue
            if broker.number in self.gone:
                near = self.graph.near(broker.number)
                if any(self.network.is_open(broker.number, peer) for peer in near):
                    lines.append(f"{broker.name} runs, and was decommissioned")
                continue
            attempts = [
                peer
                for peer, attempt in broker.attempts.items()
                if (all_attempts and not attempt.again) or self.network.is_open(broker.number, peer)
            ]
            if attempts:
                lines.append(f"{broker.name} dials {attempts}")
            status = broker.core.status()
            waiting = [
                peer
                for peer in status.wanted
                if peer not in status.ready or peer not in broker.ends
            ]
            if not broker.absorbing:
                reachable = [
                    peer for peer in waiting
                    if self.network.is_open(broker.number, peer)
                    and not self.brokers[peer].absorbing
                ]  # fmt: skip
                if reachable:
                    lines.append(f"{broker.name} waits for sessions with {reachable}")
        for client in self.clients.values():
            if client.detached:
                continue
            if not client.ends and self.network.is_open(client.name, client.broker):
                lines.append(f"{client.name} is not connected")
            if client.ends and client.waits and may_ask(client.broker):
                lines.append(f"{client.name} waits for {client.waits}")
            if client.asking_again:
                lines.append(f"{client.name} was told to ask again")
        return lines

    # ------------------------------------------------------------ what happened

    def note(self, what: str) -> None:
        """Put a line of our own into the trace."""
        if self.trace is not None:
            self.trace.note(self.schedule.now_ns, what)

    def reasons(self, broker: str) -> list[str]:
        """Why a broker's core withheld, refused or ignored something, in order."""
        records = self.brokers[self.topology.number_of(broker)].recorded
        return [str(details["reason"]) for _, details in records if "reason" in details]

    def statistics(self) -> dict[str, int]:
        """The sum of all live brokers' counters."""
        total: dict[str, int] = {}
        for broker in self.brokers:
            if broker.alive:
                for name, value in broker.core.statistics().items():
                    total[name] = total.get(name, 0) + value
        return total

    @property
    def broker_events(self) -> int:
        """How many events the cores of all brokers have handled."""
        return sum(broker.events for broker in self.brokers)

    # ------------------------------------------------------------ inside

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
        """A core like a broker's own when it started."""
        return make_protocol(
            self.protocol,
            number,
            self._topologies[number],
            self.parameters,
            decode_attribute_table,
            AUTHORITY,
        )

    def repeat_events(self, number: BrokerNumber) -> None:
        """I17: the events that were kept of a broker give a fresh core the same effects.

        Raises:
            InvariantViolated: they do not.
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
        """Count again what brokers and clients keep count of; all must be at rest.

        Returns:
            How many counters were counted again.

        Raises:
            InvariantViolated: names a counter that is wrong.
        """
        recounts = simulated(self.protocol).recounts
        living = [broker for broker in self.staying if broker.alive]
        counted = sum(check_recounts(each.name, each.core, recounts) for each in living)
        clients = self.clients.values()
        return counted + sum(check_recounts(each.name, each.core, ()) for each in clients)

    def check_internals(self) -> None:
        """Look into every broker; what random steps leave behind must make sense."""
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
    """What can be done to a broker; each verb returns the handle."""

    def __init__(self, cluster: SimulatedCluster, broker: SimulatedBroker) -> None:
        self._cluster = cluster
        self.broker = broker

    def kill(self) -> Self:
        """The process dies, with everything that was not durable."""
        return self._do("kill", self.broker.kill)

    def start(self) -> Self:
        """A new incarnation on the same disk."""
        return self._do("start", self.broker.start)

    def put_back(self, copy: tuple[Any, ...] | None) -> Self:
        """Replace its disk by an older copy, or by an empty one, and accept what is lost."""
        self._cluster.oracle.accepts_losses = True
        self.broker.disk.put_back(copy)
        return self._do("accept-loss", self.broker.accept_loss)

    def restart(self) -> Self:
        """Kill and start, without a pause."""
        return self.kill().start()

    def absorb(self) -> Self:
        """Takes everything in and lets only signs of life out."""
        return self._do("absorb", self.broker.absorb)

    def omit_sends(self) -> Self:
        """Handles everything and lets only signs of life out."""
        return self._do("send-omission", self.broker.omit_sends)

    def release(self) -> Self:
        """Lets go what it absorbed, in order."""
        return self._do("release", self.broker.release)

    def freeze(self) -> Self:
        """Its time stops."""
        return self._do("freeze", self.broker.freeze)

    def thaw(self) -> Self:
        """Its time goes on."""
        return self._do("thaw", self.broker.thaw)

    def status(self) -> CoreStatus[BrokerNumber]:
        """What its core says about itself."""
        return self.broker.core.status()

    def _do(self, verb: str, action: Any) -> Self:
        self._cluster.note(f"{verb} {self.broker.name}")
        action()
        return self


class LinkHandle:
    """What can be done to the sessions between two endpoints; each verb returns the handle."""

    def __init__(self, cluster: SimulatedCluster, a: Peer, b: Peer) -> None:
        self._cluster = cluster
        self._network = cluster.network
        self._a = a
        self._b = b

    def cut(self, which: WhichWay = "both") -> Self:
        """What is under way is lost; `out` is from the first to the second."""
        self._note(f"cut {which}")
        self._network.cut(self._a, self._b, which)
        return self

    def blackhole(self, which: WhichWay = "both") -> Self:
        """Nothing passes, nothing is lost."""
        self._note(f"blackhole {which}")
        self._network.blackhole(self._a, self._b, which)
        return self

    def absorb(self, which: WhichWay = "both") -> Self:
        """Only signs of life pass; `out` is from the first to the second."""
        self._note("absorb" if which == "both" else f"absorb {which}")
        self._network.absorb_link(self._a, self._b, which)
        return self

    def let_one_pass(self) -> bool:
        """The first message arrives that was absorbed on its way from the first to the second."""
        self._note("let one pass")
        return self._network.let_one_pass(self._a, self._b)

    def delay(self, delay_ns: int) -> Self:
        """Everything takes longer."""
        self._note(f"delay {delay_ns}")
        self._network.delay(self._a, self._b, delay_ns)
        return self

    def heal(self) -> Self:
        """All faults of the link end."""
        self._note("heal")
        self._network.heal(self._a, self._b)
        return self

    def suspect(self) -> Self:
        """The first end takes the second for dead."""
        self._note("suspect")
        end = self._network.endpoints[self._a].ends.get(self._b)
        if end is not None:
            self._network.suspect(end)
        return self

    def _note(self, verb: str) -> None:
        self._cluster.note(f"{verb} {self._a}-{self._b}")


class Subscription:
    """A subscription and what its application has seen of it."""

    def __init__(self, cluster: SimulatedCluster, client: SimulatedClient, number: int) -> None:
        self._cluster = cluster
        self.client = client
        self.number = number

    @property
    def received(self) -> list[Published]:
        """What the application got, in order."""
        return list(self._received())

    @property
    def started(self) -> bool:
        """Whether the client was told that it has started."""
        return self.number in self.client.started_numbers

    def _received(self) -> Iterator[Published]:
        for source, sequence in self.client.received[self.number]:
            yield Published(self._cluster.name_of(source), sequence)
