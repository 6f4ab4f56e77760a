"""`simulate`: the protocols on a virtual clock and network, seed by seed."""

import difflib
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from brokerd.config import PROTOCOLS, Mutant
from brokerd.overlay.topology import nearest
from brokerd.simulator.campaign import CAMPAIGN
from pubsubctl.commands.invocation import Invocation, invocation
from pubsubctl.console import Result, grouped
from pubsubctl.errors import PubsubctlError, UserError, VerdictInvalid, VerdictUnknown
from pubsubctl.files import shown


def simulate(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="swarm|speed|WORKLOAD|SCENARIO|FIGURE",
            help="`swarm`, `speed`, a workload, a scenario's file, or a figure.",
        ),
    ] = "swarm",
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol", help="delta_tree or best_effort; by default delta_tree, or a workload's."
        ),
    ] = None,
    faults: Annotated[
        str | None, typer.Option("--faults", metavar="SCHEDULE", help="What breaks a workload.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of a workload; by default its own.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="A..B", help="Both included.")] = "1..20",
    mutant: Annotated[
        list[str] | None,
        typer.Option("--mutant", metavar="NAME", help="A named bug that every broker has."),
    ] = None,
    campaign: Annotated[
        str,
        typer.Option("--campaign", metavar="ROW", help="The tree and failures of a named row."),
    ] = "",
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=0, help="0 for one per core.")
    ] = 0,
    full: Annotated[
        bool, typer.Option("--full", help="Of a figure: all draws, for hours.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="In place of results/runs.")
    ] = None,
) -> Result:
    """Run the protocols on a virtual clock.

    A swarm draws topology, workload and faults from each seed and checks every rule after every
    step. A workload runs as on real brokers, broken by its fault schedule, and is judged exactly
    once, in order, without a gap. A scenario is a text of commands; what comes of them is
    printed, and must be what the text says where it says something. A figure's experiment writes
    the rows from which `plot` draws it. `speed` says how many events simulated brokers handle in
    a second of processor time.
    """
    call = invocation(context)
    call.refuse_dry_run("simulate")
    if re.fullmatch(r"[a-z0-9]+\.(fig|table)[0-9]+", what) or _is_figure_experiment(what):
        return _figure(call, what, full, processes or os.cpu_count() or 1, output)
    if full:
        raise UserError(f"--full is for figures, and {shown(what)} is none")
    if what == "speed":
        return _speed(call)
    if what != "swarm":
        if faults is None and Path(what).suffix != ".toml" and Path(what).is_file():
            return _scenario(Path(what))
        return _workload(call, what, protocol, faults, seed)
    protocol = protocol or "delta_tree"
    if protocol not in PROTOCOLS:
        raise UserError(f"no protocol called {shown(protocol)}{nearest(protocol, PROTOCOLS)}")
    mutants = frozenset(_mutant(name) for name in mutant or [])
    if campaign and campaign not in CAMPAIGN:
        raise UserError(
            f"no campaign row called {shown(campaign)}{nearest(campaign, tuple(CAMPAIGN))}"
        )
    processes = processes or os.cpu_count() or 1
    return _swarm(call, protocol, *_seeds(seeds), mutants, campaign, processes)


def _is_figure_experiment(what: str) -> bool:
    from bench.figure_experiments import EXPERIMENTS, is_figure_experiment

    return is_figure_experiment(
        Path(what) if what.endswith(".toml") else EXPERIMENTS / f"{Path(what).name}.toml"
    )


def _figure(call: Invocation, name: str, full: bool, processes: int, output: Path | None) -> Result:
    """The experiment of a paper's figure that needs no real brokers; `plot` draws it."""
    from bench.figure_experiments import in_full, load_figure_experiment, run_figure_experiment

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
    from bench.simulator_speed import measure_speed

    with call.console.progress() as progress:
        progress.phase("simulating", 10.0)
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


def _swarm(
    call: Invocation,
    protocol: str,
    first: int,
    last: int,
    mutants: frozenset[Mutant],
    campaign: str,
    processes: int,
) -> Result:
    from brokerd.simulator.swarm import SwarmOptions, run_swarm, total

    count = last - first + 1
    reports = []
    with call.console.progress() as progress:
        progress.phase(f"simulating {protocol}")
        seeds = range(first, last + 1)
        options = SwarmOptions(mutants=mutants, campaign=campaign)
        for report in run_swarm(seeds, protocol, processes, options):
            reports.append(report)
            if report.violations and (count == 1 or call.console.verbose):
                progress.say(report.in_words())
            progress.update({"seeds": f"{len(reports)}/{count}"})
    ledger = total(reports)
    wrong = [report for report in reports if report.violations]
    return Result(
        document={
            "schema": "pubsubctl/swarm/1",
            "protocol": protocol,
            "mutants": sorted(mutants),
            "seeds": [
                {
                    "seed": report.seed,
                    "history_digest": report.digest,
                    "rule": report.rule,
                    "violations": list(report.violations),
                    "counters": report.counters,
                    "command": report.command,
                }
                for report in reports
            ],
            "total": ledger,
        },
        text=(
            f"{count} seeds, {len(wrong)} with a violation; "
            f"{grouped(ledger.get('deliveries', 0))} deliveries, "
            f"{grouped(ledger.get('at_risk', 0))} at risk, "
            f"{grouped(ledger.get('broker_events', 0))} steps"
        ),
        because=tuple(
            VerdictInvalid(f"seed {row.seed}: {row.rule}; {row.command}") for row in wrong[:20]
        ),
    )


def _workload(
    call: Invocation, workload: str, protocol: str | None, faults: str | None, seed: int | None
) -> Result:
    from bench.simulated import simulate_experiment
    from bench.spec import Overrides
    from pubsubctl.commands.bench import experiment_of

    if faults is None and nearest(workload, ["swarm", "speed"]).startswith("; did you mean"):
        raise UserError(f"simulate: no {shown(workload)}{nearest(workload, ['swarm', 'speed'])}")
    overrides = Overrides(protocol=protocol, seed=seed)
    spec, schedule = experiment_of(call, workload, overrides, faults, {})
    with call.console.progress() as progress:
        progress.phase(f"simulating {spec.name}")
        verdict = simulate_experiment(spec, schedule)
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
        },
        text=verdict.in_words(),
        because=problems[verdict.value],
    )


def _scenario(path: Path) -> Result:
    from brokerd.simulator.scenario import ScenarioError, play_scenario

    text = path.read_text(encoding="utf-8")
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


def _mutant(name: str) -> Mutant:
    try:
        return Mutant(name)
    except ValueError:
        known = [str(mutant) for mutant in Mutant]
        raise UserError(f"no mutant called {shown(name)}{nearest(name, known)}") from None
