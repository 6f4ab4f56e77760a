"""Files and run folders of experiments without real brokers."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.run.run_directory import RunDirectory, new_run_directory
from bench.spec.spec import MAXIMUM_SEED
from bench.spec.toml_text import toml_text
from brokerd.overlay.topology import Topology

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
    labels: Mapping[str, str] | None,
    topologies: Mapping[Any, Topology],
    carry_out: Callable[[], Mapping[str, Iterable[Row]]],
) -> Path:
    """Create a run folder, carry out an experiment, and write its rows as JSON lines.

    Args:
        runs: folder of run folders.
        protocol: the protocol of the experiment; None for none.
        topologies: topologies of the experiment.
        carry_out: returns the rows by table.

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
            "labels": dict(labels or {}),
            "scale": dict(experiment.scale()),
        },
    )
    directory.write_spec("experiment.toml", toml_text(experiment.model_dump(by_alias=True)))
    for key, topology in topologies.items():
        name = f"fanout-{key}" if isinstance(key, int) else key
        directory.write_spec(f"topology-{name}.toml", toml_text(topology.to_mapping()))
    folder = directory.raw_folder(HOST, _WRITERS.get(kind, "simulator"))
    try:
        counts = {
            name: _write_rows(folder / f"{name}.jsonl", rows) for name, rows in carry_out().items()
        }
    except BaseException as error:
        directory.end("aborted", [f"{type(error).__name__}: {error}"])
        raise
    directory.log("rows", **counts)
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
