"""Repetitions of runs: which of them are done, in a folder that survives whoever makes them.

A series has points (one for each thing that is varied) and so many instances of each. Its folder
is a run's folder of kind `series`, beside those of its runs. `instances.jsonl` gets a line before
an instance's run and one after it, each on disk before anything else happens, so whoever goes on
after a SIGKILL runs none twice: what had ended counts, what had not is run again as a new run.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.run.run_directory import (
    RunDirectory,
    json_text,
    new_run_directory,
    point_latest,
    program_facts,
)
from brokerd.errors import ConfigError

KIND: Final = "series"
LEDGER: Final = "instances.jsonl"


@dataclass(frozen=True, slots=True)
class Instance:
    """One repetition: of which point, and which one, from 1."""

    point: str
    number: int

    def __str__(self) -> str:
        return f"{self.point}, instance {self.number}"


class Series:
    """One series, for the one process that carries it out.

    Attributes:
        directory: its folder.
    """

    def __init__(self, directory: RunDirectory, points: Sequence[str], instances: int) -> None:
        self.directory = directory
        self._points = tuple(points)
        self._instances = instances
        self._began: dict[str, Instance] = {}
        self._ended: dict[Instance, str] = {}
        self._read()

    @property
    def path(self) -> Path:
        """Of its folder."""
        return self.directory.path

    def remaining(self) -> list[Instance]:
        """What is yet to be run: the first of every point, then the second, and so on.

        So whatever the machine does slowly befalls all points alike.
        """
        every = [
            Instance(point, number)
            for number in range(1, self._instances + 1)
            for point in self._points
        ]
        return [instance for instance in every if instance not in self._ended]

    def runs(self) -> dict[str, list[Path]]:
        """The folders of the runs that have ended, by point."""
        found: dict[str, list[Path]] = {point: [] for point in self._points}
        for instance in sorted(self._ended, key=lambda each: each.number):
            found[instance.point].append(self.path.parent / self._ended[instance])
        return found

    def begin(self, instance: Instance, run: Path) -> None:
        """A run of an instance begins."""
        self._note(instance, run.name, "began")
        self._began[run.name] = instance

    def end(self, instance: Instance, run: Path, state: str) -> None:
        """The run has ended, and is what it is."""
        assert instance not in self._ended, f"{instance} was run twice: {run}"
        self._note(instance, run.name, state)
        self._ended[instance] = run.name

    def close(self, summary: Mapping[str, Any]) -> None:
        """Everything has been run: write what it came to, and seal the folder."""
        assert not self.remaining(), f"{self.remaining()} are missing"
        runs = {point: [run.name for run in of_point] for point, of_point in self.runs().items()}
        self.directory.manifest["runs"] = runs
        (self.path / "series.json").write_text(json_text(summary), encoding="utf-8")
        self.directory.end("complete")
        self.directory.add_to_index({"kind": KIND})
        point_latest(self.path)

    def _note(self, instance: Instance, run_id: str, state: str) -> None:
        line = {
            "point": instance.point, "number": instance.number, "run_id": run_id, "state": state,
        }  # fmt: skip
        with (self.path / LEDGER).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def _read(self) -> None:
        """What has been run before; a line that was cut off was never acted on."""
        path = self.path / LEDGER
        if not path.is_file():
            return
        whole, _, torn = path.read_text(encoding="utf-8").rpartition("\n")
        if torn:
            os.truncate(path, len(whole.encode()) + 1)
        for text in whole.splitlines():
            line = json.loads(text)
            instance = Instance(line["point"], line["number"])
            if line["state"] == "began":
                self._began[line["run_id"]] = instance
            else:
                self._ended[instance] = line["run_id"]
        for run_id, instance in self._began.items():
            state = _state_of(self.path.parent / run_id)
            if instance not in self._ended and state == "complete":
                self.end(instance, self.path.parent / run_id, state)


def open_series(
    runs: Path, name: str, plan: Mapping[str, Any], points: Sequence[str], instances: int
) -> Series:
    """The series of this plan that was begun and not finished, or a new one.

    Args:
        runs: where run folders lie.
        name: of the experiment.
        plan: all that decides what is run, JSON-ready; with it the commit must be the same.

    Raises:
        ConfigError: the series that was begun was for fewer or more instances.
    """
    digest = _digest(plan)
    for path in sorted((runs / name).glob("[0-9]*Z-*")):
        manifest = _manifest(path)
        if (manifest.get("kind"), manifest.get("state")) != (KIND, "running"):
            continue
        if manifest.get("plan_digest") == digest:
            if manifest["instances"] != instances:
                raise ConfigError(
                    f"{path}: begun with --instances {manifest['instances']}; go on with that, or "
                    "remove the folder"
                )
            directory = RunDirectory(path)
            directory.manifest = manifest
            directory.log("resumed")
            return Series(directory, points, instances)
    directory = RunDirectory(new_run_directory(runs, name))
    about = {"kind": KIND, "plan_digest": digest, "instances": instances, "points": [*points]}
    directory.begin(
        name, {**about, **{key: plan.get(key) for key in ("figure", "figures", "protocol", "seed")}}
    )
    directory.write_spec("plan.json", plan)
    return Series(directory, points, instances)


def _digest(plan: Mapping[str, Any]) -> str:
    content = json.dumps([plan, program_facts()["git_commit"]], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _manifest(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _state_of(path: Path) -> str:
    return str(_manifest(path).get("state"))
