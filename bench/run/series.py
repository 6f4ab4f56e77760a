"""Repetitions of runs: which of them are done, in a folder that survives whoever makes them.

A series has points (one for each thing that is varied) and so many instances of each. Its folder
is a run's folder of kind `series`, beside those of its runs. `instances.jsonl` gets a line before
an instance's run and one after it, each on disk before anything else happens, so whoever goes on
after a SIGKILL runs none twice: what had ended counts, what had not is run again as a new run.
What failed is run again, too, after all others, by whoever goes on later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.load.splitmix import splitmix64
from bench.run.resumable import (
    HOSTS,
    Hosts,
    append_durably,
    begun_before,
    digest_of,
    manifest_in,
    whole_lines,
)
from bench.run.run_directory import RunDirectory, json_text, new_run_directory, point_latest
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


Order = Callable[[Sequence[str], int], list[str]]
"""In which order a repetition, counted from 1, takes the points."""


def as_given(points: Sequence[str], repetition: int) -> list[str]:
    """In the order that they have."""
    return [*points]


def alternating(points: Sequence[str], repetition: int) -> list[str]:
    """Forwards and backwards in turn (A B, B A, …): what drifts slowly befalls all alike."""
    return [*points] if repetition % 2 else [*reversed(points)]


@dataclass(frozen=True, slots=True)
class DrawnOrder:
    """Another order for each repetition, always the same ones for a seed."""

    seed: int

    def __call__(self, points: Sequence[str], repetition: int) -> list[str]:
        start = splitmix64(splitmix64(self.seed) + repetition)
        drawn = {point: splitmix64(start + place) for place, point in enumerate(points)}
        return sorted(points, key=drawn.__getitem__)


class Series:
    """One series, for the one process that carries it out.

    Attributes:
        directory: its folder.
        failed: why, of the instances that this process could not carry out.
    """

    def __init__(
        self,
        directory: RunDirectory,
        points: Sequence[str],
        instances: int,
        order: Order = as_given,
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
        """Of its folder."""
        return self.directory.path

    def remaining(self) -> list[Instance]:
        """What is yet to be run: the first of every point, then the second, and so on.

        So whatever the machine does slowly befalls all points alike. What has failed comes last.
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

    def fail(self, instance: Instance, why: str) -> None:
        """The instance could not be carried out; others are."""
        self._note(instance, "", "failed", why)
        self.failed[instance] = why

    def close(self, summary: Mapping[str, Any]) -> None:
        """Everything has been run: write what it came to, and seal the folder."""
        assert not self.remaining(), f"{self.remaining()} are missing"
        runs = {point: [run.name for run in of_point] for point, of_point in self.runs().items()}
        self.directory.manifest["runs"] = runs
        (self.path / "series.json").write_text(json_text(summary), encoding="utf-8")
        self.directory.end("complete")
        self.directory.add_to_index({"kind": KIND})
        point_latest(self.path)

    def _note(self, instance: Instance, run_id: str, state: str, why: str = "") -> None:
        line = {
            "point": instance.point, "number": instance.number, "run_id": run_id, "state": state,
            **({"why": why} if why else {}),
        }  # fmt: skip
        append_durably(self.path / LEDGER, line)

    def _read(self) -> None:
        """What has been run before; a line that was cut off was never acted on."""
        for line in whole_lines(self.path / LEDGER):
            instance = Instance(line["point"], line["number"])
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
    order: Order = as_given,
    *,
    hosts: Hosts,
) -> Series:
    """The series of this plan that was begun and not finished, or a new one.

    Args:
        runs: where run folders lie.
        name: of the experiment.
        plan: all that decides what is run, JSON-ready; with it the commit must be the same.
        order: in which repetitions take the points.
        hosts: it is run on.

    Raises:
        ConfigError: the series that was begun was for fewer or more instances, or on other hosts.
    """
    digest = digest_of(plan)
    if (directory := begun_before(runs, name, KIND, digest, hosts)) is not None:
        if directory.manifest["instances"] != instances:
            directory.leave()
            raise ConfigError(
                f"{directory.path}: begun with --instances {directory.manifest['instances']}; go "
                "on with that, or remove the folder"
            )
        return Series(directory, points, instances, order)
    directory = RunDirectory(new_run_directory(runs, name))
    about = {"kind": KIND, "plan_digest": digest, "instances": instances, "points": [*points]}
    directory.begin(
        name, {**about, **{key: plan.get(key) for key in ("figure", "figures", "protocol", "seed")}}
    )
    directory.write_spec("plan.json", plan)
    directory.write_spec(HOSTS, hosts)
    return Series(directory, points, instances, order)
