"""From a seed to a plan: cluster, workload, faults, and what stays broken for ever.

Everything is drawn before anything runs, so a plan can be read and cut down. Whether a fault may
begin when its time comes is decided then, by what is failed at that moment.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from brokerd.config import DeltaTreeParameters, Mutant, SessionParameters
from brokerd.overlay.generate import chain, random_tree, star
from brokerd.overlay.primary_tree import PrimaryTree
from brokerd.overlay.topology import Topology
from brokerd.simulator.campaign import Setting
from brokerd.simulator.clock import MILLISECOND_NS, SECOND_NS
from brokerd.simulator.faults import (
    BROKER_KINDS,
    FREE_KINDS,
    LINK_KINDS,
    OLD_MESSAGE,
    STAGES,
    Link,
)
from brokerd.simulator.network import NetworkParameters
from brokerd.simulator.plan import (
    BROKEN_FOR_EVER,
    Broken,
    Contents,
    Departing,
    Ending,
    Failing,
    Joining,
    Leaving,
    Move,
    Moving,
    Plan,
    Publishing,
    Subscribing,
    home_of,
)

MOST_PUBLICATIONS = 500
"""Per seed; what a small client window lets through a slow network well within convergence."""

LONG_MOST_PUBLICATIONS = 4_000
"""Of a long seed, whose publications are spread over minutes."""

KEEPS_LINKS_BROKEN = 0.3
"""Share of the seeds that keep links broken for ever; at least a quarter is asked for."""

_NEEDED: dict[Mutant, dict[str, Any]] = {
    Mutant.SHORT_VECTORS: {"dedupe": "vector", "legitimacy": "hold"},
    Mutant.HOLD_OUT_OF_ORDER: {"legitimacy": "hold"},
    Mutant.DRAIN_COMPARES_PEERS: {"switch": "drain"},
}
"""Bugs in what is off by default. It may wait for a link, so none stays broken."""

_PREDICATES = (
    "true",
    "kind = 'a'",
    "kind in ('b', 'c')",
    "price < 30",
    "price >= 70 or kind = 'c'",
    "kind = 'b' and price >= 50",
    "kind = 'd'",
    "price = 10 or price = 60",
)


@dataclass(slots=True)
class _Draft:
    """What is drawn before the moves are.

    `flaps`: sessions break all the time under many new subscriptions, and nothing else fails;
    what a subscription is owed from where on is then asked for most often.
    `long`: ten minutes with the timeouts of a deployment, and faults that last.
    """

    random: Random
    topology: Topology
    tree: PrimaryTree
    adversarial: bool
    flaps: bool
    long: bool
    failures_at_once: int
    links_at_once: int
    keeps_old_messages: bool
    publishers: list[str]
    moves: list[Move] = field(default_factory=list)
    clients: dict[str, int] = field(default_factory=dict)
    failing: list[tuple[int, int | Link]] = field(default_factory=list)


def draw_plan(
    seed: int,
    protocol: str,
    *,
    mutants: frozenset[Mutant] = frozenset(),
    faults: bool = True,
    layer: str = "",
    setting: Setting | None = None,
    moves: bool = False,
) -> Plan:
    """The plan of a seed: the same on every machine.

    Args:
        layer: "timed" or "adversarial"; "" for what the seed says: odd ones are adversarial.
        moves: clients move to other brokers, too, brokers join and depart; in a third of the
            seeds nothing fails meanwhile.
    """
    faults = faults and not (moves and seed % 3 == 0)
    random = Random(f"swarm {seed}")
    adversarial = layer == "adversarial" or (not layer and seed % 2 == 1)
    long = not adversarial and setting is None and is_long(seed)
    topology = _draw_topology(random, adversarial, setting)
    flaps = random.random() < 0.3
    kinds = _draw_kinds(random, flaps, setting)
    parameters, network = _draw_parameters(random, topology.delta, long, setting)
    needed = _needed(mutants)
    if not mutants and protocol == "delta_tree":
        parameters = _draw_options(Random(f"options {seed}"), parameters)
    failures_at_once = topology.delta
    links_at_once = 3 * topology.delta if random.random() < 0.2 else topology.delta
    if setting is not None:
        failures_at_once, links_at_once = setting.elements_at_once, setting.links_at_once
    homes = [random.choice(topology.brokers) for _ in range(random.randrange(2, 5))]
    publishers = [f"p{place}-{home}" for place, home in enumerate(homes)]
    draft = _Draft(
        random,
        topology,
        PrimaryTree(topology),
        adversarial,
        flaps,
        long,
        failures_at_once,
        links_at_once,
        network.keep_old_messages,
        publishers,
        clients=dict.fromkeys(publishers, 0),
    )
    for _ in range(random.randrange(1, 5)):
        _subscribe(draft, 0)
    late = random.randrange(4, 16) if flaps or long else random.randrange(1, 8)
    if adversarial:
        heal = _draw_steps(draft, kinds if faults else (), late)
    else:
        heal = _draw_instants(draft, kinds if faults else (), late)
    broken: tuple[Broken, ...] = ()
    end = heal
    if faults and protocol != "best_effort" and random.random() < KEEPS_LINKS_BROKEN:
        broken = _draw_broken(draft)
        end = _draw_moves_after_healing(draft, heal)
    elif not mutants and protocol == "delta_tree":
        parameters = _draw_waiting_options(Random(f"waiting {seed}"), parameters)
    if needed:
        parameters = replace(parameters, **needed)
        broken = ()
    return Plan(
        protocol=protocol,
        topology=topology,
        adversarial=adversarial,
        chance=random.getrandbits(48),
        parameters=parameters,
        network=network,
        mutants=tuple(sorted(mutants)),
        failures_at_once=failures_at_once,
        links_at_once=links_at_once,
        publishers=tuple(publishers),
        moves=(),
        heal=heal,
        broken=broken,
        end=end,
    ).with_moves(
        [
            *draft.moves,
            *_draw_ends(Random(f"ends {seed}"), draft, end),
            *(_draw_journeys(Random(f"moves {seed}"), draft, heal) if moves else ()),
        ]
    )


def is_long(seed: int) -> bool:
    """Whether a seed of the mix runs for ten minutes and not for seconds."""
    return seed % 8 == 6


# ---------------------------------------------------------------- the cluster


def _draw_topology(random: Random, adversarial: bool, setting: Setting | None) -> Topology:
    delta = 2 if random.random() < 0.35 else 1
    brokers = random.randrange(6, 10) if adversarial else random.randrange(7, 13)
    shape = random.randrange(4)
    if setting is not None:
        delta, brokers, shape = setting.delta, setting.brokers, 0 if setting.chain else 2
    if shape == 0:
        topology = chain(brokers, delta)
    elif shape == 1:
        topology = star(brokers - 2, delta)
    else:
        topology = random_tree(brokers, delta, random.randrange)
    if random.random() < 0.5:
        names = list(topology.brokers)
        random.shuffle(names)
        topology = replace(topology, brokers=tuple(names))
    return replace(topology, name="plan")


def _draw_kinds(random: Random, flaps: bool, setting: Setting | None) -> tuple[str, ...]:
    kinds = tuple(k for k in (*BROKER_KINDS, *LINK_KINDS, *FREE_KINDS) if random.random() < 0.5)
    if flaps:
        kinds = ("suspect", "suspect", "cut", "absorb_link_then_cut", "cut_one_way")
    if setting is not None and not setting.elements_at_once:
        kinds = tuple(kind for kind in kinds if kind not in BROKER_KINDS) or ("cut", "suspect")
    return kinds or ("cut", "kill")


def _draw_parameters(
    random: Random, delta: int, long: bool, setting: Setting | None
) -> tuple[DeltaTreeParameters, NetworkParameters]:
    quick = random.random() < 0.8 and not long
    parameters = DeltaTreeParameters(
        delta=delta,
        assist="off",
        retry_first_ns=(100 if quick else 500) * MILLISECOND_NS,
        retry_limit_ns=(800 if quick else 5_000) * MILLISECOND_NS,
        client_linger_ns=1_000_000 * SECOND_NS,
        cold_start_after_ns=1_000_000 * SECOND_NS,
        client_window=random.choice((16, 256, 16_384)),
        persist_routing=setting is None or setting.persist_routing,
        audit_interval_ns=(1 if quick else 5) * SECOND_NS,
    )
    session = SessionParameters(
        heartbeat_ns=(80 if quick else 250) * MILLISECOND_NS,
        suspicion_ns=(250 if quick else 750) * MILLISECOND_NS,
        connect_timeout_ns=(300 if quick else 2_000) * MILLISECOND_NS,
    )
    network = NetworkParameters(
        latency_lowest_ns=100_000,
        latency_highest_ns=random.choice((2, 20, 60)) * MILLISECOND_NS,
        jitter_ns=random.choice((1, 10_000_000)),
        keep_old_messages=random.random() < 0.3,
        encode=random.random() < 0.15,
        session=session,
    )
    return parameters, network


def _needed(mutants: frozenset[Mutant]) -> dict[str, Any]:
    needed: dict[str, Any] = {}
    for mutant in sorted(mutants):
        needed.update(_NEEDED.get(mutant, {}))
    return needed


def _draw_options(random: Random, parameters: DeltaTreeParameters) -> DeltaTreeParameters:
    """Parts of the protocol that may be on or off; they leave the rest of the plan as it is."""
    return replace(
        parameters,
        publication_log=random.random() < 0.2,
        assist="off" if random.random() < 0.25 else "on",
    )


def _draw_waiting_options(random: Random, parameters: DeltaTreeParameters) -> DeltaTreeParameters:
    """Parts with which something may wait for a link, and for ever where it stays broken.

    Vectors beside sources tell the same duplicates only where propagation is legitimate.
    """
    if random.random() < 0.25:
        parameters = replace(parameters, dedupe="both", legitimacy="hold")
    if random.random() < 0.15:
        parameters = replace(parameters, switch="drain")
    return parameters


# ---------------------------------------------------------------- when what happens


def _draw_instants(draft: _Draft, kinds: tuple[str, ...], late: int) -> int:
    """Publications, subscriptions and faults on a clock; returns when it all ends."""
    random = draft.random
    start_ns = random.randrange(50, 400) * MILLISECOND_NS if random.random() < 0.7 else 0
    length_ms = (480_000, 720_000) if draft.long else (2_000, 5_000)
    publishing = (1_000, 2_000, 4_000) if draft.long else (15, 40, 120)
    failing = (1_500, 3_000, 6_000) if draft.long else (60, 200, 500)
    end_ns = start_ns + random.randrange(*length_ms) * MILLISECOND_NS
    for _ in range(late):
        _subscribe(draft, random.randrange(start_ns, end_ns))
    instants = [
        (when_ns, publisher)
        for publisher in draft.publishers
        for when_ns in _poisson(random, start_ns, end_ns, publishing)
    ]
    _publish_runs(
        draft, sorted(instants), LONG_MOST_PUBLICATIONS if draft.long else MOST_PUBLICATIONS
    )
    if kinds:
        for when_ns in _poisson(random, start_ns, end_ns, failing):
            _fail(draft, kinds, when_ns, end_ns)
    return end_ns


def _poisson(
    random: Random, start_ns: int, end_ns: int, means_ms: tuple[int, ...]
) -> Iterator[int]:
    mean_ns = random.choice(means_ms) * MILLISECOND_NS
    when_ns = start_ns
    while True:
        when_ns += int(random.expovariate(1 / mean_ns))
        if when_ns >= end_ns:
            return
        yield when_ns


def _draw_steps(draft: _Draft, kinds: tuple[str, ...], late: int) -> int:
    """The same for an adversary, in steps."""
    random = draft.random
    start = random.choice((0, 200, 600))
    end = start + random.randrange(800, 2_500)
    for _ in range(late):
        _subscribe(draft, random.randrange(start, end))
    publishing = random.choice((0.02, 0.05, 0.1))
    failing = random.choice((0.005, 0.02, 0.04)) * (2 if draft.flaps else 1)
    steps = []
    for step in range(start, end):
        draw = random.random()
        if draw < publishing:
            steps.append((step, random.choice(draft.publishers)))
        elif kinds and draw < publishing + failing:
            _fail(draft, kinds, step, end)
    _publish_runs(draft, steps)
    return end


def _draw_broken(draft: _Draft) -> tuple[Broken, ...]:
    random = draft.random
    broken = {}
    for _ in range(random.randrange(1, draft.topology.delta + 2)):
        a, b = _draw_link(draft)
        broken[min(a, b), max(a, b)] = Broken(random.choice(BROKEN_FOR_EVER), a, b)
    return tuple(broken.values())


def _draw_moves_after_healing(draft: _Draft, heal: int) -> int:
    """Publications and subscriptions while links are broken; returns when they are over."""
    random = draft.random
    length = 400 if draft.adversarial else 1_500 * MILLISECOND_NS
    whens = sorted(
        (heal + random.randrange(length), publisher) for publisher in draft.publishers * 3
    )
    most = LONG_MOST_PUBLICATIONS if draft.long else MOST_PUBLICATIONS
    _publish_runs(draft, whens, most + 50)
    for _ in range(random.randrange(3)):
        _subscribe(draft, heal + random.randrange(length))
    return heal + length


# ---------------------------------------------------------------- single moves


def _publish_runs(
    draft: _Draft, whens: list[tuple[int, str]], most: int = MOST_PUBLICATIONS
) -> None:
    random = draft.random
    longest = 1 if draft.flaps else random.choice((1, 3, 8))
    count = sum(len(move.contents) for move in draft.moves if type(move) is Publishing)
    for when, publisher in whens:
        if count >= most:
            return
        contents = tuple(
            Contents(
                random.choice(("a", "b", "c", "d")),
                random.choice((10, 40, 60, 90)),
                random.choice((0, 3, 8)),
            )
            for _ in range(random.randrange(1, longest + 1))
        )
        count += len(contents)
        draft.moves.append(Publishing(when, publisher, contents))


def _subscribe(draft: _Draft, when: int) -> None:
    """A subscription, of a new client or of one that has some already."""
    random = draft.random
    subscribers = [name for name in draft.clients if name.startswith("s")]
    if subscribers and random.random() < 0.25:
        client = random.choice(subscribers)
    else:
        client = f"s{len(subscribers) + 1}-{random.choice(draft.topology.brokers)}"
    draft.clients[client] = min(when, draft.clients.get(client, when))
    draft.moves.append(Subscribing(when, client, random.choice(_PREDICATES)))


def _draw_ends(random: Random, draft: _Draft, end: int) -> list[Move]:
    """Subscriptions that end, and subscribers that leave; in half of the plans none do."""
    ends: list[Move] = []
    if random.random() < 0.5:
        return ends
    share = random.choice((0.2, 0.5, 0.8))
    subscribing = [move for move in draft.moves if type(move) is Subscribing]
    subscribing.sort(key=lambda move: move.when)
    numbers: dict[str, int] = {}
    for move in subscribing:
        numbers[move.client] = number = numbers.get(move.client, 0) + 1
        if random.random() < share and move.when + 1 < end:
            ends.append(Ending(random.randrange(move.when + 1, end), move.client, number))
    last = {move.client: move.when for move in subscribing}
    for client, when in last.items():
        if random.random() < share / 4 and when + 1 < end:
            ends.append(Leaving(random.randrange(when + 1, end), client))
    return ends


def _draw_journeys(random: Random, draft: _Draft, heal: int) -> list[Move]:
    """Clients that move, brokers that join with clients of their own, and some that depart."""
    journeys: list[Move] = []
    brokers = list(draft.topology.brokers)
    for number in range(1, random.randrange(3) + 1):
        name, when = f"n{number}", random.randrange(heal)
        journeys.append(Joining(when, name, random.choice(brokers)))
        if random.random() < 0.3:
            journeys.append(Departing(random.randrange(when, heal), name))
            continue
        brokers.append(name)
        predicate = random.choice(_PREDICATES)
        journeys.append(Subscribing(random.randrange(when, heal), f"t{number}-{name}", predicate))
        for _ in range(random.randrange(1, 6)):
            contents = (Contents(random.choice("abcd"), random.choice((10, 40, 60, 90)), 3),)
            journeys.append(Publishing(random.randrange(when, heal), f"q{number}-{name}", contents))
    share = random.choice((0.2, 0.5, 0.9))
    for client, since in draft.clients.items():
        for _ in range(4):
            if random.random() < share and since < heal:
                since = random.randrange(since, heal)
                journeys.append(Moving(since, client, random.choice(brokers)))
    return journeys


def _fail(draft: _Draft, kinds: tuple[str, ...], when: int, end: int) -> None:
    """A fault of some kind, where the plan leaves room for it."""
    random = draft.random
    kind = random.choice(kinds)
    means = (100, 2_000, 15_000) if draft.long else (5, 100, 600)
    mean = random.choice((10, 60, 300) if draft.adversarial else means)
    stages = []
    at = when
    for _ in range(STAGES[kind] - 1):
        gap = random.expovariate(1 / mean)
        at += int(gap) + 1 if draft.adversarial else int(gap * MILLISECOND_NS)
        stages.append(at)
    draft.failing = [(until, element) for until, element in draft.failing if until > when]
    failed = [element for _, element in draft.failing]
    on: tuple[str, ...] | None
    if kind in BROKER_KINDS:
        on = _draw_broker(draft, failed, at)
        if on is not None and random.random() < 0.3:
            _slow_down_a_client_of(draft, on[0], when, at)
    elif kind in LINK_KINDS:
        on = _draw_free_link(draft, failed, at)
    elif kind in ("suspect", "delay"):
        on = _draw_link(draft)
        if kind == "delay":
            on = (*on, str(random.randrange(1, 300)))
    else:
        on = _draw_client(draft, kind, when)
    if on is not None:
        draft.moves.append(Failing(when, kind, on, tuple(at for at in stages if at < end)))
    if draft.keeps_old_messages and random.random() < 0.7:
        draft.moves.append(Failing(when, OLD_MESSAGE, (str(random.randrange(1_000_000)),)))


def _slow_down_a_client_of(draft: _Draft, broker: str, when: int, until: int) -> None:
    """Its broker then dies with deliveries on their way that the client has not taken."""
    clients = [name for name, since in draft.clients.items() if since <= when]
    here = [name for name in clients if name.startswith("s") and home_of(name) == broker]
    if here:
        length = 60 if draft.adversarial else 300 * MILLISECOND_NS
        before = max(0, when - draft.random.randrange(length))
        client = draft.random.choice(here)
        draft.moves.append(Failing(before, "slow_client", (client, "400"), (until,)))


def _draw_broker(draft: _Draft, failed: list[int | Link], until: int) -> tuple[str, ...] | None:
    brokers = draft.topology.brokers
    free = [number for number in range(len(brokers)) if number not in failed]
    if len(failed) >= draft.failures_at_once or not free:
        return None
    broker = draft.random.choice(free)
    draft.failing.append((until, broker))
    return (brokers[broker],)


def _draw_free_link(draft: _Draft, failed: list[int | Link], until: int) -> tuple[str, ...] | None:
    limit = draft.failures_at_once
    if all(isinstance(element, tuple) for element in failed):
        limit = max(limit, draft.links_at_once)
    a, b = _draw_link(draft)
    number = draft.topology.number_of
    element = (min(number(a), number(b)), max(number(a), number(b)))
    if len(failed) >= limit or element in failed:
        return None
    draft.failing.append((until, element))
    return a, b


def _draw_link(draft: _Draft) -> tuple[str, str]:
    """Tree links mostly, and the pairs that a bypass would use."""
    random = draft.random
    links = draft.topology.links
    if random.random() < 0.3:
        start = random.randrange(len(draft.topology.brokers))
        ball = draft.tree.ball(start, draft.topology.delta + 1)
        links = tuple((start, far) for far in ball)
    a, b = random.choice(links)
    if random.random() < 0.5:
        a, b = b, a
    return draft.topology.brokers[a], draft.topology.brokers[b]


def _draw_client(draft: _Draft, kind: str, when: int) -> tuple[str, ...]:
    clients = [name for name, since in draft.clients.items() if since <= when]
    client = draft.random.choice(clients)
    if kind == "slow_client":
        return client, str(draft.random.choice((50, 400)))
    return client, draft.random.choice(("near", "far"))
