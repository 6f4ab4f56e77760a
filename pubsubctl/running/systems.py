"""`bench` on a system under test: servers of the system on this machine, our load and verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.run.outcome import RunOutcome
from bench.run.run_directory import new_run_directory
from bench.spec.keys import Overrides
from bench.spec.spec import ExperimentSpec
from bench.systems.configuration import Configuration, load_configuration
from bench.systems.experiment import experiment_on, run_on_system
from bench.systems.faults import (
    aimed,
    check_links,
    check_verbs,
    names_leader,
    needs_disk,
    needs_relay,
)
from bench.systems.servers import servers_running
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError
from pubsubctl.injecting.faults import checked, for_load, schedule_of, settled
from pubsubctl.running.experiment import result_of
from pubsubctl.running.judging import judge

NOT_WAITING = "the servers of this run end by themselves within 30 s"


@dataclass(frozen=True)
class Asked:
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
    asked = asked_of(call, name, overrides, faults, labels)
    if call.dry_run:
        return _planned(asked)
    folder = call.project.results_folder(results)
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> RunOutcome:
            return await run_asked(asked, folder, progress, interruption)

        outcome = run_interruptibly(work, call.console, when_not_waiting=NOT_WAITING)
        judged = judge(outcome.run_directory, progress, call.master()) if check else None
    configuration = asked.configuration
    result = result_of(call, outcome, judged)
    promised = f"{configuration.system.title}, {configuration.version}"
    lines = [f"{promised}; promised: {configuration.promise.in_words()}", result.text]
    document: dict[str, Any] = {**result.document, "system": configuration.facts()}
    return Result(document=document, text="\n".join(lines), because=result.because)


def asked_of(
    call: Invocation,
    name: str,
    overrides: Overrides,
    faults: str | None,
    labels: Mapping[str, str],
    workload: str | None = None,
) -> Asked:
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
    return Asked(configuration, spec, schedule)


async def run_asked(
    asked: Asked, results: Path, progress: Progress, interruption: Interruption
) -> RunOutcome:
    """Start the servers, run, stop the servers."""
    through = needs_relay(asked.schedule)
    async with servers_running(
        asked.configuration, relayed=through, faulty_disks=needs_disk(asked.schedule)
    ) as (bed, servers):
        run = new_run_directory(results, asked.spec.name)
        progress.say(f"run {run}: {asked.configuration.version}")
        if through:
            progress.say(
                f"links go through a relay: {servers.relay_us} us for a byte there and one back"
            )
        with interruption.stoppable():
            outcome = await run_on_system(asked.spec, bed, servers, run, asked.schedule, progress)
    return outcome


def _schedule(call: Invocation, spec: ExperimentSpec, faults: str | None) -> FaultSchedule | None:
    if faults is None:
        return None
    schedule = for_load(schedule_of(call.project, faults), *spec.placed_clients())
    check_verbs(schedule)
    asked = schedule
    # The leader is unknown before the load; for the checks any server will do.
    schedule = aimed(schedule, spec.topology.brokers[0])
    schedule = settled(schedule, spec.topology, spec.overrides.get("seed"))
    measure_ns = spec.workload.phases.measure
    for warning in checked(schedule, spec.topology, measure_ns=measure_ns, clients=spec.clients()):
        call.console.warn(warning)
    return asked if names_leader(asked) else schedule


def _planned(asked: Asked) -> Result:
    """Return the servers and the load of a dry run."""
    configuration, spec = asked.configuration, asked.spec
    facts = configuration.facts()
    settings = ", ".join(f"{key} = {value}" for key, value in facts["settings"].items())
    return Result(
        document={
            "schema": "pubsubctl/bench-plan/1",
            "system": facts,
            "workload": spec.workload_mapping(),
        },
        text=f"start {', '.join(configuration.servers)}: {configuration.program} "
        f"({configuration.version}), {settings}",
    )
