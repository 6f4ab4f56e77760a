"""Ends of a fault on real processes, and evidence of its effect.

An end is a broker, or a broker's side of a link, that is reached through the agent of its machine.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import trio

from brokerd.agent.client import AgentClient
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import VERB_TABLE
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import CoreStatus
from brokerd.text import describe_exit
from fault_injection.apply.interface import Evidence, Fault, MissingEffect

_T = TypeVar("_T")


class Place(Protocol):
    """The place of a broker: host, process name at the agent of that host, and listen address."""

    @property
    def host(self) -> str: ...

    @property
    def process(self) -> str: ...

    @property
    def address(self) -> str: ...


class Deployment(Protocol):
    """A deployment with running brokers, and the agents of its hosts."""

    @property
    def agents(self) -> Mapping[str, AgentClient]: ...

    @property
    def brokers(self) -> Mapping[str, Place]: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def protocol(self) -> str: ...

    @property
    def protected_ports(self) -> Sequence[int]: ...


class End:
    """The share of one process in a fault: the broker, or one end of a link.

    Attributes:
        host: the host of the broker.
        peer: the other end of a link; "" for any other target.
        across: brokers that a partition keeps from this broker.
        inside: the other brokers around this broker, which remain reachable.
    """

    def __init__(
        self,
        deployment: Deployment,
        fault: Fault,
        broker: str,
        peer: str = "",
        *,
        is_one_of_many: bool = False,
    ) -> None:
        place = deployment.brokers[broker]
        self.broker = broker
        self.peer = peer
        self.host = place.host
        self.process = place.process
        self.agent = deployment.agents[place.host]
        shared = peer or is_one_of_many
        self.fault_id = f"{fault.fault_id}@{broker}" if shared else fault.fault_id
        self.across: tuple[str, ...] = ()
        self.inside: tuple[str, ...] = ()

    async def command(
        self, command: str, arguments: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a command to the broker, and return the answer."""
        return await self.agent.broker(self.process, command, arguments)

    async def row(self) -> Mapping[str, Any]:
        """Return the row of the process in the status of its agent."""
        row = (await self.agent.status(self.process))["processes"][self.process]
        assert isinstance(row, dict), row
        return row


async def on_all(ends: Sequence[End], act: Callable[[End], Awaitable[_T]]) -> list[_T]:
    """Run `act` at every end at once. All ends finish before an error is raised."""
    results: dict[int, _T] = {}
    errors: dict[int, ControlError] = {}

    async def turn(place: int, end: End) -> None:
        try:
            results[place] = await act(end)
        except ControlError as error:
            errors[place] = error

    async with trio.open_nursery() as nursery:
        for place, end in enumerate(ends):
            nursery.start_soon(turn, place, end)
    if errors:
        raise errors[min(errors)]
    return [results[place] for place in range(len(ends))]


def direct_sessions(status: Evidence) -> list[str]:
    """Return the peers with a session over a link of the broker, not through a third broker."""
    ready = CoreStatus.from_mapping(status).ready
    return [name for name in ready if name in status["sessions"]]


See = Callable[[Fault, Sequence[End]], Awaitable[Evidence | None]]
"""A function that returns evidence of a fault at its ends, or None while there is none."""

_PROBE_MS: Final = 250
"""An attempt across a fault has failed after so long; a fault may last less than a time-out."""
_COUNTED: Final = (
    *("absorbed_messages", "absorbed_publications", "absorbed_bytes", "forwarded_since_applied"),
    *("dropped_frames", "sessions_down", "limited_messages"),
)


async def observe_sessions_down(
    ends: Sequence[End],
    neighbours: Callable[[str], Sequence[str]],
    status_of: Callable[[str], Awaitable[dict[str, Any]]],
) -> Evidence | None:
    """Return evidence that both ends of every cut link lack the session, or None."""
    seen: Evidence = {}
    for end in ends:
        others = [end.peer] if end.peer else neighbours(end.broker)
        ready = direct_sessions(await end.command("status"))
        if any(other in ready for other in others):
            return None
        seen[end.broker] = {"ready": ready}
        if not end.peer:
            for other in others:
                if end.broker in direct_sessions(await status_of(other)):
                    return None
    return seen


async def _observe_end(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    """Return exit statuses with this fault as their cause, or None."""
    seen: Evidence = {}
    stamps: dict[str, int] = {}
    for end in ends:
        row = await end.row()
        if row["state"] == "running" or row["exit_cause"] != f"fault:{end.fault_id}":
            return None
        keys = ("pid", "exit_code", "exit_signal", "exit_cause")
        found = {key: row[key] for key in keys}
        seen.update(found if len(ends) == 1 and not fault.target.machine else {end.broker: found})
        stamps[end.host] = max(stamps.get(end.host, 0), row["t_exit_ns"])
    seen["host_stamps"] = stamps
    return seen


def check_is_running(end: End, row: Mapping[str, Any]) -> None:
    """Check that a process that was started has not ended.

    Raises:
        MissingEffect: with the exit status or signal, and the last line that the process printed.
    """
    if row["state"] == "running":
        return
    how = describe_exit(row["exit_code"], row["exit_signal"])
    text = f": {row['exit_text']}" if row["exit_text"] else ""
    raise MissingEffect(f"{end.broker} has ended ({how}){text}")


def is_killed_again(end: End, row: Mapping[str, Any]) -> bool:
    """Return True if another fault ended a process, such as a planned kill behind a restart."""
    cause = str(row["exit_cause"])
    is_other = cause.startswith("fault:") and cause != f"fault:{end.fault_id}"
    return row["state"] != "running" and is_other


async def _observe_start(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    (end,) = ends
    row = await end.row()
    if is_killed_again(end, row):
        return {key: row[key] for key in ("pid", "start_time", "exit_cause")}
    check_is_running(end, row)
    status = await end.command("status")
    if status["pid"] != row["pid"]:
        return None
    keys = ("pid", "start_time")
    return {"incarnation": status["incarnation"], **{key: row[key] for key in keys}}


async def _observe_changed_file(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    """Return the damage as it is on the disk, or None; a process that starts may mend it."""
    (end,) = ends
    seen = await end.agent.fault_look(end.fault_id)
    return {key: seen[key] for key in seen if key != "present"} if seen["present"] else None


async def _observe_frozen(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    (end,) = ends
    row = await end.row()
    return {"pid": row["pid"], "process_state": "T"} if row["frozen"] else None


async def _observe_share(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    (end,) = ends
    seen = await end.agent.fault_look(end.fault_id)
    stopped, samples = seen.get("stopped_samples", 0), seen.get("samples", 0)
    return {"stopped_samples": stopped, "samples": samples} if 0 < stopped < samples else None


async def _observe_absorbed(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    counters = await _counters(ends)
    if counters is None:
        return None
    holds = counters["absorbed_messages"] and not counters["forwarded_since_applied"]
    return counters if holds else None


async def _observe_dropped(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    if fault.parameters.get("backend") == "nft":
        return await _observe_packets(ends)
    counters = await _counters(ends)
    if counters is None:
        return None
    # A blackhole drops no frame by itself: frames wait until the failure detector ends the session.
    if counters["dropped_frames"] or counters["sessions_down"]:
        return counters
    missing = await on_all(ends, _find_unreachable)
    if not all(missing):
        return None
    return counters | {"missing": {end.broker: m for end, m in zip(ends, missing, strict=True)}}


async def _find_unreachable(end: End) -> list[str]:
    """Return the peers across a blackhole, none of which an end reaches; [] if one is reached."""
    peers = [end.peer]
    if not end.peer:
        peers = list(CoreStatus.from_mapping(await end.command("status")).wanted)
    if not peers:
        return []
    answer = await end.command("probe", {"peers": peers, "within_ms": _PROBE_MS})
    return [] if answer["reached"] else sorted(answer["missing"])


async def _observe_packets(ends: Sequence[End]) -> Evidence | None:
    stopped = {}
    for end in ends:
        seen = await end.agent.fault_look(end.fault_id)
        stopped[end.broker] = seen["stopped_packets"]
    return {"stopped_packets": stopped} if any(stopped.values()) else None


async def _observe_limited(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    counters = await _counters(ends)
    return counters if counters is not None and counters["limited_messages"] else None


async def _observe_slow_links(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    """Return connect times, or None if a delayed direction connects faster than the delay."""
    least_us = int(fault.parameters["delay_ms"]) * 1_000

    async def probe(end: End) -> dict[str, int]:
        peers = [end.peer]
        if not end.peer:
            peers = list(CoreStatus.from_mapping(await end.command("status")).wanted)
        if not peers:
            return {}
        answer = await end.command("probe", {"peers": peers})
        return {peer: answer["took_us"][peer] for peer in answer["reached"]}

    took = await on_all(ends, probe)
    if not all(took) or any(us < least_us for found in took for us in found.values()):
        return None
    return {"connect_us": {end.broker: found for end, found in zip(ends, took, strict=True)}}


async def _observe_matrix(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    """Probe between every two brokers: no probe across the sets succeeds, all inside do."""

    async def is_apart(end: End) -> bool:
        across = await end.command("probe", {"peers": [*end.across], "within_ms": _PROBE_MS})
        if set(across["missing"]) != set(end.across):
            return False
        inside = await end.command("probe", {"peers": [*end.inside]}) if end.inside else {}
        return not inside.get("missing")

    if not all(await on_all(ends, is_apart)):
        return None
    return {
        "missing": {end.broker: list(end.across) for end in ends},
        "reached": {end.broker: list(end.inside) for end in ends},
    }


async def _observe_full_disk(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    (end,) = ends
    answer = await end.command("probe_disk")
    return None if answer["written"] else {"write_probe": "no space left on device"}


async def _observe_slow_disk(fault: Fault, ends: Sequence[End]) -> Evidence | None:
    (end,) = ends
    answer = await end.command("probe_disk")
    slow = answer["took_us"] >= int(fault.parameters["delay_ms"]) * 1_000
    return {"write_probe_us": answer["took_us"]} if slow else None


async def _counters(ends: Sequence[End]) -> Evidence | None:
    """Return the counters of all ends, summed; None while an end lacks the fault."""
    total: Evidence = dict.fromkeys(_COUNTED, 0)
    for end in ends:
        own = (await end.command("fault_counters")).get(end.fault_id)
        if own is None:
            return None
        for name in total:
            total[name] += own[name]
    return total


_BY_EVIDENCE: Final[Mapping[str, See]] = {
    "end": _observe_end,
    "start": _observe_start,
    "frozen": _observe_frozen,
    "share": _observe_share,
    "absorbed": _observe_absorbed,
    "dropped": _observe_dropped,
    "limited": _observe_limited,
    "slow links": _observe_slow_links,
    "matrix": _observe_matrix,
    "full disk": _observe_full_disk,
    "slow disk": _observe_slow_disk,
    "changed file": _observe_changed_file,
}


def find_observer(verb: str) -> See:
    """Return the function that observes a verb of brokers.

    `observe_sessions_down` observes a cut, because a cut needs the neighbours.
    """
    return _BY_EVIDENCE[VERB_TABLE[verb].evidence]
