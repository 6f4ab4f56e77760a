"""An experiment from workload file to run folder, on a running or a temporary deployment."""

import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import trio

from bench.run.collection import is_uncollected
from bench.run.coordinator import find_only_cause, run_experiment
from bench.run.outcome import RunOutcome
from bench.run.run_directory import new_run_directory
from bench.run.run_statistics import describe_subscriptions
from bench.run.testbed import BrokerPlace, FetchFile, Testbed
from bench.spec.spec import ExperimentSpec
from brokerd.errors import ControlError
from brokerd.storage.files import is_no_room
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.deployment.certificates import certificate_of, transport_of
from pubsubctl.deployment.deploy import (
    CLEANUP_TIMEOUT_S,
    LEASE_MS,
    choose_deployment,
    run_deployment,
    take_down,
)
from pubsubctl.deployment.deployment import Deployment
from pubsubctl.deployment.plan import DesiredState, deploy_plan
from pubsubctl.deployment.updates import Role, change_roles, roll
from pubsubctl.errors import PreflightFailed, PubsubctlError, VerdictUnknown
from pubsubctl.hosts.hosts import Lab
from pubsubctl.injection.faults import check_schedule
from pubsubctl.inventory.inventory import Inventory
from pubsubctl.runs.outputs import check_results
from pubsubctl.runs.run_changes import refresh_run_index
from pubsubctl.runs.verdicts import JudgedRun, expectations_of, explain_status, judge

LEASE_MS_PER_BROKER = 150
"""The lease per broker if larger: an agent beside hundreds of brokers responds later."""


Stopped = tuple[RunOutcome, tuple[PubsubctlError, ...]]
"""A run, and the interruption that arrived when nothing was left to cancel."""


class RecordsLeft(PreflightFailed):
    """This machine has no room for the records of a run, which stay on their hosts."""

    @classmethod
    def of(cls, run: Path, lab: Lab) -> "RecordsLeft":
        """Return the error for a run folder, and for the hosts with its records."""
        path = lab.inventory.path
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        command = f"pubsubctl -i {shlex.quote(str(path))}"
        return cls(
            f"{run}: no space left; the records stay on their hosts. Free space, then "
            f"`{command} results collect {shlex.quote(str(run))}`, and only then `{command} down`"
        )

    @classmethod
    def on_this_machine(cls, run: Path, folder: Path) -> "RecordsLeft":
        """Return the error for a run on an external broker, with the folder of its records."""
        return cls(
            f"{run}: no space left; the records stay in {folder}. Free space, then "
            f"`pubsubctl results collect {shlex.quote(str(run))}`, which removes that folder"
        )


@dataclass(frozen=True)
class Experiment:
    """An experiment to run.

    Attributes:
        schedule: the faults, or None.
        results: the folder that gets <experiment>/<run id>.
        teardown: True to take a temporary deployment down again.
        rolling: the number of brokers replaced at once during the run, until all are; 0 for none.
        roles: role changes of brokers during the run, one after the other.
        on_run: called with the run's folder before the run.
    """

    spec: ExperimentSpec
    schedule: FaultSchedule | None
    results: Path
    teardown: bool = True
    rolling: int = 0
    roles: tuple[Role, ...] = ()
    on_run: Callable[[Path], None] = lambda run: None


async def carry_out(
    experiment: Experiment,
    lab: Lab,
    progress: Progress,
    interruption: Interruption,
    purpose: str,
) -> RunOutcome:
    """Run an experiment on the running deployment, or on a temporary deployment.

    After an interruption, heal, collect, write the partial records, and take the temporary
    deployment down before the interruption is raised.

    Raises:
        PreflightFailed: the running deployment does not fit; names the differences.
        UserError: the schedule cannot be carried out on this placement.
        RunFailed, ControlError, HostError: the experiment fails; not in a group.
    """
    try:
        return await _carry_out(experiment, lab, progress, interruption, purpose)
    except BaseExceptionGroup as group:
        if (cause := find_only_cause(group)) is not None:
            raise cause from group
        raise


async def _carry_out(
    experiment: Experiment,
    lab: Lab,
    progress: Progress,
    interruption: Interruption,
    purpose: str,
) -> RunOutcome:
    check_results(experiment.results, experiment.spec)
    async with lab.operate(purpose, progress, interruption):
        spec = experiment.spec
        wanted = await choose_deployment(lab, spec.topology, spec.protocol)
        if experiment.schedule is not None:
            check_schedule(
                experiment.schedule,
                spec.topology,
                placement=wanted.placement,
                clients=spec.clients(),
                protocol=spec.protocol,
            )
        async with open_testbed(
            lab, wanted, progress, interruption, purpose, teardown=experiment.teardown
        ) as (bed, deployment):

            async def replace_all() -> None:
                hosts = wanted.placement.hosts
                await roll(deployment, hosts, progress, max_unavailable=experiment.rolling)

            async def change() -> None:
                measured_s = spec.workload.phases.measure / 1e9
                pause_s = measured_s / (len(experiment.roles) + 1)
                await change_roles(deployment, experiment.roles, progress, purpose, pause_s=pause_s)

            meanwhile = replace_all if experiment.rolling else None
            if experiment.roles:
                meanwhile = change
            run = new_run_directory(experiment.results, spec.name)
            experiment.on_run(run)
            progress.print(f"run {run}")
            try:
                with interruption.stoppable():
                    outcome = await run_experiment(
                        spec,
                        bed,
                        run,
                        experiment.schedule,
                        progress,
                        meanwhile,
                        rolling=0 if experiment.roles else experiment.rolling,
                    )
            except OSError as error:
                if not (is_no_room(error) and is_uncollected(run)):
                    raise
                raise RecordsLeft.of(run, lab) from error
    refresh_run_index([outcome.run_directory], progress)
    return outcome


@asynccontextmanager
async def open_testbed(
    lab: Lab,
    wanted: DesiredState,
    progress: Progress,
    interruption: Interruption,
    purpose: str,
    *,
    teardown: bool,
) -> AsyncIterator[tuple[Testbed, Deployment]]:
    """Yield brokers for an experiment.

    A temporary deployment has a lease that is renewed during the block, so that the deployment ends
    by itself if this process is killed. A deployment with uncollected records stays until `down`.
    """
    found = await lab.observe()
    is_ours = all(row.deployment is None for row in found)
    if not is_ours and (missing := deploy_plan(wanted, found).of("start-broker")):
        names = ", ".join(step.subject for step in missing)
        raise PreflightFailed(f"deployed, but not running: {names}; `pubsubctl deploy` first")
    is_up, began_s = False, trio.current_time()
    lease_ms = lease_ms_for(len(wanted.placement.brokers))
    try:
        async with (
            run_deployment(
                lab,
                wanted,
                progress,
                interruption,
                purpose=purpose,
                lease_ms=lease_ms if is_ours else 0,
            ) as deployment,
            trio.open_nursery() as nursery,
        ):
            is_up = True
            if is_ours:
                nursery.start_soon(_renew, deployment, lease_ms, progress)
            ready_after_s = trio.current_time() - began_s if is_ours else None
            bed = replace(await as_testbed(deployment), ready_after_s=ready_after_s)
            try:
                yield bed, deployment
            except RecordsLeft:
                teardown = False
                raise
            finally:
                nursery.cancel_scope.cancel()
                if is_ours and not teardown:
                    with trio.CancelScope(shield=True):
                        await deployment.hold(0)
    finally:
        if is_ours and is_up and teardown:
            with trio.CancelScope(shield=True), trio.move_on_after(2 * CLEANUP_TIMEOUT_S):
                await take_down(lab, progress, verify=True)


async def as_testbed(deployment: Deployment) -> Testbed:
    """Return a deployment in the form that experiments use."""
    wanted, lab = deployment.wanted, deployment.lab
    hosts = wanted.placement.hosts

    async def certificate(suffix: str) -> dict[str, str] | None:
        clients_host = wanted.placement.clients_host
        return await certificate_of(lab, deployment.identity, clients_host, "load", suffix)

    return Testbed(
        agents=deployment.agents,
        brokers={
            row.broker: BrokerPlace(row.host, row.broker, row.address)
            for row in wanted.placement.brokers
        },
        topology=wanted.topology,
        topology_digest=wanted.digest,
        protocol=wanted.protocol,
        deployment_id=deployment.identity,
        host_roots={name: await lab.connector(name).root() for name in hosts},
        socket_folders={name: await lab.connector(name).socket_folder() for name in hosts},
        clients_host=wanted.placement.clients_host,
        documents={
            "inventory.toml": lab.inventory.text,
            "placement.json": {
                **wanted.placement.to_mapping(),
                "failure_domains": {
                    connector.host.name: connector.host.failure_domain
                    for connector in lab.connectors
                },
            },
        },
        fetch_file=fetch_with(lab),
        transport=transport_of(lab.inventory),
        broker_nice={
            name: nice for name in hosts if (nice := lab.connector(name).host.broker_nice)
        },
        without_fsync=[name for name in hosts if lab.connector(name).host.fsync == "off"],
        certificate_for_clients=certificate,
        protected_ports=list_protected_ports(lab.inventory),
    )


def fetch_with(lab: Lab) -> FetchFile:
    """Return the function that copies a file of a host of `lab` to this machine."""

    async def fetch(host: str, source: str, target: Path, most_bytes: int) -> None:
        try:
            await lab.connector(host).fetch(source, target, most_bytes)
        except PubsubctlError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and is_no_room(cause):
                raise cause from error
            raise OSError(str(error)) from error

    return fetch


def list_protected_ports(inventory: Inventory) -> list[int]:
    """Return the SSH ports of the hosts, which faults never touch."""
    return sorted({host.port for host in inventory.hosts if host.connector != "local"})


def lease_ms_for(brokers: int) -> int:
    """Return the time for which a temporary deployment outlives its controller."""
    return max(LEASE_MS, LEASE_MS_PER_BROKER * brokers)


async def _renew(deployment: Deployment, lease_ms: int, progress: Progress) -> None:
    while True:
        await trio.sleep(lease_ms / 5000)
        try:
            await deployment.hold(lease_ms)
        except* (ControlError, trio.TooSlowError) as group:
            # That host may be broken on purpose; the run's records contain the consequences.
            why = str(group.exceptions[0]) or "no answer in time"
            progress.print(f"a lease was not renewed: {why}")


def run_and_judge(
    call: Invocation,
    spec: ExperimentSpec,
    schedule: FaultSchedule | None,
    *,
    results: Path | None,
    check: bool,
    teardown: bool,
    rolling: int,
    roles: tuple[Role, ...],
) -> Result:
    """Run `bench`: deploy if needed, run, take down, judge."""
    lab = lab_for(call)
    folder = call.project.results_folder(results)
    experiment = Experiment(spec, schedule, folder, teardown, rolling, roles)
    purpose = f"bench {spec.workload.name}"
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> Stopped:
            outcome = await carry_out(experiment, lab, progress, interruption, purpose)
            return outcome, interruption.errors()

        outcome, stops = run_interruptibly(
            work, call.console, when_not_waiting=describe_abandoned(spec)
        )
        is_judged = check and not stops
        judged = judge(outcome.run_directory, progress, call.master()) if is_judged else None
    return result_of(call, outcome, judged, stops)


def describe_abandoned(spec: ExperimentSpec) -> str:
    """Return the fate of an experiment after a second signal, in words."""
    lease_s = lease_ms_for(len(spec.topology.present())) // 1000
    return (
        f"faults and brokers of this run end by themselves within {lease_s} s; "
        "`pubsubctl down --verify` verifies that"
    )


def lab_for(call: Invocation) -> Lab:
    """Return the hosts that the command line selects."""
    inventory = call.inventory()
    return Lab.of(inventory, call.hosts(inventory), call.forks)


def numbers_text(outcome: RunOutcome) -> str:
    """Return the numbers of a run in a line."""
    begins = "" if outcome.state == "complete" else f"the run is {outcome.state}; "
    parts = [
        f"{begins}in measure: {outcome.published:,} published",
        f"{outcome.delivered:,} received"
        + (
            f" ({outcome.delivered_earlier:,} of them sent before)"
            if outcome.delivered_earlier
            else ""
        ),
        f"{outcome.delivered_per_s:,.0f}/s",
    ]
    if outcome.response_us:
        p50, p99 = (outcome.response_us[name] / 1000 for name in ("p50", "p99"))
        parts.append(f"latency p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    if outcome.acknowledged_us:
        p50, p99 = (outcome.acknowledged_us[name] / 1000 for name in ("p50", "p99"))
        parts.append(f"acknowledged p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    if mean := outcome.broker_cpu_us_per_message_mean:
        parts.append(f"{mean:.1f} µs of CPU per delivery and broker")
    if outcome.memory_bytes:
        name, memory = max(outcome.memory_bytes.items(), key=lambda item: item[1]["largest"])
        parts.append(f"memory up to {memory['largest'] / 1e6:,.0f} MB ({name})")
    if outcome.recovery is not None:
        since = f"{outcome.recovery.us / 1e6:.1f} s after the last fault or burst"
        parts.append(f"{'recovered' if outcome.recovery.is_over else 'not recovered'} {since}")
    if outcome.limited_by:
        parts.append(f"limited by {outcome.limited_by}")
    if outcome.is_load_generator_limit:
        parts.append("no result of how fast brokers are")
    return " · ".join(parts)


def result_of(
    call: Invocation,
    outcome: RunOutcome,
    judged: JudgedRun | None,
    stops: Sequence[PubsubctlError],
) -> Result:
    """Return the result of a run, with the verdict if there is one.

    Args:
        stops: the interruption that arrived after the run had ended.
    """
    lines = [numbers_text(outcome), *describe_subscriptions(outcome.around_faults)]
    because: list[PubsubctlError] = [*stops]
    if judged is not None:
        lines.insert(0, judged.paint(call.console))
        because += judged.because
    elif outcome.state == "complete":
        found = expectations_of(outcome.run_directory)
        lines += [each.text for each in found]
        because += explain_status(outcome.run_directory, found)
    else:
        because.append(VerdictUnknown(*(outcome.reasons or ("the run is not complete",))))
    document = {
        "schema": "pubsubctl/bench/1",
        "run_directory": str(outcome.run_directory),
        "run_id": outcome.run_directory.name,
        "state": outcome.state,
        "reasons": list(outcome.reasons),
        "published": outcome.published,
        "delivered": outcome.delivered,
        "delivered_per_s": outcome.delivered_per_s,
        "delivered_earlier": outcome.delivered_earlier,
        "delivered_new_per_s": outcome.delivered_new_per_s,
        "response_us": dict(outcome.response_us),
        "service_us": dict(outcome.service_us),
        "acknowledged_us": dict(outcome.acknowledged_us),
        "around_faults": {
            name: {stretch: asdict(each) for stretch, each in of.items()}
            for name, of in outcome.around_faults.items()
        },
        "recovery": asdict(outcome.recovery) if outcome.recovery is not None else None,
        "limited_by": outcome.limited_by,
        "is_load_generator_limit": outcome.is_load_generator_limit,
        "broker_cpu_us_per_message": outcome.broker_cpu_us_per_message_mean,
        "broker_cpu_us_per_message_by_broker": dict(outcome.broker_cpu_us_per_message),
        "load_cpu_us_per_message_by_process": dict(outcome.load_cpu_us_per_message),
        "memory_bytes_by_process": {
            name: dict(memory) for name, memory in outcome.memory_bytes.items()
        },
        "lateness_p99_us": outcome.lateness_p99_us,
        "online": dict(outcome.online),
        "verdict": judged.verdict if judged is not None else None,
        "expectations": [each.row() for each in expectations_of(outcome.run_directory)],
    }
    lines.append(str(outcome.run_directory))
    return Result(document=document, text="\n".join(lines), because=tuple(because))
