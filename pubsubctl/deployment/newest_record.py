"""The record of a deployment: of the records on its hosts, the one after the latest replacement.

A host that did not answer while a broker was replaced still has the record with the former place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pubsubctl.deployment.plan import count_replacements
from pubsubctl.errors import Unreachable
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.hosts import Lab

Record = Mapping[str, Any]


@dataclass(slots=True)
class Records:
    """The records of a deployment on its hosts.

    Attributes:
        by_host: host → record, of hosts with a record.
        lost: host → error, of hosts that do not answer.
    """

    by_host: dict[str, Record] = field(default_factory=dict)
    lost: dict[str, Unreachable] = field(default_factory=dict)

    @property
    def newest(self) -> Record | None:
        """The record after the latest replacement; None without a record."""
        return max(self.by_host.values(), key=count_replacements, default=None)

    def check_complete(self) -> None:
        """Check that all hosts have answered.

        Raises:
            ExceptionGroup: of Unreachable.
        """
        if self.lost:
            raise ExceptionGroup("on some hosts", list(self.lost.values()))

    def of(self, host: str) -> Record | None:
        """Return the newest record of the deployment on a host; None if the host has no record."""
        own = self.by_host.get(host)
        if own is None:
            return None
        same = [
            each
            for each in (own, *self.by_host.values())
            if each.get("deployment_id") == own.get("deployment_id")
        ]
        return max(same, key=count_replacements)


async def read_records(lab: Lab) -> Records:
    """Return the records on all hosts, in the order of the hosts."""
    found: dict[str, Record] = {}
    lost: dict[str, Unreachable] = {}

    async def read(connector: Connector) -> None:
        try:
            record = await connector.read_deployment()
        except Unreachable as error:
            lost[connector.host.name] = error
            return
        if record is not None:
            found[connector.host.name] = record

    await lab.on_all(read)
    names = [connector.host.name for connector in lab.connectors]
    return Records(
        {name: found[name] for name in names if name in found},
        {name: lost[name] for name in names if name in lost},
    )


async def read_deployment(lab: Lab) -> Record | None:
    """Return the record of the lab's deployment, or None.

    Raises:
        ExceptionGroup: of Unreachable, if a record could only be on unreachable hosts.
    """
    records = await read_records(lab)
    if records.newest is None and records.lost:
        raise ExceptionGroup("no record of a deployment", list(records.lost.values()))
    return records.newest
