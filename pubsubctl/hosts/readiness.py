"""Readiness of started brokers: all sessions are up, and each neighbourhood is probed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trio

from brokerd.errors import ControlError
from brokerd.protocols.interface import CoreStatus
from brokerd.text import describe_exit, without_name
from pubsubctl.console.console import Progress
from pubsubctl.deployment.deployment import Deployment
from pubsubctl.errors import HostError
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.state import describe_missing

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The status of a broker, as reported by the broker.

    Attributes:
        has_probed: the broker has tried all brokers nearby that should run.
        loss: a loss of durable state that a client has proved, "" if none has.
        obstacles: peer → the reason for a missing session, other than that the peer is down.
    """

    core: CoreStatus[str]
    has_probed: bool
    loss: str = ""
    obstacles: Mapping[str, str] = field(default_factory=dict)


async def wait_ready(deployment: Deployment, progress: Progress, timeout_s: float) -> None:
    """Wait until every broker has every wanted session, ready at both ends, and is running.

    A broker must also have tried all brokers near it. Decommissioned brokers are left out. Losses
    that clients have proved are reported: their publishers are refused.

    Raises:
        HostError: a broker ended, or the brokers were not ready in time; names the pending
            brokers and reasons.
    """
    names = [row.broker for row in deployment.brokers]
    pending: dict[str, str] = dict.fromkeys(names, "not contacted yet")
    progress.phase("waiting for sessions")
    statuses: dict[str, ProbeAnswer | str] = {}
    with trio.move_on_after(timeout_s):
        while pending:
            for name in names:
                await deployment.keep()
                statuses[name] = await _broker_status(deployment, name)
            pending = find_unready(statuses)
            cores = [each.core for each in statuses.values() if isinstance(each, ProbeAnswer)]
            wanted = sum(len(core.wanted) for core in cores)
            missing = sum(len(core.missing) for core in cores)
            done = len(names) - len(pending)
            numbers = {"ready": f"{done}/{len(names)}", "sessions": f"{wanted - missing}/{wanted}"}
            progress.update({**numbers, "waiting for": _shorten(pending)})
            if pending:
                await _fail_if_ended(deployment)
                await trio.sleep(_POLL_S)
    if pending:
        rows = [f"broker {name}: {why}" for name, why in pending.items()]
        raise HostError(f"not ready within {timeout_s:g} s:", *rows)
    for name, status in statuses.items():
        if isinstance(status, ProbeAnswer) and status.loss:
            progress.print(f"warning: broker {name}: {status.loss}; see `pubsubctl help restore`")


def find_unready(statuses: Mapping[str, "ProbeAnswer | str"]) -> dict[str, str]:
    """Return, by broker, the reason for which the broker is not ready; empty if all are ready.

    A session counts if both ends have the session. One end may have a session that the other end is
    about to refuse, for example a neighbour of a decommissioned broker.

    Args:
        statuses: by broker, the status, or the reason for a missing answer.
    """
    pending = {}
    for name, status in statuses.items():
        if isinstance(status, str):
            pending[name] = status
            continue
        core = status.core
        one_sided = [peer for peer in core.wanted if not _has_session(statuses.get(peer), name)]
        if core.missing:
            pending[name] = describe_missing(core.missing, status.obstacles)
        elif core.state != "running":
            pending[name] = core.state
        elif one_sided:
            pending[name] = f"no session from {', '.join(sorted(one_sided))}"
        elif not status.has_probed:
            pending[name] = "has not tried all brokers near it yet"
    return pending


def _has_session(status: "ProbeAnswer | str | None", peer: str) -> bool:
    return isinstance(status, ProbeAnswer) and peer in status.core.ready


async def _broker_status(deployment: Deployment, name: str) -> "ProbeAnswer | str":
    """Return a broker's status, or the reason for which there is none yet."""
    try:
        status = await deployment.broker(name, "status")
    except ControlError as error:
        if error.kind == "closed":
            raise
        return f"does not answer yet ({error})"
    assert status["topology_digest"] == deployment.wanted.digest, (
        f"{name} computes digest {status['topology_digest']} of the topology, "
        f"we computed {deployment.wanted.digest}"
    )
    unprobed = {*status["unprobed"]}.difference(deployment.plan.decommissioned)
    core = CoreStatus.from_mapping(status)
    return ProbeAnswer(core, not unprobed, status.get("loss", ""), status.get("obstacles", {}))


async def _fail_if_ended(deployment: Deployment) -> None:
    problems: list[str] = []
    for host, agent in deployment.agents.items():
        present = {row.broker for row in deployment.brokers if row.host == host}
        for name, row in (await agent.status())["processes"].items():
            if name in present and row["role"] == "broker" and row["state"] != "running":
                log = Path(row.get("log_folder", "")) / "stderr.log"
                how = describe_exit(row["exit_code"], row["exit_signal"])
                last = await _last_line(deployment.lab.connector(host), log)
                because = f": {without_name(name, last)}" if last else ""
                problems.append(f"host {host}: {name} ended ({how}){because}")
    if problems:
        raise HostError(*problems)


def _shorten(pending: Mapping[str, str]) -> str:
    names = list(pending)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


async def _last_line(connector: Connector, log: Path) -> str:
    try:
        lines = (await connector.read_text(log)).strip().splitlines()
    except HostError:
        return ""
    return lines[-1] if lines else ""
