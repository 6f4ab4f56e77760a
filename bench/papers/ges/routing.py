"""Cost of the routing of [GES] in link transmissions, and checks of its correctness.

All brokers flood their connections, and route by the resulting graphs, as with sessions, but
without sessions or time. The brokers that are interested in a publication are known everywhere.
Links do not fail.

    pubsubctl experiment ges.routing

Paper: [GES] §5, Fig. 7 (match rates; its numbers are lost).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.generate import random_hierarchy
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.checks.duties import outline
from brokerd.protocols.ges.connectivity_graph import GraphView, Paths
from brokerd.protocols.ges.messages import DOWN, Statement, Target
from brokerd.protocols.ges.router import Router
from brokerd.protocols.ges.units import Place, Unit


class FloodedGraph:
    """The graphs of all brokers of a hierarchy, and the statements in flight.

    Statements between the same brokers arrive in order; all other orders are random.

    Attributes:
        section: the hierarchy.
        places, views: place and view by broker.
        up: the present connections, with their factors.
        received: (broker, statement) of all arrivals, in order.
    """

    def __init__(self, topology: Topology, random: Random) -> None:
        section = topology.restrict_to_kind("hierarchy").section
        assert isinstance(section, Hierarchy), f"{topology.name} is no hierarchy"
        self.section = section
        self.addresses = section.addresses
        self.places = [Place(address) for address in self.addresses]
        self.views = [GraphView(n, place, 1) for n, place in enumerate(self.places)]
        self.up: dict[Link, int] = {}
        self.received: list[tuple[BrokerNumber, Statement]] = []
        self._random = random
        self._waiting: dict[Link, deque[Statement]] = {}

    def connect(self, a: BrokerNumber, b: BrokerNumber, factor: int = 1) -> None:
        """Connect two brokers: exchange all statements, and flood the connection."""
        self.up[a, b] = factor
        for here, there in ((a, b), (b, a)):
            for statement in self.views[here].statements():
                self._send(here, there, statement)
            self._broadcast(here, there, factor)

    def disconnect(self, a: BrokerNumber, b: BrokerNumber) -> None:
        """Disconnect two brokers; statements in flight between them are lost."""
        del self.up[a, b]
        for here, there in ((a, b), (b, a)):
            self._waiting.pop((here, there), None)
            self._broadcast(here, there, DOWN)

    def charge(self, a: BrokerNumber, b: BrokerNumber, factor: int) -> None:
        """Change the cost of a connection."""
        self.up[a, b] = factor
        for here, there in ((a, b), (b, a)):
            self._broadcast(here, there, factor)

    def step(self) -> bool:
        """Let a message arrive; return False without a message."""
        if not self._waiting:
            return False
        here, there = self._random.choice(sorted(self._waiting))
        queue = self._waiting[here, there]
        statement = queue.popleft()
        if not queue:
            del self._waiting[here, there]
        self.received.append((there, statement))
        if self.views[there].learn(statement):
            self._pass_on(there, statement, but=here)
        return True

    def settle(self) -> None:
        """Let all messages arrive."""
        while self.step():
            pass

    def _broadcast(self, here: BrokerNumber, there: BrokerNumber, factor: int) -> None:
        self._pass_on(here, self.views[here].state(there, self.addresses[there], factor), but=None)

    def _pass_on(self, here: BrokerNumber, statement: Statement, but: BrokerNumber | None) -> None:
        for a, b in sorted(self.up):
            if here in (a, b):
                other = a if here == b else b
                if other != but:
                    self._send(here, other, statement)

    def _send(self, here: BrokerNumber, there: BrokerNumber, statement: Statement) -> None:
        sent = self.views[here].statement_for_peer(statement, there, self.addresses[there])
        if sent is not None:
            self._waiting.setdefault((here, there), deque()).append(sent)


TOPOLOGIES = ("t22-hi", "t22-lo")
PUBLISHER, MEASURING = "n22", "n10"
"""The broker of the publisher, and the broker of a subscriber that always matches."""
CLIENTS = 5
"""Number of clients at each other broker."""
MATCH_PERCENT = (100, 50, 25, 10, 0)
EVENTS_OF_HIERARCHY = 20
FACTORS = ((1,), (1, 2, 4, 8), (1, 64))
"""Factors of the costs of links, as drawn for a hierarchy."""
_REROUTES = 4


class RoutingError(Exception):
    """An incorrect graph or path of a publication; names the error."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The cost of publications at a match rate.

    Attributes:
        pattern: "each client" for an interest per client, "each broker" for a common interest of a
            broker's clients.
        reached: mean number of receiving brokers, without the publisher's broker.
        transmissions: mean number of links per publication.
    """

    topology: str
    pattern: str
    match_percent: int
    reached: float
    transmissions: float


@dataclass(frozen=True, slots=True)
class RoutingCheck:
    """A random hierarchy that passed all checks."""

    seed: int
    brokers: int
    statements: int
    events: int


class Routing:
    """The routers of all brokers of a hierarchy."""

    def __init__(self, flooded: FloodedGraph) -> None:
        self._addresses = flooded.addresses
        self._routers = [
            Router(number, place, view, Paths(place, view), _REROUTES)
            for number, (place, view) in enumerate(zip(flooded.places, flooded.views, strict=True))
        ]

    def publish(self, origin: BrokerNumber, interested: Iterable[BrokerNumber]) -> int:
        """Route a publication, and return the number of link transmissions.

        Raises:
            RoutingError: the receiving brokers are not the interested brokers, each once; a broker
                repeated a transmission for the same end; there was no path; or a unit without an
                interested broker was entered.
        """
        wanted = {number: None for number in interested if number != origin}
        inside = _units_of([self._addresses[number] for number in (*wanted, origin)])
        got: list[BrokerNumber] = []
        seen: dict[tuple[BrokerNumber, int, Unit, Unit], None] = {}
        sent = 0
        packets = deque([(origin, self._routers[origin].first_targets())])
        while packets:
            broker, targets = packets.popleft()
            for target in targets if sent else ():
                key = broker, target.level, target.unit, target.skip
                if key in seen:
                    raise RoutingError(f"{target} arrives at broker {broker} again")
                seen[key] = None
                _check_wanted(target, inside)
            routed = self._routers[broker].route(targets, lambda unit: inside.get(unit, ()))
            if routed.lost:
                raise RoutingError(f"no way from broker {broker}: {routed.lost}")
            if routed.deliver and broker != origin:
                got.append(broker)
            sent += len(routed.hops)
            packets.extend(routed.hops.items())
        if sorted(got) != sorted(wanted):
            raise RoutingError(f"of broker {origin}: {sorted(got)} got it, not {sorted(wanted)}")
        return sent


def flood(topology: Topology, random: Random, factors: Sequence[int] = (1,)) -> FloodedGraph:
    """Return the graphs of all brokers after the flooding of all links."""
    found = FloodedGraph(topology, random)
    links = list(found.section.links)
    random.shuffle(links)
    for a, b in links:
        found.connect(a, b, random.choice(factors))
        for _ in range(random.randrange(30)):
            found.step()
    found.settle()
    return found


def measure(topology: Topology, events: int, seed: int) -> Iterator[Traffic]:
    """Yield the cost of publications at each match rate; interests are drawn per publication."""
    random = Random(f"routing {seed}")
    routing = Routing(flood(topology, random))
    origin, always = topology.number_of(PUBLISHER), topology.number_of(MEASURING)
    others = [n for n in range(len(topology.brokers)) if n not in (origin, always)]
    patterns: dict[str, Callable[[int], bool]] = {
        "each client": lambda match: any(random.randrange(100) < match for _ in range(CLIENTS)),
        "each broker": lambda match: random.randrange(100) < match,
    }
    for pattern, matches in patterns.items():
        for match in MATCH_PERCENT:
            reached = sent = 0
            for _ in range(events):
                chosen = [always, *(broker for broker in others if matches(match))]
                reached += len(chosen)
                sent += routing.publish(origin, chosen)
            yield Traffic(topology.name, pattern, match, reached / events, sent / events)


def check(seed: int) -> RoutingCheck:
    """Draw a hierarchy, interests and link costs, and check the routing.

    Raises:
        RoutingError: names the seed.
    """
    random = Random(f"hierarchy {seed}")
    brokers, levels = random.randint(4, 40), random.randint(2, 4)
    topology = random_hierarchy(brokers, levels, random.randrange)
    found = flood(topology, random, random.choice(FACTORS))
    try:
        check_graphs(found)
        routing = Routing(found)
        for _ in range(EVENTS_OF_HIERARCHY):
            chosen = random.sample(range(brokers), random.randint(0, brokers))
            routing.publish(random.randrange(brokers), chosen)
    except RoutingError as error:
        raise RoutingError(f"seed {seed}: {error}") from None
    return RoutingCheck(seed, brokers, len(found.received), EVENTS_OF_HIERARCHY)


def check_graphs(found: FloodedGraph) -> None:
    """Check that each broker's graph equals the outline of the whole system for the broker.

    Raises:
        RoutingError: a graph differs; or a statement has left its unit.
    """
    for broker, view in enumerate(found.views):
        should = outline(dict(enumerate(found.addresses)), found.up, broker)
        if view.edges != should:
            raise RoutingError(f"broker {broker} has {view.edges}, not {should}")
    for broker, statement in found.received:
        place = found.places[broker]
        level = place.link_level(statement.low_end, statement.high_end)
        if not place.is_in(statement.low_end[: len(place.address) - level - 1]):
            raise RoutingError(f"{statement} arrived at broker {broker}")


def _units_of(addresses: Iterable[Unit]) -> dict[Unit, list[Unit]]:
    """Return by unit the inner units, one level below, that contain these brokers."""
    found: dict[Unit, dict[Unit, None]] = {}
    for address in sorted(addresses):
        for length in range(len(address)):
            found.setdefault(address[:length], {})[address[: length + 1]] = None
    return {unit: list(inner) for unit, inner in found.items()}


def _check_wanted(target: Target, inside: dict[Unit, list[Unit]]) -> None:
    known = inside.get(target.unit[:-1], ())
    if target.level == 0 and target.skip == () and target.unit not in known:
        raise RoutingError(f"{target} has no interested client")
