"""Experiments in which the protocol itself runs, on simulated brokers, at the papers' scale.

Every broker has a publisher and a subscriber that wants everything. They meet in a whole tree;
then brokers die for good, and what is published afterwards is counted where it arrives. The
oracle judges every single delivery meanwhile.

Clusters are built in worker processes, one per tree, δ and draw; each point is measured in a
process forked from the cluster that has been set up, so that nothing is set up twice.

Paper: [DFT11] §IX-B, Fig. 10.
"""

import gc
import multiprocessing
import os
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from random import Random
from types import FrameType
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Protocol

from pydantic import Field, model_validator

from bench.run.experiment_folder import ExperimentFile, write_experiment
from brokerd.model.identity import SourceId
from brokerd.overlay.connectivity import Connectivity
from brokerd.overlay.generate import MAXIMUM_BROKERS, balanced_tree
from brokerd.overlay.tree_section import MAXIMUM_DELTA
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.search.workers import begin_worker, end_with_controller
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes

SCHEMA = "pubsubctl/simulated-experiment/1"

SETTLE_S = 10
"""Between the failures and the window, where they come before it."""

LAST_WORD_S = 1
"""What the last publication of a window has left to arrive in it."""

SET_UP_LIMIT_S = 600

Row = dict[str, Any]


class SimulatedExperiment(ExperimentFile):
    """What is measured on which trees, closed: the file says it all.

    Attributes:
        figure: what is drawn from it.
        question: deliveries (what arrives of what is published past failures).
        shape: balanced-degree: no broker has more than `fanout` neighbours.
        failed: how many brokers fail, for good.
        fail: before the window, or during its first half, each at its own moment.
        measured_s: how long the window is.
        publications_per_broker: of each live broker, spread evenly at random over the window.
        runs: draws (of who fails, who publishes when, and how long messages take) per point.
        full_runs: the same where the whole experiment is asked for.
    """

    schema_: Annotated[Literal["pubsubctl/simulated-experiment/1"], Field(alias="schema")]
    question: Literal["deliveries"]
    shape: Literal["balanced-degree"] = "balanced-degree"
    brokers: Annotated[int, Field(ge=2, le=MAXIMUM_BROKERS, strict=True)]
    fanouts: Annotated[
        list[Annotated[int, Field(ge=2, le=1_000, strict=True)]], Field(min_length=1)
    ]
    deltas: Annotated[
        list[Annotated[int, Field(ge=0, le=MAXIMUM_DELTA, strict=True)]], Field(min_length=1)
    ]
    failed: Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]
    fail: Literal["before", "during"] = "before"
    measured_s: Annotated[int, Field(ge=2, le=3600, strict=True)]
    publications_per_broker: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 1
    payload_bytes: Annotated[int, Field(ge=0, le=65_536, strict=True)] = 100
    runs: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    full_runs: Annotated[int, Field(ge=1, le=1000, strict=True)] = 5

    @model_validator(mode="after")
    def _sound(self) -> "SimulatedExperiment":
        if max(self.failed) > self.brokers - 2:
            raise ValueError(
                f"failed = {max(self.failed)} of {self.brokers} brokers; two must be left"
            )
        for name in ("fanouts", "deltas", "failed"):
            values = getattr(self, name)
            if len({*values}) < len(values):
                raise ValueError(f"{name} = {values}: the same one twice")
        return self


class Progress(Protocol):
    """Whom to tell how far an experiment has come."""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """A new phase begins, which will take about so long (None: nobody knows)."""

    def update(self, numbers: Mapping[str, Any]) -> None:
        """What is known now."""


class SimulationFailed(Exception):
    """A process that simulates ended without an answer; says what it had to say."""

    exit_status: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class _Cluster:
    """What one worker process sets up, and measures every number of failures on."""

    fanout: int
    delta: int
    run: int

    def __str__(self) -> str:
        return f"fan-out {self.fanout}, δ = {self.delta}, draw {self.run}"


def run_simulated_experiment(
    experiment: SimulatedExperiment,
    runs: Path,
    progress: Progress,
    processes: int,
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Carry out an experiment; the same experiment gives the same rows but for processor times.

    Args:
        runs: where run folders lie.
        processes: how many clusters are simulated at the same time.

    Returns:
        The new run's folder.

    Raises:
        SimulationFailed: a worker process died or failed.
    """
    assert processes > 0, processes
    return write_experiment(
        experiment,
        runs,
        "simulation",
        "delta_tree",
        {
            "brokers": experiment.brokers,
            "runs": experiment.runs,
            "measured_s": experiment.measured_s,
        },
        labels,
        {
            fanout: balanced_tree(experiment.brokers, fanout, max(experiment.deltas))
            for fanout in experiment.fanouts
        },
        lambda: _simulate(experiment, progress, processes) | _known_rows(experiment),
    )


def failed_brokers(
    experiment: SimulatedExperiment, fanout: int, failed: int, run: int
) -> list[int]:
    """The brokers that fail in one draw, the same ones for every δ, in ascending order.

    Those that fail in a draw with fewer failures fail here too: with few draws per point, a curve
    is to show what more failures cost, not which brokers were drawn.
    """
    draw = Random(f"{experiment.seed}/{fanout}/{run}")
    return sorted(draw.sample(range(experiment.brokers), max(experiment.failed))[:failed])


def _known_rows(experiment: SimulatedExperiment) -> dict[str, list[Row]]:
    """What is known without any broker: who fails, and whom that cuts off from whom."""
    failures: list[Row] = []
    connectivity: list[Row] = []
    for fanout in experiment.fanouts:
        graph = Connectivity(balanced_tree(experiment.brokers, fanout, max(experiment.deltas)))
        for failed in experiment.failed:
            for run in range(experiment.runs):
                point = {"fanout": fanout, "failed": failed, "run": run}
                dead = failed_brokers(experiment, fanout, failed, run)
                failures.append({**point, "brokers": dead})
                connectivity += [
                    {
                        **point,
                        "delta": delta,
                        "live_pairs": graph.live_pairs(dead),
                        "disconnected_pairs": graph.disconnected_pairs(dead, delta),
                    }
                    for delta in experiment.deltas
                ]
    return {"failures": failures, "connectivity": connectivity}


# --- The controller's side of the worker processes ------------------------------------------


def _simulate(
    experiment: SimulatedExperiment, progress: Progress, processes: int
) -> dict[str, list[Row]]:
    """The tables of all points, each in the order of fan-out, δ, failed and draw."""
    waiting = [
        _Cluster(fanout, delta, run)
        for delta in sorted(experiment.deltas, reverse=True)  # the longest first
        for fanout in experiment.fanouts
        for run in range(experiment.runs)
    ]
    points = len(waiting) * len(experiment.failed)
    measured: list[dict[str, list[Row]]] = []
    working: dict[Connection, tuple[_Cluster, SpawnProcess]] = {}
    progress.phase(f"simulating {experiment.brokers} brokers")
    try:
        while waiting or working:
            while waiting and len(working) < processes:
                connection, started = _start(experiment, waiting[0])
                working[connection] = (waiting.pop(0), started)
            for ready in wait([*working]):
                assert isinstance(ready, Connection), ready
                cluster, process = working[ready]
                try:
                    kind, told = ready.recv()
                except EOFError:
                    del working[ready]
                    _end(cluster, process)
                    continue
                if kind == "failed":
                    raise SimulationFailed(f"{cluster}: {told}")
                if kind == "point":
                    measured.append(told)
                progress.update(
                    {"points": f"{len(measured)}/{points}"}
                    | ({str(cluster): told} if kind == "at" else {})
                )
    finally:
        for _, process in working.values():
            process.terminate()
        for _, process in working.values():
            process.join()
    tables: dict[str, list[Row]] = {}
    for point in measured:
        for name, rows in point.items():
            tables.setdefault(name, []).extend(rows)
    for rows in tables.values():
        rows.sort(key=lambda row: [row[key] for key in ("fanout", "delta", "failed", "run")])
    return tables


def _start(experiment: SimulatedExperiment, cluster: _Cluster) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, experiment, cluster), daemon=True)
    process.start()
    there.close()
    return here, process


def _end(cluster: _Cluster, process: SpawnProcess) -> None:
    process.join()
    if process.exitcode:
        raise SimulationFailed(f"{cluster}: its process ended with {process.exitcode}")


# --- The worker processes -------------------------------------------------------------------


def _work(connection: Connection, experiment: SimulatedExperiment, wanted: _Cluster) -> NoReturn:
    """Set a cluster up, then measure one point after the other, each in a fork of this process."""
    begin_worker()
    signalled, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    child, status = 0, 1
    try:
        with no_garbage_collection():
            connection.send(("at", "setting up"))
            cluster = set_up(experiment, wanted.fanout, wanted.delta, wanted.run)
            for failed in sorted(experiment.failed):
                child = os.fork()
                if not child:
                    _measure_in_fork(connection, experiment, cluster, wanted, failed)
                ended = status_of(child, signalled)
                child = 0
                if ended:
                    break  # the fork has said why, if it could
            else:
                status = 0
    except Exception:
        connection.send(("failed", traceback.format_exc()))
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os._exit(status)  # taking a large cluster apart would last longer than a point


def _measure_in_fork(
    connection: Connection,
    experiment: SimulatedExperiment,
    cluster: SimulatedCluster,
    wanted: _Cluster,
    failed: int,
) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_controller()
        point = Point(experiment, wanted.fanout, wanted.delta, failed, wanted.run)
        for second in point.measure(cluster):
            if second % 5 == 0:
                connection.send(("at", f"{failed} failed, {second} s"))
        connection.send(("point", point.tables()))
        status = 0
    except Exception:
        connection.send(("failed", traceback.format_exc()))
    finally:
        os._exit(status)


def status_of(child: int, signalled: int) -> int:
    """The exit status of a child process, which is waited for until it ends.

    A signal that comes just before the wait does not interrupt it; what its handler has written
    into `signalled`, the pipe of `signal.set_wakeup_fd`, does.

    Raises:
        SystemExit: this process was sent a signal; the child may go on.
    """
    child_ended = os.pidfd_open(child)
    try:
        readable, _, _ = select.select([child_ended, signalled], [], [])
    finally:
        os.close(child_ended)
    if signalled in readable:
        raise SystemExit(128 + os.read(signalled, 1)[0])
    return os.waitpid(child, 0)[1]


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Let nobody look for reference cycles meanwhile.

    Simulated brokers leave few, and hold so much that a third of the time would go into looking.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# --- One cluster, one point -----------------------------------------------------------------


def set_up(
    experiment: SimulatedExperiment, fanout: int, delta: int, run: int, assist: str = "off"
) -> SimulatedCluster:
    """A whole tree of brokers, with all subscriptions known everywhere and nothing under way.

    Args:
        assist: see DeltaTreeParameters; the paper has no relayed sessions.
    """
    topology = balanced_tree(experiment.brokers, fanout, delta)
    seed = Random(f"{experiment.seed}/{fanout}/{delta}/{run}/latencies").getrandbits(32)
    parameters = DeltaTreeParameters(delta=topology.delta, assist=assist)
    cluster = SimulatedCluster(
        topology, "delta_tree", seed=seed, parameters=parameters, strict=False, trace=False
    ).start()
    cluster.run_until_quiet(SET_UP_LIMIT_S)
    for broker in topology.brokers:
        cluster.client(publisher_at(broker), broker, publishes=True)
        cluster.subscribe(broker, "true", client=subscriber_at(broker))
    cluster.run_until_quiet(SET_UP_LIMIT_S)
    waiting = [broker for broker in topology.brokers if not _subscriber(cluster, broker)]
    assert not waiting, f"subscriptions at {waiting[:10]} have not started"
    return cluster


def publisher_at(broker: str) -> str:
    """The name of the publisher at a broker."""
    return f"p-{broker}"


def subscriber_at(broker: str) -> str:
    """The name of the subscriber at a broker."""
    return f"s-{broker}"


def _subscriber(cluster: SimulatedCluster, broker: str) -> dict[int, None]:
    return cluster.clients[subscriber_at(broker)].started_numbers


class Point:
    """One point of a figure: a number of failures in a cluster that has been set up.

    Only brokers that outlive the window publish, and only what reaches such brokers counts.
    """

    def __init__(
        self, experiment: SimulatedExperiment, fanout: int, delta: int, failed: int, run: int
    ) -> None:
        self._experiment = experiment
        self._where = {"fanout": fanout, "delta": delta, "failed": failed, "run": run}
        self._dead = failed_brokers(experiment, fanout, failed, run)
        self._live = [n for n in range(experiment.brokers) if n not in {*self._dead}]
        self._random = Random(f"{experiment.seed}/{fanout}/{failed}/{run}/instants")
        self._content = (encode_attributes({"n": 1}), bytes(experiment.payload_bytes))
        self._seconds: list[Row] = []
        self._brokers: list[Row] = []
        self._whole: Row = {}

    def measure(self, cluster: SimulatedCluster) -> Iterator[int]:
        """Let the brokers fail and the others publish; yields at each second of the window."""
        began_s, events = time.process_time(), cluster.broker_events
        schedule, topology = cluster.schedule, cluster.topology
        sent = cluster.network.counters["messages_sent"]
        window_ns = self._experiment.measured_s * SECOND_NS
        deaths = [int(self._random.random() * window_ns / 2) for _ in self._dead]
        if self._experiment.fail == "before":
            for number in self._dead:
                _end_for_good(cluster, topology.brokers[number])
            cluster.run_for(SETTLE_S)
        else:
            for number, when_ns in zip(self._dead, deaths, strict=True):
                schedule.at(
                    schedule.now_ns + when_ns, _end_for_good, cluster, topology.brokers[number]
                )
        counts = {number: _received(cluster, topology.brokers[number]) for number in self._live}
        published_at = self._plan_publications(cluster)
        delivered = cluster.oracle.deliveries
        for second in range(self._experiment.measured_s):
            cluster.run_for(1)
            now = cluster.oracle.deliveries
            self._seconds.append(
                {
                    **self._where,
                    "second": second,
                    "published": published_at.get(second, 0),
                    "deliveries": now - delivered,
                }
            )
            delivered = now
            yield second
        self._brokers = [
            {
                **self._where,
                "broker": number,
                "published": self._experiment.publications_per_broker,
                "deliveries": _received(cluster, topology.brokers[number]) - counts[number],
            }
            for number in self._live
        ]
        suppressed, unexplained = self._suppressed(cluster, counts)
        after = cluster.statistics()
        self._whole = {
            **self._where,
            "live_brokers": len(self._live),
            "published": sum(published_at.values()),
            "deliveries": sum(row["deliveries"] for row in self._brokers),
            "violations": sum(cluster.oracle.violations.values()),
            "violated": sorted(cluster.oracle.violations),
            "withheld": after.get("publications_withheld", 0),
            "suppressed": suppressed,
            "unexplained": unexplained,
            "duplicates": after["duplicates_received"],
            "resent": after["resent_publications"],
            "messages": cluster.network.counters["messages_sent"] - sent,
            "broker_events": cluster.broker_events - events,
            "processor_s": round(time.process_time() - began_s, 3),
        }

    def tables(self) -> dict[str, list[Row]]:
        """The rows that were measured, by table."""
        return {
            "simulated_points": [self._whole],
            "simulated_brokers": self._brokers,
            "simulated_seconds": self._seconds,
        }

    def _suppressed(self, cluster: SimulatedCluster, before: Mapping[int, int]) -> tuple[int, int]:
        """Publications that a live subscriber did not get, and those no barrier accounts for."""
        graph = Connectivity(cluster.topology)
        delta = int(self._where["delta"])
        reached = {
            number: {*graph.reached_from(number, self._dead, delta)} for number in self._live
        }
        suppressed = unexplained = 0
        for number in self._live:
            got = Counter(
                source.broker
                for source, _ in _deliveries(cluster, cluster.topology.brokers[number])[
                    before[number] :
                ]
            )
            for publisher in self._live:
                missing = self._experiment.publications_per_broker - got[publisher]
                suppressed += missing
                unexplained += missing * (publisher in reached[number])
        return suppressed, unexplained

    def _plan_publications(self, cluster: SimulatedCluster) -> dict[int, int]:
        """Give every live publisher its instants; how many there are in each second."""
        span_ns = (self._experiment.measured_s - LAST_WORD_S) * SECOND_NS
        counts: dict[int, int] = {}
        for number in self._live:
            broker = cluster.topology.brokers[number]
            for _ in range(self._experiment.publications_per_broker):
                offset_ns = int(self._random.random() * span_ns)
                second = offset_ns // SECOND_NS
                counts[second] = counts.get(second, 0) + 1
                cluster.schedule.at(
                    cluster.schedule.now_ns + offset_ns, self._publish, cluster, broker
                )
        return counts

    def _publish(self, cluster: SimulatedCluster, broker: str) -> None:
        cluster.publish_run(broker, [self._content], publisher_at(broker))


def _end_for_good(cluster: SimulatedCluster, broker: str) -> None:
    """A machine fails: the broker, its publisher and its subscriber."""
    cluster.broker(broker).kill()
    for client in (publisher_at(broker), subscriber_at(broker)):
        cluster.clients[client].leave()


def _deliveries(cluster: SimulatedCluster, broker: str) -> list[tuple[SourceId, int]]:
    """What the one subscription there has got, in order."""
    (received,) = cluster.clients[subscriber_at(broker)].received.values()
    return received


def _received(cluster: SimulatedCluster, broker: str) -> int:
    return len(_deliveries(cluster, broker))
