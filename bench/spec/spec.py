"""Experiment specifications: a workload file, its topology, and the overrides.

Workload files are closed: an unknown key, broker, attribute or unit is an error that names file,
key, value and the nearest valid value. An ExperimentSpec is fully resolved. `workload_toml`
contains the whole specification, so that a run directory depends on nothing outside. Only the
controller reads specification files; processes on broker machines receive plain mappings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.load.content import Scalar, draw_attribute_sets
from bench.load.pacing import absences
from bench.spec.keys import Keys, Overrides, topology_keys, with_keys, with_overrides
from bench.spec.named_files import find_named_file, is_bare, names_in
from bench.spec.topology_checks import check_against_topology
from bench.spec.validation import SpecError, validate
from bench.spec.values import Segment
from bench.spec.workload_model import EXPERIMENT_NAME, Publishers, Subscribers, Workload
from bench.spec.workload_model import MAXIMUM_SEED as MAXIMUM_SEED
from brokerd.errors import ConfigError
from brokerd.overlay.topology import Topology, nearest
from brokerd.protocols.registry import check_runs_on, read_topology
from brokerd.text import parse_toml, read_utf8, toml_text
from brokerd.units import format_duration
from fault_injection.schedule.targets import Role

BENCH_FOLDER = Path(__file__).parents[1]
WORKLOADS = BENCH_FOLDER / "workloads"
TOPOLOGIES = BENCH_FOLDER / "topologies"
MOST_ABSENCES = 10_000
"""Greatest number of absences of one subscriber in a run."""


@dataclass(frozen=True, slots=True)
class PublisherPlan:
    """A publisher: its place in the content formula, name, broker, and entry in the workload."""

    index: int
    name: str
    broker: str
    entry: Publishers


@dataclass(frozen=True, slots=True)
class SubscriberPlan:
    """A subscriber with its only subscription.

    Attributes:
        entry: its entry in the workload.
        absences: times without a connection because of churn, from the start of the measurement.
    """

    index: int
    name: str
    broker: str
    entry: Subscribers
    absences: tuple[tuple[int, int], ...] = ()

    @property
    def subscribes_ns(self) -> int | None:
        """Time of the subscription in the measurement; None for a time before it."""
        return self.entry.subscribes_ns


@dataclass(frozen=True, slots=True)
class ExperimentSpec:
    """A workload on a topology, with a protocol and a seed: all that decides a run.

    Attributes:
        workload: the workload, overrides included.
        topology: the topology that the workload names.
        overrides: the overrides, for the record.
        source: the workload file.
        labels: free words for the user and for the results index.
    """

    workload: Workload
    topology: Topology
    overrides: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the experiment: the label `experiment`, or else the name of the workload."""
        return self.labels.get("experiment", self.workload.name)

    @property
    def protocol(self) -> str:
        """The protocol that runs."""
        return self.workload.protocol

    @property
    def seed(self) -> int:
        """The seed of all random values."""
        return self.workload.seed

    def publisher_plans(self) -> list[PublisherPlan]:
        """Return all publishers, in the order of their index in the content formula."""
        plans: list[PublisherPlan] = []
        places: dict[str, int] = {}
        for entry in self.workload.publishers:
            for broker in entry.at:
                for _ in range(entry.count):
                    places[broker] = places.get(broker, 0) + 1
                    name = f"{broker}-pub-{places[broker]}"
                    plans.append(PublisherPlan(len(plans), name, broker, entry))
        return plans

    def rate_shapes(self) -> list[tuple[Segment, ...]]:
        """Return the rates of the measure phase of each publisher with a rate shape."""
        measure_ns = self.workload.phases.measure
        shapes = [plan.entry.rate.segments(0, measure_ns) for plan in self.publisher_plans()]
        return [shape for shape in shapes if shape]

    def subscriber_plans(self) -> list[SubscriberPlan]:
        """Return all subscribers, in file order."""
        plans: list[SubscriberPlan] = []
        places: dict[str, int] = {}
        for entry in self.workload.subscribers:
            for broker in entry.at:
                for _ in range(entry.count):
                    places[broker] = places.get(broker, 0) + 1
                    name = f"{broker}-sub-{places[broker]}"
                    absent = self._absences(len(plans))
                    plans.append(SubscriberPlan(len(plans), name, broker, entry, absent))
        return plans

    def _absences(self, index: int) -> tuple[tuple[int, int], ...]:
        churn = self.workload.churn
        if churn is None:
            return ()
        times = self.workload.phases.measure // churn.every
        if times > MOST_ABSENCES:
            raise SpecError(
                f"{self.source}: churn.every = {format_duration(churn.every)!r}: each subscriber "
                f"is away {times:,} times; at most {MOST_ABSENCES:,}"
            )
        return tuple(
            absences(
                disconnected_ns=churn.disconnected,
                every_ns=churn.every,
                pattern=churn.pattern,
                seed=self.seed,
                index=index,
                duration_ns=self.workload.phases.measure,
            )
        )

    def clients(self) -> dict[str, Role]:
        """Return the kind of each client by name."""
        found: dict[str, Role] = {plan.name: "publisher" for plan in self.publisher_plans()}
        for plan in self.subscriber_plans():
            found[plan.name] = "own-process subscriber" if plan.entry.own_process else "subscriber"
        return found

    def list_placed_clients(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return publishers and subscribers in their order, each with its broker."""
        publishers = [(plan.name, plan.broker) for plan in self.publisher_plans()]
        return publishers, [(plan.name, plan.broker) for plan in self.subscriber_plans()]

    def attribute_sets(self) -> list[dict[str, Scalar]]:
        """Return the attribute sets of publications, drawn from the seed."""
        return draw_attribute_sets(self.seed, self.workload.attributes, self.workload.sets)

    def workload_mapping(self) -> dict[str, Any]:
        """Return the resolved workload as the content of a TOML file."""
        values = self.workload.model_dump(by_alias=True, exclude_none=True)
        attributes = {"sets": self.workload.sets, **values.pop("attributes")}
        publishers, subscribers = values.pop("publishers"), values.pop("subscribers")
        if not values["expectations"]:
            del values["expectations"]
        return {
            **values, "attributes": attributes,
            "publishers": publishers, "subscribers": subscribers,
        }  # fmt: skip

    def workload_toml(self) -> str:
        """Return the text of the resolved workload file."""
        return toml_text(self.workload_mapping())

    def topology_toml(self) -> str:
        """Return the text of the topology file."""
        return toml_text(self.topology.as_it_is())


def load_experiment(
    workload: str | Path,
    overrides: Overrides | None = None,
    labels: Mapping[str, str] | None = None,
) -> ExperimentSpec:
    """Return the experiment in a workload file, or in the project's workload with this bare name.

    Raises:
        SpecError: the file or an override cannot be used; names file, key, value and valid values.
    """
    overrides = overrides or Overrides()
    path = find_file(workload, WORKLOADS, "workload")
    values = read_toml(path)
    where = str(path)
    try:
        values = with_overrides(values, overrides)
    except ConfigError as error:
        raise SpecError(f"{where}: {error}") from None
    spec = validate(Workload, values, where, overrides.list_origins())
    is_given = "topology" in {*overrides.as_mapping(), *(overrides.keys or {})}
    is_here = is_given and find_named_file(spec.topology, TOPOLOGIES) is not None
    beside = None if is_here else path
    try:
        topology_path = find_file(spec.topology, TOPOLOGIES, "topology", beside=beside)
    except SpecError as error:
        raise error if is_given else SpecError(f"{where}: topology: {error}") from None
    topology = load_topology(topology_path, topology_keys(overrides.keys or {}))
    try:
        check_runs_on(topology, spec.protocol, where)
    except ConfigError as error:
        raise SpecError(str(error)) from None
    check_against_topology(spec, topology, where)
    name = (labels or {}).get("experiment")
    if name is not None and not EXPERIMENT_NAME.fullmatch(name):
        raise SpecError(f"--label experiment={name}: letters, digits, '.' and '-' only")
    return ExperimentSpec(spec, topology, overrides.as_mapping(), where, dict(labels or {}))


def load_topology(topology: str | Path, keys: Keys | None = None) -> Topology:
    """Return the topology in a file, or the project's topology with this bare name.

    Args:
        keys: values by dotted key, in place of values of the file.

    Raises:
        SpecError: the topology cannot be used; names file, key, value and valid values.
    """
    path = find_file(topology, TOPOLOGIES, "topology")
    try:
        read = read_topology(with_keys(read_toml(path), keys or {}), str(path))
        read.check_delta(str(path))
    except SpecError:
        raise
    except ConfigError as error:
        raise SpecError(str(error)) from error
    return read


def find_file(name: str | Path, folder: Path, noun: str, *, beside: Path | None = None) -> Path:
    """Return the file that a name means, as `bench.spec.named_files` describes.

    Args:
        folder: the program's folder of these files.
        beside: the file that contains the name.

    Raises:
        SpecError: the file does not exist; names the nearest file.
    """
    text = str(name)
    if (found := find_named_file(text, folder, beside)) is not None:
        return found
    if is_bare(text) and Path(text).is_file():
        raise SpecError(f"{text}: the name of a {noun} file ends with .toml")
    if is_bare(text):
        raise SpecError(f"no {noun} called {text!r}{nearest(text, names_in(folder, beside))}")
    if Path(text).expanduser().is_dir() or (beside and (beside.parent / text).is_dir()):
        raise SpecError(f"{noun} file {text!r} is a folder")
    raise SpecError(f"{noun} file {text!r} does not exist")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise SpecError with line and column if invalid."""
    try:
        return parse_toml(read_utf8(path))
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from error
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from error
