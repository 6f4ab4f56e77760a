"""The running deployment of an inventory, as reported by its agents and brokers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerd.agent.client import AgentClient
from brokerd.agent.fork_server import EXIT_CONFIG
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import LASTING_VERBS
from brokerd.protocols.interface import CoreStatus
from brokerd.runtime.program import Program
from brokerd.text import describe_exit, without_name
from pubsubctl.deployment.deployment import UPGRADE, agent_note, broker_note
from pubsubctl.deployment.newest_record import read_records
from pubsubctl.errors import Unreachable
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.hosts import Lab, lack_of_room


@dataclass(frozen=True)
class BrokerState:
    """The state of a broker, as shown by `status`.

    Attributes:
        state: running, recovering; or exited, stopped; or unknown.
        exit: the cause of the exit, "" while the broker runs.
        loss: a loss of durable state that is not accepted, "" if there is none.
        obstacles: peer → the reason for a missing session, other than that the peer is down.
        subscriptions: the number of subscriptions that the broker routes by.
        run_id: the run to which the broker records, or "".
        core: the assigned core, or -1.
        cores: the permitted cores in /proc; None if unknown.
        program: the reported program; None without an answer, or from an earlier release.
        discrepancies: contradictions between the broker's view and the topology or the log, and
            obstacles to writes, in words.
        detail: the state that the broker's protocol prints.
    """

    broker: str
    host: str
    port: int
    pid: int | None
    state: str
    exit: str = ""
    loss: str = ""
    wanted: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    obstacles: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    subscriptions: int = 0
    run_id: str = ""
    core: int = -1
    cores: tuple[int, ...] | None = None
    program: Program | None = None
    discrepancies: tuple[str, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class LabState:
    """The state of a deployment.

    Attributes:
        deployment: the record of the deployment; None if nothing is deployed.
        reached: hosts with an agent that answered.
        unreachable: hosts without an answer, or with a silent agent, and the reason.
        agentless: the unreachable hosts that can be reached without the agent.
        interrupted: host with stopped brokers → an interrupted command.
        busy: agentless host → the command that holds the host's lock, which starts or stops agents.
        faults: the rows of all faults that are in effect.
        leases_ms: host → the rest of the deployment's lease, for hosts with a lease.
        full_disks: host → a complaint about a full disk.
        programs: host → the program of its agent; None for a release without program reports.
        differing: host → remedies for records, agents and brokers of other programs.
    """

    deployment: Mapping[str, Any] | None = None
    brokers: list[BrokerState] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
    agentless: list[str] = field(default_factory=list)
    busy: dict[str, str] = field(default_factory=dict)
    interrupted: dict[str, str] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    leases_ms: dict[str, int] = field(default_factory=dict)
    full_disks: dict[str, str] = field(default_factory=dict)
    programs: dict[str, Program | None] = field(default_factory=dict)
    differing: dict[str, list[str]] = field(default_factory=dict)


async def lab_state(lab: Lab) -> LabState:
    """Query every host of the lab with a deployment.

    Raises:
        ExceptionGroup: of Unreachable, if no host can be reached.
    """
    records = await read_records(lab)
    if len(records.lost) == len(lab.connectors):
        raise ExceptionGroup("no host can be reached", list(records.lost.values()))
    state = LabState(records.newest)
    by_broker: dict[str, BrokerState] = {}

    async def look(connector: Connector) -> None:
        name = connector.host.name
        record = records.of(name)
        if record is None:
            return
        if full := await lack_of_room(connector):
            state.full_disks[name] = full
        rows = [row for row in record["placement"]["brokers"] if row["host"] == name]
        try:
            async with connector.open_agent() as agent:
                status = await agent.status()
                state.reached.append(name)
                state.programs[name] = Program.from_mapping(status.get("program"))
                if status["lease"]:
                    state.leases_ms[name] = status["lease"]["left_ms"]
                state.faults += [
                    {**row, "host": name} for row in status["faults"] if is_in_effect(row)
                ]
                for row in rows:
                    process = status["processes"].get(row["broker"])
                    by_broker[row["broker"]] = await broker_state(agent, row, process)
            of_host = [by_broker[row["broker"]] for row in rows]
            is_whole = all(row.pid is not None for row in of_host)
            if not is_whole and (command := await connector.interrupted_command()):
                state.interrupted[name] = command
            own = records.by_host[name].get("program")
            is_recorded = own == await connector.transport.program()
            notes = list_differing_programs(name, state.programs[name], of_host, is_recorded)
            if notes:
                state.differing[name] = notes
        except Unreachable as error:
            state.unreachable[name] = str(error)
            state.agentless.append(name)
            if holder := await connector.lock_holder():
                state.busy[name] = holder
            elif command := await connector.interrupted_command():
                state.interrupted[name] = command

    await lab.on_all(look)
    state.unreachable.update((name, str(records.lost[name])) for name in sorted(records.lost))
    placed = state.deployment["placement"]["brokers"] if state.deployment else []
    for row in placed:
        name = row["broker"]
        if name in by_broker:
            state.brokers.append(by_broker[name])
        elif row["host"] in state.unreachable:
            unknown = BrokerState(name, row["host"], row["port"], None, "unknown")
            state.brokers.append(unknown)
    return state


def list_differing_programs(
    host: str, agent: Program | None, brokers: Iterable[BrokerState], is_recorded: bool
) -> list[str]:
    """Return a line for each process on a host that does not run this program.

    Args:
        is_recorded: the host's record names this program.
    """
    notes = [agent_note(host, agent)]
    for row in brokers:
        if row.pid is not None and row.state != "silent":
            notes.append(broker_note(row.broker, host, row.program))
    found = [note for note in notes if note]
    if not found and not is_recorded:
        found = [f"host {host} was started with another program; {UPGRADE}"]
    return found


async def programs_on(connector: Connector) -> list[str] | None:
    """Return a line for each process on a host that does not run this program; None: nothing runs.

    Raises:
        Unreachable: the agent does not answer.
    """
    record = await connector.read_deployment()
    if record is None:
        return None
    name = connector.host.name
    async with connector.open_agent() as agent:
        status = await agent.status()
        brokers = [
            await broker_state(agent, row, status["processes"].get(row["broker"]))
            for row in record["placement"]["brokers"]
            if row["host"] == name
        ]
    is_recorded = record.get("program") == await connector.transport.program()
    program = Program.from_mapping(status.get("program"))
    return list_differing_programs(name, program, brokers, is_recorded)


async def due_upgrades(lab: Lab) -> dict[str, list[str]]:
    """Return, by host, the processes of other programs; hosts without any are left out."""
    return (await lab_state(lab)).differing


def is_in_effect(row: Mapping[str, Any]) -> bool:
    """Return True if a row of an agent's faults is in effect now."""
    return row["verb"] in LASTING_VERBS and row["state"] in ("requested", "applied")


async def broker_state(
    agent: AgentClient,
    placed: Mapping[str, Any],
    process: Mapping[str, Any] | None,
    timeout_ms: int = 2_000,
) -> BrokerState:
    """Query a broker through its agent.

    Args:
        placed: the broker's row of the placement.
        process: the broker's row of the agent's status, or None.
    """
    name, host, port = placed["broker"], placed["host"], placed["port"]
    if process is None:
        return BrokerState(name, host, port, None, "not started")
    if process["state"] != "running":
        end, loss = _describe_end(name, process), str(process.get("loss", ""))
        return BrokerState(name, host, port, None, process["state"], exit=end, loss=loss)
    try:
        status = await agent.broker(name, "status", timeout_ms=timeout_ms)
    except ControlError as error:
        return BrokerState(name, host, port, process["pid"], "silent", exit=str(error))
    core = CoreStatus.from_mapping(status)
    return BrokerState(
        name,
        host,
        port,
        process["pid"],
        core.state,
        wanted=core.wanted,
        ready=core.ready,
        pending=core.missing,
        obstacles=status.get("obstacles", {}),
        faults=tuple(str(fault) for fault in status["faults"]),
        subscriptions=core.subscriptions,
        run_id=status["run_id"],
        loss=status.get("loss", ""),
        core=placed["core"],
        cores=tuple(process["cores"]) if process.get("cores") else None,
        program=Program.from_mapping(status.get("program")),
        discrepancies=core.discrepancies,
        detail=core.detail,
    )


def _describe_end(name: str, process: Mapping[str, Any]) -> str:
    """Return the cause of an exit, such as `SIGKILL by fault ID` or `status 1, unexpected`."""
    cause = str(process["exit_cause"])
    how = describe_exit(process["exit_code"], process["exit_signal"])
    if not how:
        return cause
    if process["exit_code"] == EXIT_CONFIG and process.get("exit_text"):
        return f"{how}: {without_name(name, process['exit_text'])}"
    fault = cause.removeprefix("fault:")
    return f"{how} by fault {fault}" if fault != cause else f"{how}, {cause}"


def describe_missing(missing: Iterable[str], obstacles: Mapping[str, str]) -> str:
    """Return a clause about missing sessions, with the known reasons; "" if none is missing."""
    rows = [
        f"{peer} ({obstacles[peer]})" if peer in obstacles else peer for peer in sorted(missing)
    ]
    return f"no session to {', '.join(rows)}" if rows else ""
