"""`simulate`: the protocols on a virtual clock and network, seed by seed."""

import difflib
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import DEFAULT, DEFINITIONS
from pubsubctl.commands.simulate_options import FIGURE, FILE, TAKEN, WORKLOAD, check_options
from pubsubctl.console.console import Result, grouped
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import PubsubctlError, UserError, VerdictInvalid, VerdictUnknown
from pubsubctl.hosts.files import shown

_FIGURE = r"(control|dft11|ds03|gd02|ges|mp22)\.[a-z0-9]+|[a-z0-9]+\.(fig|table)[0-9]+"
_WORDS = ("swarm", "campaign", "mutants", "shrink", "adversary")
"""The words that need the swarm."""


def simulate(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="swarm|adversary|campaign|mutants|shrink|dedupe|stalls|routing|speed|WORKLOAD|FIGURE|FILE",
            help="What to simulate: see above; FILE is a scenario or a plan.",
        ),
    ] = "swarm",
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SEED|ROW…|MUTANT…]", help="A seed to shrink; rows of the campaign; mutants."
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol", help="What brokers run, not the usual protocol or a workload's."
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option("--faults", metavar="SCHEDULE", help="What to break while a workload runs."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of a workload; by default its own.")
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="A..B", help="First and last seed.")
    ] = "1..20",
    mutant: Annotated[
        list[str] | None,
        typer.Option("--mutant", metavar="NAME", help="Give every broker this named bug."),
    ] = None,
    campaign: Annotated[
        str,
        typer.Option(
            "--campaign", metavar="ROW", help="Take tree and failures of this row of the campaign."
        ),
    ] = "",
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="One that the protocol has: robust; paper, which bears failing links, and fails "
            "in about one plain seed in four, where brokers crash; or paper-literal, which must "
            "fail.",
        ),
    ] = "",
    setting: Annotated[
        str,
        typer.Option("--setting", metavar="ROW", help="With adversary: a row of the campaign."),
    ] = "",
    short: Annotated[
        bool, typer.Option("--shrink", help="With adversary: cut the first failing seed down.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Set a parameter, whatever the seeds say."
        ),
    ] = None,
    moves: Annotated[
        bool,
        typer.Option("--moves", help="Clients also move, brokers join and leave."),
    ] = False,
    runs: Annotated[
        int | None,
        typer.Option("--runs", metavar="N", min=1, help="How often to run each row or mutant."),
    ] = None,
    schedules: Annotated[
        int | None,
        typer.Option(
            "--schedules", metavar="N", min=1, help="With dedupe: how many of each class; 25."
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", metavar="FILE", help="Also count what was run in this file."),
    ] = None,
    verify_determinism: Annotated[
        bool,
        typer.Option(
            "--verify-determinism",
            help="Run each seed in two more interpreters and compare histories.",
        ),
    ] = False,
    plan_file: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="With shrink: where the plan goes."),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", metavar="N", min=0, help="How many at a time; 0 for one per core."
        ),
    ] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="For a figure: all draws, which takes hours.")
    ] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="For a workload: write a run folder, for check and plot."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Where runs go, if not to results/runs."),
    ] = None,
) -> Result:
    """Run the protocols on a virtual clock.

    \b
    swarm       draws topology, workload and faults from each seed, and checks
                every rule after every step; every hundredth seed also runs a
                named bug, which must be found
    adversary   the same without a clock: any possible event may come next
    campaign    the settings in which the δ tree must keep its promises
    mutants     runs each named bug, from seed 0 on, until a seed finds it
    shrink SEED cuts a failing seed down and writes what is left as a plan
    dedupe      which way of telling duplicates withstands which failures, and
                what it costs
    stalls      how much waits for links that stay down, with and without
                sessions that a third broker relays
    routing     over how many links publications go in hierarchies of units,
                and whether the routes of drawn hierarchies are right
    speed       how many events brokers handle in a second of processor time
    WORKLOAD    runs it as `bench` would, with the faults of --faults, and
                judges it
    FIGURE      runs a figure's experiment, for `plot` to draw
    FILE        a scenario (commands, and what must come of them) or a plan,
                which is judged as a seed is

    `--set` takes parameters that brokers refuse because publications get lost with them, such as
    `accept=late` without `cut=full`: here it can be seen.
    """
    from bench.spec.deployed_experiment import is_deployed_experiment

    call = invocation(context)
    call.refuse_dry_run("simulate")
    if which and what not in ("campaign", "mutants", "shrink"):
        hint = "; write --seeds 1..20" if what in ("swarm", "adversary") else ""
        raise UserError(f"simulate {shown(what)} takes no {shown(which[0])}{hint}")
    processes = processes or os.cpu_count() or 1
    if what.endswith(".toml") and _is_plan(Path(what)):
        check_options(context, what, FILE)
        return _file(Path(what))
    if is_deployed_experiment(what):
        raise UserError(f"{what} is measured on real brokers: `pubsubctl bench {what}`")
    if re.fullmatch(_FIGURE, what) or _is_figure_experiment(what):
        check_options(context, what, FIGURE)
        return _figure(call, what, full, processes, output)
    if what in TAKEN:
        if campaign and what == "adversary":
            raise UserError(f"simulate adversary takes no --campaign; write --setting {campaign}")
        check_options(context, what, what)
    if what == "speed":
        return _speed(call)
    if what == "dedupe":
        from pubsubctl.simulating.dedupe import SCHEDULES, compare_detection

        return compare_detection(call, schedules or SCHEDULES, processes)
    if what == "stalls":
        from pubsubctl.simulating.stalls import simulate_stalls

        return simulate_stalls(call, *_seeds(seeds))
    if what == "routing":
        from pubsubctl.simulating.routing import simulate_routing

        return simulate_routing(call, *_seeds(seeds))
    mutants = frozenset(_mutant(name) for name in mutant or [])
    if what not in _WORDS:
        if faults is None and Path(what).suffix != ".toml" and Path(what).is_file():
            check_options(context, what, FILE)
            return _file(Path(what))
        _check_workload(what, faults)
        check_options(context, what, WORKLOAD)
        folder = call.project.results_folder(output) if record else None
        return _workload(call, what, protocol, faults, seed, mutants, folder)
    from brokerd.simulator.search.swarm import SwarmOptions
    from pubsubctl.simulating import swarms

    protocol = protocol or DEFAULT
    if protocol not in DEFINITIONS:
        raise UserError(f"no protocol called {shown(protocol)}{nearest(protocol, [*DEFINITIONS])}")
    rows = which or [] if what == "campaign" else [campaign] if campaign else []
    swarms.check_rows(rows)
    chosen = tuple(settings or ())
    swarms.check_settings(chosen, protocol)
    if profile:
        _check_profile(call, profile, protocol, verify_determinism)
    if what == "campaign":
        return swarms.simulate_campaign(call, tuple(rows), runs, processes, ledger)
    if what == "mutants":
        return swarms.simulate_mutants(call, tuple(which or ()), runs, processes, ledger)
    options = SwarmOptions(
        mutants=mutants, campaign=campaign, profile=profile, settings=chosen, moves=moves
    )
    if what == "shrink":
        if which is None or len(which) != 1 or not re.fullmatch(r"\d{1,18}", which[0]):
            raise UserError("simulate shrink takes one seed, such as 17")
        return swarms.shrink_seed(int(which[0]), protocol, options, plan_file)
    first, last = _seeds(seeds)
    if what == "adversary":
        from pubsubctl.simulating.adversaries import Adversary, simulate_adversary

        asked = Adversary(
            protocol=protocol,
            first=first,
            last=last,
            setting=setting,
            mutants=mutants,
            settings=chosen,
            processes=processes,
            short=short,
        )
        return simulate_adversary(call, asked)
    swarm = swarms.Swarm(
        protocol=protocol,
        first=first,
        last=last,
        options=options,
        processes=processes,
        ledger=ledger,
        verify_determinism=verify_determinism,
    )
    return swarms.simulate_swarm(call, swarm)


def _check_profile(call: Invocation, profile: str, protocol: str, verify_determinism: bool) -> None:
    from brokerd.simulator.checks.protocol_checks import planning_of

    planning = planning_of(protocol)
    if verify_determinism or not planning.profiles:
        what = "--verify-determinism" if verify_determinism else protocol
        raise UserError(f"--profile is not for {what}")
    if profile not in planning.profiles:
        known = nearest(profile, tuple(planning.profiles))
        raise UserError(f"no profile called {shown(profile)}{known}")
    for warning in planning.in_profile(planning.parameters(1, {}), profile).warnings():
        call.console.warn(warning)


def _check_workload(workload: str, faults: str | None) -> None:
    """Refuse a misspelt `swarm` or similar word as the name of a workload."""
    near = nearest(workload, tuple(TAKEN))
    if faults is None and near.startswith("; did you mean"):
        raise UserError(f"simulate: no {shown(workload)}{near}")


def _is_plan(path: Path) -> bool:
    """Return whether a path is a file with a plan."""
    from brokerd.simulator.search.plan import is_plan

    try:
        return is_plan(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False


def _is_figure_experiment(what: str) -> bool:
    from bench.papers.figure_experiments import EXPERIMENTS, is_figure_experiment

    return is_figure_experiment(
        Path(what) if what.endswith(".toml") else EXPERIMENTS / f"{Path(what).name}.toml"
    )


def _figure(call: Invocation, name: str, full: bool, processes: int, output: Path | None) -> Result:
    """Run the experiment of a paper's figure without real brokers; `plot` draws the figure."""
    from bench.papers.figure_experiments import (
        in_full,
        load_figure_experiment,
        run_figure_experiment,
    )

    experiment = load_figure_experiment(name)
    if full:
        experiment = in_full(experiment)
    with call.console.progress() as progress:
        run = run_figure_experiment(
            experiment, call.project.results_folder(output), progress, processes
        )
    document = {
        "schema": "pubsubctl/simulate-figure/1",
        "figure": experiment.figure,
        "experiment": experiment.name,
        "run_directory": str(run),
    }
    return Result(document=document, text=str(run))


def _speed(call: Invocation) -> Result:
    from bench.papers.dft11.simulator_speed import measure_speed

    with call.console.progress() as progress:
        progress.phase("simulating")
        measured = measure_speed()
    rows = [
        (row.what, grouped(row.broker_events), f"{row.processor_s:.2f}", grouped(row.per_second))
        for row in measured
    ]
    header = ("PHASE", "BROKER EVENTS", "PROCESSOR s", "EVENTS/s")
    return Result(
        document={
            "schema": "pubsubctl/simulator-speed/1",
            "phases": [
                {
                    "phase": row.what,
                    "broker_events": row.broker_events,
                    "processor_s": row.processor_s,
                    "broker_events_per_second": row.per_second,
                }
                for row in measured
            ],
        },
        text=call.console.table(header, rows),
    )


def _workload(
    call: Invocation,
    workload: str,
    protocol: str | None,
    faults: str | None,
    seed: int | None,
    mutants: frozenset[str],
    runs: Path | None,
) -> Result:
    from bench.run.run_directory import RunDirectory, new_run_directory
    from bench.run.simulated import simulate_experiment
    from bench.spec.overrides import Overrides
    from pubsubctl.running.plan import plan_experiment

    overrides = Overrides(protocol=protocol, seed=seed)
    spec, schedule = plan_experiment(call, workload, overrides, faults, {}, simulated=True)
    with call.console.progress() as progress:
        progress.phase(f"simulating {spec.name}")
        directory = RunDirectory(new_run_directory(runs, spec.name)) if runs else None
        verdict = simulate_experiment(spec, schedule, mutants=mutants, directory=directory)
    problems: dict[str, tuple[PubsubctlError, ...]] = {
        "INVALID": (VerdictInvalid(f"{spec.name}: not what was promised", *verdict.violations),),
        "UNKNOWN": (VerdictUnknown(f"{spec.name}: nothing was at risk, so nothing was shown"),),
        "VALID": (),
    }
    return Result(
        document={
            "schema": "pubsubctl/simulation/1",
            "experiment": spec.name,
            "protocol": spec.protocol,
            "seed": spec.seed,
            "verdict": verdict.value,
            "violations": list(verdict.violations),
            "counters": verdict.counters,
            "history_digest": verdict.digest,
            "story": list(verdict.story),
            "run_directory": str(directory.path) if directory else None,
        },
        text="\n".join([verdict.in_words(), *([str(directory.path)] if directory else [])]),
        because=problems[verdict.value],
    )


def _file(path: Path) -> Result:
    from brokerd.simulator.scenario import ScenarioError, play_scenario
    from brokerd.simulator.search.plan import is_plan

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: no scenario or plan: byte {error.start} is not UTF-8") from None
    if is_plan(text):
        from pubsubctl.simulating.swarms import play_plan

        return play_plan(path, text)
    try:
        played = play_scenario(text)
    except ScenarioError as error:
        raise UserError(f"{path}: {error}") from None
    differences: list[str] = []
    if "\n----" in text:
        differences = list(
            difflib.unified_diff(
                text.splitlines(), played.splitlines(), "said", "played", lineterm="", n=1
            )
        )
    return Result(
        document={
            "schema": "pubsubctl/scenario/1",
            "file": str(path),
            "played": played,
            "differences": differences,
        },
        text=played,
        because=(VerdictInvalid(f"{path}: not what it says:", *differences),)
        if differences
        else (),
    )


def _seeds(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    if not found:
        raise UserError(f"--seeds = {shown(text)}; write 7 or 1..500")
    first = int(found[1])
    last = int(found[2]) if found[2] is not None else first
    if last < first:
        raise UserError(f"--seeds = {shown(text)}: runs backwards; {last}..{first}?")
    return first, last


def _mutant(name: str) -> str:
    from brokerd.simulator.checks.protocol_checks import bug_names

    if name not in bug_names():
        raise UserError(f"no mutant called {shown(name)}{nearest(name, bug_names())}")
    return name
