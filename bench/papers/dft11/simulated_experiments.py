"""Experiments with the protocol itself, on simulated brokers, at the papers' scale.

Every broker has a publisher and a subscriber for everything. All brokers connect in a whole tree.
Then brokers die for good, and deliveries of later publications are counted. The oracle judges every
delivery.

Clusters are built in worker processes, one per tree, δ and draw. Each point is measured in a fork
of the process with the prepared cluster, so that no set-up is repeated.

Paper: [DFT11] §IX-B, Fig. 10.
"""

import multiprocessing
import os
import select
import signal
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import NoReturn

from bench.papers.dft11.simulated_point import (
    Point,
    Row,
    SimulatedExperiment,
    disable_garbage_collection,
    draw_failed_brokers,
    set_up,
)
from bench.papers.experiments import ExperimentRecord, Progress, RunContext, SimulationFailed
from brokerd.overlay.generate import generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.simulator.search.workers import begin_worker, end_with_controller
from brokerd.simulator.world.cluster import SimulatedCluster


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


# --- One cluster, one point -----------------------------------------------------------------


RECORD = ExperimentRecord({"": SimulatedExperiment}, compute_rows, protocol="delta_tree")
