"""A file with a placement, written by `topology place -o` or by hand.

The module is imported on use: pydantic takes a fifth of the start of a command.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brokerd.overlay.topology import Topology
from brokerd.text import nearest
from pubsubctl.deployment.placement import PlacedBroker, Placement
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import LARGEST_FILE_BYTES, shown
from pubsubctl.inventory.inventory import Host


class _PlacedRow(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    broker: str
    host: str
    ip: str
    port: int
    core: int


class _PlacementFile(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    schema_: Literal["pubsubctl/placement/1"] = Field(alias="schema")
    clients_host: str
    brokers: list[_PlacedRow]


def read_placement(path: Path, topology: Topology, hosts: Sequence[Host]) -> Placement:
    """Return the placement in a file written by `topology place -o` or by hand.

    Raises:
        UserError: no valid placement of this topology on these hosts; names every problem.
    """
    try:
        with path.open("rb") as source:
            file = _PlacementFile.model_validate_json(source.read(LARGEST_FILE_BYTES))
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: no placement: {where}: {first['msg']}") from None
    problems = [f"{path}: {text}" for text in _wrong_in(file, topology, hosts)]
    if problems:
        raise UserError(*problems)
    by_name = {row.broker: row for row in file.brokers}
    rows = [by_name[name] for name in topology.present()]
    return Placement(
        tuple(PlacedBroker(row.broker, row.host, row.port, row.core, row.ip) for row in rows),
        file.clients_host,
    )


def check_cores(placement: Placement, cores: Mapping[str, Sequence[int]], path: Path) -> None:
    """Check that the cores in a placement file exist.

    Args:
        cores: host → cores for brokers.

    Raises:
        UserError: names brokers and missing cores.
    """
    problems = [
        f"{path}: broker {row.broker}: {row.host} has no core {row.core} for us, but "
        f"{', '.join(map(str, cores[row.host])) or 'none'}"
        for row in placement.brokers
        if row.core >= 0 and row.core not in cores[row.host]
    ]
    if problems:
        raise UserError(*problems)


def _wrong_in(file: _PlacementFile, topology: Topology, hosts: Sequence[Host]) -> Iterator[str]:
    known = {host.name: host for host in hosts}
    names = [row.broker for row in file.brokers]
    missing = [name for name in topology.present() if name not in names]
    if missing:
        yield f"brokers of {topology.name} are missing: {', '.join(missing[:8])}"
    if file.clients_host not in known:
        hint = nearest(file.clients_host, [*known])
        yield f"clients_host {shown(file.clients_host)}: no host has this name{hint}"
    taken: dict[tuple[str, int], str] = {}
    for row in file.brokers:
        place = f"broker {shown(row.broker)}"
        if row.broker not in topology.present():
            yield f"{place}: not one of {topology.name}{nearest(row.broker, topology.present())}"
            continue
        if names.count(row.broker) > 1:
            yield f"{place} is placed twice"
        if row.host not in known:
            yield f"{place}: no host called {shown(row.host)}{nearest(row.host, [*known])}"
            continue
        host = known[row.host]
        if row.port not in host.broker_ports:
            yield f"{place}: port {row.port} is not one of {host.name}'s ports"
        if row.ip != host.bench_address:
            yield f"{place}: {shown(row.ip)} is not {host.name}'s bench_address"
        if row.core < -1 or row.core in host.cores_reserved:
            yield f"{place}: core {row.core} is not for brokers"
        if (other := taken.setdefault((row.ip, row.port), row.broker)) != row.broker:
            yield f"{place}: {other} has port {row.port} of {host.name}"
