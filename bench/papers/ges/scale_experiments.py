"""Growth of hierarchies: path lengths and clusters, graphs of brokers, and costs of profiles.

Hierarchies are generated from units with a given number of members, with a ring and a random graph
of as many brokers and (about) as many links for comparison. The graph of a broker is computed from
the whole system, as in the checks of swarms; profiles are propagated by the brokers' own code.

Paper: [GES] §2 (small worlds, block limit), §3 (abbreviated system views, profile propagation).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from bench.papers.experiments import ExperimentRecord, RunContext, Tables
from bench.spec.experiment import ExperimentFile, Row
from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.model.predicate import EVERYTHING
from brokerd.overlay.generate import hierarchy
from brokerd.overlay.hierarchy import BLOCK_LIMIT, Hierarchy
from brokerd.overlay.routes import Link
from brokerd.overlay.small_world import small_world
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.checks.duties import find_duties as duties_of_all
from brokerd.protocols.ges.checks.duties import outline
from brokerd.protocols.ges.confirmations import Confirmations
from brokerd.protocols.ges.connectivity_graph import GraphView, Paths
from brokerd.protocols.ges.keepers import Duties, Keepers, find_duties
from brokerd.protocols.ges.messages import DutyStated, ProfileChanged, ProfileReached
from brokerd.protocols.ges.parameters import EVERY_NODE, PAPER
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.protocols.ges.propagation import Propagation
from brokerd.protocols.ges.state import Neighbours, Outcome, ProfileConfirmation
from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.interface import Send
from brokerd.wire.attributes import decode_attribute_table

Hierarchies = Mapping[tuple[int, int], Topology]
"""Topologies by number of brokers and members of units."""
Size = Annotated[int, Field(ge=4, le=8192, strict=True)]
Fanout = Annotated[int, Field(ge=2, le=BLOCK_LIMIT, strict=True)]


class ScaleExperiment(ExperimentFile):
    """A closed description of counts and hierarchies.

    Attributes:
        brokers: numbers of brokers, with a hierarchy for every number and fanout.
        fanouts: greatest numbers of members of a unit; the first also has a ring and a random
            graph.
        neighbours: number of neighbours in a ring, an even number.
        looked_at: number of random brokers with a computed graph and a changed profile.
    """

    schema_: Annotated[Literal["pubsubctl/scale-experiment/1"], Field(alias="schema")]
    brokers: Annotated[list[Size], Field(min_length=1)]
    fanouts: Annotated[list[Fanout], Field(min_length=1)]
    neighbours: Annotated[int, Field(ge=2, le=16, multiple_of=2, strict=True)]
    looked_at: Annotated[int, Field(ge=1, le=100, strict=True)]

    def hierarchies(self) -> Hierarchies:
        """Return the hierarchies of every number of brokers and every fanout."""
        return {
            (brokers, fanout): hierarchy(brokers, fanout)
            for fanout in self.fanouts
            for brokers in self.brokers
        }

    def scale(self) -> Row:
        return {"brokers": max(self.brokers), "fanout": self.fanouts[0]}

    def build_topologies(self) -> Mapping[str, Topology]:
        return {
            f"{brokers}-{fanout}": topology
            for (brokers, fanout), topology in self.hierarchies().items()
        }


def compute_rows(experiment: ScaleExperiment, context: RunContext) -> Tables:
    """Return the rows of every table; the same experiment gives the same rows."""
    hierarchies, phase = experiment.hierarchies(), context.progress.phase
    return {
        "shapes": _shapes(experiment, hierarchies, phase),
        "hierarchies": _hierarchies(experiment, hierarchies, phase),
    }


def _shapes(
    experiment: ScaleExperiment, hierarchies: Hierarchies, phase: Callable[[str], None]
) -> Iterator[Row]:
    for (_, fanout), topology in hierarchies.items():
        phase(f"shapes of {topology_in_words(topology, fanout)}")
        section = section_of(topology)
        brokers = len(section.brokers)
        graphs: dict[str, Sequence[Link]] = {"hierarchy": section.links}
        if fanout == experiment.fanouts[0]:
            random = Random(f"{experiment.seed}/{brokers}")
            graphs["ring"] = ring_links(brokers, experiment.neighbours)
            graphs["random"] = random_links(brokers, len(section.links), random)
        for shape, links in graphs.items():
            found = small_world(brokers, links)
            yield {
                "shape": shape,
                "fanout": fanout,
                "brokers": brokers,
                "links": len(links),
                "mean_degree": found.mean_degree,
                "clustering": found.clustering,
                "mean_path_links": found.mean_path_links,
                "longest_path_links": found.longest_path_links,
            }


def _hierarchies(
    experiment: ScaleExperiment, hierarchies: Hierarchies, phase: Callable[[str], None]
) -> Iterator[Row]:
    for (_, fanout), topology in hierarchies.items():
        phase(f"graphs and profiles of {topology_in_words(topology, fanout)}")
        section = section_of(topology)
        brokers = len(section.brokers)
        random = Random(f"{experiment.seed}/profiles/{brokers}")
        up = dict.fromkeys(section.links, 1)
        addresses = dict(enumerate(section.addresses))
        flooding, keeping = (ProfileBrokers(section, each) for each in (EVERY_NODE, PAPER))
        # The smallest units suffice; in clusters of 64 this takes minutes.
        is_kept = fanout == experiment.fanouts[0]
        counts = count_kept(section) if is_kept else None
        for broker in random.sample(range(brokers), min(experiment.looked_at, brokers)):
            edges = outline(addresses, up, broker)
            flooded = flooding.cost_of_change(broker)
            kept = keeping.cost_of_change(broker) if is_kept else None
            yield {
                "fanout": fanout,
                "brokers": brokers,
                "levels": section.top + 1,
                "links": len(section.links),
                "broker": section.brokers[broker],
                "graph_units": len({end for edge in edges for end in edge}),
                "graph_connections": sum(map(len, edges.values())),
                "profile_messages": flooded.messages,
                "answers": flooded.answers,
                "keeper_messages": kept.messages if kept else None,
                "keeper_answers": kept.answers if kept else None,
                "keepers": kept.keepers if kept else None,
                "deciding": deciding(section, broker),
                "mean_kept": fmean(counts.values()) if counts else None,
                "inner_kept": max(inner_brokers(section, counts), default=0) if counts else None,
            }


def topology_in_words(topology: Topology, fanout: int) -> str:
    """Return a description of the topology for the user."""
    return f"{len(topology.brokers):,} brokers, {fanout} in a unit"


def section_of(topology: Topology) -> Hierarchy:
    """Return the hierarchy of a topology of this kind."""
    section = topology.restrict_to_kind("hierarchy").section
    assert isinstance(section, Hierarchy), f"{topology.name} is no hierarchy"
    return section


def ring_links(brokers: int, neighbours: int) -> list[Link]:
    """Return a ring with links from each broker to its nearest brokers."""
    steps = range(1, min(neighbours // 2, (brokers - 1) // 2) + 1)
    pairs = [(here, (here + step) % brokers) for here in range(brokers) for step in steps]
    return [(min(pair), max(pair)) for pair in pairs]


def random_links(brokers: int, links: int, random: Random) -> list[Link]:
    """Return random links, which include a ring in random order to connect all brokers."""
    order = random.sample(range(brokers), brokers)
    found = {
        (min(a, b), max(a, b)): None for a, b in zip(order, [*order[1:], order[0]], strict=True)
    }
    while len(found) < links:
        a, b = random.sample(range(brokers), 2)
        found[min(a, b), max(a, b)] = None
    return list(found)


def deciding(section: Hierarchy, origin: BrokerNumber) -> int:
    """Return the number of brokers that use a broker's profile, the receivers in the paper.

    The receivers are, in each unit around the broker, the gatekeepers between the inner units.

    Paper: [GES] §3 (which gatekeepers have which profiles).
    """
    home = Place(section.addresses[origin])
    found: dict[BrokerNumber, None] = {}
    for link in section.links:
        level = home.link_level(*(section.addresses[end] for end in link))
        for end in link:
            if level and is_inside(section.addresses[end], home.own_unit(level + 1)):
                found[end] = None
    return len(found)


def count_kept(section: Hierarchy) -> dict[BrokerNumber, int]:
    """Return the number of profiles that each broker keeps, if gatekeepers keep profiles."""
    addresses = dict(enumerate(section.addresses))
    sizes = Counter(
        address[:length] for address in section.addresses for length in range(len(address) + 1)
    )
    duties = duties_of_all(addresses, section.links)
    return {broker: sizes[Place(addresses[broker]).own_unit(duties[broker])] for broker in duties}


def inner_brokers(section: Hierarchy, counts: Mapping[BrokerNumber, int]) -> list[int]:
    """Return the counts of the brokers without links out of their cluster."""
    homes = section.addresses
    outer = {end for a, b in section.links if homes[a][:-1] != homes[b][:-1] for end in (a, b)}
    return [count for broker, count in counts.items() if broker not in outer]


@dataclass(frozen=True)
class ChangeCost:
    """The cost of a change of a broker's profile.

    Attributes:
        messages: messages with the change.
        answers: confirmations.
        keepers: brokers that have the profile, its own included.
    """

    messages: int
    answers: int
    keepers: int


class ProfileBrokers:
    """The profiles of a hierarchy's brokers, with all connections up and all duties stated.

    Brokers are made when they are needed.
    """

    def __init__(self, section: Hierarchy, policy: str) -> None:
        self._section = section
        self._policy = policy
        self._up = {(min(link), max(link)): 1 for link in section.links}
        self._addresses = dict(enumerate(section.addresses))
        self._near: list[dict[BrokerNumber, Any]] = [{} for _ in section.brokers]
        for a, b in section.links:
            self._near[a][b] = section.addresses[b]
            self._near[b][a] = section.addresses[a]
        self._keepers: dict[BrokerNumber, Keepers] = {}
        self._neighbours: dict[BrokerNumber, Neighbours] = {}
        self._duties: dict[Unit, Duties] = {}

    def cost_of_change(self, origin: BrokerNumber) -> ChangeCost:
        """Return the messages of a change of a broker's profile, which arrive in order."""
        parts: dict[BrokerNumber, Propagation] = {}
        own = self._part(parts, origin)
        own.start(1)
        offers = [each for peer in self._near[origin] for each in own.offer_all(peer)]
        if self._policy == PAPER:
            for peer in self._near[origin]:
                offers += own.on_duty(peer, None, 0, is_first=True)
        self._settle(parts, origin, offers)
        entry = SubscriptionId(origin, 1, 1), EVERYTHING
        counts, is_confirmed = self._settle(parts, origin, own.change_own([entry], (), 0))
        assert is_confirmed, "a change that not all have"
        return ChangeCost(counts["ProfileChanged"], counts["ProfileReached"], len(parts))

    def _settle(
        self,
        parts: dict[BrokerNumber, Propagation],
        origin: BrokerNumber,
        outcomes: list[Outcome],
    ) -> tuple[Counter[str], bool]:
        """Let all messages arrive; return their number by kind, and True if all confirmed."""
        counts: Counter[str] = Counter()
        is_confirmed = False
        waiting = deque((origin, each) for each in outcomes)
        while waiting:
            here, each = waiting.popleft()
            if isinstance(each, ProfileConfirmation):
                is_confirmed = True
                continue
            assert isinstance(each, Send), each
            assert isinstance(each.peer, int), each
            counts[type(each.message).__name__] += 1
            answers = _take(self._part(parts, each.peer), here, each.message)
            waiting.extend((each.peer, answer) for answer in answers)
        return counts, is_confirmed

    def _part(self, parts: dict[BrokerNumber, Propagation], broker: BrokerNumber) -> Propagation:
        if broker not in parts:
            keepers = self._keepers_of(broker)
            if self._policy == PAPER:
                for peer in self._near[broker]:
                    keepers.on_stated(peer, self._statement(peer, broker))
            profiles = Profiles(decode_attribute_table)
            near = self._neighbours[broker]
            confirmations = Confirmations(broker, near)
            parts[broker] = Propagation(broker, near, profiles, keepers, confirmations)
            parts[broker].use(self._section)
        return parts[broker]

    def _statement(self, broker: BrokerNumber, peer: BrokerNumber) -> DutyStated:
        """Return the statement of a broker's duty; all brokers of a cluster find the same ones."""
        address = self._addresses[broker]
        if address[:-1] not in self._duties:
            edges = outline(self._addresses, self._up, broker)
            self._duties[address[:-1]] = find_duties(Place(address), edges)
        duties = self._duties[address[:-1]]
        is_inside_cluster = self._addresses[peer][:-1] == address[:-1]
        is_chosen = is_inside_cluster or (min(broker, peer), max(broker, peer)) in duties.of_links
        return DutyStated(duties.of_cluster.get(address, 0), is_chosen, 0)

    def _keepers_of(self, broker: BrokerNumber) -> Keepers:
        if broker not in self._keepers:
            place, near = Place(self._section.addresses[broker]), self._near[broker]
            self._neighbours[broker] = around = Neighbours(place, near, dict.fromkeys(near))
            view = GraphView(broker, place)
            paths = Paths(place, view)
            self._keepers[broker] = keepers = Keepers(broker, around, view, paths, self._policy)
            if self._policy == PAPER:
                view.edges = outline(self._addresses, self._up, broker)
                keepers.look()
        return self._keepers[broker]


def _take(part: Propagation, peer: BrokerNumber, message: Any) -> list[Outcome]:
    if isinstance(message, ProfileReached):
        return part.confirmations.on_reached(peer, message, 0)
    if isinstance(message, ProfileChanged):
        return part.on_changed(peer, message, 0)
    return part.on_stated(peer, message, 0)


RECORD = ExperimentRecord({"": ScaleExperiment}, compute_rows, protocol="ges")
