"""Experiments of papers: the runs behind a figure, real or simulated, then the figure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from bench.papers.experiments import (
    EXPERIMENTS,
    is_figure_experiment,
    list_measured_figures,
    load_figure_experiment,
    run_figure_experiment,
    with_all_draws,
)
from bench.papers.experiments import figures as figures_of
from bench.spec.experiment import figures as deployed_figures
from bench.spec.experiment import is_deployed_experiment, load_deployed_experiment, points_of
from bench.spec.keys import Overrides
from brokerd.text import counted, nearest, read_utf8, toml_text
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.runs.plan import (
    Run,
    SeriesPlan,
    announce,
    deployment_plan,
    expect_time,
    plan_faults_of_points,
)
from pubsubctl.runs.repetitions import Design, run_series
from pubsubctl.runs.run_changes import refresh_run_index
from pubsubctl.runs.runs import manifest, refuse_archive
from pubsubctl.runs.series import Habits

if TYPE_CHECKING:
    from pubsubctl.runs.verdicts import JudgedRun

Kind = Literal["deployed", "measured", "simulated", "study"]

KINDS: Final[Mapping[Kind, str]] = {
    "deployed": "an experiment on brokers",
    "measured": "an experiment on this machine without brokers",
    "simulated": "a simulated experiment",
    "study": "a study",
}

PLACES: Final[Mapping[Kind, str]] = {
    "deployed": "brokers",
    "measured": "this machine",
    "simulated": "simulator",
    "study": "simulator",
}

PLAN_SCHEMA: Final = "pubsubctl/experiment-plan/1"
STUDIES: Final[Mapping[str, str]] = {
    "dft11.dedupe": "Ways to detect duplicates: tolerated failures, and costs.",
    "dft11.stalls": "Publications that wait for links that stay down.",
    "dft11.speed": "Events of brokers per second of processor time of the simulator.",
    "ges.routing": "Links that publications cross, and routes of drawn hierarchies.",
}
"""Simulated experiments that print a table and draw no figure."""

_FIGURE: Final = re.compile(
    r"(control|dft11|ds03|gd02|ges|mp22)\.[a-z0-9]+|[a-z0-9]+\.(fig|table)\d+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest:
    """An experiment without a deployment, as the command line describes it.

    Attributes:
        full: make all draws.
        figure: draw the figure after the runs.
        processes: the number of simultaneous simulations.
        results: the folder of runs; None for the project's.
        labels: labels of the run.
    """

    name: str
    full: bool
    figure: bool
    processes: int
    results: Path | None
    labels: Mapping[str, str] = field(default_factory=dict)


def experiment_names() -> dict[str, Kind]:
    """Return the kind of each experiment by name."""
    names: dict[str, Kind] = dict.fromkeys(figures_of(), "simulated")
    names |= dict.fromkeys(list_measured_figures(), "measured")
    names |= dict.fromkeys(deployed_figures(), "deployed")
    names |= dict.fromkeys(STUDIES, "study")
    return dict(sorted(names.items()))


def describe_figures() -> dict[str, str]:
    """Return a sentence on each figure, and on each study.

    It is that of the function which draws the figure; that of the experiment's file, if the
    function has no sentence, or draws another figure, too, which comes first.
    """
    from results.figures.catalogue import FIGURES

    texts: dict[str, str] = {}
    first = {function: name for name, function in reversed([*FIGURES.items()])}
    for name, function in FIGURES.items():
        own = (function.__doc__ or "").strip().partition("\n")[0]
        has_own = own and first[function] == name
        texts[name] = own if has_own else _file_sentence(name) or own
    return texts | dict(STUDIES)


def _file_sentence(name: str) -> str:
    """Return the first sentence of the file of a figure's experiment, "" without such a file."""
    file = deployed_figures().get(name, EXPERIMENTS / f"{name.replace('.', '-')}.toml")
    if not file.is_file():
        return ""
    comment = takewhile(lambda line: line.startswith("#"), read_utf8(file).splitlines())
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    return re.split(r"(?<=[.?])(?<!Fig\.)\s", text, maxsplit=1)[0]


def is_experiment(name: str) -> bool:
    """Return True if a name means an experiment: a figure, a study or a file."""
    return bool(_FIGURE.fullmatch(name)) or _is_file_of_one(name) or name in STUDIES


def kind_of_experiment(name: str) -> Kind:
    """Return the kind of an experiment.

    Raises:
        UserError: there is no such experiment; names the nearest.
    """
    known = experiment_names()
    if name in known:
        return known[name]
    if is_deployed_experiment(name):
        return "deployed"
    if not _is_file_of_one(name) and not Path(name).is_file():
        raise UserError(f"no experiment called {shown(name)}{nearest(name, [*known])}")
    return "simulated"


def check_figure_of(figure: str, run: Path, *, is_named: bool) -> None:
    """Check that a figure can show a run of its kind.

    Args:
        is_named: False for the latest run, which the user did not name.

    Raises:
        UserError: the run is of another kind, or an archive without logs; names the figures of the
            run, and the command that makes a run of the figure.
    """
    refuse_archive(run)
    from results.figures.catalogue import FIGURES, OF_ONE_RUN
    from results.papers.experiment_runs import KINDS as EXPERIMENT_KINDS

    about = manifest(run)
    kind, own = str(about.get("kind") or "run"), str(about.get("figure") or "")
    of_experiment = [name for name in FIGURES if name == own or name.startswith(f"{own}.")]
    of_kind: dict[str, tuple[str, Sequence[str]]] = {
        "run": ("a run of brokers", OF_ONE_RUN),
        "series": ("a series", list(map(str, about.get("figures") or ()))),
        "search": ("a search", ["search.knee"]),
        **dict.fromkeys(EXPERIMENT_KINDS, (f"a run of {own}", of_experiment[1:])),
    }
    if figure in OF_ONE_RUN:
        fits, maker = kind == "run", "bench WORKLOAD"
    elif figure.startswith("series."):
        fits, maker = kind == "series", "sweep WORKLOAD --over KEY=A,B"
    elif figure == "search.knee":
        fits, maker = kind == "search", "limit WORKLOAD --p99 20ms"
    else:
        experiment = next(
            name for name in experiment_names() if f"{figure}.".startswith(f"{name}.")
        )
        is_deployed = kind_of_experiment(experiment) == "deployed"
        fits = kind == "series" if is_deployed else figure in of_experiment
        maker = f"experiment {experiment}"
    if not fits and not is_named:
        raise UserError(
            f"no run of {figure} in {run.parents[1]}; `pubsubctl {maker}` makes one"
            f"{_describe_archive(figure)}"
        )
    if not fits:
        words, figures = of_kind.get(kind, (f"of kind {kind}", ()))
        has = f", with {', '.join(figures)}" if figures else ""
        raise UserError(
            f"{run}: no {figure}: this is {words}{has}; `pubsubctl {maker}` makes a run of it"
        )


def _describe_archive(figure: str) -> str:
    """Return how to draw a figure from its archive; "" without an archive that has the logs."""
    from pubsubctl.runs.figure_archives import SUFFIX
    from results.tables.seals import SAMPLES

    experiment = next(
        (name for name in experiment_names() if f"{figure}.".startswith(f"{name}.")), ""
    )
    archive = SAMPLES / "figures" / f"{experiment.replace('.', '-')}{SUFFIX}"
    if not archive.is_file() or kind_of_experiment(experiment) == "deployed":
        return ""
    unpack = f"mkdir run && tar -xf {shlex.quote(str(archive))} -C run"
    return f". Or unpack the archived run: `{unpack} && pubsubctl plot {figure} run`"


def run_deployed(
    call: Invocation,
    name: str,
    overrides: Overrides,
    instances: int | None,
    results: Path | None,
    labels: Mapping[str, str],
) -> Result:
    """Run all points of an experiment on brokers, and draw its figures.

    Args:
        labels: labels of each run, beside those of the experiment.

    Raises:
        UserError, SpecError: an invalid request; names file, key and value.
    """
    experiment = load_deployed_experiment(name)
    if overrides.protocol is not None:
        if overrides.protocol not in experiment.protocols:
            raise UserError(
                f"--protocol = {overrides.protocol!r}: {experiment.figure} is of "
                f"{', '.join(experiment.protocols)}"
            )
        experiment = experiment.model_copy(update={"protocols": [overrides.protocol]})
    named = map(Habits(labels=labels).with_labels, points_of(experiment, overrides))
    points = plan_faults_of_points(call, ((point, experiment.faults, False) for point in named))
    predictions = announce(
        call,
        (Run(point.name, point.spec, faults) for point, faults in points),
        call.project.results_folder(results),
    )
    times = experiment.instances if instances is None else instances
    if call.dry_run and len(points) == times == 1:
        point, schedule = points[0]
        return deployment_plan(call, point.spec, schedule, predictions)
    if call.dry_run:
        names: dict[str, dict[str, Any]] = {point.name: {} for point, _ in points}
        runs = [expect_time(call, point.spec) for point, _ in points] * times
        return SeriesPlan(names, times, runs, predictions).result()
    figures = [experiment.figure, *experiment.further_figures]
    design = Design(instances=times, figures=figures)
    return run_series(call, experiment.name, points, design, results=results)


def run_without_brokers(call: Invocation, request: FigureRequest) -> Result:
    """Run an experiment that needs no deployment, and draw its figure.

    Raises:
        SpecError: there is no such experiment, or the experiment has one size only.
    """
    experiment = load_figure_experiment(request.name)
    if request.full:
        experiment = with_all_draws(experiment)
    folder = call.project.results_folder(request.results)
    with call.console.progress() as progress:
        run = run_figure_experiment(experiment, folder, progress, request.processes, request.labels)
        files: list[str] = []
        judged: JudgedRun | None = None
        if request.figure:
            files, judged = _draw(call, experiment.figure, run, progress)
        refresh_run_index([run], progress)
    document = {
        "schema": "pubsubctl/experiment/1",
        "figure": experiment.figure,
        "experiment": experiment.name,
        "files": files,
        "run_directory": str(run),
        "verdict": judged.verdict if judged else None,
    }
    lines = [judged.paint(call.console)] if judged else []
    return Result(
        document=document,
        text="\n".join([*lines, *files, str(run)]),
        because=tuple(judged.because) if judged else (),
    )


def plan_without_brokers(call: Invocation, request: FigureRequest, kind: Kind) -> Result:
    """Return the settings of an experiment that needs no deployment, without a run.

    Raises:
        SpecError: there is no such experiment, or the experiment has one size only.
    """
    experiment = load_figure_experiment(request.name)
    if request.full:
        experiment = with_all_draws(experiment)
    folder = call.project.results_folder(request.results)
    settings = experiment.model_dump(mode="json", by_alias=True, exclude_none=True)
    work = f"{PLACES[kind]}, {counted(request.processes, 'process')}"
    after = f", then the figure {experiment.figure}" if request.figure else ""
    return Result(
        document={
            "schema": PLAN_SCHEMA,
            "figure": experiment.figure,
            "experiment": experiment.name,
            "runs_on": PLACES[kind],
            "processes": request.processes,
            "draws_figure": request.figure,
            "results": str(folder / experiment.name),
            "settings": settings,
        },
        text=f"{experiment.name}: {work}, into {folder / experiment.name}{after}\n"
        f"{toml_text(settings)}".rstrip(),
    )


def plan_study(
    name: str,
    seeds: tuple[int, int],
    schedules: int | None,
    processes: int,
    options: Sequence[str],
) -> Result:
    """Return the settings of a study, without a run.

    Args:
        options: the options that the study takes.
    """
    from pubsubctl.simulation import studies

    given: dict[str, Any] = {
        "--seeds": f"{seeds[0]}..{seeds[1]}",
        "--schedules": schedules or studies.SCHEDULES,
        "--processes": processes,
    }
    settings = {option.removeprefix("--"): given[option] for option in options}
    words = [PLACES["study"], *(f"{key} {value}" for key, value in settings.items())]
    return Result(
        document={"schema": PLAN_SCHEMA, "experiment": name, "settings": settings},
        text=f"{name}: {', '.join(words)}, then its table",
    )


def run_study(
    call: Invocation, name: str, seeds: tuple[int, int], schedules: int | None, processes: int
) -> Result:
    from pubsubctl.simulation import studies

    if name == "dft11.dedupe":
        return studies.compare_detection(call, schedules or studies.SCHEDULES, processes)
    if name == "dft11.stalls":
        return studies.simulate_stalls(call, *seeds)
    if name == "ges.routing":
        return studies.simulate_routing(call, *seeds)
    return _speed(call)


def _speed(call: Invocation) -> Result:
    from bench.papers.dft11.simulator_speed import measure_speed

    with call.console.progress() as progress:
        progress.phase("simulating")
        measured = measure_speed()
    rows = [
        (
            row.what,
            f"{row.broker_events:,}",
            f"{row.processor_s:.2f}",
            f"{row.per_second:,}",
        )
        for row in measured
    ]
    phases = [
        {
            "phase": row.what,
            "broker_events": row.broker_events,
            "processor_s": row.processor_s,
            "broker_events_per_second": row.per_second,
        }
        for row in measured
    ]
    return Result(
        document={"schema": "pubsubctl/simulator-speed/1", "phases": phases},
        text=call.console.table(("PHASE", "BROKER EVENTS", "PROCESSOR s", "EVENTS/s"), rows),
    )


def _draw(
    call: Invocation, figure: str, run: Path, progress: Progress
) -> "tuple[list[str], JudgedRun | None]":
    """Return the files of the figures of an experiment's run, and its verdict if it has one."""
    from pubsubctl.runs.verdicts import judge_with
    from results.checker.spark import spark_session
    from results.figures.catalogue import FIGURES, draw
    from results.papers.experiment_runs import has_verdict

    names = [name for name in FIGURES if name == figure or name.startswith(f"{figure}.")]
    progress.phase("starting Spark")
    files: list[str] = []
    with spark_session("pubsubctl experiment", call.master()) as spark:
        for name in names:
            progress.phase(f"drawing {name}")
            files += map(str, draw(name, spark, run))
        judged = judge_with(spark, run, progress) if has_verdict(run) else None
    return files, judged


def _is_file_of_one(name: str) -> bool:
    if is_deployed_experiment(name):
        return True
    path = Path(name)
    return is_figure_experiment(
        path if path.suffix == ".toml" else EXPERIMENTS / f"{path.name}.toml"
    )
