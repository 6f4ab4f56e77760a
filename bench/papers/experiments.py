"""Experiments of papers' figures: records without deployed brokers, and files by name.

An experiment is a file in `bench/experiments`. Its schema selects the record that carries it out,
without deployed brokers, or the runs of deployed brokers (`bench.spec.experiment`).

A paper's folder has one module per kind of experiment, named `*_experiments`, with a `RECORD`: the
models of its files, the function that computes its rows, and the marks of its runs.
"""

import multiprocessing
import pkgutil
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, get_args

import bench.papers
from bench.spec.experiment import SCHEMA as DEPLOYED_SCHEMA
from bench.spec.experiment import ExperimentFile, Kind, Row, write_experiment
from bench.spec.named_files import find_named_file
from bench.spec.spec import BENCH_FOLDER, find_file, read_toml
from bench.spec.validation import SpecError, validate
from brokerd.overlay.topology import Topology, nearest
from brokerd.simulator.search.workers import begin_worker
from brokerd.text import kind_of_schema

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
        """Show numbers of the current phase, by name."""


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


EXPERIMENTS = BENCH_FOLDER / "experiments"


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment of a paper, as its file announces it; the file is not validated.

    Attributes:
        name: name of the experiment, and of its runs.
        figures: figures that are drawn from its runs; the first is its own.
        record: carries it out without deployed brokers; None for runs of deployed brokers.
    """

    path: Path
    name: str
    figures: tuple[str, ...]
    record: ExperimentRecord | None

    @property
    def is_deployed(self) -> bool:
        """True if the experiment runs deployed brokers."""
        return self.record is None

    @property
    def is_measured(self) -> bool:
        """True if the experiment measures this machine, without simulation or hosts."""
        return self.record is not None and self.record.is_measured


@cache
def records() -> Mapping[str, ExperimentRecord]:
    """Return the records of all kinds of experiments without deployed brokers, by schema."""
    found = {}
    for module in pkgutil.walk_packages(bench.papers.__path__, f"{bench.papers.__name__}."):
        if module.name.endswith("_experiments"):
            record: ExperimentRecord = import_module(module.name).RECORD
            found[record.schema] = record
    return found


def experiments() -> tuple[Experiment, ...]:
    """Return the experiments of `bench/experiments`, in the order of their names."""
    return tuple(_announce(path) for path in sorted(EXPERIMENTS.glob("*.toml")))


def find_experiment(name: str | Path) -> Experiment:
    """Return the experiment in a file, for a figure (`dft11.fig9`), or with this bare name.

    Raises:
        SpecError: no such experiment, or a file with another schema; names valid values.
    """
    text = str(name)
    if "/" in text or text.endswith(".toml"):
        return _announce(find_file(name, EXPERIMENTS, "experiment"))
    path = find_named_file(text.replace(".", "-"), EXPERIMENTS)
    if path is not None:
        return _announce(path)
    ours = experiments()
    for each in reversed(ours):
        if text in each.figures:
            return each
    known = [*{figure for each in ours for figure in each.figures}, *(each.name for each in ours)]
    raise SpecError(f"no figure or experiment called {text!r}{nearest(text, sorted(known))}")


def _announce(path: Path) -> Experiment:
    values = read_toml(path)
    schema = values.get("schema")
    if schema is None:
        raise SpecError(f"{path}: key 'schema' is missing")
    kind = kind_of_schema(schema)
    if kind and not kind.endswith("experiment"):
        raise SpecError(f"{path}: schema = {schema!r}: the file is of kind {kind}")
    if not isinstance(schema, str) or schema not in (DEPLOYED_SCHEMA, *records()):
        known = (*records(), DEPLOYED_SCHEMA)
        raise SpecError(f"{path}: schema = {schema!r}{nearest(str(schema), known)}")
    further = values.get("further_figures", ())
    figures = (str(values.get("figure")), *(further if isinstance(further, list) else ()))
    return Experiment(path, str(values.get("name", path.stem)), figures, records().get(schema))


def figures(*, measured: bool = False) -> list[str]:
    """Return the figures with a simulated experiment, or with one that measures this machine."""
    chosen = (each for each in experiments() if not each.is_deployed)
    return sorted({each.figures[0] for each in chosen if each.is_measured == measured})


def list_measured_figures() -> list[str]:
    """Return the figures with an experiment that measures this machine, without simulation."""
    return figures(measured=True)


def is_figure_experiment(path: Path) -> bool:
    """Return True if a file is an experiment without deployed brokers."""
    return path.is_file() and read_toml(path).get("schema") in [*records()]


def is_simulated(path: Path) -> bool:
    """Return True if a file is an experiment with exactly repeatable rows."""
    return is_figure_experiment(path) and not records()[read_toml(path)["schema"]].is_measured


def load_figure_experiment(name: str | Path) -> ExperimentFile:
    """Return the validated file of an experiment without deployed brokers.

    Raises:
        SpecError: no experiment, or an invalid experiment; names file, key, value and valid values.
    """
    found = find_experiment(name)
    if found.record is None:
        raise SpecError(
            f"{found.path}: schema = {DEPLOYED_SCHEMA!r}{nearest(DEPLOYED_SCHEMA, [*records()])}"
        )
    values, models = read_toml(found.path), found.record.models
    question = str(values.get("question")) if "" not in models else ""
    if question not in models:
        raise SpecError(f"{found.path}: question = {question!r}{nearest(question, [*models])}")
    return validate(models[question], values, str(found.path))


def with_all_draws(experiment: ExperimentFile) -> ExperimentFile:
    """Return the experiment with all its draws.

    Raises:
        SpecError: the experiment has no larger size than the usual size.
    """
    full_runs = getattr(experiment, "full_runs", None)
    if full_runs is None:
        draws = getattr(experiment, "runs", getattr(experiment, "repetitions", 1))
        raise SpecError(f"--full: {experiment.figure} always makes all {draws} draws")
    return experiment.model_copy(update={"runs": full_runs})


def run_figure_experiment(
    experiment: ExperimentFile,
    runs: Path,
    progress: Progress | None = None,
    processes: int = 1,
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Carry out an experiment without deployed brokers.

    Args:
        runs: folder of run folders.
        progress: display; None for none.
        processes: number of simultaneous simulations.
        labels: labels of the run.

    Returns:
        The folder of the new run.

    Raises:
        SimulationFailed: a simulation failed; names its draw.
    """
    record, topologies = records()[experiment.schema_], experiment.build_topologies()
    runs.mkdir(parents=True, exist_ok=True)
    context = RunContext(runs, topologies, progress or NoProgress(), processes)
    return write_experiment(
        experiment,
        runs,
        record.kind,
        record.protocol,
        topologies,
        lambda: record.rows(experiment, context),
        labels=labels or {},
    )
