"""Resumable work of many runs: a folder with a ledger, which a later process can continue.

A line of a ledger is durable before the next action. A line that was cut off by a crash never had
an effect, and is dropped.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.run.run_directory import RunDirectory, machine_facts, program_facts
from brokerd.errors import ConfigError

HOSTS: Final = "hosts.json"
"""File in `spec` with the hosts of the work. Capsules omit this file, because it names hosts."""

Hosts = Mapping[str, Mapping[str, Any]]
"""Name of a host → its properties that influence numbers; the inventory's properties stand under
the inventory's name in brackets."""


def digest_of(plan: Mapping[str, Any]) -> str:
    """Return the digest of everything that decides the runs, the commit included."""
    content = json.dumps([plan, program_facts()["git_commit"]], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def begun_before(
    runs: Path, name: str, kind: str, digest: str, hosts: Hosts
) -> RunDirectory | None:
    """Return the folder of the unfinished work of this plan, or None.

    Args:
        runs: folder of run folders.
        name: name of the experiment.
        hosts: hosts of the continued work.

    Raises:
        ConfigError: the work began on other hosts, so that its runs are not comparable.
    """
    for path in sorted((runs / name).glob("[0-9]*Z-*")):
        manifest = manifest_in(path)
        if (manifest.get("kind"), manifest.get("state")) != (kind, "running"):
            continue
        if manifest.get("plan_digest") == digest:
            _refuse_other_hosts(path, manifest, hosts)
            directory = RunDirectory(path)
            directory.manifest = manifest
            directory.log("resumed")
            return directory
    return None


def _refuse_other_hosts(path: Path, manifest: Mapping[str, Any], hosts: Hosts) -> None:
    """Refuse a change of hosts, because runs on different hosts are not comparable."""
    machine = machine_facts()
    begun: Hosts = {}
    if (file := path / "spec" / HOSTS).is_file():  # missing if killed before the first run
        begun = json.loads(file.read_text(encoding="utf-8"))
    difference = _difference(
        {**(begun or hosts), "this machine": {key: manifest.get(key) for key in machine}},
        {**hosts, "this machine": machine},
    )
    if difference:
        raise ConfigError(
            f"{path}: begun on other hosts: {difference}; go on with the inventory and --limit "
            "that it was begun with, or remove the folder, or name another one with --output-dir"
        )


def _difference(begun: Hosts, hosts: Hosts) -> str:
    """Return the first difference in words; "" for none."""
    for name in sorted({*begun, *hosts}):
        if name not in hosts:
            return f"{name} was one of them"
        if name not in begun:
            return f"{name} was none of them"
        for key in sorted({*begun[name], *hosts[name]}):
            before, now = begun[name].get(key), hosts[name].get(key)
            if before != now:
                return f"{key} of {name} was {_shown(before)}, and is {_shown(now)}"
    return ""


def _shown(value: Any) -> str:
    return "unset" if value is None else json.dumps(value)


def append_durably(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line to a ledger. The line is durable on return."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a ledger and truncate a torn last line; a missing ledger has no lines."""
    if not path.is_file():
        return
    whole, end, torn = path.read_text(encoding="utf-8").rpartition("\n")
    if torn:
        os.truncate(path, len((whole + end).encode()))
    yield from map(json.loads, whole.splitlines())


def manifest_in(path: Path) -> dict[str, Any]:
    """Return the manifest of a folder; {} without a readable manifest."""
    try:
        found: dict[str, Any] = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
