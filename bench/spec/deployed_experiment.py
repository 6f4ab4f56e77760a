"""Experiments on real brokers that a figure is drawn from: which runs, and how often each.

    schema = "pubsubctl/deployed-experiment/1"
    name = "gd02-fig6"
    figure = "gd02.fig6"
    workload = "gd02-faults"
    faults = "gd02-b1s1-link"
    measure = "30s"
    protocols = ["one", "another"]
    instances = 5

With `subscribers = [100, 400]` every protocol is run with each number of subscribers at every
[[subscribers]] entry of the workload. `workload` may name several, each of which is a point, and
with `also_without_churn = true` each point is run once more with nobody disconnected.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from bench.run.experiment_folder import ExperimentFile
from bench.spec.overrides import Overrides
from bench.spec.spec import BENCH_FOLDER, ExperimentSpec, load_experiment, read_toml, validated

SCHEMA: Final = "pubsubctl/deployed-experiment/1"
EXPERIMENTS: Final = BENCH_FOLDER / "experiments"


def _listed(value: object) -> object:
    """A single name as a list of it."""
    return [value] if isinstance(value, str) else value


class DeployedExperiment(ExperimentFile):
    """One such file.

    Attributes:
        workload: one or several.
        also_without_churn: whether each point is run with churn, and without.
        further_figures: that are drawn from the same runs.
        faults: name of a fault schedule; "" for none.
        measure: how long to measure; "" for as long as the workload says.
        subscribers: how many at each entry of the workload; () for what it says.
        instances: how often each point is run, unless somebody asks for another number.
    """

    further_figures: list[str] = Field(default_factory=list)
    workload: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
    also_without_churn: Annotated[bool, Field(strict=True)] = False
    faults: str = ""
    measure: str = ""
    protocols: Annotated[list[str], Field(min_length=1)]
    subscribers: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    instances: Annotated[int, Field(ge=1, le=1000)] = 1


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that is varied.

    Attributes:
        name: fit for a label and for people.
    """

    name: str
    spec: ExperimentSpec


def figures() -> dict[str, Path]:
    """The figures that have such an experiment of ours, and its file."""
    found: dict[str, Path] = {}
    for path in sorted(EXPERIMENTS.glob("*.toml")):
        values = read_toml(path)
        if values.get("schema") == SCHEMA:
            found |= dict.fromkeys((values["figure"], *values.get("further_figures", ())), path)
    return found


def is_deployed_experiment(name: str) -> bool:
    """Whether a name on a command line means such an experiment: a figure, or a file."""
    path = Path(name)
    is_file = path.suffix == ".toml" and path.is_file()
    return name in figures() or (is_file and read_toml(path).get("schema") == SCHEMA)


def load_deployed_experiment(name: str) -> DeployedExperiment:
    """The experiment of a figure, or in a file.

    Raises:
        SpecError: it cannot be used; says file, key, value, what is valid.
    """
    path = figures().get(name, Path(name))
    return validated(DeployedExperiment, read_toml(path), str(path))


def points_of(experiment: DeployedExperiment, overrides: Overrides) -> Iterator[Point]:
    """What is run, one point after the other.

    Args:
        overrides: typed on top, for all points.

    Raises:
        SpecError: the workload or what was typed cannot be used.
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
