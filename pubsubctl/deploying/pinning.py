"""Check of the brokers' actual cores in /proc against the assigned cores."""

from collections.abc import Mapping
from typing import Any, Protocol

from pubsubctl.deploying.placement import Placement
from pubsubctl.errors import HostError


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
