"""What the routing of [GES] costs in link transmissions, and whether it is right.

All brokers flood what they are connected to, and route by what comes of it, as they will with
sessions; who is interested in a publication is known to all who ask. Links do not fail.

    pubsubctl simulate routing

Paper: [GES] §5, Fig. 7 (match rates; its numbers are lost).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from bench.papers.ges.flooding import Flooded
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.generate import random_hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.checks.outline import outline
from brokerd.protocols.ges.paths import Paths
from brokerd.protocols.ges.router import Router, Target
from brokerd.protocols.ges.units import Unit

TOPOLOGIES = ("t22-hi", "t22-lo")
PUBLISHER, MEASURING = "n22", "n10"
"""The broker of the publisher, and that of a subscriber who always matches."""
CLIENTS = 5
"""At each other broker."""
MATCH_PERCENT = (100, 50, 25, 10, 0)
EVENTS_OF_HIERARCHY = 20
FACTORS = ((1,), (1, 2, 4, 8), (1, 64))
"""By which the costs of links are multiplied, as drawn for a hierarchy."""
_REROUTES = 4


class RoutingWrong(Exception):
    """A graph or the way of a publication was not what it should be; says which and how."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What publications of one match rate took.

    Attributes:
        pattern: whether each client has its own interest or those of a broker share one.
        reached: brokers other than the publisher's that got one, mean.
        transmissions: links that one was sent over, mean.
    """

    topology: str
    pattern: str
    match_percent: int
    reached: float
    transmissions: float


@dataclass(frozen=True, slots=True)
class Checked:
    """One random hierarchy, found right.

    Attributes:
        largest: units in the largest graph that a broker has.
    """

    seed: int
    brokers: int
    statements: int
    events: int
    largest: int


class Routing:
    """The routers of all brokers of a hierarchy."""

    def __init__(self, flooded: Flooded) -> None:
        self._addresses = flooded.addresses
        self._routers = [
            Router(number, place, view, Paths(place, view), _REROUTES)
            for number, (place, view) in enumerate(zip(flooded.places, flooded.views, strict=True))
        ]

    def publish(self, origin: BrokerNumber, interested: Iterable[BrokerNumber]) -> int:
        """How many links one publication is sent over.

        Raises:
            RoutingWrong: not just the interested brokers got it, or one twice; it was sent on
                again by a broker for the same end; there was no way, or a unit was looked into
                without anybody in it being interested.
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
                    raise RoutingWrong(f"{target} comes to broker {broker} again")
                seen[key] = None
                _check_wanted(target, inside)
            routed = self._routers[broker].route(targets, lambda unit: inside.get(unit, ()))
            if routed.lost:
                raise RoutingWrong(f"no way from broker {broker}: {routed.lost}")
            if routed.deliver and broker != origin:
                got.append(broker)
            sent += len(routed.hops)
            packets.extend(routed.hops.items())
        if sorted(got) != sorted(wanted):
            raise RoutingWrong(f"of broker {origin}: {sorted(got)} got it, not {sorted(wanted)}")
        return sent


def flooded(topology: Topology, random: Random, factors: Sequence[int] = (1,)) -> Flooded:
    """All brokers' graphs once all links are there."""
    found = Flooded(topology, random)
    links = list(found.section.links)
    random.shuffle(links)
    for a, b in links:
        found.connect(a, b, random.choice(factors))
        for _ in range(random.randrange(30)):
            found.step()
    found.settle()
    return found


def measure(topology: Topology, events: int, seed: int) -> Iterator[Traffic]:
    """What publications take at each match rate; interests are drawn anew for each of them."""
    random = Random(f"routing {seed}")
    routing = Routing(flooded(topology, random))
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


def check(seed: int) -> Checked:
    """Draw a hierarchy, its interests and the costs of its links, and route on it.

    Raises:
        RoutingWrong: names the seed.
    """
    random = Random(f"hierarchy {seed}")
    brokers, levels = random.randint(4, 40), random.randint(2, 4)
    topology = random_hierarchy(brokers, levels, random.randrange)
    found = flooded(topology, random, random.choice(FACTORS))
    try:
        check_graphs(found)
        routing = Routing(found)
        for _ in range(EVENTS_OF_HIERARCHY):
            chosen = random.sample(range(brokers), random.randint(0, brokers))
            routing.publish(random.randrange(brokers), chosen)
    except RoutingWrong as error:
        raise RoutingWrong(f"seed {seed}: {error}") from None
    return Checked(
        seed,
        brokers,
        len(found.received),
        EVENTS_OF_HIERARCHY,
        max(len(view.units()) for view in found.views),
    )


def check_graphs(found: Flooded) -> None:
    """Make sure that each broker's graph is what the whole system looks like from there.

    Raises:
        RoutingWrong: one is not; or a statement has left the unit that it is of.
    """
    for broker, view in enumerate(found.views):
        should = outline(dict(enumerate(found.addresses)), found.up, broker)
        if view.edges != should:
            raise RoutingWrong(f"broker {broker} knows {view.edges}, not {should}")
    for broker, statement in found.received:
        place = found.places[broker]
        level = place.link_level(statement.low_end, statement.high_end)
        if not place.is_in(statement.low_end[: len(place.address) - level - 1]):
            raise RoutingWrong(f"{statement} came to broker {broker}")


def _units_of(addresses: Iterable[Unit]) -> dict[Unit, list[Unit]]:
    """Per unit, those in it, one level below, in which these brokers are."""
    found: dict[Unit, dict[Unit, None]] = {}
    for address in sorted(addresses):
        for length in range(len(address)):
            found.setdefault(address[:length], {})[address[: length + 1]] = None
    return {unit: list(inner) for unit, inner in found.items()}


def _check_wanted(target: Target, inside: dict[Unit, list[Unit]]) -> None:
    known = inside.get(target.unit[:-1], ())
    if target.level == 0 and target.skip == () and target.unit not in known:
        raise RoutingWrong(f"{target} without anybody interested")
