"""Runs of the experiments on behaviour around a failure, on simulated brokers."""

import multiprocessing
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from bench.papers.dft11.behaviour_experiments import BehaviourExperiment, Row, Tables
from bench.papers.dft11.behaviours import tell
from bench.papers.dft11.simulated_experiments import Progress, SimulationFailed
from bench.run.experiment_folder import write_experiment
from brokerd.simulator.search.workers import begin_worker


def run_behaviour_experiment(
    experiment: BehaviourExperiment,
    runs: Path,
    progress: Progress,
    processes: int,
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Run an experiment and return the new run's folder.

    The same experiment gives the same rows.

    Args:
        runs: the folder of all runs.
        processes: the number of draws that are simulated at the same time.

    Raises:
        SimulationFailed: a draw failed; names it.
    """
    assert processes > 0, processes
    return write_experiment(
        experiment,
        runs,
        "behaviour",
        "delta_tree",
        experiment.scale(),
        labels,
        {},
        lambda: _draw_all(experiment, progress, processes),
    )


def _draw_all(experiment: BehaviourExperiment, progress: Progress, processes: int) -> Tables:
    """Return the rows of all draws by table, in the order of points and draws."""
    draws = [(point, run) for point in experiment.points() for run in range(experiment.runs)]
    progress.phase(f"simulating {experiment.figure}")
    progress.update({"draws": f"0/{len(draws)}"})
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=begin_worker)
    try:
        futures: list[Future[Tables | str]] = [
            pool.submit(_draw, experiment, point, run) for point, run in draws
        ]
        for done, future in enumerate(as_completed(futures), 1):
            found = future.result()
            if isinstance(found, str):
                raise SimulationFailed(f"{draws[futures.index(future)]}: {found}")
            progress.update({"draws": f"{done}/{len(draws)}"})
    finally:
        for process in [*(pool._processes or {}).values()]:
            if not all(future.done() for future in futures):
                process.terminate()
        pool.shutdown(cancel_futures=True)
    tables: Tables = {}
    for future in futures:
        found = future.result()
        assert not isinstance(found, str), found
        for name, rows in found.items():
            tables.setdefault(name, []).extend(rows)
    return tables


def _draw(experiment: BehaviourExperiment, point: Row, run: int) -> Tables | str:
    """Return the tables of one draw, or the traceback of its failure."""
    try:
        return tell(experiment, point, run)
    except Exception:
        return traceback.format_exc()
