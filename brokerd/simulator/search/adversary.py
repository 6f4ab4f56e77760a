"""An adversary without a clock: one seed, one cluster, and any possible event as the next event.

The swarm has durations, and this layer has none: any message, answer, crash, suspicion, deadline or
request may be the next event, in any order that the assumptions allow. The layer is small and fast,
and reaches interleavings that durations hide. At the end all faults are healed, and every owed
delivery must arrive.

    pubsubctl simulate adversary --seeds 17..17

Paper: [DFT11] §II; abstract (at most δ concurrent failures).
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.overlay.generate import chain, random_tree
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import DEFAULT, definition_of
from brokerd.simulator.checks.marks import ADVANCED_AGAIN, as_counters
from brokerd.simulator.checks.protocol_checks import (
    COMMON_COUNTERS,
    planning_of,
    simulation_of,
    with_bugs,
)
from brokerd.simulator.search.campaign import CAMPAIGN, Setting, find_setting
from brokerd.simulator.search.plan import set_parameters
from brokerd.simulator.search.planning.draw import is_simple
from brokerd.simulator.search.seed_report import SeedReport, play_and_judge
from brokerd.simulator.search.shrink import ShortHistory, shrink_history
from brokerd.simulator.search.workers import map_in_workers
from brokerd.simulator.world.actions import BLOBS, PREDICATES, ActedCluster, Action, Scene
from brokerd.units import SECOND_NS

_Element = BrokerNumber | tuple[Any, Any]
"""A broker or a link that may fail."""

PURE_EVERY = 16
"""Period of the seeds that repeat one broker's events on a fresh core."""

_NEVER_NS = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversaryOptions:
    """The choices that a seed does not make.

    Attributes:
        protocol: the protocol, by name.
        setting: a row of the campaign, which then decides tree, δ and failures; "" for a mix.
        mutants: named bugs of every broker.
        settings: parameters of the protocol for any seed, as `name=value`.
        story: keep the last steps in words, for the report of a violation.
    """

    protocol: str = DEFAULT
    setting: str = ""
    mutants: frozenset[str] = frozenset()
    settings: tuple[str, ...] = ()
    story: bool = False


def run_adversary(seed: int, options: AdversaryOptions | None = None) -> SeedReport:
    """Run one seed; never raise an error for a fault of the protocol."""
    return _Run(seed, options or AdversaryOptions()).report()


def run_adversaries(
    seeds: Iterable[int], options: AdversaryOptions | None = None, processes: int = 1
) -> Iterator[SeedReport]:
    """Run many seeds; yield reports in the order of the seeds."""
    jobs = [(seed, options) for seed in seeds]
    return map_in_workers(run_adversary, jobs, processes, at_once=8)


def shrink_seed(seed: int, options: AdversaryOptions | None = None) -> ShortHistory | None:
    """Return the shrunk history of a failing seed; None if the seed has no violation."""
    run = _Run(seed, options or AdversaryOptions())
    report = run.report()
    if not report.rule:
        return None
    return shrink_history(run.scene, run.actions, report.rule)


@dataclass(frozen=True, slots=True)
class _Rates:
    """The share of each kind of choice; the rest are entries of lanes.

    Attributes:
        holding: maximum number of held lanes.
    """

    publishing: float
    failing: float
    disturbing: float
    waiting: float
    holding: int
    longest_run: int


class _Run:
    """One seed from the first draw to its report."""

    def __init__(self, seed: int, options: AdversaryOptions) -> None:
        self._seed = seed
        self._options = options
        self._random = random = Random(f"adversary {seed}")
        row = find_setting(options.setting) if options.setting else _draw_setting(random)
        self._row = row
        self.scene = _draw_scene(seed, random, row, options)
        with with_bugs(self.scene.mutants, self.scene.protocol):
            self._acted = ActedCluster(self.scene, trace=options.story)
        self._cluster = self._acted.cluster
        self._rates = _Rates(
            publishing=random.choice((0.02, 0.05, 0.1)),
            failing=random.choice((0.005, 0.02, 0.05)),
            disturbing=random.choice((0.0, 0.02, 0.06)),
            waiting=random.choice((0.005, 0.02)),
            holding=random.choice((0, 1, 3)),
            longest_run=random.choice((1, 1, 3)),
        )
        # Streams of their own: other draws stay the same as without ends.
        self._ends = Random(f"ends {seed}")
        self._ending = self._ends.choice((0.0, 0.2, 0.6))
        self._losses = Random(f"losses {seed}")
        self._losing = self._losses.choice((0.0, 0.0, 0.4))
        self._links: list[tuple[BrokerNumber, BrokerNumber]] = list(self.scene.topology.links)
        self._pairs = [
            (start, far)
            for start in range(len(self._cluster.brokers))
            for far in self._cluster.graph.near(start)
            if start < far
        ]
        self._homes = _homes(self.scene.protocol, self.scene.topology)
        self._subscribers: list[tuple[str, BrokerNumber]] = []
        self._at_risk = 0
        self._forgetful = row.bound and not row.persist_routing
        self._broken: dict[tuple[BrokerNumber, BrokerNumber], None] = {}
        self._pure = random.randrange(len(self._cluster.brokers))

    @property
    def actions(self) -> list[Action]:
        """The actions performed so far."""
        return self._acted.actions

    def report(self) -> SeedReport:
        acted, cluster = self._acted, self._cluster
        with with_bugs(self.scene.mutants, self.scene.protocol):
            forgiven = simulation_of(self._options.protocol).forgiven
            rule, violations = play_and_judge(
                self._play, cluster.oracle, self.scene.strict, forgiven
            )
        violations = [
            f"after {len(acted.actions)} actions: {violation}" for violation in violations
        ]
        steps = cluster.trace.last_steps() if cluster.trace is not None and violations else ()
        return SeedReport(
            self._seed,
            self._options.protocol,
            acted.digest(),
            rule,
            tuple(violations),
            self._counters(),
            tuple(steps),
            command_for(self._seed, self._options),
        )

    # ------------------------------------------------------------ course of a run

    def _play(self) -> None:
        acted, random = self._acted, self._random
        is_pure = self._seed % PURE_EVERY == 0
        acted.start(self._pure if is_pure else None)
        for _ in range(random.randrange(1, 5)):
            self._subscribe()
        self._perform_lanes(random.choice((0, 100, 400)))
        steps = random.randrange(300, 2_000)
        late = [random.randrange(steps) for _ in range(random.choice((2, 5, 12)))]
        begin = 0
        for end in [*sorted(late), steps]:
            self._choose(end - begin)
            begin = end
            self._subscribe()
            if self._ends.random() < self._ending:
                self._unsubscribe()
            if self._losses.random() < self._losing:
                acted.perform(("forget", self._losses.choice([*acted.clients])))
        acted.heal_all()
        acted.settle(random)
        self._cluster.inspection.recount()
        acted.oracle.judge_end()
        if is_pure:
            self._cluster.inspection.repeat_events(self._pure)

    def _perform_lanes(self, count: int) -> None:
        """Perform only entries of lanes."""
        for _ in range(count):
            self._acted.happen()

    def _choose(self, count: int) -> None:
        """Make `count` choices."""
        rates, random = self._rates, self._random.random
        publishing = rates.publishing
        failing = publishing + rates.failing
        disturbing = failing + rates.disturbing
        rare = disturbing + rates.waiting
        acted = self._acted
        for _ in range(count):
            draw = random()
            if draw >= rare and acted.happen():
                continue
            if draw < publishing:
                self._publish()
            elif draw < failing:
                self._fail_or_mend()
            elif draw < disturbing:
                self._disturb()
            else:
                acted.perform(("deadline", self._random.randrange(len(acted.brokers))))

    # ------------------------------------------------------------ choices

    def _publish(self) -> None:
        random = self._random
        name, home = random.choice(self.scene.publishers)
        count = random.randrange(1, self._rates.longest_run + 1)
        self._acted.perform(("publish", name, random.randrange(len(BLOBS)), count))
        failed = self._list_failed()
        if failed:
            last = self._cluster.clients[name].core.outgoing.next_sequence - 1
            for subscriber in self._cluster.oracle.obligations.list_owed_subscribers(name, last):
                path = self._cluster.graph.path(home, self._cluster.clients[subscriber].broker)
                self._at_risk += count * any(_touches(element, path) for element in failed)

    def _subscribe(self) -> None:
        random = self._random
        if self._subscribers and random.random() < 0.25:
            name, home = random.choice(self._subscribers)
        else:
            home = random.choice(self._homes)
            name = f"s{len(self._subscribers) + 1}"
            self._subscribers.append((name, home))
        self._acted.perform(("subscribe", name, home, random.randrange(len(PREDICATES))))

    def _unsubscribe(self) -> None:
        """End one of the subscriptions, started or not."""
        name, _ = self._ends.choice(self._subscribers)
        numbers = tuple(self._cluster.clients[name].core.subscriptions)
        if numbers:
            self._acted.perform(("unsubscribe", name, self._ends.choice(numbers)))

    def _list_failed(self) -> list[_Element]:
        """Return the brokers and links that do not serve.

        A broker serves once its recovery has completed. A link serves once it is healed. If routing
        tables are volatile, a link serves only once its ends have exchanged their state since, and
        a link with a suspected end has failed like any other link: a broker that crashes meanwhile
        is restored by brokers without the latest state.
        """
        cluster = self._cluster
        brokers = cluster.brokers
        failed: list[_Element] = [
            broker.number
            for broker in brokers
            if not broker.alive or broker.core.status().state != "running"
        ]
        cut = cluster.link_faults.cut_directions()
        if self._forgetful:
            self._broken = {
                (a, b): None
                for a, b in self._broken
                if (a, b) in cut
                or (b, a) in cut
                or not (brokers[a].alive and brokers[b].alive)
                or not cluster.checker.own.can_serve(brokers[a], brokers[b])
            }
            return [*failed, *self._broken]
        for a, b in cut:
            if (b, a) not in failed:
                failed.append((a, b))
        return failed

    def _fail_or_mend(self) -> None:
        """Begin a failure, if another failure is allowed, or end one."""
        random, row, failed = self._random, self._row, self._list_failed()
        most = row.elements_at_once or row.delta
        if all(isinstance(element, tuple) for element in failed):
            most = max(most, row.links_at_once)
        if failed and (len(failed) >= most or random.random() < 0.5):
            self._repair(random.choice(failed))
        elif len(failed) < most:
            crashing = row.elements_at_once and len(failed) < row.elements_at_once
            if crashing and random.random() < 0.7:
                self._crash(failed)
            else:
                self._cut(failed)

    def _repair(self, element: _Element) -> None:
        acted = self._acted
        if isinstance(element, tuple):
            a, b = element
            acted.perform(("heal", a, b))
            acted.perform(("heal", b, a))
        elif not acted.brokers[element].alive:
            acted.perform(("restart", element))
        elif self._random.random() < 0.3:  # the recovery must restart
            acted.perform(("crash", element, self._keep_applicable()))

    def _crash(self, failed: Sequence[_Element]) -> None:
        free = [number for number in range(len(self._cluster.brokers)) if number not in failed]
        if not free:
            return  # all of a few brokers may have failed
        writing = [number for number in free if self._cluster.brokers[number].disk.has_unwritten]
        if writing and self._random.random() < 0.5:
            free = writing  # between commit and persisted most failures are possible
        self._acted.perform(("crash", self._random.choice(free), self._keep_applicable()))

    def _keep_applicable(self) -> int:
        return self._random.choice((0, 0, 1, 99))

    def _cut(self, failed: Sequence[_Element]) -> None:
        random = self._random
        a, b = random.choice(self._links if random.random() < 0.7 else self._pairs)
        if (a, b) in failed or (b, a) in failed:
            return
        self._broken[a, b] = None
        if random.random() < 0.5:
            a, b = b, a
        self._acted.perform(("cut", a, b))
        if random.random() < 0.7:
            self._acted.perform(("cut", b, a))

    def _suspect(self, verb: str, number: BrokerNumber, peer: Any) -> None:
        if self._forgetful:
            if len(self._list_failed()) >= self._row.elements_at_once:
                return
            self._broken[min(number, peer), max(number, peer)] = None
        self._acted.perform((verb, number, peer))

    def _disturb(self) -> None:
        """Perform a disturbance that is possible at any time without a failure."""
        acted, random = self._acted, self._random
        draw = random.random()
        if draw < 0.4:
            broker = random.choice(acted.brokers)
            peers = [peer for peer in broker.ends if isinstance(peer, int)]
            if peers:
                self._suspect("suspect", broker.number, random.choice(peers))
        elif draw < 0.55:
            broker = random.choice(acted.brokers)
            if broker.attempts:
                self._suspect("time out", broker.number, random.choice([*broker.attempts]))
        elif draw < 0.7:
            client = random.choice(list(acted.clients.values()))
            ends: tuple[Peer, Peer] = (client.name, client.broker)
            acted.perform(("suspect", *(ends if random.random() < 0.5 else ends[::-1])))
        elif draw < 0.8:
            acted.perform(("stale", random.randrange(8)))
        else:
            held = [*acted.schedule.held]
            if held and (len(held) >= self._rates.holding or random.random() < 0.4):
                acted.perform(("release", random.choice(held)))
            elif len(held) < self._rates.holding and (lane := acted.schedule.draw()) is not None:
                acted.perform(("hold", lane.name))

    # ------------------------------------------------------------ ledger

    def _counters(self) -> dict[str, int]:
        cluster = self._cluster
        verbs = Counter(action[0] for action in self.actions)
        counters = {
            "actions": len(self.actions),
            "broker_events": cluster.inspection.broker_events,
            "published": cluster.oracle.published_count,
            "deliveries": cluster.oracle.deliveries,
            "owed": cluster.oracle.owed,
            "announced": cluster.oracle.notices.announced,
            "at_risk": self._at_risk,
            "subscriptions": verbs["subscribe"],
            "crashes_before_persisted": self._acted.crashes_before_persisted,
            "bypass_sessions": cluster.checker.bypass_sessions,
            "duplicates_at_clients": sum(
                c.core.progress.duplicates for c in cluster.clients.values()
            ),
            **cluster.network.counters,
        }
        summed = (*COMMON_COUNTERS, *simulation_of(self.scene.protocol).counters)
        for name, value in cluster.statistics().items():
            if name in summed:
                counters[name] = value
        for verb in (
            "unsubscribe",
            "cut",
            "crash",
            "suspect",
            "time out",
            "hold",
            "stale",
            "deadline",
            "forget",
        ):
            counters[f"action_{verb.replace(' ', '_')}"] = verbs[verb]
        counters["action_persist"] = sum(
            count for lane, count in verbs.items() if lane.partition("#")[0].endswith(":disk")
        )
        if cluster.checker.marks is not None:
            marks = {
                **cluster.checker.marks.counts,
                "frame-split": cluster.network.counters["frames_split"],
                ADVANCED_AGAIN.name: cluster.checker.positions.advanced_again,
            }
            counters.update(as_counters(marks))
        return counters


def command_for(seed: int, options: AdversaryOptions) -> str:
    """Return the command that runs a seed again."""
    words = [f"pubsubctl simulate adversary --seeds {seed}..{seed}"]
    if options.protocol != DEFAULT:
        words.append(f"--protocol {options.protocol}")
    if options.setting:
        words.append(f"--setting {options.setting}")
    words += [f"--set {shlex.quote(setting)}" for setting in options.settings]
    words += [f"--mutant {mutant}" for mutant in sorted(options.mutants)]
    return " ".join(words)


def _touches(element: _Element, path: Sequence[BrokerNumber]) -> bool:
    """Return True if a path contains a failed broker or link."""
    if isinstance(element, tuple):
        return all(end in path for end in element)
    return element in path


def _draw_setting(random: Random) -> Setting:
    """Return a row of the campaign with valid promises, on a tree of another size or shape."""
    row = random.choice([row for row in CAMPAIGN.values() if row.bound])
    return replace(row, brokers=random.randrange(7, 10), chain=random.random() < 0.25)


def _draw_scene(seed: int, random: Random, row: Setting, options: AdversaryOptions) -> Scene:
    planning = planning_of(options.protocol)
    if not planning.draws_topologies:
        topology = _draw_topology(random, row)
    elif options.setting:
        raise ConfigError("the campaign is of trees; simulate without it")
    else:
        topology = replace(planning.topology(Random(f"topology {seed}")), name="plan")
    values = {
        "assist": "off",  # no relayed sessions in this network; the timed swarm draws them
        "retry_first_ns": SECOND_NS,
        "retry_limit_ns": 4 * SECOND_NS,
        "audit_interval_ns": random.choice((1, 20)) * SECOND_NS,
        "client_linger_ns": _NEVER_NS,
        "cold_start_after_ns": _NEVER_NS,
        "client_window": random.choice((2, 16, 16_384)),
        "persist_routing": row.persist_routing,
    }
    parameters = planning.trial(random, values, row.delta)
    if not options.setting and not is_simple(seed):
        parameters = planning.rare_options(seed, parameters, timed=False)
    parameters = set_parameters(parameters, options.protocol, topology, options.settings)
    homes = _homes(options.protocol, topology)
    publishers = [(f"p{place}", random.choice(homes)) for place in range(random.randrange(2, 5))]
    return Scene(
        protocol=options.protocol,
        topology=topology,
        parameters=parameters,
        publishers=tuple(publishers),
        chance=random.getrandbits(64),
        mutants=options.mutants,
        strict=definition_of(options.protocol).promises.exactly_once,
        **_draw_wire(Random(f"wire {seed}")),
    )


def _homes(protocol: str, topology: Topology) -> list[BrokerNumber]:
    return [topology.number_of(name) for name in definition_of(protocol).homes(topology)]


def _draw_wire(random: Random) -> dict[str, Any]:
    """Draw the use of the codec: in a third of the seeds, half of them with small frames.

    Runs are short in this layer, so payloads must be large to be split.
    """
    if random.random() < 2 / 3:
        return {}
    if random.random() < 0.5:
        return {"frame_limit_bytes": 1 << 20}
    return {"frame_limit_bytes": 900, "payload_bytes": 400}


def _draw_topology(random: Random, row: Setting) -> Topology:
    if row.chain:
        topology = chain(row.brokers, row.delta)
    else:
        topology = random_tree(row.brokers, row.delta, random.randrange)
    names = list(topology.brokers)
    random.shuffle(names)  # the smaller number decides some races
    return replace(topology, brokers=tuple(names))
