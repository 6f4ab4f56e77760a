"""Experiment files: without deployed brokers, with run folders, and on real brokers.

An experiment without real brokers has a run folder with its rows. An experiment on real brokers
names the runs for a figure, and the number of instances of each:

    schema = "pubsubctl/deployed-experiment/1"
    name = "gd02-fig6"
    figure = "gd02.fig6"
    workload = "gd02-faults"
    faults = "gd02-b1s1-link"
    measure = "30s"
    protocols = ["one", "another"]
    instances = 5

With `subscribers = [100, 400]` every protocol is run with each number of subscribers at every
[[subscribers]] entry of the workload. `workload` may name several workloads, each of which is a
point. With `also_without_churn = true` each point is run once more without churn.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from bench.run.run_directory import RunDirectory, new_run_directory
from bench.spec.keys import Overrides
from bench.spec.spec import BENCH_FOLDER, MAXIMUM_SEED, ExperimentSpec, load_experiment, read_toml
from bench.spec.validation import validate
from brokerd.files import file_sha256
from brokerd.overlay.topology import Topology
from brokerd.text import toml_text

HOST = "controller"

Row = Mapping[str, Any]
Kind = Literal["graph", "simulation", "behaviour", "storage", "consumers"]

_WRITERS: Mapping[Kind, str] = {
    "graph": "graph",
    "storage": "storage",
    "consumers": "consumers",
}


class ExperimentFile(BaseModel):
    """The common keys of experiment files: schema and name, figure, and seed."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Annotated[str, Field(alias="schema")]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    figure: Annotated[str, Field(pattern=r"^[a-z0-9]+\.[a-z0-9]+$")]
    seed: Annotated[int, Field(ge=0, le=MAXIMUM_SEED, strict=True)] = 1

    def scale(self) -> Row:
        """Return the size of the experiment, for claims that require a size."""
        return {}

    def build_topologies(self) -> Mapping[int, Topology] | Mapping[str, Topology]:
        """Return trees by fan-out, or other topologies by name, for the run's folder."""
        return {}


def write_experiment(
    experiment: ExperimentFile,
    runs: Path,
    kind: Kind,
    protocol: str | None,
    topologies: Mapping[Any, Topology],
    carry_out: Callable[[], Mapping[str, Iterable[Row]]],
    *,
    labels: Mapping[str, str],
) -> Path:
    """Create a run folder, carry out an experiment, and write its rows as JSON lines.

    Args:
        runs: folder of run folders.
        protocol: the protocol of the experiment; None for none.
        topologies: topologies of the experiment.
        carry_out: returns the rows by table.
        labels: free words for the results index.

    Returns:
        The folder of the new run, which contains the reason if the experiment failed.
    """
    directory = RunDirectory(new_run_directory(runs, experiment.name))
    directory.begin(
        experiment.name,
        {
            "kind": kind,
            "figure": experiment.figure,
            "protocol": protocol,
            "seed": experiment.seed,
            "labels": dict(labels),
            "scale": dict(experiment.scale()),
        },
    )
    directory.write_spec("experiment.toml", toml_text(experiment.model_dump(by_alias=True)))
    for key, topology in topologies.items():
        name = f"fanout-{key}" if isinstance(key, int) else key
        directory.write_spec(f"topology-{name}.toml", toml_text(topology.to_mapping()))
    directory.close_specification()
    folder = directory.raw_folder(HOST, _WRITERS.get(kind, "simulator"))
    try:
        counts = {
            name: _write_rows(folder / f"{name}.jsonl", rows) for name, rows in carry_out().items()
        }
    except BaseException as error:
        directory.end("aborted", [f"{type(error).__name__}: {error}"])
        raise
    digests = {name: file_sha256(folder / f"{name}.jsonl") for name in counts}
    directory.log("rows", **counts, digests=digests)
    directory.end("complete")
    directory.add_to_index({"figure": experiment.figure})
    return directory.path


def _write_rows(path: Path, rows: Iterable[Row]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, separators=(",", ":")) + "\n")
            count += 1
    return count


SCHEMA: Final = "pubsubctl/deployed-experiment/1"
EXPERIMENTS: Final = BENCH_FOLDER / "experiments"


def _as_list(value: object) -> object:
    """Return a single name as a list."""
    return [value] if isinstance(value, str) else value


class DeployedExperiment(ExperimentFile):
    """A file of a deployed experiment.

    Attributes:
        workload: one or several workloads.
        also_without_churn: True to run each point with and without churn.
        further_figures: further figures that are drawn from the same runs.
        faults: name of a fault schedule; "" for none.
        measure: length of the measure phase; "" for the length in the workload.
        subscribers: numbers of subscribers at each entry of the workload; () for the workload's
            own.
        instances: number of runs of each point, unless the user asks for another number.
    """

    further_figures: list[str] = Field(default_factory=list)
    workload: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    also_without_churn: Annotated[bool, Field(strict=True)] = False
    faults: str = ""
    measure: str = ""
    protocols: Annotated[list[str], Field(min_length=1)]
    subscribers: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    instances: Annotated[int, Field(ge=1, le=1000)] = 1


@dataclass(frozen=True, slots=True)
class Point:
    """A point of an experiment.

    Attributes:
        name: a name that is valid as a label, for the user.
    """

    name: str
    spec: ExperimentSpec


def figures() -> dict[str, Path]:
    """Return a map from each figure with a deployed experiment to the file of the experiment."""
    found: dict[str, Path] = {}
    for path in sorted(EXPERIMENTS.glob("*.toml")):
        values = read_toml(path)
        if values.get("schema") == SCHEMA:
            found |= dict.fromkeys((values["figure"], *values.get("further_figures", ())), path)
    return found


def is_deployed_experiment(name: str) -> bool:
    """Return True if a name on a command line means a deployed experiment: a figure, or a file."""
    path = Path(name)
    is_file = path.suffix == ".toml" and path.is_file()
    return name in figures() or (is_file and read_toml(path).get("schema") == SCHEMA)


def load_deployed_experiment(name: str) -> DeployedExperiment:
    """Return the experiment of a figure, or in a file.

    Raises:
        SpecError: the experiment cannot be used; names file, key, value and valid values.
    """
    path = figures().get(name, Path(name))
    return validate(DeployedExperiment, read_toml(path), str(path))


def points_of(experiment: DeployedExperiment, overrides: Overrides) -> Iterator[Point]:
    """Yield the points of an experiment, in the order of their runs.

    Args:
        overrides: overrides of the command line, for all points.

    Raises:
        SpecError: the workload or an override cannot be used.
    """
    counts: list[int | None] = [*experiment.subscribers] or [None]
    with_churn = (True, False) if experiment.also_without_churn else (True,)
    for count, workload, protocol, churn in product(
        counts, experiment.workload, experiment.protocols, with_churn
    ):
        parts = [workload] if len(experiment.workload) > 1 else []
        parts += [protocol] if count is None else [protocol, str(count)]
        parts += [] if churn else ["without-churn"]
        name = "-".join(parts)
        typed: dict[str, Any] = {"seed": experiment.seed}
        if experiment.measure:
            typed["measure"] = experiment.measure
        if count is not None:
            typed["subscribers"] = count
        if not churn:
            typed["churn"] = False
        typed.update(overrides.as_mapping(), protocol=protocol)
        labels = {"experiment": experiment.name, "point": name}
        yield Point(name, load_experiment(workload, Overrides(**typed), labels))
