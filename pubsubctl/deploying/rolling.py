"""Replaces the program of a deployment that runs and is used, broker by broker.

First each host gets an agent of the new program, which takes over the processes of the old one;
then brokers are stopped and started again from it, never more at once than the protocol
tolerates, and the next only when every session is ready again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import trio

from brokerd.overlay.routes import Lost
from brokerd.protocols.registry import RunningProtocol, protocol_on
from pubsubctl.console.console import Progress
from pubsubctl.deploying.deploy import broker_config, record_program
from pubsubctl.deploying.deployment import Deployment, placed_broker
from pubsubctl.errors import UserError
from pubsubctl.hosts.readiness import wait_ready

STOP_TIMEOUT_MS = 20_000


@dataclass
class Rolled:
    """What was replaced.

    Attributes:
        agents: hosts with a new agent.
        brokers: in the order they were replaced.
    """

    agents: list[str] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)


async def outdated_hosts(deployment: Deployment) -> list[str]:
    """The hosts that were started with another program than would be started now."""
    found = []
    for host in deployment.wanted.placement.hosts:
        connector = deployment.lab.connector(host)
        record = await connector.read_deployment()
        if record is not None and record.get("program") != await connector.transport.program():
            found.append(host)
    return found


async def roll(
    deployment: Deployment,
    hosts: Sequence[str],
    progress: Progress,
    *,
    max_unavailable: int = 1,
    timeout_s: float = 60.0,
) -> Rolled:
    """Replace agents and brokers of `hosts` by those of the program that would be started now.

    Interrupted, what is replaced stays so, and the next call begins with those hosts that are
    not done: they have the old program in their record.

    Raises:
        UserError: `max_unavailable` is less than one.
        HostError: what was replaced did not get ready in time; nothing further was touched.
    """
    known = protocol_on(deployment.wanted.topology, deployment.wanted.protocol)
    if max_unavailable < 1:
        raise UserError(f"--max-unavailable = {max_unavailable}; 1 or more")
    rolled = Rolled()
    progress.phase("replacing agents")
    for host in hosts:
        await deployment.replace_agent(host)
        rolled.agents.append(host)
        progress.update({"agents": f"{len(rolled.agents)}/{len(hosts)}"})
    brokers = [row.broker for row in deployment.brokers if row.host in hosts]
    progress.phase("replacing brokers")
    # A broker away already would make it one too many.
    await wait_ready(deployment, progress, timeout_s)
    for batch in batches(known, brokers, max_unavailable):
        progress.say(f"replacing {', '.join(batch)}")
        async with trio.open_nursery() as nursery:
            for name in batch:
                nursery.start_soon(_replace, deployment, name)
        await wait_ready(deployment, progress, timeout_s)
        rolled.brokers += batch
        progress.update({"brokers": f"{len(rolled.brokers)}/{len(brokers)}"})
    await record_program(deployment, hosts)
    return rolled


def batches(known: RunningProtocol, brokers: Sequence[str], most: int) -> Iterator[list[str]]:
    """Brokers to be away at the same time: at most `most`, and none too many of them."""
    left = list(brokers)
    while left:
        batch: list[str] = []
        for name in left:
            away = sorted(map(known.topology.number_of, (*batch, name)))
            if len(batch) < most and known.tolerates(Lost(tuple(away))):
                batch.append(name)
        batch = batch or left[:1]  # each is one too many
        left = [name for name in left if name not in batch]
        yield batch


async def _replace(deployment: Deployment, name: str) -> None:
    placed = placed_broker(deployment.wanted.placement, name)
    agent = deployment.agents[placed.host]
    await agent.stop(name, timeout_ms=STOP_TIMEOUT_MS)
    config = await broker_config(deployment, placed)
    await agent.start(name, "broker", config, config["control_socket"])
