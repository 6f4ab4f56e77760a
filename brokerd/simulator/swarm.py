"""Swarms: from one seed a cluster, a workload and faults; first safety, then liveness.

Even seeds run on a clock: durations, timeouts and retries as in a deployment, shorter. Odd
seeds have no durations: an adversary lets any message, timeout, crash or suspicion come next.
At the end everything is healed, and all that is owed must arrive.

    pubsubctl simulate swarm --protocol delta_tree --seeds 17..17
"""

import multiprocessing
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from brokerd.config import DeltaTreeParameters, Mutant, SessionParameters
from brokerd.overlay.generate import chain, random_tree, star
from brokerd.overlay.topology import Topology
from brokerd.simulator.campaign import Setting, setting
from brokerd.simulator.clock import (
    MILLISECOND_NS,
    SECOND_NS,
    AdversarialSchedule,
    TimedSchedule,
)
from brokerd.simulator.cluster import SimulatedCluster, Subscription
from brokerd.simulator.faults import BROKER_KINDS, FREE_KINDS, LINK_KINDS, FaultPlan
from brokerd.simulator.network import NetworkParameters
from brokerd.simulator.oracle import InvariantViolated
from brokerd.wire.attributes import encode_attributes

CONVERGENCE_NS = 30 * SECOND_NS
"""How long everything owed may take to arrive once all is healed."""

MOST_PUBLICATIONS = 500
"""Per seed; what a small client window lets through a slow network well within convergence."""

ENDLESS = 100_000
"""So many steps of an adversary after healing mean that it will never end."""

_SUMMED = (
    "duplicates_received",
    "resent_publications",
    "messages_ignored",
    "publications_withheld",
    "notifiers_sent",
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmOptions:
    """What a seed does not decide.

    Attributes:
        mutants: named bugs that every broker has.
        faults: whether anything fails at all.
        layer: "timed", "adversarial", or "" to let the seed say.
        campaign: a row of the campaign, which then decides tree, δ and failures; "" for the mix.
        check_purity: repeat one broker's events on a fresh core and compare.
    """

    mutants: frozenset[Mutant] = frozenset()
    faults: bool = True
    layer: str = ""
    campaign: str = ""
    check_purity: bool = True


@dataclass(frozen=True, slots=True)
class SeedReport:
    """What one seed showed.

    Attributes:
        digest: of the history; the same for the same seed and code on every machine.
        rule: of the first violation, "" when there is none.
        violations: in words, the first ones only.
        counters: the ledger: what happened, so that an empty run is seen to be empty.
        last_steps: before the violation, oldest first.
        command: repeats this seed.
    """

    seed: int
    protocol: str
    digest: str
    rule: str
    violations: tuple[str, ...]
    counters: dict[str, int]
    last_steps: tuple[str, ...]
    command: str

    def in_words(self) -> str:
        """The report of a violation, or one line saying that there was none."""
        if not self.violations:
            return f"seed {self.seed}: no violation, {self.counters['deliveries']} deliveries"
        lines = [f"seed {self.seed}: {violation}" for violation in self.violations]
        lines += ["last steps:", *(f"  {line}" for line in self.last_steps)]
        return "\n".join([*lines, f"repeat with: {self.command}"])


@dataclass(slots=True)
class _Scene:
    """What a seed draws before anything runs.

    `flaps`: sessions break all the time under many new subscriptions, and nothing else fails;
    what a subscription is owed from where on is then asked for most often.
    """

    topology: Topology
    parameters: DeltaTreeParameters
    network: NetworkParameters
    kinds: tuple[str, ...]
    links_at_once: int
    elements_at_once: int
    publishers: list[str]
    early_subscribers: int
    late_subscribers: int
    longest_run: int
    flaps: bool
    subscriptions: list[Subscription] = field(default_factory=list)


def run_seed(seed: int, protocol: str, options: SwarmOptions | None = None) -> SeedReport:
    """Run one seed; never raises for what the protocol does wrong."""
    options = options or SwarmOptions()
    adversarial = options.layer == "adversarial" or (not options.layer and seed % 2 == 1)
    return _Run(seed, protocol, options, adversarial).report()


def run_swarm(
    seeds: Iterable[int],
    protocol: str,
    processes: int = 1,
    options: SwarmOptions | None = None,
) -> Iterator[SeedReport]:
    """Run many seeds; reports come in the order of the seeds."""
    jobs = [(seed, protocol, options) for seed in seeds]
    if processes <= 1:
        yield from map(_run_job, jobs)
        return
    with multiprocessing.get_context("forkserver").Pool(processes) as pool:
        yield from pool.imap(_run_job, jobs, chunksize=4)


def total(reports: Iterable[SeedReport]) -> dict[str, int]:
    """The ledger of many seeds: every counter added up."""
    ledger: dict[str, int] = {"seeds": 0, "violations": 0}
    for report in reports:
        ledger["seeds"] += 1
        ledger["violations"] += bool(report.violations)
        for name, value in report.counters.items():
            ledger[name] = ledger.get(name, 0) + value
    return ledger


def _run_job(job: tuple[int, str, SwarmOptions | None]) -> SeedReport:
    return run_seed(*job)


class _Run:
    """One seed from the first draw to its report."""

    def __init__(self, seed: int, protocol: str, options: SwarmOptions, adversarial: bool) -> None:
        self._seed = seed
        self._protocol = protocol
        self._options = options
        self._adversarial = adversarial
        self._strict = protocol != "best_effort"
        self._random = Random(f"swarm {seed}")
        row = setting(options.campaign) if options.campaign else None
        self._scene = scene = _draw_scene(self._random, adversarial, row)
        self._cluster = SimulatedCluster(
            scene.topology,
            protocol,
            seed=self._random.getrandbits(64),
            parameters=scene.parameters,
            network=scene.network,
            mutants=options.mutants,
            strict=self._strict,
            adversarial=adversarial,
        )
        self._faults = FaultPlan(
            self._cluster,
            self._random,
            scene.kinds if options.faults else (),
            scene.links_at_once,
            scene.elements_at_once,
        )
        self._at_risk = 0
        self._old_messages = 0
        self._healed_ns = 0
        self._blobs = [
            encode_attributes({"kind": kind, "price": price})
            for kind in ("a", "b", "c", "d")
            for price in (10, 40, 60, 90)
        ]
        self._pure = self._cluster.brokers[self._random.randrange(len(self._cluster.brokers))]

    def report(self) -> SeedReport:
        """Run the seed and say how it went."""
        rule, violations = "", []
        try:
            self._play()
        except InvariantViolated as violation:
            rule, violations = violation.rule, [str(violation)]
        except Exception as error:
            # A core that breaks down is a finding like any other; the seed repeats it.
            where = traceback.extract_tb(error.__traceback__)[-1]
            rule = type(error).__name__
            violations = [f"{rule}: {error} ({where.filename.split('/')[-1]}:{where.lineno})"]
        if not self._strict and self._cluster.oracle.violations:
            rule = next(iter(self._cluster.oracle.violations))
            violations += self._cluster.oracle.first_violations
        now_ns = self._cluster.schedule.now_ns
        violations = [f"at {now_ns / SECOND_NS:.6f} s: {what}" for what in violations]
        trace = self._cluster.trace
        assert trace is not None
        mutants = "".join(f" --mutant {mutant}" for mutant in sorted(self._options.mutants))
        row = f" --campaign {self._options.campaign}" if self._options.campaign else ""
        return SeedReport(
            self._seed,
            self._protocol,
            trace.digest(),
            rule,
            tuple(violations),
            self._counters(),
            tuple(trace.last_steps()) if violations else (),
            f"pubsubctl simulate swarm --protocol {self._protocol} "
            f"--seeds {self._seed}..{self._seed}{row}{mutants}",
        )

    # ------------------------------------------------------------ the course of a run

    def _play(self) -> None:
        if self._options.check_purity:
            self._pure.history = []
        self._cluster.start()
        for publisher in self._scene.publishers:
            self._cluster.client(publisher, self._home_of(publisher), publishes=True)
        for _ in range(self._scene.early_subscribers):
            self._subscribe()
        if self._adversarial:
            self._play_adversarial()
        else:
            self._play_timed()
        self._cluster.oracle.judge_end()
        if self._options.check_purity:
            self._repeat_events()

    def _play_timed(self) -> None:
        schedule = self._cluster.schedule
        assert isinstance(schedule, TimedSchedule)
        random = self._random
        if random.random() < 0.7:
            schedule.run_until(random.randrange(50, 400) * MILLISECOND_NS)
        end_ns = schedule.now_ns + random.randrange(2_000, 5_000) * MILLISECOND_NS
        for publisher in self._scene.publishers:
            mean_ns = random.choice((15, 40, 120)) * MILLISECOND_NS
            self._publish_often(publisher, mean_ns, end_ns)
        for _ in range(self._scene.late_subscribers):
            schedule.at(random.randrange(schedule.now_ns, end_ns), self._subscribe)
        if self._options.faults:
            self._fail_often(random.choice((60, 200, 500)) * MILLISECOND_NS, end_ns)
        while schedule.now_ns < end_ns:
            schedule.run_until(min(end_ns, schedule.now_ns + 50 * MILLISECOND_NS))
            self._look_inside()
        self._heal()
        while not self._has_converged():
            schedule.run_until(schedule.now_ns + 50 * MILLISECOND_NS)
            self._look_inside()
            self._check_patience()

    def _publish_often(self, publisher: str, mean_ns: int, end_ns: int) -> None:
        schedule = self._cluster.schedule

        def publish() -> None:
            self._publish(publisher)
            self._publish_often(publisher, mean_ns, end_ns)

        when_ns = schedule.now_ns + int(self._random.expovariate(1 / mean_ns))
        if when_ns < end_ns:
            schedule.at(when_ns, publish)

    def _fail_often(self, mean_ns: int, end_ns: int) -> None:
        schedule, random = self._cluster.schedule, self._random

        def fail() -> None:
            fault = self._faults.begin()
            when_ns = schedule.now_ns
            for _ in range(fault.stages_left if fault is not None else 0):
                when_ns += int(random.expovariate(1 / (random.choice((5, 100, 600)) * 1_000_000)))
                schedule.at(when_ns, self._faults.advance, fault)
            self._deliver_old()
            self._fail_often(mean_ns, end_ns)

        when_ns = schedule.now_ns + int(random.expovariate(1 / mean_ns))
        if when_ns < end_ns:
            schedule.at(when_ns, fail)

    def _play_adversarial(self) -> None:
        schedule = self._cluster.schedule
        assert isinstance(schedule, AdversarialSchedule)
        random = self._random
        for _ in range(random.choice((0, 200, 600))):
            schedule.step()
        steps = random.randrange(800, 2_500)
        late = sorted(random.randrange(steps) for _ in range(self._scene.late_subscribers))
        publishing = random.choice((0.02, 0.05, 0.1))
        failing = random.choice((0.005, 0.02, 0.04)) * (2 if self._scene.flaps else 1)
        failing = failing if self._options.faults else 0.0
        for step in range(steps):
            if step % 40 == 0:
                self._look_inside()
            while late and late[0] <= step:
                late.pop(0)
                self._subscribe()
            draw = random.random()
            if draw < publishing:
                self._publish(random.choice(self._scene.publishers))
            elif draw < publishing + failing:
                self._fail_or_advance()
            elif draw < publishing + failing + 0.02:
                schedule.fire()
            else:
                schedule.step()
        self._heal()
        taken = 0
        while schedule.pending or not self._has_converged():
            taken += 1
            if random.random() < 0.01:
                before_ns = schedule.now_ns
                schedule.fire()
                self._healed_ns += schedule.now_ns - before_ns  # nothing was waiting for that
            if not schedule.step() and not schedule.fire():
                taken = ENDLESS
            self._check_patience(taken)

    def _fail_or_advance(self) -> None:
        self._deliver_old()
        unfinished = list(self._faults.unfinished())
        if unfinished and self._random.random() < 0.6:
            self._faults.advance(self._random.choice(unfinished))
        else:
            self._faults.begin()

    def _look_inside(self) -> None:
        if self._strict:
            self._cluster.check_internals()

    def _heal(self) -> None:
        self._cluster.note("heal all")
        self._faults.heal_all()
        self._healed_ns = self._cluster.schedule.now_ns

    # ------------------------------------------------------------ convergence

    def _has_converged(self) -> bool:
        cluster = self._cluster
        if not self._strict:
            return cluster.is_quiet()
        if cluster.oracle.undelivered() or cluster.unsettled() or cluster.oracle.closed_gates():
            return False
        return not self._left_over()

    def _left_over(self) -> list[str]:
        """What brokers still hold although nobody is owed anything."""
        lines = []
        for broker in self._cluster.brokers:
            state = broker.core.status()["state"]
            queue = broker.core.statistics()["queue_publications"]
            tagged = broker.core.statistics()["subscriptions_tagged"]
            if state != "running" or queue or tagged:
                lines.append(
                    f"{broker.name} is {state} with {queue} publications queued, "
                    f"{tagged} subscriptions tagged"
                )
        return lines

    def _check_patience(self, steps: int = 0) -> None:
        waited_ns = self._cluster.schedule.now_ns - self._healed_ns
        if waited_ns <= CONVERGENCE_NS and steps < ENDLESS:
            return
        cluster = self._cluster
        left = cluster.unsettled() + self._left_over() + cluster.oracle.undelivered()
        left += cluster.oracle.closed_gates()
        raise InvariantViolated(
            "liveness", f"{waited_ns / SECOND_NS:.1f} s after healing: {'; '.join(left[:12])}"
        )

    def _repeat_events(self) -> None:
        """I17: the same events give the same effects."""
        core = self._cluster.fresh_core(self._pure.number)
        for event, now_ns, effects in self._pure.history or ():
            again = core.handle(event, now_ns)
            core.next_deadline()
            if again != effects:
                raise InvariantViolated(
                    "purity", f"{self._pure.name} on {event}: first {effects}, then {again}"
                )

    # ------------------------------------------------------------ workload

    def _home_of(self, publisher: str) -> str:
        return publisher.partition("-")[2]

    def _publish(self, publisher: str) -> None:
        random = self._random
        if self._cluster.oracle.published_count >= MOST_PUBLICATIONS:
            return
        contents = [
            (random.choice(self._blobs), random.randbytes(random.choice((0, 3, 8))))
            for _ in range(random.randrange(1, self._scene.longest_run + 1))
        ]
        published = self._cluster.publish_run(self._home_of(publisher), contents, publisher)
        self._count_risk(publisher, published[-1].sequence)

    def _count_risk(self, publisher: str, sequence: int) -> None:
        """Count subscribers who want this and lie behind what has failed at this moment."""
        failed = [fault for fault in self._faults.active if fault.element is not None]
        if not failed:
            return
        start = self._cluster.clients[publisher].broker
        for name in self._cluster.oracle.owed_to(publisher, sequence):
            path = self._cluster.tree.path(start, self._cluster.clients[name].broker)
            self._at_risk += any(fault.touches(path) for fault in failed)

    def _subscribe(self) -> None:
        random = self._random
        known = [name for name in self._cluster.clients if name.startswith("s")]
        home = random.choice(self._scene.topology.brokers)
        client = None
        if known and random.random() < 0.25:
            client = random.choice(known)
            home = self._cluster.topology.brokers[self._cluster.clients[client].broker]
        predicate = random.choice(_PREDICATES)
        self._scene.subscriptions.append(self._cluster.subscribe(home, predicate, client))

    def _deliver_old(self) -> None:
        """Hand over a message of a session that is over, as a careless driver would."""
        old = self._cluster.network.old_messages
        if old and self._random.random() < 0.7:
            message = old.pop(self._random.randrange(len(old)))
            receiver = (
                self._cluster.brokers[message.endpoint.key]
                if isinstance(message.endpoint.key, int)
                else None
            )
            if receiver is not None and not receiver.frozen and not receiver.absorbing:
                self._old_messages += 1
                receiver.receive_old(message)

    # ------------------------------------------------------------ ledger

    def _counters(self) -> dict[str, int]:
        cluster = self._cluster
        counters = {
            "broker_events": cluster.trace.steps if cluster.trace is not None else 0,
            "simulated_ms": cluster.schedule.now_ns // MILLISECOND_NS,
            "adversarial_seeds": int(self._adversarial),
            "published": cluster.oracle.published_count,
            "deliveries": cluster.oracle.deliveries,
            "owed": cluster.oracle.owed,
            "announced": cluster.oracle.announced,
            "at_risk": self._at_risk,
            "subscriptions": len(self._scene.subscriptions),
            "duplicates_at_clients": sum(c.core.duplicates for c in cluster.clients.values()),
            "bypass_sessions": cluster.checker.bypass_sessions,
            "old_messages": self._old_messages,
            "encoded_seeds": int(self._scene.network.encode),
            **cluster.network.counters,
        }
        for name, value in cluster.statistics().items():
            if name in _SUMMED:
                counters[name] = value + self._faults.at_crash.get(name, 0)
        for kind, count in self._faults.landed.items():
            counters[f"fault_{kind}"] = count
        return counters


def _draw_scene(random: Random, adversarial: bool, row: Setting | None) -> _Scene:
    delta = 2 if random.random() < 0.35 else 1
    brokers = random.randrange(6, 10) if adversarial else random.randrange(7, 13)
    shape = random.randrange(4)
    if row is not None:
        delta, brokers, shape = row.delta, row.brokers, 0 if row.chain else 2
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
    flaps = random.random() < 0.3
    kinds = tuple(k for k in (*BROKER_KINDS, *LINK_KINDS, *FREE_KINDS) if random.random() < 0.5)
    if flaps:
        kinds = ("suspect", "suspect", "cut", "absorb_link_then_cut", "cut_one_way")
    if row is not None and not row.elements_at_once:
        kinds = tuple(k for k in kinds if k not in BROKER_KINDS) or ("cut", "suspect")
    quick = random.random() < 0.8
    parameters = DeltaTreeParameters(
        delta=delta,
        retry_first_ns=(100 if quick else 500) * MILLISECOND_NS,
        retry_limit_ns=(800 if quick else 5_000) * MILLISECOND_NS,
        client_linger_ns=1_000_000 * SECOND_NS,
        cold_start_after_ns=1_000_000 * SECOND_NS,
        client_window=random.choice((16, 256, 16_384)),
        persist_routing=row is None or row.persist_routing,
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
    links_at_once = 3 * delta if random.random() < 0.2 else delta
    if row is not None:
        links_at_once = row.links_at_once
    homes = [random.choice(topology.brokers) for _ in range(random.randrange(2, 5))]
    return _Scene(
        topology=topology,
        parameters=parameters,
        network=network,
        kinds=kinds or ("cut", "kill"),
        links_at_once=links_at_once,
        elements_at_once=delta if row is None else row.elements_at_once,
        publishers=[f"p{place}-{home}" for place, home in enumerate(homes)],
        early_subscribers=random.randrange(1, 5),
        late_subscribers=random.randrange(4, 16) if flaps else random.randrange(1, 8),
        longest_run=1 if flaps else random.choice((1, 3, 8)),
        flaps=flaps,
    )
