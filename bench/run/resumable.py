"""Work of many runs that somebody else may go on with: its folder, and a ledger in it.

A line of a ledger is on disk before anything else happens; one that a crash has cut off was never
acted on, and is dropped.
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
"""In `spec`: the hosts that work was begun on. It names them, so capsules leave it out."""

Hosts = Mapping[str, Mapping[str, Any]]
"""Name of a host → what of it decides numbers; the inventory's own under its name in brackets."""


def digest_of(plan: Mapping[str, Any]) -> str:
    """Of all that decides what is run, the commit included."""
    content = json.dumps([plan, program_facts()["git_commit"]], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def begun_before(
    runs: Path, name: str, kind: str, digest: str, hosts: Hosts
) -> RunDirectory | None:
    """The folder of the work of this plan that was begun and has not ended, where there is one.

    Args:
        runs: where run folders lie.
        name: of the experiment.
        hosts: it is to go on with.

    Raises:
        ConfigError: it was begun on other hosts, so that its runs could not be compared.
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
    """Runs of one series are made on the same hosts, or tell nothing together."""
    machine = machine_facts()
    begun: Hosts = {}
    if (file := path / "spec" / HOSTS).is_file():  # else it was killed before it ran anything
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
    """The first thing that differs, in words; "" for nothing."""
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
    """Write a line of a ledger; it is on disk when this returns."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a ledger; what is cut off at its end is removed. None of one that is missing."""
    if not path.is_file():
        return
    whole, end, torn = path.read_text(encoding="utf-8").rpartition("\n")
    if torn:
        os.truncate(path, len((whole + end).encode()))
    yield from map(json.loads, whole.splitlines())


def manifest_in(path: Path) -> dict[str, Any]:
    """What the manifest of a folder says; nothing where there is none that can be read."""
    try:
        found: dict[str, Any] = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
