"""Experiments with the protocol itself, on simulated brokers, at the papers' scale.

Every broker has a publisher and a subscriber for everything. All brokers connect in a whole tree.
Then brokers die for good, and deliveries of later publications are counted. The oracle judges every
delivery.

Clusters are built in worker processes, one per tree, δ and draw. Each point is measured in a fork
of the process with the prepared cluster, so that no set-up is repeated.

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
from random import Random
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field, model_validator

from bench.papers.experiments import ExperimentRecord, Progress, RunContext, SimulationFailed
from bench.spec.experiment import ExperimentFile
from brokerd.model.identity import SourceId
from brokerd.overlay.generate import MAXIMUM_BROKERS, generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.overlay.topology import Topology
from brokerd.overlay.tree_section import MAXIMUM_DELTA
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.search.workers import begin_worker, end_with_controller
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes

SETTLE_S = 10
"""Time between failures and window, for failures before the window."""

LAST_WORD_S = 1
"""Time of the window after the last publication, for its deliveries."""

SET_UP_LIMIT_S = 600

Row = dict[str, Any]


class SimulatedExperiment(ExperimentFile):
    """A closed description of measures and trees.

    Attributes:
        figure: the figure of the experiment.
        question: deliveries (of publications past failures).
        shape: balanced-degree: no broker has more than `fanout` neighbours.
        failed: numbers of brokers that fail for good.
        fail: before the window, or during the first half of the window, at independent moments.
        measured_s: length of the window.
        publications_per_broker: publications of a live broker, at uniform random times of the
            window.
        runs: draws (of failures, publication times, and message latencies) per point.
        full_runs: draws per point for the full experiment.
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

    def scale(self) -> Row:
        return {"brokers": self.brokers, "runs": self.runs, "measured_s": self.measured_s}

    def build_topologies(self) -> Mapping[int, Topology]:
        deepest = max(self.deltas)
        return {
            fanout: generate_balanced_tree(self.brokers, fanout, deepest) for fanout in self.fanouts
        }


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The work of a worker process: a cluster, measured with every number of failures."""

    fanout: int
    delta: int
    run: int

    def __str__(self) -> str:
        return f"fan-out {self.fanout}, δ = {self.delta}, draw {self.run}"


def compute_rows(experiment: SimulatedExperiment, context: RunContext) -> dict[str, list[Row]]:
    """Return the rows of every table; equal experiments give equal rows but processor times.

    Raises:
        SimulationFailed: a worker process died or failed.
    """
    assert context.processes > 0, context.processes
    return _simulate(experiment, context.progress, context.processes) | _static_rows(experiment)


def draw_failed_brokers(
    experiment: SimulatedExperiment, fanout: int, failed: int, run: int
) -> list[int]:
    """Return the failing brokers of a draw, the same for every δ, in ascending order.

    The failures of a draw include the failures of the same draw with a smaller number. With few
    draws per point, a curve then shows the cost of more failures rather than the drawn brokers.
    """
    draw = Random(f"{experiment.seed}/{fanout}/{run}")
    return sorted(draw.sample(range(experiment.brokers), max(experiment.failed))[:failed])


def _static_rows(experiment: SimulatedExperiment) -> dict[str, list[Row]]:
    """Return the rows that need no simulation: failed brokers, and disconnected pairs."""
    failures: list[Row] = []
    connectivity: list[Row] = []
    for fanout in experiment.fanouts:
        graph = Connectivity(
            generate_balanced_tree(experiment.brokers, fanout, max(experiment.deltas))
        )
        for failed in experiment.failed:
            for run in range(experiment.runs):
                point = {"fanout": fanout, "failed": failed, "run": run}
                dead = draw_failed_brokers(experiment, fanout, failed, run)
                failures.append({**point, "brokers": dead})
                connectivity += [
                    {
                        **point,
                        "delta": delta,
                        "live_pairs": graph.live_pairs(dead),
                        "disconnected_pairs": graph.count_disconnected_pairs(dead, delta),
                    }
                    for delta in experiment.deltas
                ]
    return {"failures": failures, "connectivity": connectivity}


# --- The controller's side of the worker processes ------------------------------------------


def _simulate(
    experiment: SimulatedExperiment, progress: Progress, processes: int
) -> dict[str, list[Row]]:
    """Return the tables of all points, in the order of fan-out, δ, failed and draw."""
    waiting = [
        _Cluster(fanout, delta, run)
        for delta in sorted(experiment.deltas, reverse=True)  # longest simulations first
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
                    kind, result = ready.recv()
                except EOFError:
                    del working[ready]
                    _end(cluster, process)
                    continue
                if kind == "failed":
                    raise SimulationFailed(f"{cluster}: {result}")
                if kind == "point":
                    measured.append(result)
                progress.update(
                    {"points": f"{len(measured)}/{points}"}
                    | ({str(cluster): result} if kind == "at" else {})
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
    """Set up a cluster, then measure its points one after the other in forks of this process."""
    begin_worker()
    signalled, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    child, status = 0, 1
    try:
        with disable_garbage_collection():
            connection.send(("at", "setting up"))
            cluster = set_up(experiment, wanted.fanout, wanted.delta, wanted.run)
            for failed in sorted(experiment.failed):
                child = os.fork()
                if not child:
                    _measure_in_fork(connection, experiment, cluster, wanted, failed)
                ended = status_of(child, signalled)
                child = 0
                if ended:
                    break  # the fork has reported the reason, if possible
            else:
                status = 0
    except Exception:
        connection.send(("failed", traceback.format_exc()))
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os._exit(status)  # the release of a large cluster would take longer than a point


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
    """Wait for the end of a child process, and return its exit status.

    A signal just before the wait does not interrupt the wait, but its handler's byte in
    `signalled`, the pipe of `signal.set_wakeup_fd`, does.

    Raises:
        SystemExit: this process received a signal; the child may continue.
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
def disable_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector inside the block.

    Simulated brokers create few reference cycles, and so many objects that a third of the time
    would be spent in the collector.
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
    """Return a whole tree of brokers in a quiet state, with all subscriptions known everywhere.

    Args:
        assist: see DeltaTreeParameters; the paper has no relayed sessions.
    """
    topology = generate_balanced_tree(experiment.brokers, fanout, delta)
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
    return f"p-{broker}"


def subscriber_at(broker: str) -> str:
    return f"s-{broker}"


def _subscriber(cluster: SimulatedCluster, broker: str) -> dict[int, None]:
    return cluster.clients[subscriber_at(broker)].started_numbers


class Point:
    """A point of a figure: a number of failures in a prepared cluster.

    Only brokers that survive the window publish, and only deliveries at such brokers count.
    """

    def __init__(
        self, experiment: SimulatedExperiment, fanout: int, delta: int, failed: int, run: int
    ) -> None:
        self._experiment = experiment
        self._where = {"fanout": fanout, "delta": delta, "failed": failed, "run": run}
        self._dead = draw_failed_brokers(experiment, fanout, failed, run)
        self._live = [n for n in range(experiment.brokers) if n not in {*self._dead}]
        self._random = Random(f"{experiment.seed}/{fanout}/{failed}/{run}/instants")
        self._content = (encode_attributes({"n": 1}), bytes(experiment.payload_bytes))
        self._seconds: list[Row] = []
        self._brokers: list[Row] = []
        self._whole: Row = {}

    def measure(self, cluster: SimulatedCluster) -> Iterator[int]:
        """Let brokers fail and other brokers publish; yield at each second of the window."""
        began_s, events = time.process_time(), cluster.inspection.broker_events
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
        counts = {
            number: _count_received(cluster, topology.brokers[number]) for number in self._live
        }
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
                "deliveries": _count_received(cluster, topology.brokers[number]) - counts[number],
            }
            for number in self._live
        ]
        suppressed, unexplained = self._count_suppressed(cluster, counts)
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
            "broker_events": cluster.inspection.broker_events - events,
            "processor_s": round(time.process_time() - began_s, 3),
        }

    def tables(self) -> dict[str, list[Row]]:
        return {
            "simulated_points": [self._whole],
            "simulated_brokers": self._brokers,
            "simulated_seconds": self._seconds,
        }

    def _count_suppressed(
        self, cluster: SimulatedCluster, before: Mapping[int, int]
    ) -> tuple[int, int]:
        """Return the number of publications missed by live subscribers, and of unexplained misses.

        A barrier between live brokers explains a miss.
        """
        graph = Connectivity(cluster.topology)
        delta = int(self._where["delta"])
        reached = {
            number: {*graph.find_reached(number, self._dead, delta)} for number in self._live
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
        """Schedule the publications of every live publisher; return the number per second."""
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
    """Let a machine fail: the broker, its publisher and its subscriber."""
    cluster.broker(broker).kill()
    for client in (publisher_at(broker), subscriber_at(broker)):
        cluster.clients[client].leave()


def _deliveries(cluster: SimulatedCluster, broker: str) -> list[tuple[SourceId, int]]:
    """Return the deliveries of the only subscription at a broker, in order."""
    (received,) = cluster.clients[subscriber_at(broker)].received.values()
    return received


def _count_received(cluster: SimulatedCluster, broker: str) -> int:
    return len(_deliveries(cluster, broker))


RECORD = ExperimentRecord({"": SimulatedExperiment}, compute_rows, protocol="delta_tree")
