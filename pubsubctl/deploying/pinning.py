"""Whether brokers run on the cores they were given, as /proc says and not as we asked."""

from collections.abc import Mapping
from typing import Any, Protocol

from pubsubctl.deploying.placement import Placement
from pubsubctl.errors import HostError


class Agent(Protocol):
    """What is needed of an agent."""

    async def status(self) -> dict[str, Any]: ...


async def check_pinning(agents: Mapping[str, Agent], placement: Placement) -> None:
    """Make sure that every broker with a core of its own may run there and nowhere else.

    Raises:
        HostError: says which brokers run where instead.
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
