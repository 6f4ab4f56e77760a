"""One experiment in virtual time: a cluster, a load, faults at given instants, and a verdict."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from brokerd.model.fault_verbs import VERB_TABLE
from brokerd.model.identity import ClientId
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import Instant
from brokerd.simulator.checks.protocol_checks import with_bugs
from brokerd.simulator.world.clients import ClientObserver
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS, SECOND_NS

DRAIN_NS = 30 * SECOND_NS
_LOOK_NS = 20 * MILLISECOND_NS


@dataclass(frozen=True, slots=True)
class SimulatedPublisher:
    """One publisher.

    Attributes:
        offsets_ns: instants of publications, from the start of the measurement, rising.
        content: returns attribute blob and payload of the n-th publication, from 1.
    """

    name: ClientId
    broker: str
    offsets_ns: Iterable[int]
    content: Callable[[int], tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class SimulatedSubscriber:
    """One subscriber with one subscription.

    Attributes:
        subscribes_ns: instant of the subscription, from the start of the measurement; None for an
            earlier one.
        absences: times without a connection, from the start of the measurement.
    """

    name: ClientId
    broker: str
    predicate: str
    subscribes_ns: int | None = None
    absences: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One fault.

    Attributes:
        verb: one of `SIMULATED_VERBS`.
        brokers: one broker, or the two ends of a link.
        at_ns: instant from the start of the measurement; None if `after` determines the instant.
        after: the awaited (step, "applied" | "end" | "recovered").
        duration_ns: duration of a lasting fault; None for a momentary fault.
        released: the end of an absorb releases the absorbed messages; False if a kill or cut
            follows.
    """

    id: str
    verb: str
    brokers: tuple[str, ...]
    at_ns: int | None = None
    after: tuple[str, str] | None = None
    delay_ns: int = 0
    duration_ns: int | None = None
    one_way: bool = False
    released: bool = True


class ExperimentRecorder(ClientObserver, Protocol):
    """A recorder of the records that clients and injectors of a real run write."""

    def began(self, now: Callable[[], Instant]) -> None:
        """Record the beginning, before any event; `now` returns the time."""

    def phase(self, name: str) -> None:
        """Record the beginning of a phase of the run: deploy, measure, drain, end."""

    def on_subscribing(self, client: ClientId) -> None:
        """Record that a subscriber requests its subscription."""

    def fence(self, client: ClientId, sequence: int) -> tuple[bytes, bytes]:
        """Return attribute blob and payload of a fence with this sequence number."""
        ...

    def published(
        self, client: ClientId, sequence: int, intended_ns: Instant, *, fence: bool
    ) -> None:
        """Record that a publisher has passed on a publication."""

    def absence(self, client: ClientId, left_ns: Instant) -> None:
        """Record that a subscriber may connect again, and the instant of its disconnection."""

    def fault(self, step: str, stage: str) -> None:
        """Record that a fault was applied, healed or recovered from."""


@dataclass(slots=True)
class _Damage:
    """The time and place of a risk for publications."""

    brokers: tuple[str, ...]
    from_ns: int
    until_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedVerdict:
    """The outcome of an experiment.

    Attributes:
        value: VALID, INVALID, or UNKNOWN if nothing was at risk although some delivery should be.
        violations: the first violations, in words.
        counters: publications, owed, deliveries, at_risk, recovered, simulated_ms, …
        digest: digest of the history.
        story: actions on the cluster, one line per action.
    """

    value: str
    violations: tuple[str, ...]
    counters: dict[str, int]
    digest: str
    story: tuple[str, ...] = field(default=())

    def describe(self) -> str:
        """Return the verdict as lines for people."""
        counts = [
            f"{value / 1000:,.3f} s simulated" if name == "simulated_ms"
            else f"{value:,} {name.replace('_', ' ')}"
            for name, value in self.counters.items()
        ]  # fmt: skip
        lines = [*self.story, *self.violations, f"{self.value}: {', '.join(counts)}"]
        return "\n".join(lines)


def simulate_schedule(
    topology: Topology,
    protocol: str,
    publishers: Sequence[SimulatedPublisher],
    subscribers: Sequence[SimulatedSubscriber],
    steps: Sequence[SimulatedStep] = (),
    *,
    duration_ns: int,
    seed: int = 0,
    calm: bool = False,
    mutants: frozenset[str] = frozenset(),
    recorder: ExperimentRecorder | None = None,
) -> SimulatedVerdict:
    """Run a load with faults and judge the run by exactly once, in order, no gap.

    Subscriptions start before the measurement begins, except subscriptions with an instant of their
    own. Publications without an acknowledgement at the end may take another 30 s.

    Args:
        calm: the run can be valid with nothing at risk.
        recorder: receives all records; each publisher publishes a fence for the recorder once all
            subscriptions have started, and another fence at the end.
    """
    with with_bugs(mutants, protocol):
        cluster = SimulatedCluster(
            topology,
            protocol,
            seed=seed,
            strict=False,
            observer=recorder,
        )
        loads = (publishers, subscribers, steps, duration_ns, calm, recorder)
        return _Experiment(cluster, *loads).run()


class _Experiment:
    def __init__(
        self,
        cluster: SimulatedCluster,
        publishers: Sequence[SimulatedPublisher],
        subscribers: Sequence[SimulatedSubscriber],
        steps: Sequence[SimulatedStep],
        duration_ns: int,
        calm: bool,
        recorder: ExperimentRecorder | None,
    ) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._schedule = cluster.schedule
        self._publishers = publishers
        self._subscribers = subscribers
        self._steps = steps
        self._duration_ns = duration_ns
        self._calm = calm
        self._origin_ns = 0
        self._damages: list[_Damage] = []
        self._at_risk: list[tuple[ClientId, ClientId, int]] = []
        self._away: dict[ClientId, None] = {}
        self._story: list[str] = []

    def run(self) -> SimulatedVerdict:
        recorder = self._recorder
        if recorder is not None:
            recorder.began(lambda: self._schedule.now_ns)
            recorder.phase("deploy")
        cluster = self._cluster.start()
        for publisher in self._publishers:
            cluster.client(publisher.name, publisher.broker, publishes=True)
        for subscriber in self._subscribers:
            if subscriber.subscribes_ns is None:
                self._subscribe(subscriber)
        cluster.run_until_quiet()
        self._origin_ns = self._schedule.now_ns
        for subscriber in self._subscribers:
            if subscriber.subscribes_ns is not None:
                self._run_at(
                    self._origin_ns + subscriber.subscribes_ns, self._subscribe, subscriber
                )
            for from_ns, to_ns in subscriber.absences:
                self._run_at(
                    self._origin_ns + from_ns, self._disconnect, subscriber, to_ns - from_ns
                )
        if recorder is not None:
            recorder.phase("measure")
            self._open_window()
        for publisher in self._publishers:
            self._publish_from(publisher, iter(publisher.offsets_ns))
        for step in self._steps:
            if step.at_ns is not None:
                self._run_at(self._origin_ns + step.at_ns + step.delay_ns, self._apply, step)
        end_ns = self._origin_ns + self._duration_ns
        cluster.run_for((end_ns - self._schedule.now_ns) / SECOND_NS)
        if recorder is not None:
            recorder.phase("drain")
            self._publish_fences()
        while self._schedule.now_ns < end_ns + DRAIN_NS and not self._is_done():
            cluster.run_for(_LOOK_NS / SECOND_NS)
        if recorder is not None:
            recorder.phase("end")
        cluster.oracle.judge_end()
        return self._verdict()

    def _subscribe(self, subscriber: SimulatedSubscriber) -> None:
        if self._recorder is not None:
            self._recorder.on_subscribing(subscriber.name)
        self._cluster.subscribe(subscriber.broker, subscriber.predicate, subscriber.name)

    def _open_window(self) -> None:
        """Publish a fence at every publisher as soon as all subscriptions have started."""
        clients = self._cluster.clients
        if all(
            subscriber.name in clients and clients[subscriber.name].started_numbers
            for subscriber in self._subscribers
        ):
            self._publish_fences()
        else:
            self._run_at(self._schedule.now_ns + _LOOK_NS, self._open_window)

    def _publish_fences(self) -> None:
        assert self._recorder is not None, "fences are not defined"
        for publisher in self._publishers:
            sequence = self._cluster.clients[publisher.name].core.outgoing.next_sequence
            content = self._recorder.fence(publisher.name, sequence)
            self._cluster.publish_run(publisher.broker, [content], publisher.name)
            self._recorder.published(publisher.name, sequence, self._schedule.now_ns, fence=True)

    def _is_done(self) -> bool:
        return not self._cluster.oracle.obligations.describe_undelivered()

    # ------------------------------------------------------------ load

    def _publish_from(self, publisher: SimulatedPublisher, offsets: Iterable[int]) -> None:
        """Set a timer for the next publication only; there may be millions of publications."""
        offset_ns = next(iter(offsets), None)
        if offset_ns is None or offset_ns >= self._duration_ns:
            return

        def publish() -> None:
            sequence = self._cluster.clients[publisher.name].core.outgoing.next_sequence
            content = publisher.content(sequence)
            self._cluster.publish_run(publisher.broker, [content], publisher.name)
            self._count_risk(publisher.name, sequence)
            if self._recorder is not None:
                self._recorder.published(
                    publisher.name, sequence, self._origin_ns + offset_ns, fence=False
                )
            self._publish_from(publisher, offsets)

        self._run_at(self._origin_ns + offset_ns, publish)

    def _count_risk(self, publisher: ClientId, sequence: int) -> None:
        damages = [damage for damage in self._damages if damage.until_ns is None]
        if not damages and not self._away:
            return
        cluster = self._cluster
        start = cluster.clients[publisher].broker
        for subscriber in cluster.oracle.obligations.list_owed_subscribers(publisher, sequence):
            path = cluster.graph.path(start, cluster.clients[subscriber].broker)
            names = [cluster.topology.brokers[broker] for broker in path]
            is_cut_off = any(_leads_through(names, damage.brokers) for damage in damages)
            if is_cut_off or subscriber in self._away:
                self._at_risk.append((subscriber, publisher, sequence))

    # ------------------------------------------------------------ absences

    def _disconnect(self, subscriber: SimulatedSubscriber, length_ns: int) -> None:
        """Close the session of a subscriber, and keep the subscriber away for a while."""
        name, left_ns = subscriber.name, self._schedule.now_ns
        client = self._cluster.clients.get(name)
        if client is None:
            return  # it subscribes later
        self._away[name] = None
        self._cluster.network.close(client, client.broker, "closed_by_us")
        self._cluster.link(name, subscriber.broker).cut()
        self._run_at(left_ns + length_ns, self._connect, subscriber, left_ns)

    def _connect(self, subscriber: SimulatedSubscriber, left_ns: Instant) -> None:
        del self._away[subscriber.name]
        self._cluster.link(subscriber.name, subscriber.broker).heal()
        if self._recorder is not None:
            self._recorder.absence(subscriber.name, left_ns)

    # ------------------------------------------------------------ faults

    def _run_at(self, when_ns: int, action: Callable[..., None], *arguments: object) -> None:
        self._schedule.at(when_ns, action, *arguments)

    def _apply(self, step: SimulatedStep) -> None:
        self._report(f"{step.verb} {'-'.join(step.brokers)}")
        if step.verb == "cut" or VERB_TABLE[step.verb].signal:
            self._end_damage(step.brokers)  # held messages are lost
        if step.verb == "restart":
            self._end_damage(step.brokers)
        else:
            self._damages.append(_Damage(step.brokers, self._schedule.now_ns))
        if len(step.brokers) == 2:
            self._apply_to_link(step)
        else:
            self._apply_to_broker(step)
        self._reachable_brokers(step, "applied")
        if step.duration_ns is not None:
            self._run_at(self._schedule.now_ns + step.duration_ns, self._end, step)
        elif step.verb == "restart":
            self._await_recovery(step)
        else:
            self._reachable_brokers(step, "end")

    def _apply_to_broker(self, step: SimulatedStep) -> None:
        broker = self._cluster.broker(step.brokers[0])
        match step.verb:
            case "absorb":
                broker.absorb()
            case "send-omission":
                broker.omit_sends()
            case "freeze":
                broker.freeze()
            case verb if VERB_TABLE[verb].signal:
                broker.kill()
            case "restart":
                if broker.broker.alive:
                    broker.kill()
                broker.start()
            case _:
                raise AssertionError(f"no broker can {step.verb}")

    def _apply_to_link(self, step: SimulatedStep) -> None:
        link = self._cluster.link(*step.brokers)
        match step.verb:
            case "cut":
                link.cut("out" if step.one_way else "both")
            case "blackhole":
                link.blackhole("out" if step.one_way else "both")
            case "absorb":
                link.absorb()
            case _:
                raise AssertionError(f"no link can {step.verb}")

    def _end(self, step: SimulatedStep) -> None:
        if step.released:
            self._report(f"{step.verb} {'-'.join(step.brokers)} ends")
            if len(step.brokers) == 2:
                self._cluster.link(*step.brokers).heal()
            else:
                broker = self._cluster.broker(step.brokers[0])
                if broker.broker.alive:
                    broker.thaw() if step.verb == "freeze" else broker.release()
            self._end_damage(step.brokers)
        self._reachable_brokers(step, "end")
        if step.released:
            self._reachable_brokers(step, "healed")
            self._await_recovery(step)

    def _await_recovery(self, step: SimulatedStep) -> None:
        broker = self._cluster.broker(step.brokers[0]).broker
        if not broker.alive:
            return  # the restart step reports the recovery
        if broker.core.status().state == "running" and not self._cluster.waits.describe_unsettled():
            self._report(f"{'-'.join(step.brokers)} has recovered")
            self._reachable_brokers(step, "recovered")
        else:
            self._run_at(self._schedule.now_ns + _LOOK_NS, self._await_recovery, step)

    def _reachable_brokers(self, step: SimulatedStep, stage: str) -> None:
        if self._recorder is not None:
            self._recorder.fault(step.id, stage)
        for other in self._steps:
            stages = ("applied", "observed") if stage == "applied" else (stage,)
            if other.after is not None and other.after in [(step.id, name) for name in stages]:
                self._run_at(self._schedule.now_ns + other.delay_ns, self._apply, other)

    def _end_damage(self, brokers: tuple[str, ...]) -> None:
        for damage in self._damages:
            if damage.brokers == brokers and damage.until_ns is None:
                damage.until_ns = self._schedule.now_ns

    def _report(self, text: str) -> None:
        after_ns = self._schedule.now_ns - self._origin_ns
        self._story.append(f"{after_ns / SECOND_NS:8.3f} s  {text}")

    # ------------------------------------------------------------ judgement

    def _verdict(self) -> SimulatedVerdict:
        oracle = self._cluster.oracle
        recovered = sum(oracle.obligations.got(*delivery) for delivery in self._at_risk)
        counters = {
            "published": oracle.published_count,
            "owed": oracle.owed,
            "deliveries": oracle.deliveries,
            "at_risk": len(self._at_risk),
            "recovered": recovered,
            "withheld": oracle.notices.announced,
            "violations": sum(oracle.violations.values()),
            "simulated_ms": self._schedule.now_ns // MILLISECOND_NS,
        }
        if oracle.violations:
            value = "INVALID"
        elif not self._at_risk and not self._calm:
            value = "UNKNOWN"
        else:
            value = "VALID"
        trace = self._cluster.trace
        digest = trace.digest() if trace is not None else ""
        violations = tuple(oracle.first_violations)
        return SimulatedVerdict(value, violations, counters, digest, tuple(self._story))


def _leads_through(path: Sequence[str], brokers: tuple[str, ...]) -> bool:
    if len(brokers) == 1:
        return brokers[0] in path
    return any(set(pair) == set(brokers) for pair in pairwise(path))
