"""Runs and comparisons with external brokers.

`bench` on a system under test uses servers of the system on this machine, with our load and
verdict. `compare --comparison` puts equal load and faults on our brokers and others, with one
report.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.run.collection import is_uncollected
from bench.run.outcome import RunOutcome
from bench.run.run_directory import new_run_directory
from bench.run.testbed import RunFailed
from bench.spec.keys import Overrides, topology_keys, workload_keys
from bench.spec.predictions import DEPLOYED, EXTERNAL
from bench.spec.spec import ExperimentSpec, load_topology
from bench.spec.validation import SpecError
from bench.systems.boundary import WrongSettings
from bench.systems.comparison import Comparison, Entry, load_comparison
from bench.systems.configuration import (
    Configuration,
    NotInstalled,
    find_configuration,
    load_configuration,
)
from bench.systems.experiment import experiment_on, run_on_system
from bench.systems.faults import (
    aim_at,
    check_links,
    check_verbs,
    names_leader,
    needs_disk,
    needs_relay,
)
from bench.systems.servers import ServerFailed, servers_running
from brokerd.errors import ControlError
from brokerd.protocols.registry import protocol_on
from brokerd.storage.files import is_no_room
from brokerd.units import SECOND_NS
from fault_injection.schedule.limits import waits_for_ever
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.waits import RunTime, describe_series
from pubsubctl.errors import PubsubctlError, UserError, VerdictUnknown
from pubsubctl.injection.faults import bind_to_load, check_schedule, schedule_of, settle_schedule
from pubsubctl.runs.experiment import (
    Experiment,
    RecordsLeft,
    Stopped,
    carry_out,
    lab_for,
    numbers_text,
    result_of,
)
from pubsubctl.runs.outputs import check_results
from pubsubctl.runs.plan import Run, announce, describe_doubts, expect_time, plan_experiment
from pubsubctl.runs.series import check_deployment
from pubsubctl.runs.verdicts import JudgedRun, judge, judge_and_report

SERVERS_END = "the servers of this run end by themselves within 30 s"


@dataclass(frozen=True)
class SystemRun:
    """The experiment to run on a system; `schedule` None for no faults."""

    configuration: Configuration
    spec: ExperimentSpec
    schedule: FaultSchedule | None


def bench_system(
    call: Invocation,
    name: str,
    overrides: Overrides,
    faults: str | None,
    labels: dict[str, str],
    results: Path | None,
    *,
    check: bool,
) -> Result:
    """Run `bench` on a system: start the servers, run, stop the servers, judge.

    Raises:
        UserError, SpecError: an invalid request; names file, key and value.
        NotInstalled: the server or client library is missing.
        ServerFailed: the server does not start.
    """
    planned = plan_system_run(call, name, overrides, faults, labels)
    folder = call.project.results_folder(results)
    predictions = announce(call, [Run("", planned.spec, planned.schedule, EXTERNAL)], folder)
    if call.dry_run:
        return _dry_run(planned, predictions)
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> Stopped:
            outcome = await run_system(planned, folder, progress, interruption)
            return outcome, interruption.errors()

        outcome, stops = run_interruptibly(work, call.console, when_not_waiting=SERVERS_END)
        is_judged = check and not stops
        judged = judge(outcome.run_directory, progress, call.master()) if is_judged else None
    configuration = planned.configuration
    result = result_of(call, outcome, judged, stops)
    promised = f"{configuration.system.title}, {configuration.version}"
    lines = [f"{promised}; promised: {configuration.promise.describe()}", result.text]
    document: dict[str, Any] = {**result.document, "system": configuration.facts()}
    return Result(document=document, text="\n".join(lines), because=result.because)


def plan_system_run(
    call: Invocation,
    name: str,
    overrides: Overrides,
    faults: str | None,
    labels: Mapping[str, str],
    workload: str | None = None,
) -> SystemRun:
    """Return the checked experiment on a system.

    Args:
        workload: replaces the configuration's.

    Raises:
        UserError, SpecError, NotInstalled: as `bench_system`.
    """
    configuration = load_configuration(name)
    for option in ("protocol", "topology"):
        if getattr(overrides, option) is not None:
            raise UserError(f"--{option}: {name} has its own protocol and topology")
    path = call.project.find("workload", workload or configuration.workload)
    spec = experiment_on(configuration, path, overrides, labels, calm=faults is None)
    schedule = _schedule(call, spec, faults)
    if schedule is not None:
        check_links(schedule, configuration.system)
    has_leader = configuration.system.leader is not None or len(configuration.servers) == 1
    if schedule is not None and names_leader(schedule) and not has_leader:
        raise UserError(f"{schedule.source}: no server leads in {configuration.system.title}")
    return SystemRun(configuration, spec, schedule)


async def run_system(
    planned: SystemRun, results: Path, progress: Progress, interruption: Interruption
) -> RunOutcome:
    """Start the servers, run, stop the servers.

    Raises:
        RecordsLeft: there is no room for the records, which stay in the folder of the servers.
    """
    through = needs_relay(planned.schedule)
    async with servers_running(
        planned.configuration, relayed=through, faulty_disks=needs_disk(planned.schedule)
    ) as (bed, servers):
        run = new_run_directory(results, planned.spec.name)
        progress.print(f"run {run}: {planned.configuration.version}")
        if through:
            progress.print(
                f"links go through a relay: {servers.relay_us} us for a byte there and one back"
            )
        try:
            with interruption.stoppable():
                return await run_on_system(
                    planned.spec, bed, servers, run, planned.schedule, progress
                )
        except OSError as error:
            if not (is_no_room(error) and is_uncollected(run)):
                raise
            servers.keeps_records = True
            raise RecordsLeft.on_this_machine(run, servers.root) from error


def _schedule(call: Invocation, spec: ExperimentSpec, faults: str | None) -> FaultSchedule | None:
    if faults is None:
        return None
    schedule = bind_to_load(schedule_of(call.project, faults), *spec.list_placed_clients())
    check_verbs(schedule)
    planned = schedule
    # The leader is unknown before the load; for the checks any server will do.
    schedule = aim_at(schedule, spec.topology.brokers[0])
    schedule = settle_schedule(schedule, spec.topology, spec.overrides.get("seed"))
    measure_ns = spec.workload.phases.measure
    for warning in check_schedule(
        schedule, spec.topology, measure_ns=measure_ns, clients=spec.clients()
    ):
        call.console.warn(warning)
    return planned if names_leader(planned) else schedule


def _dry_run(planned: SystemRun, predictions: Sequence[Mapping[str, Any]]) -> Result:
    """Return the servers and the load of a dry run."""
    configuration, spec = planned.configuration, planned.spec
    facts = configuration.facts()
    settings = ", ".join(f"{key} = {value}" for key, value in facts["settings"].items())
    return Result(
        document={
            "schema": "pubsubctl/bench-plan/1",
            "system": facts,
            "workload": spec.workload_mapping(),
            "predictions": [*predictions],
        },
        text=f"start {', '.join(configuration.servers)}: {configuration.program} "
        f"({configuration.version}), {settings}\n{describe_doubts(predictions)}",
    )


LABEL = "compared"
"""The label of a run that contains its name in the report."""
PROCESSES_END = "the processes of this run end by themselves within a minute"

_SOURCE: Final = re.compile(r"^\S+\.toml: ")
"""The file in an error message, which is the same for all entries."""

_Run = Callable[[Progress, Interruption], Awaitable[RunOutcome]]


@dataclass(frozen=True)
class _Side:
    """An entry that can be run.

    Attributes:
        schedule: its faults; None for none.
        is_external: True for the servers of another system.
    """

    name: str
    run: _Run
    spec: ExperimentSpec
    schedule: FaultSchedule | None
    is_external: bool = False


@dataclass
class _Sides:
    """The entries of a comparison, each in one category.

    Attributes:
        runnable: entries that can be run.
        left_out: entries that are unavailable here, by name, with the reason.
        unpromised: entries of ours without the required promise, by name, with the reason.
        titles: of entries, by name.
    """

    runnable: list[_Side] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    unpromised: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    def list_predicted(self) -> list[Run]:
        """Return all runs, with the brokers of each."""
        return [
            Run(side.name, side.spec, side.schedule, EXTERNAL if side.is_external else DEPLOYED)
            for side in self.runnable
        ]

    def explain_skipped(self) -> list[str]:
        """Return a line for every entry that is not run."""
        return [
            *(f"{name} is left out: {why}" for name, why in self.left_out.items()),
            *(f"{name} does not promise that: {why}" for name, why in self.unpromised.items()),
        ]


class _NotPromisedError(Exception):
    """The protocol of an entry does not promise the property under test."""


def compare_as(
    call: Invocation,
    name: str,
    only: list[str],
    also: list[str],
    duration: str | None,
    results: Path | None,
) -> Result:
    """Run every entry of a comparison in sequence, judge all, and write one report.

    Everything is checked before any run. An entry that is not installed, or not in the required
    version, is named and left out; so is an entry whose servers fail. A protocol of ours without
    the required promise is not run; the report contains the reason.

    Args:
        name: of the comparison, or its file.
        only: names of entries; all if empty.
        also: configurations of further systems.
        duration: the duration of the measurement, replacing the workload's.

    Raises:
        UserError, SpecError: an invalid request; names file, key and value.
    """
    path = call.project.find("comparison", name)
    whole = load_comparison(path)
    _check_names(call, whole, path)
    comparison = whole.select(only).with_systems(also)
    folder = call.project.results_folder(results)
    sides = _sides(
        call,
        whole,
        comparison,
        Overrides(measure=duration or whole.measure, is_typed=duration is not None),
        folder,
    )
    predictions = announce(call, sides.list_predicted(), folder)
    if call.dry_run:
        times = [expect_time(call, side.spec) for side in sides.runnable]
        return _comparison_plan(comparison, sides, times, predictions)
    if not sides.runnable:
        raise UserError(
            f"comparison {comparison.name}: nothing of it can be run here", *sides.explain_skipped()
        )
    check_results(folder)
    outcomes: dict[str, RunOutcome] = {}
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> None:
            ours = [(side.name, side.spec) for side in sides.runnable if not side.is_external]
            lab = lab_for(call)
            async with lab.operate("compare", progress, interruption):
                await check_deployment(lab, ours)
            for number, side in enumerate(sides.runnable, start=1):
                progress.print(f"{number} of {len(sides.runnable)}: {side.name}")
                try:
                    outcomes[side.name] = await side.run(progress, interruption)
                except (ServerFailed, RunFailed, ControlError) as error:
                    sides.left_out[side.name] = str(error)
                    progress.print(f"{side.name}: {error}")

        run_interruptibly(work, call.console, when_not_waiting=PROCESSES_END)
        runs = [outcome.run_directory for outcome in outcomes.values()]
        if not runs:
            raise VerdictUnknown(f"comparison {comparison.name}: no run", *sides.explain_skipped())
        report = folder / f"comparison-{comparison.name}" / "report.html"
        unpromised = {sides.titles[name]: why for name, why in sides.unpromised.items()}
        judged = judge_and_report(
            runs, report, progress, call.master(), comparison.title, unpromised
        )
    return _result(call, outcomes, judged, sides, report)


def _check_names(call: Invocation, comparison: Comparison, path: Path) -> None:
    """Refuse names in a comparison's file that mean no file.

    Raises:
        UserError, SpecError: names the file, the key, and the nearest name.
    """
    call.project.find("workload", comparison.workload, origin=f"{path}: workload")
    if comparison.faults is not None:
        call.project.find("schedule", comparison.faults, origin=f"{path}: faults")
    for place, entry in enumerate(comparison.entries):
        key = f"{path}: entry[{place}]"
        if entry.topology is not None:
            call.project.find("topology", entry.topology, origin=f"{key}.topology")
        if entry.system is not None:
            try:
                find_configuration(entry.system)
            except SpecError as error:
                raise UserError(f"{key}.system: {error}") from None


def _sides(
    call: Invocation,
    whole: Comparison,
    comparison: Comparison,
    overrides: Overrides,
    folder: Path,
) -> _Sides:
    """Return the runnable entries, and the reasons against the others."""
    sides = _Sides(titles={entry.name: entry.title or entry.name for entry in comparison.entries})
    for entry in comparison.entries:
        try:
            side = _side_of(call, comparison, entry, overrides, folder)
        except (NotInstalled, WrongSettings) as error:
            sides.left_out[entry.name] = str(error)
            call.console.warn(f"{entry.name} is left out: {error}")
        except _NotPromisedError as error:
            sides.unpromised[entry.name] = str(error)
        except (UserError, SpecError) as error:
            if entry.system is not None or not _is_borne(call, whole, entry, overrides, folder):
                raise
            sides.unpromised[entry.name] = _SOURCE.sub("", str(error).splitlines()[0])
        else:
            sides.runnable.append(side)
    return sides


def _is_borne(
    call: Invocation, whole: Comparison, entry: Entry, overrides: Overrides, folder: Path
) -> bool:
    """Return True if the settings of comparison and entry are valid, and only the protocol fails.

    The settings are valid if another protocol supports the same workload and faults with the
    entry's `set`.

    Raises:
        UserError, SpecError: there is no such topology, or key in it.
    """
    words = entry.set
    if entry.topology is not None:
        words = workload_keys(words)
        topology = call.project.find("topology", entry.topology)
        load_topology(topology, topology_keys(entry.set))
    for other in whole.entries:
        if other.protocol in (None, entry.protocol):
            continue
        with suppress(UserError, SpecError, _NotPromisedError):
            alike = other.model_copy(update={"set": {**other.set, **words}})
            _side_of(call, whole, alike, overrides, folder)
            return True
    return False


def _side_of(
    call: Invocation, comparison: Comparison, entry: Entry, overrides: Overrides, folder: Path
) -> _Side:
    labels = {LABEL: entry.title or entry.name}
    if entry.system is not None:
        planned = plan_system_run(
            call, entry.system, overrides, comparison.faults, labels, comparison.workload
        )
        run_planned = partial(run_system, planned, folder)
        return _Side(entry.name, run_planned, planned.spec, planned.schedule, is_external=True)
    keys = entry.set if comparison.faults else {"calm": True, **entry.set}
    of = replace(overrides, protocol=entry.protocol, topology=entry.topology, keys=keys or None)
    spec, schedule = plan_experiment(call, comparison.workload, of, comparison.faults, labels)
    if schedule is not None:
        why = waits_for_ever(schedule, protocol_on(spec.topology, spec.protocol))
        if why:
            raise _NotPromisedError(why)
    experiment, lab = Experiment(spec, schedule, folder), lab_for(call)

    async def run(progress: Progress, interruption: Interruption) -> RunOutcome:
        return await carry_out(experiment, lab, progress, interruption, f"compare {entry.name}")

    return _Side(entry.name, run, spec, schedule)


def _comparison_plan(
    comparison: Comparison,
    sides: _Sides,
    times: Sequence[RunTime],
    predictions: Sequence[Mapping[str, Any]],
) -> Result:
    names = [side.name for side in sides.runnable]
    faults = f"faults {comparison.faults}" if comparison.faults else "no faults"
    lines = [f"run {name}: {comparison.workload}, {faults}" for name in names]
    lines += [*sides.explain_skipped(), describe_doubts(predictions), describe_series(times)]
    document = {
        "schema": "pubsubctl/comparison-plan/1",
        "runs": names,
        "left_out": sides.left_out,
        "not_promised": sides.unpromised,
        "expected_ns": round(sum(each.run_s for each in times) * SECOND_NS),
        "predictions": [*predictions],
    }
    return Result(document=document, text="\n".join(lines))


def _result(
    call: Invocation,
    outcomes: dict[str, RunOutcome],
    judged: list[JudgedRun],
    sides: _Sides,
    report: Path,
) -> Result:
    """Return the result; every verdict is a finding, but a missing verdict is a problem."""
    blocks: list[str] = []
    runs: list[dict[str, Any]] = []
    because: list[PubsubctlError] = []
    for (name, outcome), row in zip(outcomes.items(), judged, strict=True):
        numbers = numbers_text(outcome)
        blocks.append(f"{name}\n{row.paint(call.console)}\n  {numbers}\n  run {row.run}")
        runs.append({"name": name, "run_directory": str(row.run), **row.document})
        if row.verdict == "UNKNOWN":
            because.append(
                VerdictUnknown(f"{name}: {'; '.join(map(str, row.document['because']))}")
            )
    blocks += sides.explain_skipped()
    blocks.append(f"report {report}")
    document = {
        "schema": "pubsubctl/comparison/1",
        "runs": runs,
        "left_out": sides.left_out,
        "not_promised": sides.unpromised,
        "report": str(report),
    }
    return Result(document=document, text="\n\n".join(blocks), because=tuple(because))
