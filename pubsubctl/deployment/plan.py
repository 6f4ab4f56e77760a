"""Plans of `deploy` and `down`, as steps that can be printed, compared and tested.

Pure: the wanted state and the observed state determine the plan. The second `deploy` in a row gets
a plan without steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from brokerd.text import counted
from pubsubctl.deployment.placement import Placement
from pubsubctl.errors import PreflightFailed

if TYPE_CHECKING:
    from brokerd.overlay.topology import Topology

REPLACEMENTS: Final = "replacements"
"""Key of the number of replaced brokers; the record with the highest has the present places."""


@dataclass(frozen=True)
class DesiredState:
    """The wanted state.

    Attributes:
        digest: computed from the other attributes; all brokers must agree.
        accept_loss: brokers that start although they lost durable state.
    """

    topology: "Topology"
    protocol: str
    digest: str
    placement: Placement
    accept_loss: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stray:
    """A process of ours without an agent, with its listening ports."""

    pid: int
    name: str
    ports: tuple[int, ...] = ()

    def __str__(self) -> str:
        ports = f", port {', '.join(map(str, self.ports))}" if self.ports else ""
        return f"pid {self.pid} ({self.name}{ports})"


@dataclass(frozen=True)
class ObservedState:
    """The observed state of a host.

    Attributes:
        host: its name.
        agent: the deployment of the agent, or None if no agent answers.
        processes: process → state, as reported by the agent: running, exited, stopped.
        deployment: the content of deployment.json, or None.
        strays: processes of ours without an agent.
        files: True if files of ours are on its disk.
    """

    host: str
    agent: str | None = None
    processes: Mapping[str, str] | None = None
    deployment: Mapping[str, Any] | None = None
    strays: tuple[Stray, ...] = ()
    files: bool = False


@dataclass(frozen=True)
class Step:
    """A step on a host.

    Attributes:
        verb: start-agent, start-broker, await-ready, record, stop-agent, stop-strays, remove;
            change-record, change-topology, join, stop-broker if brokers join, leave or change
            role in the overlay.
        host: the host's name.
        subject: the object of the verb, for example a broker's name.
        details: the rest, for people and for golden files.
    """

    verb: str
    host: str
    subject: str = ""
    details: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.verb, self.host, self.subject, self.details) if part)


@dataclass(frozen=True)
class Plan:
    """Steps in order of execution; steps of the same verb on different hosts run in parallel.

    Attributes:
        decommissioned: brokers that are not started, because the others continue without them.
        replacements: number of brokers that were replaced so far.
    """

    steps: tuple[Step, ...]
    decommissioned: tuple[str, ...] = ()
    replacements: int = 0

    def of(self, verb: str) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.verb == verb)

    def to_mapping(self) -> dict[str, Any]:
        """Return a mapping; equal plans result in equal bytes."""
        return {
            "schema": "pubsubctl/plan/1",
            "steps": [asdict(step) for step in self.steps],
            "decommissioned": [*self.decommissioned],
        }

    def text(self) -> str:
        """Return a line per step, and a line per broker that is not started."""
        steps = [str(step) for step in self.steps] or ["nothing to do"]
        return "\n".join([*steps, *map(is_not_started, self.decommissioned)])


def is_not_started(broker: str) -> str:
    """Return a sentence about a decommissioned broker."""
    return f"{broker} was decommissioned and is not started; a new deployment takes it in again"


def list_decommissioned(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the decommissioned brokers in the content of a deployment.json."""
    return tuple(record.get("decommissioned", ()))


def count_replacements(record: Mapping[str, Any]) -> int:
    """Return the number of replaced brokers in the content of a deployment.json."""
    return int(record.get(REPLACEMENTS, 0))


def deploy_plan(wanted: DesiredState, found: Sequence[ObservedState]) -> Plan:
    """Return the missing steps for `wanted` to run; decommissioned brokers are left out.

    Raises:
        PreflightFailed: another deployment runs there; names the difference and the remedy.
    """
    _refuse_strays(found)
    _refuse_another(wanted, found)
    by_host = {row.host: row for row in found}
    # The record comes first: every operator can resume or take down an interrupted deploy.
    steps = [
        Step("record", host, "deployment.json")
        for host in wanted.placement.hosts
        if by_host[host].deployment is None
    ]
    steps += [
        Step("start-agent", host) for host in wanted.placement.hosts if by_host[host].agent is None
    ]
    before = _running_topology(wanted, found)
    changes = _changes(wanted, before, found)
    _refuse_changes(wanted, before, changes)
    steps += changes
    started: list[str] = []
    recorded = {
        name
        for row in found
        if row.deployment is not None
        for name in list_decommissioned(row.deployment)
    }
    placed = [row for row in wanted.placement.brokers if row.broker not in recorded]
    for row in placed:
        if (by_host[row.host].processes or {}).get(row.broker) != "running":
            core = f" core {row.core}" if row.core >= 0 else ""
            details = f"{row.address}{core} {wanted.protocol}"
            steps.append(Step("start-broker", row.host, row.broker, details))
            started.append(row.broker)
    if started or changes:
        count = len(placed)
        steps.append(
            Step("await-ready", "all", counted(count, "broker"), f"digest {wanted.digest[:8]}")
        )
    removed = tuple(row.broker for row in wanted.placement.brokers if row.broker in recorded)
    replacements = max(map(count_replacements, _records_of(found)), default=0)
    return Plan(tuple(steps), removed, replacements)


def _records_of(found: Sequence[ObservedState]) -> list[Mapping[str, Any]]:
    return [row.deployment for row in found if row.deployment is not None]


def _running_topology(wanted: DesiredState, found: Sequence[ObservedState]) -> "Topology":
    """Return the running topology; the wanted topology if nothing runs."""
    recorded = _records_of(found)
    topologies = [row["before"] for row in recorded if "before" in row]
    topologies += [row["topology"] for row in recorded]
    if not topologies:
        return wanted.topology
    from brokerd.overlay.topology import Topology

    return Topology.from_mapping(topologies[0], "deployment.json")


def _changes(
    wanted: DesiredState, before: "Topology", found: Sequence[ObservedState]
) -> list[Step]:
    """Return the steps by which brokers join, leave or change role in a running deployment."""
    if before.to_mapping() == wanted.topology.to_mapping():
        return []
    there = before.present()
    by_host = {row.host: row for row in found}
    steps = [
        Step("change-record", host, "deployment.json")
        for host in wanted.placement.hosts
        if by_host[host].deployment is not None
    ]
    steps += [
        Step("stop-broker", row.host, name, "leaves")
        for row in found
        for name in row.processes or {}
        if name in wanted.topology.left
    ]
    for placed in wanted.placement.brokers:
        running = (by_host[placed.host].processes or {}).get(placed.broker) == "running"
        if running:
            steps.append(Step("change-topology", placed.host, placed.broker))
        elif placed.broker not in there:
            steps.append(Step("join", placed.host, placed.broker))
    return steps


def _refuse_changes(wanted: DesiredState, before: "Topology", changes: Sequence[Step]) -> None:
    """Refuse changes that the protocol does not support: membership, or roles."""
    words = {"join": "would join", "stop-broker": "would leave"}
    moves = [f"{step.subject} {words[step.verb]}" for step in changes if step.verb in words]
    from brokerd.protocols.registry import definition_of

    promises = definition_of(wanted.protocol).promises
    members = wanted.topology.present() != before.present()
    roles = wanted.topology.has_other_roles(before)
    if (members and not promises.members_may_change) or (roles and not promises.roles_may_change):
        raise PreflightFailed(
            f"{', '.join(moves) or wanted.topology.name}: with {wanted.protocol} a running "
            "deployment keeps its brokers; run `pubsubctl down`, then `pubsubctl deploy`"
        )


def down_plan(found: Sequence[ObservedState], *, purge: bool) -> Plan:
    """Return the steps that stop and remove everything of ours."""
    steps: list[Step] = []
    for row in found:
        if row.agent is not None:
            running = sum(state == "running" for state in (row.processes or {}).values())
            steps.append(Step("stop-agent", row.host, f"deployment {row.agent}", f"{running} live"))
        if row.strays:
            steps.append(Step("stop-strays", row.host, ", ".join(map(str, row.strays))))
        if row.files or row.agent is not None:
            scope = "everything" if purge else "state, sockets and logs"
            steps.append(Step("remove", row.host, scope))
    return Plan(tuple(steps))


def differences(wanted: DesiredState, deployment: Mapping[str, Any]) -> list[str]:
    """Return the differences of a recorded deployment from the wanted state, a sentence each."""
    from brokerd.overlay.topology import Topology

    found: list[str] = []
    if deployment["protocol"] != wanted.protocol:
        found.append(f"protocol is {deployment['protocol']}, wanted is {wanted.protocol}")
    topology = Topology.from_mapping(deployment["topology"], "deployment.json").to_mapping()
    ours = wanted.topology.to_mapping()
    if _follows(wanted.topology, topology) and not found:
        return []
    if topology != ours:
        found.append(
            f"topology is {_topology_change(topology, ours)}, "
            f"wanted is {_topology_change(ours, topology)}"
        )
    elif deployment["digest"] != wanted.digest and not found:
        found.append(f"digest is {deployment['digest'][:8]}, wanted is {wanted.digest[:8]}")
    if not found and deployment["placement"] != wanted.placement.to_mapping():
        found.append("brokers are placed on other hosts, ports or cores")
    return found


def _follows(wanted: "Topology", recorded: Mapping[str, Any]) -> bool:
    """Return True if a running deployment can change into the wanted state."""
    from brokerd.overlay.topology import Topology

    before = Topology.from_mapping(recorded, "deployment.json")
    return before != wanted and wanted.follows(before)


def _describe_parameters(parameters: Mapping[str, Any]) -> str:
    rows = [f"{key} {value}" for values in parameters.values() for key, value in values.items()]
    return ", ".join(rows) or "the parameters of the defaults"


def _topology_change(topology: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return a topology's name, with the detail that distinguishes it from the other."""
    name = str(topology["name"])
    if topology["name"] != other["name"]:
        return name
    if topology["kind"] != other["kind"]:
        kinds = topology["kind"]
        return f"{name} of kind {kinds if isinstance(kinds, str) else ' and '.join(kinds)}"
    from brokerd.overlay.kinds import KINDS

    for kind in KINDS:
        if topology.get(kind) != other.get(kind):
            delta = topology[kind].get("delta")
            return f"{name} with " + (f"other {kind}" if delta is None else f"delta {delta}")
    if topology.get("parameters") != other.get("parameters"):
        return f"{name} with {_describe_parameters(topology.get('parameters', {}))}"
    if topology.get("session") != other.get("session"):
        session = [f"{key} {value}" for key, value in topology.get("session", {}).items()]
        return f"{name} with {', '.join(session) or 'the sessions of the defaults'}"
    count, links = len(topology["brokers"]), len(topology.get("links", ()))
    if (count, links) != (len(other["brokers"]), len(other.get("links", ()))):
        return f"{name} with {counted(count, 'broker')}"
    changes = [f"{row[0]} joined" for row in topology.get("joined", ())]
    changes += [f"{left} left" for left in topology.get("left", ())]
    if changes or "joined" in other or "left" in other:
        return f"{name}, {', '.join(changes) or 'no broker joined or left'}"
    return f"{name} with other links"


def _refuse_strays(found: Sequence[ObservedState]) -> None:
    problems = [
        f"host {row.host}: {stray} of an earlier deployment still runs"
        for row in found
        if row.deployment is None  # otherwise a new agent adopts them
        for stray in row.strays
    ]
    if problems:
        raise PreflightFailed(*problems, "`pubsubctl down` stops it")


def _refuse_another(wanted: DesiredState, found: Sequence[ObservedState]) -> None:
    recorded = {row.host: row.deployment for row in found if row.deployment is not None}
    identities = {(row.agent, row.host) for row in found if row.agent is not None}
    identities |= {(str(content["deployment_id"]), host) for host, content in recorded.items()}
    if len({identity for identity, _ in identities}) > 1:
        each = ", ".join(f"{identity} on {host}" for identity, host in sorted(identities))
        raise PreflightFailed(f"several deployments: {each}; `pubsubctl down` stops them all")
    for row in found:
        if row.agent is not None and row.deployment is None:
            raise PreflightFailed(
                f"host {row.host}: an agent runs for deployment {row.agent}, but its "
                "deployment.json is missing; `pubsubctl down` first"
            )
    _refuse_former_places(recorded)
    for host, content in recorded.items():
        if differing := differences(wanted, content):
            raise PreflightFailed(
                f"host {host}: deployment {content['deployment_id']} is here already, and "
                f"differs: {'; '.join(differing)}; `pubsubctl down` first"
            )


def _refuse_former_places(recorded: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse hosts that did not answer when a broker was replaced, and have its former place."""
    newest = max(recorded.values(), key=count_replacements, default={})
    problems: list[str] = []
    for host, content in recorded.items():
        if count_replacements(content) < count_replacements(newest):
            placed = Placement.from_mapping(content["placement"]).brokers
            before = {row.broker: row for row in placed}
            problems += [
                f"host {host}: {row.broker} was replaced, and its former place is recorded here; "
                f"`pubsubctl replace {row.broker} --on {row.host}` records the present one"
                for row in Placement.from_mapping(newest["placement"]).brokers
                if before.get(row.broker, row) != row
            ]
    if problems:
        raise PreflightFailed(*problems)
