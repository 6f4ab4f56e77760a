"""The start of agents and brokers, with the configuration of each broker."""

from collections import Counter
from typing import Any

import trio

from brokerd.agent.host.server import TOPOLOGY_FILE
from brokerd.errors import ControlError
from brokerd.model.operator_acts import ACCEPT_LOSS, OperatorAct
from brokerd.protocols.registry import protocol_on
from pubsubctl.console.console import Progress
from pubsubctl.deployment.certificates import certificate_of
from pubsubctl.deployment.deployment import Deployment
from pubsubctl.deployment.placement import PlacedBroker, Placement
from pubsubctl.deployment.records import write_record
from pubsubctl.errors import UserError
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.project import authority_folder

FIRST_LEASE_MS = 45_000
BEGIN_WITHIN_MS = 120_000
"""The time for which a new broker waits for the start of the others before it connects."""
BEGIN_TOGETHER = 150
"""The number of brokers per host from which this wait applies."""
_BEGIN_RETRY_S = 0.1


async def broker_config(deployment: Deployment, placed: PlacedBroker) -> dict[str, Any]:
    from pubsubctl.deployment.authority import OperatorKey  # slow to import

    wanted = deployment.wanted
    connector = deployment.lab.connector(placed.host)
    root = await connector.root()
    addresses = {row.broker: row.address for row in wanted.placement.brokers}
    names = [
        placed.broker,
        *protocol_on(wanted.topology, wanted.protocol).possible_peers(placed.broker),
    ]
    return {
        "broker": placed.broker,
        "topology_file": str(root / TOPOLOGY_FILE),
        "protocol": wanted.protocol,
        "deployment_id": deployment.identity,
        "listen": placed.address,
        "addresses": {name: addresses[name] for name in names},
        "state_folder": str(await connector.state_folder(placed.broker)),
        "control_socket": str(await connector.socket_folder() / f"{placed.broker}.sock"),
        "log_folder": str(root / "brokers" / placed.broker / "log"),
        "fault_injection": True,
        "core": placed.core,
        "nice": connector.host.broker_nice,
        "memory_limit_bytes": connector.host.mem_per_broker_bytes,
        "fsync": connector.host.fsync == "real",
        "session": dict(wanted.topology.session),
        "joining": placed.broker in {step.subject for step in deployment.plan.of("join")},
        "tls": await certificate_of(
            deployment.lab, deployment.identity, placed.host, "broker", placed.broker
        ),
        "operator_key": OperatorKey.of(authority_folder(deployment.lab.inventory.name)).public_hex,
    }


async def start_agents(
    deployment: Deployment, progress: Progress, purpose: str, lease_ms: int
) -> None:
    """Record the deployment, and start the agents of the plan.

    Args:
        lease_ms: see `run_deployment`.
    """
    lab = deployment.lab
    await write_record(deployment, purpose)
    starting = [lab.connector(step.host) for step in deployment.plan.of("start-agent")]
    if not starting:
        return
    progress.phase("starting agents")
    progress.update({"agents": f"0/{len(starting)}"})
    started = 0

    async def start(connector: Connector) -> None:
        nonlocal started
        # The lease starts at once: nothing is renewed until all agents are reached.
        first_ms = max(lease_ms, FIRST_LEASE_MS) if lease_ms else 0
        await connector.start_agent(deployment.identity, first_ms)
        started += 1
        progress.update({"agents": f"{started}/{len(starting)}"})

    await lab.on_all(start, starting)


async def start_brokers(deployment: Deployment, progress: Progress) -> None:
    """Start the brokers of the plan, host by host at once; large deployments begin together."""
    wanted = {step.subject for step in deployment.plan.of("start-broker")}
    rows = [row for row in deployment.wanted.placement.brokers if row.broker in wanted]
    progress.phase("starting brokers")
    started = 0
    together = _begin_together(deployment.wanted.placement)
    # If only some brokers start, running brokers would wait for the new brokers.
    is_new = len(rows) == len(deployment.wanted.placement.brokers)
    patience_ms = BEGIN_WITHIN_MS if together and is_new else 0

    async def start_on(connector: Connector) -> None:
        nonlocal started
        for row in rows:
            if row.host == connector.host.name:
                config = await broker_config(deployment, row)
                config["begin_within_ms"] = patience_ms
                if row.broker in deployment.wanted.accept_loss:
                    config["accept_loss"] = await _sign_loss(deployment, row.broker, connector)
                agent = deployment.agents[row.host]
                await agent.start(row.broker, "broker", config, config["control_socket"])
                started += 1
                await deployment.keep()
                progress.update({"brokers": f"{started}/{len(rows)}"})

    async def begin_on(connector: Connector) -> None:
        placed = deployment.wanted.placement.brokers
        names = [row.broker for row in placed if row.host == connector.host.name]
        with trio.move_on_after(BEGIN_WITHIN_MS / 1_000):
            while names := [name for name in names if not await _begins(deployment, name)]:
                await trio.sleep(_BEGIN_RETRY_S)

    hosts = dict.fromkeys(row.host for row in rows)
    connectors = [deployment.lab.connector(host) for host in hosts]
    await deployment.lab.on_all(start_on, connectors)
    if together:  # including brokers of an earlier, interrupted deploy
        await deployment.lab.on_all(begin_on, deployment.lab.connectors)


async def _sign_loss(deployment: Deployment, broker: str, connector: Connector) -> dict[str, Any]:
    """Return the signed act by which a broker starts although it lost state.

    Raises:
        UserError: the broker's state folder records no loss.
        PreflightFailed: this account has not deployed, and has no key to sign the act.
    """
    from pubsubctl.deployment.authority import OperatorKey  # slow to import

    loss = await connector.read_recorded_loss(broker)
    if loss is None:
        raise UserError(
            f"--accept-loss {broker}: no loss of its state is known; deploy without the option: "
            "a loss that the folder, a neighbour or a client can prove is recorded then"
        )
    key = OperatorKey.find_in(authority_folder(deployment.lab.inventory.name))
    act = OperatorAct(deployment.identity, ACCEPT_LOSS, broker, loss)
    return {"loss": loss, "signature": key.sign(act).hex()}


def _begin_together(placement: Placement) -> bool:
    """Return True if brokers wait until all are started.

    Hundreds on a machine start slowly, and the first brokers would suspect the others. Fewer
    brokers should begin one by one, which spreads the work of connecting.
    """
    hosts = Counter(row.host for row in placement.brokers)
    return max(hosts.values(), default=0) >= BEGIN_TOGETHER


async def _begins(deployment: Deployment, broker: str) -> bool:
    """Signal a broker that all have been started; return False if it does not listen yet.

    A broker that has ended gets no signal; `wait_ready` reports the reason for its end.
    """
    await deployment.keep()
    try:
        await deployment.broker(broker, "begin")
    except ControlError as error:
        if error.kind == "closed":
            raise
        return error.kind != "busy"
    return True
