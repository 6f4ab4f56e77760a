"""Records of experiments without deployed brokers.

A paper's folder has one module per kind of experiment, named `*_experiments`, with a `RECORD`: the
models of its files, the function that computes its rows, and the marks of its runs.
`bench.papers.figure_experiments` finds the records and carries out any of them.
"""

import multiprocessing
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, get_args

from bench.spec.experiment import ExperimentFile, Kind, Row
from brokerd.overlay.topology import Topology
from brokerd.simulator.search.workers import begin_worker

Tables = Mapping[str, Iterable[Row]]
"""Rows by table."""
Point = dict[str, Any]
"""Columns that distinguish a point of an experiment."""
Draw = Callable[[Any, Point, int], Tables]
"""A function that computes the rows of one draw of a point."""


class Progress(Protocol):
    """A display of an experiment's progress."""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """Show a new phase, with the expected duration if there is an estimate."""

    def update(self, numbers: Mapping[str, Any]) -> None:
        """Show numbers."""


class NoProgress:
    """A display that shows nothing."""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """Show nothing."""

    def update(self, numbers: Mapping[str, Any]) -> None:
        """Show nothing."""


class SimulationFailed(Exception):
    """A simulation that ended without a result, with its message."""

    exit_status: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class RunContext:
    """The environment of a run.

    Attributes:
        runs: folder of run folders.
        topologies: topologies of the experiment, as the run's folder records them.
        processes: number of simultaneous simulations.
    """

    runs: Path
    topologies: Mapping[Any, Topology]
    progress: Progress
    processes: int


@dataclass(frozen=True, slots=True)
class ExperimentRecord:
    """A kind of experiment without deployed brokers.

    Attributes:
        models: models of the files by question; of a kind without questions, one under "".
        rows: computes the rows of all tables of `results.tables.schema`.
        kind: kind of the runs.
        protocol: the protocol of all brokers; None for none or several.
        is_measured: True if the runs measure this machine, so that rows do not repeat.
    """

    models: Mapping[str, type[ExperimentFile]]
    rows: Callable[[Any, RunContext], Tables]
    kind: Kind = "simulation"
    protocol: str | None = None
    is_measured: bool = False

    @property
    def schema(self) -> str:
        """Schema of the files, which is the same for all questions."""
        model = next(iter(self.models.values()))
        (schema,) = get_args(model.model_fields["schema_"].annotation)
        return str(schema)


def draw_points(experiment: Any, draw: Draw, context: RunContext) -> Tables:
    """Return the rows of all draws of all points, in the order of points and draws.

    The experiment has `points()` and `runs`. With several processes, `draw` must be a function of
    a module, because workers import it.

    Raises:
        SimulationFailed: a draw failed; names it.
    """
    assert context.processes > 0, context.processes
    progress = context.progress
    draws = [(point, run) for point in experiment.points() for run in range(experiment.runs)]
    progress.phase(f"simulating {experiment.figure}")
    progress.update({"draws": f"0/{len(draws)}"})
    tables: dict[str, list[Row]] = {}
    for found in _outcomes(experiment, draw, draws, context):
        for name, rows in found.items():
            tables.setdefault(name, []).extend(rows)
    return tables


def _outcomes(
    experiment: Any,
    draw: Draw,
    draws: list[tuple[Point, int]],
    context: RunContext,
) -> list[Tables]:
    """Return the tables of each draw, in the order of the draws."""
    progress, found = context.progress, list[Tables]()
    if context.processes == 1:
        for done, each in enumerate(draws, 1):
            found.append(_check(each, _attempt(draw, experiment, *each)))
            progress.update({"draws": f"{done}/{len(draws)}"})
        return found
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(context.processes, spawning, initializer=begin_worker)
    try:
        futures: list[Future[Tables | str]] = [
            pool.submit(_attempt, draw, experiment, *each) for each in draws
        ]
        for done, future in enumerate(as_completed(futures), 1):
            _check(draws[futures.index(future)], future.result())
            progress.update({"draws": f"{done}/{len(draws)}"})
    finally:
        for process in [*(pool._processes or {}).values()]:
            if not all(future.done() for future in futures):
                process.terminate()
        pool.shutdown(cancel_futures=True)
    return [_check(each, future.result()) for each, future in zip(draws, futures, strict=True)]


def _attempt(
    draw: Draw,
    experiment: Any,
    point: Point,
    run: int,
) -> Tables | str:
    """Return the tables of one draw, or the traceback of its failure."""
    try:
        return draw(experiment, point, run)
    except Exception:
        return traceback.format_exc()


def _check(draw: tuple[Point, int], found: Tables | str) -> Tables:
    if isinstance(found, str):
        raise SimulationFailed(f"{draw}: {found}")
    return found
