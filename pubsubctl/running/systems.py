"""`bench` on a system under test: its servers on this machine, our load, faults and verdict."""

from pathlib import Path
from typing import Any

from bench.run.outcome import RunOutcome
from bench.run.run_directory import new_run_directory
from bench.spec.spec import ExperimentSpec, Overrides
from bench.systems.configuration import Configuration, load_configuration
from bench.systems.experiment import experiment_on, run_on_system
from bench.systems.faults import aimed, check_verbs, names_leader
from bench.systems.servers import servers_running
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.commands.invocation import Invocation
from pubsubctl.console.console import Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.errors import UserError
from pubsubctl.injecting.faults import checked, schedule_of, settled
from pubsubctl.running.experiment import result_of
from pubsubctl.running.judging import judge

NOT_WAITING = "the servers of this run end by themselves within 30 s"


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
    """The whole of `bench` on a system: start its servers, run, end them, judge.

    Raises:
        UserError, SpecError: what was asked for cannot be; names file, key and value.
        NotInstalled: its server or client library is not there.
        ServerFailed: it does not start.
    """
    configuration = load_configuration(name)
    for option in ("protocol", "topology"):
        if getattr(overrides, option) is not None:
            raise UserError(f"--{option}: {name} says itself what runs, and where")
    workload = call.project.find("workload", configuration.workload)
    spec = experiment_on(configuration, workload, overrides, labels, calm=faults is None)
    schedule = _schedule(call, spec, faults)
    has_leader = configuration.system.leader is not None or len(configuration.servers) == 1
    if schedule is not None and names_leader(schedule) and not has_leader:
        raise UserError(f"{schedule.source}: nobody leads in {configuration.system.title}")
    if call.dry_run:
        return _planned(configuration, spec)
    folder = call.project.results_folder(results)
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> RunOutcome:
            async with servers_running(configuration) as (bed, servers):
                run = new_run_directory(folder, spec.name)
                progress.say(f"run {run}: {configuration.version}")
                with interruption.stoppable():
                    outcome = await run_on_system(spec, bed, servers, run, schedule, progress)
            return outcome

        outcome = run_interruptibly(work, call.console, when_not_waiting=NOT_WAITING)
        judged = judge(outcome.run_directory, progress, call.master()) if check else None
    result = result_of(call, outcome, judged)
    promised = f"{configuration.system.title}, {configuration.version}"
    lines = [f"{promised}; promised: {configuration.promise.in_words()}", result.text]
    document: dict[str, Any] = {**result.document, "system": configuration.facts()}
    return Result(document=document, text="\n".join(lines), because=result.because)


def _schedule(call: Invocation, spec: ExperimentSpec, faults: str | None) -> FaultSchedule | None:
    if faults is None:
        return None
    schedule = schedule_of(call.project, faults)
    check_verbs(schedule)
    asked = schedule
    # Which server leads is known under load only; for what is looked at before, any will do.
    schedule = aimed(schedule, spec.topology.brokers[0])
    schedule = settled(schedule, spec.topology, spec.overrides.get("seed"))
    measure_ns = spec.workload.phases.measure
    for warning in checked(schedule, spec.topology, measure_ns=measure_ns, clients=spec.clients()):
        call.console.warn(warning)
    return asked if names_leader(asked) else schedule


def _planned(configuration: Configuration, spec: ExperimentSpec) -> Result:
    """What would be started and loaded."""
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
