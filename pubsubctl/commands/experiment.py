"""`experiment`: the runs behind a paper's figure, and the figure."""

from dataclasses import dataclass
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.commands.options.results import LABELS_OF_SERIES, Labels, RunsFolder, labels_of
from pubsubctl.commands.options.runs import Instances
from pubsubctl.commands.options.simulation import SEEDS, Processes, Seeds, processes_of, seeds_of
from pubsubctl.commands.options.workload import LoadOptions
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

_simulated_option = options_in("Simulated experiments")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """Options of experiments without brokers."""

    full: Annotated[
        bool, _simulated_option("--full", help="Make all draws, which takes hours.")
    ] = False
    seeds: Seeds = SEEDS
    schedules: Annotated[
        int | None,
        _simulated_option(
            "--schedules", metavar="N", min=1, show_default="25", help="Run N of each class."
        ),
    ] = None
    processes: Processes = 0
    figure: Annotated[
        bool,
        typer.Option(
            "--figure/--no-figure",
            help="Draw the figure after the runs.",
            rich_help_panel="Results",
        ),
    ] = True


def experiment(
    context: typer.Context,
    load: LoadOptions,
    simulation: SimulationOptions,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A figure (gd02.fig7), a study (dft11.dedupe), or a file. See --list.",
            autocompletion=names.experiments,
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    instances: Instances = None,
    labels: Labels = None,
    output: RunsFolder = None,
) -> Result:
    """Run the experiment behind a paper's figure, and draw it.

    Runs real brokers, simulated brokers, or parts of a broker on this machine; `--list` has the
    kind of each experiment. An interrupted experiment on brokers resumes with the same command.
    """
    from pubsubctl.runs import paper_experiments as papers

    call = invocation(context)
    if list_all:
        return _list_experiments(call)
    if name is None:
        raise UserError("experiment: name one; `pubsubctl experiment --list` lists them")
    kind = papers.kind_of_experiment(name)
    _refuse_foreign(context, name, kind)
    given = labels_of(labels, taken=LABELS_OF_SERIES, by="an experiment")
    if kind == "deployed":
        return papers.run_deployed(call, name, load.overrides(), instances, output, given)
    processes = processes_of(simulation.processes)
    if kind == "study":
        seeds, schedules = seeds_of(simulation.seeds), simulation.schedules
        if call.dry_run:
            return papers.plan_study(name, seeds, schedules, processes, _OF_STUDY.get(name, ()))
        return papers.run_study(call, name, seeds, schedules, processes)
    request = papers.FigureRequest(
        name=name,
        full=simulation.full,
        figure=simulation.figure,
        processes=processes if kind == "simulated" else 1,
        results=output,
        labels=given,
    )
    if call.dry_run:
        return papers.plan_without_brokers(call, request, kind)
    return papers.run_without_brokers(call, request)


_OF_STUDY = {
    "dft11.dedupe": ("--schedules", "--processes"),
    "dft11.stalls": ("--seeds",),
    "ges.routing": ("--seeds",),
}
_OF_KIND = {
    "simulated": ("--full", "--processes", "--figure", "--label", "--output-dir"),
    "measured": ("--figure", "--label", "--output-dir"),
}


def _refuse_foreign(context: typer.Context, name: str, kind: str) -> None:
    """Refuse options without an effect on the experiment.

    Raises:
        UserError: names the option and the experiments that take it.
    """
    of_seeds = ("--full", "--seeds", "--schedules", "--processes", "--figure")
    for parameter in context.command.params:
        option = max(parameter.opts, key=len)
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if not given or parameter.param_type_name != "option":
            continue
        if kind == "deployed":
            is_taken = option not in of_seeds
        else:
            is_taken = option in _OF_KIND.get(kind, _OF_STUDY.get(name, ()))
        if not is_taken:
            raise UserError(f"{option} is for {_takers(option)}, not for {shown(name)}")


def _takers(option: str) -> str:
    from pubsubctl.runs.paper_experiments import KINDS

    takers = [KINDS[kind] for kind in KINDS if option in _OF_KIND.get(kind, ())]
    takers += [study for study, options in _OF_STUDY.items() if option in options]
    return " or ".join(takers) or KINDS["deployed"]


def _list_experiments(call: Invocation) -> Result:
    from pubsubctl.runs.paper_experiments import PLACES, describe_figures, experiment_names

    found, texts = experiment_names(), describe_figures()
    rows = [(name, PLACES[kind], texts.get(name, "")) for name, kind in found.items()]
    return Result(
        document={"schema": "pubsubctl/experiments/1", "experiments": found},
        text=call.console.table(("EXPERIMENT", "RUNS ON", "SHOWS"), rows),
    )
