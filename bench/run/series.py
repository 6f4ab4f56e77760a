"""Series of repeated runs, which a later process can continue.

The folder of a series has a ledger. A line of a ledger is durable before the next action. A line
that was cut off by a crash never had an effect, and is dropped.

A series has points (one for each variation) and a number of instances of each point. Its folder is
a run folder of kind `series`, beside the folders of its runs. `instances.jsonl` gets a durable line
before an instance's run and a durable line after the run. So a process that continues after a
SIGKILL runs no instance twice: ended runs count, and an unended run is repeated as a new run. A
later process repeats failed instances, too, after all others.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

from bench.load.splitmix import splitmix64
from bench.run.run_directory import (
    RunDirectory,
    json_text,
    machine_facts,
    new_run_directory,
    point_latest,
    program_facts,
)
from brokerd.errors import ConfigError
from brokerd.files import write_whole
from brokerd.storage.files import DISK
from brokerd.text import is_plain_name, parse_json

PLAN: Final = "plan.json"
"""File in `spec` with everything that decides the runs, without the commit."""
HOSTS: Final = "hosts.json"
"""File in `spec` with the hosts of the work. Capsules omit this file, because it names hosts."""

Hosts = Mapping[str, Mapping[str, Any]]
"""Name of a host → its properties that influence numbers; the inventory's properties stand under
the inventory's name in brackets."""


def digest_of(plan: Mapping[str, Any]) -> str:
    """Return the digest of everything that decides the runs, the commit included."""
    content = json.dumps([plan, program_facts()["git_commit"]], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class FolderInUse(Exception):
    """Unfinished work in a folder that another process of this machine carries out."""

    exit_status = 4


def find_unfinished(
    runs: Path, name: str, kind: str, digest: str, hosts: Hosts
) -> RunDirectory | None:
    """Return the folder of the unfinished work of this plan, or None.

    Args:
        runs: folder of run folders.
        name: name of the experiment.
        hosts: hosts of the continued work.

    Raises:
        ConfigError: the work began on other hosts, so that its runs are not comparable.
        FolderInUse: the command that began the work has not ended.
    """
    for path in sorted((runs / name).glob("[0-9]*Z-*")):
        manifest = manifest_in(path)
        if (manifest.get("kind"), manifest.get("state")) != (kind, "running"):
            continue
        if manifest.get("plan_digest") == digest:
            _refuse_other_hosts(path, manifest, hosts)
            directory = RunDirectory(path)
            if directory.is_in_use:
                directory.leave()
                raise FolderInUse(f"{path}: another command carries out its runs; wait for its end")
            directory.manifest = manifest
            directory.log("resumed")
            return directory
    return None


def describe_other_commits(path: Path) -> list[str]:
    """Return a sentence for each unfinished work of the same plan at another commit.

    Args:
        path: the folder of the new work.
    """
    own, plan = manifest_in(path), _plan_in(path)
    found = []
    for other in sorted(path.parent.glob("[0-9]*Z-*")):
        manifest = manifest_in(other)
        if any(manifest.get(key) != own.get(key) for key in ("kind", "state")):
            continue
        commit = str(manifest.get("git_commit"))
        if commit != str(own.get("git_commit")) and _plan_in(other) == plan:
            found.append(
                f"{other} is unfinished, of commit {commit[:12]}; at another commit all runs begin "
                "anew. To continue it, check out that commit"
            )
    return found


def _plan_in(path: Path) -> Any:
    """Return the plan of a folder; None without a readable plan."""
    try:
        return parse_json((path / "spec" / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _refuse_other_hosts(path: Path, manifest: Mapping[str, Any], hosts: Hosts) -> None:
    """Refuse a change of hosts, because runs on different hosts are not comparable."""
    machine = machine_facts()
    begun: Hosts = {}
    if (file := path / "spec" / HOSTS).is_file():  # missing if killed before the first run
        try:
            begun = parse_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{file}: {error}") from None
        if not isinstance(begun, dict) or not all(
            isinstance(each, dict) for each in begun.values()
        ):
            raise ConfigError(f"{file}: not the hosts of this work")
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
    """Append a line to a ledger. The line is durable on return, and the name of a new ledger."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    if is_new:
        DISK.sync_folder(path.parent)


def read_whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a ledger and truncate a torn last line; a missing ledger has no lines.

    Raises:
        ConfigError: a line before the last cannot be read.
    """
    if not path.is_file():
        return
    whole, end, torn = path.read_text(encoding="utf-8").rpartition("\n")
    if torn:
        os.truncate(path, len((whole + end).encode()))
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            found = parse_json(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{path}, line {number}: not a JSON object")
        yield found


def check_line(line: Mapping[str, Any], wanted: Mapping[str, tuple[type, ...]], where: str) -> None:
    """Check the keys of a line of a ledger, and the types of their values.

    Raises:
        ConfigError: names the key and the value.
    """
    for key in sorted({*line} - {*wanted}):
        raise ConfigError(f"{where}: {key}: no such key")
    for key, types in wanted.items():
        value = line.get(key)
        is_amount = not isinstance(value, float) or (isfinite(value) and value >= 0)
        if type(value) not in types or not is_amount:
            raise ConfigError(f"{where}: {key} = {value!r}: not {' or '.join(_words(types))}")


def _words(types: tuple[type, ...]) -> list[str]:
    names = {int: "a number", float: "a fraction", str: "a text"}
    return [names[each] for each in types]


def manifest_in(path: Path) -> dict[str, Any]:
    """Return the manifest of a folder; {} without a readable manifest."""
    try:
        found = parse_json((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


KIND: Final = "series"
LEDGER: Final = "instances.jsonl"
_LINE: Final[Mapping[str, tuple[type, ...]]] = {
    "point": (str,),
    "number": (int,),
    "run_id": (str,),
    "state": (str,),
    "why": (str,),
}
"""The types of a line of the ledger."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A repetition of a point, numbered from 1."""

    point: str
    number: int

    def __str__(self) -> str:
        return f"{self.point}, instance {self.number}"


Order = Callable[[Sequence[str], int], list[str]]
"""A function that returns the order of the points in a repetition, which is counted from 1."""


def keep_order(points: Sequence[str], repetition: int) -> list[str]:
    """Return the points in their given order."""
    return [*points]


def alternate(points: Sequence[str], repetition: int) -> list[str]:
    """Return the points forwards and backwards in turn, so that drift affects all points alike."""
    return [*points] if repetition % 2 else [*reversed(points)]


@dataclass(frozen=True, slots=True)
class DrawnOrder:
    """A random order for each repetition, determined by the seed."""

    seed: int

    def __call__(self, points: Sequence[str], repetition: int) -> list[str]:
        start = splitmix64(splitmix64(self.seed) + repetition)
        drawn = {point: splitmix64(start + place) for place, point in enumerate(points)}
        return sorted(points, key=drawn.__getitem__)


class Series:
    """A series, for the only process that carries out the series.

    Attributes:
        directory: the folder of the series.
        failed: reasons, by instance that this process could not carry out.
    """

    def __init__(
        self,
        directory: RunDirectory,
        points: Sequence[str],
        instances: int,
        order: Order = keep_order,
    ) -> None:
        self.directory = directory
        self.failed: dict[Instance, str] = {}
        self._points = tuple(points)
        self._instances = instances
        self._order = order
        self._began: dict[str, Instance] = {}
        self._ended: dict[Instance, str] = {}
        self._failed_before: set[Instance] = set()
        self._read()

    @property
    def path(self) -> Path:
        return self.directory.path

    def remaining(self) -> list[Instance]:
        """Return the remaining instances: the first of every point, then the second, and so on.

        In this order a slow change of the machine affects all points alike. Failed instances come
        last.
        """
        every = [
            Instance(point, number)
            for number in range(1, self._instances + 1)
            for point in self._order(self._points, number)
        ]
        return sorted(
            (instance for instance in every if instance not in self._ended),
            key=lambda instance: instance in self._failed_before,
        )

    def runs(self) -> dict[str, list[Path]]:
        """Return the folders of ended runs, by point."""
        found: dict[str, list[Path]] = {point: [] for point in self._points}
        for instance in sorted(self._ended, key=lambda each: each.number):
            found[instance.point].append(self.path.parent / self._ended[instance])
        return found

    def begin(self, instance: Instance, run: Path) -> None:
        """Record the begin of an instance's run."""
        self._note(instance, run.name, "began")
        self._began[run.name] = instance

    def end(self, instance: Instance, run: Path, state: str) -> None:
        """Record the end of a run, with its state."""
        assert instance not in self._ended, f"{instance} was run twice: {run}"
        self._note(instance, run.name, state)
        self._ended[instance] = run.name

    def fail(self, instance: Instance, why: str) -> None:
        """Record an instance that could not be carried out; the series continues."""
        self._note(instance, "", "failed", why)
        self.failed[instance] = why

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write the summary after the last run, and seal the folder."""
        assert not self.remaining(), f"{self.remaining()} are missing"
        runs = {point: [run.name for run in of_point] for point, of_point in self.runs().items()}
        self.directory.manifest["runs"] = runs
        write_whole(self.path / "series.json", json_text(summary))
        self.directory.end("complete")
        self.directory.add_to_index({"kind": KIND})
        point_latest(self.path)

    def _note(self, instance: Instance, run_id: str, state: str, why: str = "") -> None:
        line = {
            "point": instance.point, "number": instance.number, "run_id": run_id, "state": state,
            **({"why": why} if why else {}),
        }  # fmt: skip
        append_durably(self.path / LEDGER, line)

    def _read_line(
        self, line: Mapping[str, Any], where: str, seen: dict[str, Instance]
    ) -> Instance:
        """Return the instance of a line of the ledger.

        Args:
            seen: the instance of each run of earlier lines; adds the run of this line.

        Raises:
            ConfigError: the line is none of this series, or counts a run for a second instance.
        """
        check_line({"why": "", **line}, _LINE, where)
        instance, run_id = Instance(line["point"], line["number"]), line["run_id"]
        if instance.point not in self._points or not 1 <= instance.number <= self._instances:
            raise ConfigError(f"{where}: {instance}: no instance of this series")
        if line["state"] == "failed":
            return instance
        if not is_plain_name(run_id):
            raise ConfigError(f"{where}: run_id = {run_id!r}: no name of a run")
        if seen.setdefault(run_id, instance) != instance:
            raise ConfigError(f"{where}: run_id = {run_id!r}: the run of {seen[run_id]}, too")
        if line["state"] == "began":
            return instance
        if self._ended.get(instance, run_id) != run_id:
            raise ConfigError(f"{where}: {instance} has ended as {self._ended[instance]} already")
        if (found := manifest_in(self.path.parent / run_id).get("run_id")) != run_id:
            raise ConfigError(
                f"{where}: run_id = {run_id!r}: "
                f"{self.path.parent / run_id / 'manifest.json'} is of run {found!r}"
            )
        return instance

    def _read(self) -> None:
        """Read the ledger of earlier runs; a torn last line never had an effect."""
        seen: dict[str, Instance] = {}
        for place, line in enumerate(read_whole_lines(self.path / LEDGER), start=1):
            instance = self._read_line(line, f"{self.path / LEDGER}, line {place}", seen)
            if line["state"] == "began":
                self._began[line["run_id"]] = instance
            elif line["state"] == "failed":
                self._failed_before.add(instance)
            else:
                self._ended[instance] = line["run_id"]
        for run_id, instance in self._began.items():
            state = str(manifest_in(self.path.parent / run_id).get("state"))
            if instance not in self._ended and state == "complete":
                self.end(instance, self.path.parent / run_id, state)


def open_series(
    runs: Path,
    name: str,
    plan: Mapping[str, Any],
    points: Sequence[str],
    instances: int,
    order: Order = keep_order,
    *,
    hosts: Hosts,
) -> Series:
    """Return the unfinished series of this plan, or a new series.

    Args:
        runs: folder of run folders.
        name: name of the experiment.
        plan: everything that decides the runs, JSON-ready; the commit must be the same, too.
        order: order of the points in repetitions.
        hosts: hosts of the series.

    Raises:
        ConfigError: the unfinished series has another number of instances, or other hosts, or its
            ledger is not of this series.
    """
    digest = digest_of(plan)
    if (directory := find_unfinished(runs, name, KIND, digest, hosts)) is not None:
        if (begun := directory.manifest.get("instances")) != instances:
            directory.leave()
            raise ConfigError(
                f"{directory.path}: begun with --instances {begun}; go on with that, or remove the "
                "folder"
            )
        try:
            return Series(directory, points, instances, order)
        except ConfigError:
            directory.leave()
            raise
    directory = RunDirectory(new_run_directory(runs, name))
    about = {"kind": KIND, "plan_digest": digest, "instances": instances, "points": [*points]}
    directory.begin(
        name, {**about, **{key: plan.get(key) for key in ("figure", "figures", "protocol", "seed")}}
    )
    directory.write_spec(PLAN, plan)
    directory.write_spec(HOSTS, hosts)
    return Series(directory, points, instances, order)
