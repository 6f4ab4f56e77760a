"""Cores of brokers: selection by `smt` and `numa`, and a check in /proc."""

import os
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Protocol

from brokerd.agent.host.probe import core_threads, numa_nodes
from pubsubctl.deploying.placement import Placement
from pubsubctl.errors import HostError
from pubsubctl.inventory.inventory import Host


def processors_here() -> dict[str, Any]:
    """Return the CPU facts of this machine for `cores_of`."""
    return {
        "cores": sorted(os.sched_getaffinity(0)),
        "core_threads": core_threads(),
        "numa_nodes": numa_nodes(),
    }


def cores_of(host: Host, processors: Mapping[str, Any]) -> list[int]:
    """Return the CPUs of a host for brokers, in the order of assignment.

    Args:
        processors: `cores`, and the CPU topology in the kernel's notation, if available:
            `core_threads` lists the threads of each core, `numa_nodes` the CPUs of each node.
            Untrusted: a cache may contain anything.
    """
    found = processors.get("cores")
    usable = [number for number in found if _is_cpu(number)] if isinstance(found, list) else []
    if host.smt == "avoid":
        cores = processors.get("core_threads")
        groups = [_cpus(text) for text in cores] if isinstance(cores, list) else []
        second = {thread for threads in groups for thread in threads[1:]}
        usable = [core for core in usable if core not in second]
    told = processors.get("numa_nodes")
    nodes = {
        int(number): [core for core in _cpus(text) if core in usable]
        for number, text in (told.items() if isinstance(told, dict) else ())
        if str(number).isdecimal()
    } or {0: usable}
    if host.numa.startswith("pin:"):
        return nodes.get(int(host.numa.removeprefix("pin:")), [])
    in_order = [nodes[number] for number in sorted(nodes)]
    if host.numa == "fill":
        return [core for there in in_order for core in there]
    if host.numa == "interleave":
        return [core for turn in zip_longest(*in_order) for core in turn if core is not None]
    return usable


def _is_cpu(number: Any) -> bool:
    return type(number) is int and number >= 0


def _cpus(text: Any) -> list[int]:
    """Return the numbers in the kernel's notation "0-2,8"."""
    found: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found += range(int(first), int(last or first) + 1)
    return found


class Agent(Protocol):
    """The interface of an agent that the check needs."""

    async def status(self) -> dict[str, Any]: ...


async def check_pinning(agents: Mapping[str, Agent], placement: Placement) -> None:
    """Check that every broker with a dedicated core may run there and nowhere else.

    Raises:
        HostError: names brokers on other cores.
    """
    problems: list[str] = []
    for host, agent in agents.items():
        pinned = [row for row in placement.on(host) if row.core >= 0]
        if not pinned:
            continue
        processes = (await agent.status())["processes"]
        for row in pinned:
            cores = processes.get(row.broker, {}).get("cores")
            if cores != [row.core]:
                where = "cores " + ",".join(map(str, cores)) if cores else "unknown cores"
                problems.append(
                    f"host {host}: {row.broker} was given core {row.core}, and runs on {where}"
                )
    if problems:
        raise HostError(*problems)
