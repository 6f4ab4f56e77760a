"""The record of a deployment on each of its hosts: what runs there, and by which program."""

import getpass
import importlib.metadata
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from brokerd.runtime.program import read_own_program
from brokerd.text import toml_text
from pubsubctl.deployment.certificates import transport_of
from pubsubctl.deployment.deployment import Deployment
from pubsubctl.deployment.plan import REPLACEMENTS
from pubsubctl.hosts.connectors.base import Connector

DEPLOYMENT_SCHEMA = "pubsubctl/deployment/1"


async def write_record(
    deployment: Deployment, purpose: str, verb: str = "record", **more: Any
) -> None:
    """Record the future deployment, on every host that the plan names for `verb`."""
    content = {
        "schema": DEPLOYMENT_SCHEMA,
        "deployment_id": deployment.identity,
        "inventory": deployment.lab.inventory.name,
        "inventory_file": str(deployment.lab.inventory.path.absolute()),
        "protocol": deployment.wanted.protocol,
        "topology": deployment.wanted.topology.to_mapping(),
        "digest": deployment.wanted.digest,
        "placement": deployment.wanted.placement.to_mapping(),
        "transport": transport_of(deployment.lab.inventory),
        "who": f"{getpass.getuser()}@{socket.gethostname()}",
        "since": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "purpose": purpose,
        "tool_version": importlib.metadata.version("pubsubctl"),
        "decommissioned": [*deployment.plan.decommissioned],
        REPLACEMENTS: deployment.plan.replacements,
        **more,
    }
    topology = toml_text(deployment.wanted.topology.to_mapping())

    async def write(connector: Connector) -> None:
        own = {"host": connector.host.name, "program": await connector.transport.program()}
        await connector.write_deployment({**content, **own}, topology)

    lab = deployment.lab
    await lab.on_all(write, [lab.connector(step.host) for step in deployment.plan.of(verb)])


async def find_outdated_hosts(deployment: Deployment) -> list[str]:
    """Return the hosts that run another program than the present program.

    A host with a new agent stays in the list until its brokers are replaced, too.
    """
    found = []
    for host in deployment.wanted.placement.hosts:
        connector = deployment.lab.connector(host)
        record = await connector.read_deployment()
        is_other = deployment.programs[host] != read_own_program()
        is_recorded = (
            record is not None and record.get("program") != await connector.transport.program()
        )
        if is_other or is_recorded:
            found.append(host)
    return found


async def record_program(deployment: Deployment, hosts: Sequence[str]) -> None:
    """Record the present program as the program of these hosts."""

    async def write(connector: Connector) -> None:
        record = await connector.read_deployment()
        assert record is not None, connector.host.name
        topology = toml_text(deployment.wanted.topology.to_mapping())
        program = {"program": await connector.transport.program()}
        await connector.write_deployment({**record, **program}, topology)

    lab = deployment.lab
    await lab.on_all(write, [lab.connector(host) for host in hosts])
