"""Stalls because of links that stay down: the same stories, without and with relayed sessions.

All brokers live; up to δ links go down during publications, in both directions or in one direction,
and stay down for the whole run. Deliveries that are missing long after the last publication waited
for the links. Then the links are restored, and everything owed must arrive.

    pubsubctl experiment dft11.stalls --seeds 0..99

Paper: [DFT11] abstract (δ concurrent failures), §II (one-sided activity).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from brokerd.overlay.generate import chain, random_tree, star
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.world.cluster import SimulatedCluster

KINDS = ("cut", "cut_one_way", "blackhole", "blackhole_one_way")
CALM_S, BROKEN_S, AFTERWARDS_S = 1.0, 12.0, 8.0
PUBLISH_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Stalls:
    """The state at the end of a story, before any heal.

    Attributes:
        broken: (kind, broker, broker) of each link that was down.
        owed: deliveries of publications made while links were down, for earlier subscriptions.
        missing: missing deliveries among owed.
        late: subscriptions made while links were down.
        not_started: subscriptions among late that have not started.
        closed: pairs of a late subscription and a broker with a publisher without a path.
        unacknowledged: publications without an acknowledgement at their publisher.
    """

    seed: int
    delta: int
    broken: tuple[tuple[str, str, str], ...]
    owed: int
    missing: int
    late: int
    not_started: int
    closed: int
    unacknowledged: int

    @property
    def is_stalled(self) -> bool:
        """True if anything waits."""
        return bool(self.missing or self.not_started or self.closed or self.unacknowledged)


def count_stalls(seed: int, delta: int, assist: str) -> Stalls:
    """Run a story.

    Raises:
        InvariantViolated: a delivery was wrong, or is missing after the heal.
    """
    random = Random(f"stalls {seed} {delta}")
    topology = _draw_topology(random, delta)
    cluster = SimulatedCluster(
        topology,
        seed=random.getrandbits(64),
        parameters=replace(DeltaTreeParameters(delta=delta), assist=assist),
    ).start()
    homes = [random.choice(topology.brokers) for _ in range(4)]
    publishers = [f"p{place}-{home}" for place, home in enumerate(homes)]
    for publisher, home in zip(publishers, homes, strict=True):
        cluster.client(publisher, home, publishes=True)
    early = [cluster.subscribe(random.choice(topology.brokers)) for _ in range(4)]
    cluster.run_until_quiet()
    _publish_for(cluster, random, publishers, CALM_S)
    before = cluster.oracle.published_count
    broken = _draw_links(random, topology)
    late = 0
    for kind, a, b in broken:
        link = cluster.link(a, b)
        verb = link.cut if kind.startswith("cut") else link.blackhole
        verb("out" if kind.endswith("one_way") else "both")
        _publish_for(cluster, random, publishers, BROKEN_S / len(broken) / 2)
        cluster.subscribe(random.choice(topology.brokers))
        late += 1
        _publish_for(cluster, random, publishers, BROKEN_S / len(broken) / 2)
    owed = len(early) * (cluster.oracle.published_count - before)
    cluster.run_for(AFTERWARDS_S)
    stalls = _judge(cluster, seed, delta, broken, owed, late, {s.client.name for s in early})
    for _, a, b in broken:
        cluster.link(a, b).heal()
    cluster.run_for(20)
    cluster.oracle.judge_end()
    cluster.inspection.check_internals()
    return stalls


def total_stalls(stories: Iterable[Stalls]) -> dict[str, int]:
    """Return the sums of all counts, with the number of stories and of stalled stories."""
    names = ("owed", "missing", "late", "not_started", "closed", "unacknowledged")
    total = dict.fromkeys(("stories", "stalled", "links", *names), 0)
    for story in stories:
        total["stories"] += 1
        total["stalled"] += story.is_stalled
        total["links"] += len(story.broken)
        for name in names:
            total[name] += getattr(story, name)
    return total


def _judge(
    cluster: SimulatedCluster,
    seed: int,
    delta: int,
    broken: tuple[tuple[str, str, str], ...],
    owed: int,
    late: int,
    early: set[str],
) -> Stalls:
    missing = not_started = 0
    for client, _, started, lacking in cluster.oracle.obligations.find_lacking():
        not_started += not started
        if client in early:
            missing += sum(len(sequences) for _, sequences in lacking)
    homes = {client.broker for client in cluster.clients.values() if client.publishes}
    closed = sum(len(homes & gates) for gates in cluster.oracle.gates.list_closed_sources())
    unacknowledged = sum(len(left) for _, left in cluster.oracle.obligations.unacknowledged())
    return Stalls(seed, delta, broken, owed, missing, late, not_started, closed, unacknowledged)


def _publish_for(
    cluster: SimulatedCluster, random: Random, publishers: list[str], seconds: float
) -> None:
    for number in range(round(seconds / PUBLISH_EVERY_S)):
        publisher = random.choice(publishers)
        cluster.publish(publisher.partition("-")[2], client=publisher, n=number)
        cluster.run_for(PUBLISH_EVERY_S)


def _draw_topology(random: Random, delta: int) -> Topology:
    brokers = random.randrange(delta + 2, 10)
    shape = random.randrange(4)
    if shape == 0:
        return chain(brokers, delta)
    if shape == 1:
        return star(brokers, delta)
    return random_tree(brokers, delta, random.randrange)


def _draw_links(random: Random, topology: Topology) -> tuple[tuple[str, str, str], ...]:
    """Return a link of the tree and, if δ allows, further links of the tree or of a bypass."""
    tree, names = PrimaryTree(topology), topology.brokers
    a, b = random.choice(topology.links)
    pairs = [random.choice(((a, b), (b, a)))]
    for _ in range(random.randrange(topology.delta)):
        start = random.choice((a, b))
        far = random.choice(list(tree.ball(start, topology.delta + 1)))
        if {start, far} not in [set(pair) for pair in pairs]:
            pairs.append((start, far))
    return tuple((random.choice(KINDS), names[one], names[other]) for one, other in pairs)
