"""`simulate`: the protocols on a virtual clock and network, from seeds."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import add_command, verbs
from pubsubctl.commands.options.results import Check, Labels, RunsFolder, labels_of
from pubsubctl.commands.options.simulation import (
    SEEDS,
    Ledger,
    Mutants,
    Parameters,
    Processes,
    RunsOfEach,
    SeedOptions,
    Seeds,
    SimulatedProtocol,
    WorldOptions,
    mutants_of,
    processes_of,
    protocol_of,
    seeds_of,
)
from pubsubctl.commands.options.workload import Faults, LoadOptions
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import UserError

app = verbs("simulate", "Run the protocols on a virtual clock.")

VERBS = ("run", "swarm", "adversary", "shrink", "mutants", "campaign", "explore", "draw")


SkipUnsimulated = Annotated[
    bool,
    typer.Option(
        "--skip-unsimulated",
        help="Leave out steps of --faults that need real processes.",
        rich_help_panel="Faults",
    ),
]
Record = Annotated[
    bool,
    typer.Option("--record", help="Write a run folder, and judge it.", rich_help_panel="Results"),
]


def run(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|FILE",
            help="A workload, or a file with a scenario or a plan.",
            autocompletion=names.workloads,
        ),
    ],
    load: LoadOptions,
    faults: Faults = None,
    skip_unsimulated: SkipUnsimulated = False,
    mutants: Mutants = None,
    record: Record = False,
    check: Check = True,
    labels: Labels = None,
    output: RunsFolder = None,
) -> Result:
    """Simulate a workload with its faults, a scenario or a plan.

    Runs a workload as `bench` would, and judges it. Plays a scenario, and compares the result with
    the text of the file. Runs a plan, and judges it as a seed of the swarm.
    """
    from pubsubctl.runs.paper_experiments import is_experiment
    from pubsubctl.simulation import workloads

    call = invocation(context)
    if workloads.is_file_to_play(name, faults):
        call.refuse_dry_run("simulate run FILE")
        options = {
            **load.given(),
            "--faults": faults,
            "--skip-unsimulated": skip_unsimulated or None,
            "--mutant": mutants,
            "--record": record or None,
            "--no-check": None if check else True,
            "--label": labels,
            "--output-dir": output,
        }
        _refuse_options(options, name)
        return workloads.play_file(Path(name))
    if is_experiment(name):
        raise UserError(f"{name} is an experiment: `pubsubctl experiment {name}`")
    if load.records is not None:
        raise UserError(f"--records {load.records}: a simulated run records every delivery")
    _check_record(record, {"--no-check": not check, "--label": bool(labels)})
    if skip_unsimulated and faults is None:
        raise UserError("--skip-unsimulated requires --faults")
    request = workloads.SimulationRequest(
        workload=name,
        overrides=load.overrides(),
        faults=faults,
        skip_unsimulated=skip_unsimulated,
        mutants=mutants_of(mutants),
        runs=call.project.results_folder(output) if record else None,
        check=check,
        labels=labels_of(labels),
    )
    return workloads.simulate_workload(call, request)


def _refuse_options(given: Mapping[str, object], name: str) -> None:
    """Refuse options of workloads, for a file with a scenario or a plan."""
    for option, value in given.items():
        if value is not None:
            raise UserError(f"{option} is for a workload, not for the file {name}")


def _check_record(record: bool, given: Mapping[str, bool]) -> None:
    """Refuse options of a run folder where there is none."""
    for option, is_given in given.items():
        if is_given and not record:
            raise UserError(f"{option} requires --record")


def swarm(
    context: typer.Context,
    options: SeedOptions,
    seeds: Seeds = SEEDS,
    ledger: Ledger = None,
    verify_determinism: Annotated[
        bool,
        typer.Option(
            "--verify-determinism",
            help="Run each seed in two more interpreters, and compare histories.",
        ),
    ] = False,
    processes: Processes = 0,
) -> Result:
    """Draw topology, load and faults from seeds, and check rules.

    Checks each rule after each step. Each hundredth seed also runs a named bug, which must be
    found. A seed with a violation prints the command that repeats the seed.
    """
    from pubsubctl.simulation import swarms

    call = invocation(context)
    call.refuse_dry_run("simulate swarm")
    refuses = "--verify-determinism" if verify_determinism else ""
    chosen = options.check(call.console, refuses_profile=refuses)
    first, last = seeds_of(seeds)
    request = swarms.Swarm(
        protocol=protocol_of(options.protocol),
        first=first,
        last=last,
        options=chosen,
        processes=processes_of(processes),
        ledger=ledger,
        verify_determinism=verify_determinism,
    )
    return swarms.simulate_swarm(call, request)


def adversary(
    context: typer.Context,
    protocol: SimulatedProtocol = None,
    setting: Annotated[
        str,
        typer.Option(
            "--setting", metavar="ROW", help="Take topology and failures of a row of the campaign."
        ),
    ] = "",
    seeds: Seeds = SEEDS,
    mutants: Mutants = None,
    parameters: Parameters = None,
    shrink_first: Annotated[
        bool, typer.Option("--shrink", help="Shrink the first failing seed.")
    ] = False,
    processes: Processes = 0,
) -> Result:
    """Take any enabled event next, without a clock."""
    from pubsubctl.simulation import swarms
    from pubsubctl.simulation.adversaries import Adversary, simulate_adversary

    call = invocation(context)
    call.refuse_dry_run("simulate adversary")
    name, chosen = protocol_of(protocol), tuple(parameters or ())
    bugs = mutants_of(mutants)
    swarms.check_settings(chosen, name)
    first, last = seeds_of(seeds)
    request = Adversary(
        protocol=name,
        first=first,
        last=last,
        setting=setting,
        mutants=bugs,
        settings=chosen,
        processes=processes_of(processes),
        short=shrink_first,
    )
    return simulate_adversary(call, request)


def shrink(
    context: typer.Context,
    options: SeedOptions,
    seed: Annotated[str | None, typer.Argument(metavar="SEED", help="A seed that fails.")] = None,
    plan_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the plan to this file."),
    ] = None,
) -> Result:
    """Reduce a failing seed to a small plan that fails alike."""
    from pubsubctl.simulation import swarms

    call = invocation(context)
    call.refuse_dry_run("simulate shrink")
    chosen = options.check(call.console)
    if seed is None or not re.fullmatch(r"\d{1,18}", seed):
        raise UserError(f"simulate shrink {seed or ''}".rstrip() + ": takes one seed, such as 17")
    return swarms.shrink_seed(int(seed), protocol_of(options.protocol), chosen, plan_file)


def mutants(
    context: typer.Context,
    bugs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MUTANT...]", help="Named bugs. All if none is named."),
    ] = None,
    runs: RunsOfEach = None,
    ledger: Ledger = None,
    processes: Processes = 0,
) -> Result:
    """Run each named bug, seed by seed, until a seed finds it."""
    from pubsubctl.simulation import swarms

    call = invocation(context)
    call.refuse_dry_run("simulate mutants")
    chosen = tuple(bugs or ())
    return swarms.simulate_mutants(call, chosen, runs, processes_of(processes), ledger)


def campaign(
    context: typer.Context,
    rows: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROW...]", help="Rows of the campaign. All if none is named."),
    ] = None,
    runs: RunsOfEach = None,
    ledger: Ledger = None,
    processes: Processes = 0,
) -> Result:
    """Run the settings in which the promise must hold."""
    from pubsubctl.simulation import swarms

    call = invocation(context)
    call.refuse_dry_run("simulate campaign")
    chosen = tuple(rows or ())
    swarms.check_rows(chosen)
    return swarms.simulate_campaign(call, chosen, runs, processes_of(processes), ledger)


def explore(
    context: typer.Context,
    options: WorldOptions,
    mutants: Mutants = None,
    parameters: Parameters = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write a violation's history to this file."
        ),
    ] = None,
) -> Result:
    """Search all interleavings of a small world.

    Checks each rule in each state. A violation is written as a short history, which
    `simulate run FILE` repeats. A search that ends before its world is complete is UNKNOWN.
    """
    from pubsubctl.simulation import explorations

    call = invocation(context)
    call.refuse_dry_run("simulate explore")
    request = explorations.ExplorationRequest(
        world=options.world(mutants_of(mutants), tuple(parameters or ())),
        most_states=options.most_states,
        most_cpu_s=options.most_cpu_s,
        delay_bound=options.delay_bound,
        output=output,
    )
    return explorations.explore(call, request)


def draw(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plan, a scenario or a history.")],
    picture: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write this .svg or .html, not FILE.svg."
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=100_000, help="Draw the last N steps.")
    ] = 200,
) -> Result:
    """Draw a plan, a scenario or a history as a space-time diagram.

    Lanes are brokers and clients, arrows are messages, and crosses are lost messages.
    """
    from pubsubctl.simulation import workloads

    call = invocation(context)
    call.refuse_dry_run("simulate draw")
    return workloads.draw_file(file, picture or Path(f"{file.stem}.svg"), steps)


for _verb in (run, swarm, adversary, shrink, mutants, campaign, explore, draw):
    add_command(app, _verb.__name__, _verb)
