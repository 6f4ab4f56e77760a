"""Facts about hosts: queried once, kept in the cache folder, printed and used for placement.

Facts are hints. A command that depends on a fact checks the fact again.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pubsubctl.deploying.cores import cores_of, processors_here
from pubsubctl.inventory.inventory import Host, Inventory
from pubsubctl.project import xdg_folder

SCHEMA = "pubsubctl/facts/1"
LARGEST_CACHE_BYTES = 16 << 20


@dataclass(frozen=True)
class Known:
    """Facts about a host, with the time of the query."""

    facts: Mapping[str, Any]
    taken_utc: str


def known_facts(inventory: Inventory) -> dict[str, Known]:
    """Return host → cached facts, without hosts that are reached over another route by now."""
    try:
        with facts_file(inventory.name, inventory.path).open("rb") as file:
            content = json.loads(file.read(LARGEST_CACHE_BYTES))
        rows = content["hosts"] if content["schema"] == SCHEMA else {}
        return {
            host.name: Known(dict(row["facts"]), str(row["taken_utc"]))
            for host in inventory.hosts
            if (row := rows.get(host.name)) is not None and row["reached"] == _reached(host)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # a cache may be missing, torn or of another release


def remember_facts(inventory: Inventory, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Add facts about hosts to the cache, beside the facts about other hosts."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = {**known_facts(inventory), **{name: Known(row, now) for name, row in found.items()}}
    rows = {
        name: {
            "reached": _reached(inventory.host(name)),
            "taken_utc": row.taken_utc,
            "facts": dict(row.facts),
        }
        for name, row in known.items()
    }
    path = facts_file(inventory.name, inventory.path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"schema": SCHEMA, "hosts": rows}, indent=1), encoding="utf-8")
    fresh.replace(path)


def known_cores(inventory: Inventory, hosts: Sequence[Host]) -> dict[str, list[int]]:
    """Return host → CPUs for brokers: of this machine now, of other hosts from the cache."""
    known = known_facts(inventory)
    found: dict[str, list[int]] = {}
    for host in hosts:
        if host.connector == "local":
            found[host.name] = cores_of(host, processors_here())
        elif host.name in known:
            found[host.name] = cores_of(host, known[host.name].facts)
        else:
            found[host.name] = []
    return found


def _reached(host: Host) -> str:
    return "/".join((host.connector, *host.jump, host.user or "", host.address, str(host.port)))


def facts_file(inventory: str, path: Path) -> Path:
    """Return the cache file of an inventory, identified by name and path."""
    mark = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    return xdg_folder("cache") / "facts" / f"{inventory}-{mark}.json"
