"""Facts about hosts: queried once, kept in the cache folder, printed and used for placement.

Facts are hints. A command that depends on a fact checks the fact again. They concern the machines,
and our processes and files there; hosts are queried in parallel, and nothing is installed or
changed. An unreachable host is a finding, and does not keep the others from being examined.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import trio

from brokerd.agent.host import probe as host_probe
from brokerd.errors import ConfigError, ControlError
from brokerd.files import write_whole
from pubsubctl.deployment.certificates import certificates_end
from pubsubctl.deployment.placement import cores_of, processors_here
from pubsubctl.deployment.plan import ObservedState
from pubsubctl.errors import HostError, PubsubctlError
from pubsubctl.hosts.connectors.base import Connector, PortInUse
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.hosts import Lab
from pubsubctl.inventory.inventory import Host, Inventory
from pubsubctl.inventory.inventory_model import LOCAL_ADDRESS
from pubsubctl.inventory.inventory_schema import Expect
from pubsubctl.project import xdg_folder
from pubsubctl.state import programs_on

SCHEMA = "pubsubctl/facts/1"
LARGEST_CACHE_BYTES = 16 << 20


@dataclass(frozen=True)
class HostRecord:
    """Facts about a host, with the time of the query."""

    facts: Mapping[str, Any]
    taken_utc: str


def cached_facts(inventory: Inventory) -> dict[str, HostRecord]:
    """Return host → cached facts, without hosts that are reached over another route by now."""
    try:
        with facts_file(inventory.name, inventory.path).open("rb") as file:
            content = json.loads(file.read(LARGEST_CACHE_BYTES))
        rows = content["hosts"] if content["schema"] == SCHEMA else {}
        return {
            host.name: HostRecord(dict(row["facts"]), str(row["taken_utc"]))
            for host in inventory.hosts
            if (row := rows.get(host.name)) is not None and row["reached"] == _find_reached(host)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # a cache may be missing, torn or of another release


def remember_facts(inventory: Inventory, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Add facts about hosts to the cache, beside the facts about other hosts."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = {
        **cached_facts(inventory),
        **{name: HostRecord(row, now) for name, row in found.items()},
    }
    rows = {
        name: {
            "reached": _find_reached(inventory.host(name)),
            "taken_utc": row.taken_utc,
            "facts": dict(row.facts),
        }
        for name, row in known.items()
    }
    path = facts_file(inventory.name, inventory.path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps({"schema": SCHEMA, "hosts": rows}, indent=1))


def cached_cores(inventory: Inventory, hosts: Sequence[Host]) -> dict[str, list[int]]:
    """Return host → CPUs for brokers: of this machine now, of other hosts from the cache."""
    known = cached_facts(inventory)
    found: dict[str, list[int]] = {}
    for host in hosts:
        if host.connector == "local":
            found[host.name] = cores_of(host, processors_here())
        elif host.name in known:
            found[host.name] = cores_of(host, known[host.name].facts)
        else:
            found[host.name] = []
    return found


def _find_reached(host: Host) -> str:
    return "/".join((host.connector, *host.jump, host.user or "", host.address, str(host.port)))


def facts_file(inventory: str, path: Path) -> Path:
    """Return the cache file of an inventory, identified by name and path."""
    mark = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    return xdg_folder("cache") / "facts" / f"{inventory}-{mark}.json"


PORTS_LOOKED_AT = 64
PEERS_LOOKED_AT = 16
PROBE_TIMEOUT_S = 60.0


@dataclass
class HostFacts:
    """Facts about a host.

    Attributes:
        probe: facts about the machine (brokerd.agent.host.probe); empty after a failure.
        problem: the reason for the failure.
        observed: our files and processes there; None after a failure, see `observing_problem`.
        holder: the holder of the operator lock, in words; "" for a free lock.
        interrupted: the last command if interrupted, in words; or "".
        ports: used ports among the host's first ports.
        expect: the required properties in the inventory.
        certificates_end: broker → the end of its certificate's validity.
        differing: processes of ours that run another program, one line each; None if nothing runs.
        socket_folder: the folder of our control sockets; None if nothing is installed yet.
    """

    host: Host
    probe: dict[str, Any] = field(default_factory=dict)
    problem: PubsubctlError | None = None
    observed: ObservedState | None = None
    observing_problem: str = ""
    holder: str = ""
    interrupted: str = ""
    ports: list[PortInUse] = field(default_factory=list)
    socket_folder: Path | None = None
    expect: Expect = field(default_factory=Expect)
    certificates_end: Mapping[str, datetime] = field(default_factory=dict)
    differing: list[str] | None = None


class _CommandOutcome(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


def gather_host_facts(
    inventory: Inventory,
    hosts: Sequence[Host],
    forks: int,
    *,
    only_machines: bool = False,
    peers: bool = False,
) -> list[HostFacts]:
    """Gather facts about hosts, and cache the facts about machines.

    Args:
        only_machines: skip our files and processes.
        peers: let hosts examine each other, too.
    """
    lab = Lab.of(inventory, hosts, forks)
    looks = {host.name: HostFacts(host) for host in hosts}
    addresses = {host.name: host.bench_address for host in hosts if host.connector == "ssh"}

    async def look(connector: Connector) -> None:
        found = looks[connector.host.name]
        try:
            found.probe = await _probe(lab, connector, addresses if peers else {})
            if not only_machines:
                await _find_own_files(connector, found)
        except PubsubctlError as error:
            found.problem = error

    async def work() -> None:
        async with lab.open():
            await lab.on_all(look)

    trio.run(work)
    machines = {name: found.probe for name, found in looks.items() if found.probe}
    if machines:
        try:
            remember_facts(inventory, machines)
        except OSError:
            pass  # only a cache; doctor reports a state folder without write access anyway
    return list(looks.values())


async def _probe(lab: Lab, connector: Connector, addresses: Mapping[str, str]) -> dict[str, Any]:
    host = connector.host
    others = sorted({at for name, at in addresses.items() if at and name != host.name})
    others = others[:PEERS_LOOKED_AT] if host.connector == "ssh" else []
    address = host.bench_address or LOCAL_ADDRESS
    first, last = host.ports.start, host.ports.stop - 1
    data = host.data_dir or ""
    if host.connector == "local":
        root = str(await connector.root())
        return await trio.to_thread.run_sync(host_probe.probe, root, data, address, first, last)
    root = host.root or f"~/.local/share/pubsubctl/{lab.inventory.name}/{host.name}"
    command = [host.python, "-I", "-", root, data, address, str(first), str(last), *others]
    script = Path(host_probe.__file__).read_bytes()
    assert lab.connections is not None, "hosts of ssh without connections"
    await lab.connections.try_transfer(host)  # type: ignore[attr-defined]
    run = lab.connections.run  # type: ignore[attr-defined]
    done: _CommandOutcome = await run(host, command, stdin=script, timeout_s=PROBE_TIMEOUT_S)
    try:
        found = json.loads(done.stdout.splitlines()[-1]) if done.status == 0 else None
    except (ValueError, IndexError):
        found = None
    if not isinstance(found, dict):
        output = done.stderr.decode(errors="replace").strip().splitlines()
        why = shown(output[-1]) if output else f"status {done.status}"
        raise HostError(
            f"host {host.name}: {host.python} could not look at it: {why}; "
            'Python 3.11 or newer is needed: python = "python3.11"'
        )
    return found


async def _find_own_files(connector: Connector, found: HostFacts) -> None:
    try:
        found.observed = await connector.observe()
    except (PubsubctlError, ConfigError) as error:
        found.observing_problem = str(error)
        return
    found.holder = await connector.lock_holder()
    found.interrupted = await connector.interrupted_command()
    found.ports = await connector.ports_in_use(connector.host.ports[:PORTS_LOOKED_AT])
    if found.observed.files or connector.host.connector == "local":
        found.socket_folder = await connector.socket_folder()
        found.certificates_end = await certificates_end(
            connector, await connector.read_deployment()
        )
        if found.observed.agent is not None:
            try:
                found.differing = await programs_on(connector)
            except (PubsubctlError, ControlError):
                pass  # the agent has just ended: the check `leftovers` shows the remains
