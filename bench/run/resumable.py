"""Work of many runs that somebody else may go on with: its folder, and a ledger in it.

A line of a ledger is on disk before anything else happens; one that a crash has cut off was never
acted on, and is dropped.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.run.run_directory import RunDirectory, program_facts


def digest_of(plan: Mapping[str, Any]) -> str:
    """Of all that decides what is run, the commit included."""
    content = json.dumps([plan, program_facts()["git_commit"]], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def begun_before(runs: Path, name: str, kind: str, digest: str) -> RunDirectory | None:
    """The folder of the work of this plan that was begun and has not ended, where there is one.

    Args:
        runs: where run folders lie.
        name: of the experiment.
    """
    for path in sorted((runs / name).glob("[0-9]*Z-*")):
        manifest = manifest_in(path)
        if (manifest.get("kind"), manifest.get("state")) != (kind, "running"):
            continue
        if manifest.get("plan_digest") == digest:
            directory = RunDirectory(path)
            directory.manifest = manifest
            directory.log("resumed")
            return directory
    return None


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
