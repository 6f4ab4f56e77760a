"""Experiment specifications: a workload file, its topology, and the overrides.

Workload files are closed: an unknown key, broker, attribute or unit is an error that names file,
key, value and the nearest valid value. An ExperimentSpec is fully resolved. `workload_toml`
contains the whole specification, so that a run directory depends on nothing outside. Only the
controller reads specification files; processes on broker machines receive plain mappings.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from bench.load.content import (
    NUMBERED,
    Scalar,
    draw_attribute_sets,
    find_counting_attribute,
)
from bench.load.pacing import absences
from bench.spec.keys import (
    Keys,
    Overrides,
    option_keys,
    topology_keys,
    with_keys,
    with_overrides,
)
from bench.spec.named_files import find_named_file, is_bare, names_in
from bench.spec.values import Segment
from bench.spec.workload_model import (
    EXPERIMENT_NAME,
    MAXIMUM_CLIENTS,
    Publishers,
    Subscribers,
    Workload,
)
from bench.spec.workload_model import MAXIMUM_SEED as MAXIMUM_SEED
from brokerd.errors import ConfigError
from brokerd.model.predicate_text import parse_predicate, predicate_value
from brokerd.overlay.topology import Topology, nearest
from brokerd.protocols.registry import (
    check_runs_on,
    definition_of,
    parameters_on,
    protocol_on,
    read_topology,
)
from brokerd.text import explain_problem, explain_schema, parse_toml, read_utf8, shown, toml_text
from brokerd.units import format_duration
from fault_injection.schedule.targets import Role

BENCH_FOLDER = Path(__file__).parents[1]
WORKLOADS = BENCH_FOLDER / "workloads"
TOPOLOGIES = BENCH_FOLDER / "topologies"


class SpecError(ConfigError):
    """A workload, topology or option that cannot be used; the user's fault."""

    exit_status: ClassVar[int] = 2


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
    _check_against_topology(spec, topology, where)
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


MOST_ABSENCES = 10_000
"""Greatest number of absences of one subscriber in a run."""

_QUOTED: Final = re.compile(r"'([^']*)'")
_Model = TypeVar("_Model", bound=BaseModel)


def validate(
    model: type[_Model],
    values: Mapping[str, Any],
    where: str,
    origins: Mapping[str, str] | None = None,
) -> _Model:
    """Return `values` as an instance of a closed model.

    Args:
        origins: dotted key → origin of a value that is not from the file.

    Raises:
        SpecError: the values are invalid; names `where`, key, value and valid values, for up to 8
            errors.
    """
    if problem := _explain_schema(model, values):
        raise SpecError(f"{where}: {problem}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = dict.fromkeys(
            _explain_override(problem, model, origins or {})
            or f"{where}: {_explain(problem, model)}"
            for problem in error.errors()
        )
        raise SpecError("\n".join([*problems][:8])) from error


def _explain_schema(model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """Return the error of the schema of a file of another kind; "" if equal or missing."""
    wanted = _schema_of(model)
    return explain_schema(values["schema"], wanted) if wanted and "schema" in values else ""


def _schema_of(model: type[BaseModel]) -> str:
    """Return the schema that a kind of files states; "" if it states none."""
    wanted = [
        get_args(info.annotation)[0]
        for info in model.model_fields.values()
        if info.alias == "schema" and get_args(info.annotation)
    ]
    return str(wanted[0]) if wanted else ""


def _explain_override(problem: Any, model: type[BaseModel], origins: Mapping[str, str]) -> str:
    """Return the error of a value that is not from the file; "" for a value of the file."""
    key = ".".join(part for part in problem["loc"] if isinstance(part, str))
    origin = origins.get(key) or origins.get(_join_keys(problem["loc"]))
    if origin is None or problem["type"] == "missing":
        return ""
    if problem["type"] == "extra_forbidden":
        return f"{origin}: {_explain(problem, model)}"
    given = problem["input"]
    found = f"{origin} = {shown(given)}"
    found += "" if origin.startswith("--") else ", in place of the file's value"
    if problem["type"] == "literal_error":
        return f"{found}{nearest(given, _QUOTED.findall(problem['ctx']['expected']))}"
    text = explain_problem(problem)
    statement = f"{key} = {given!r}"
    return (
        f"{found}{text.removeprefix(statement)}"
        if text.startswith(statement)
        else f"{found}: {text}"
    )


def _explain(problem: Any, model: type[BaseModel]) -> str:
    """Return one sentence: key, value, the error and valid values."""
    place: tuple[Any, ...] = problem["loc"]
    key = _join_keys(place)
    given = problem["input"]
    kind = problem["type"]
    if kind == "extra_forbidden":
        inside = f"{_join_keys(place[:-1])}: " if len(place) > 1 else ""
        return f"{inside}unknown key {place[-1]!r}{_nearest_key(model, place)}"
    if kind == "missing":
        wanted = f"; write schema = {schema!r}" if (schema := _schema_of(model)) else ""
        return f"key {key!r} is missing{wanted if key == 'schema' else ''}"
    if kind == "literal_error":
        return (
            f"{key} = {shown(given)}{nearest(given, _QUOTED.findall(problem['ctx']['expected']))}"
        )
    text = explain_problem(problem)
    if text.startswith(f"{key} = {given!r}"):
        return text
    if isinstance(given, Mapping) or (kind == "value_error" and isinstance(given, list)):
        return f"{key}: {text}" if key else text
    return f"{key} = {shown(given)}: {text}"


def _join_keys(place: Sequence[Any]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _keys_at(model: type[BaseModel], place: Sequence[Any]) -> list[str]:
    """Return the valid keys of the table at `place`."""
    for part in place:
        if isinstance(part, int):
            continue
        field_info = next(
            info for name, info in model.model_fields.items() if (info.alias or name) == part
        )
        model = next(_models_in(field_info.annotation))
    return [info.alias or name for name, info in model.model_fields.items() if not info.exclude]


def _nearest_key(model: type[BaseModel], place: Sequence[Any]) -> str:
    """Return the hint for an unknown key: its place in another table, or the nearest key."""
    word = place[-1]
    if (known := _KEYS_OF_OPTIONS.get(str(word))) in _keys_at(model, place[:-1]):
        return f"; did you mean {known!r}?"
    elsewhere = [*option_keys(word), *(key for key in _all_keys(model) if key.endswith(f".{word}"))]
    if elsewhere:
        return f"; did you mean {elsewhere[0]!r}?"
    return nearest(word, _keys_at(model, place[:-1]))


_KEYS_OF_OPTIONS: Final = {"instances": "repetitions", "over": "axes", "bound": "bounds"}
"""Keys whose option on the command line has another name."""


def _all_keys(model: type[BaseModel], inside: str = "") -> Iterator[str]:
    """Yield all dotted keys of a model and its tables, in order of the file."""
    for name, info in model.model_fields.items():
        key = f"{inside}{info.alias or name}"
        if not info.exclude:
            yield key
            for table in _models_in(info.annotation):
                yield from _all_keys(table, f"{key}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


def _check_against_topology(workload: Workload, topology: Topology, where: str) -> None:
    _check_places(workload, topology, where)
    _check_failover(workload, topology, where)
    _check_consumers(workload, topology, where)
    _check_filters(workload, where)
    _check_topic(workload, topology, where)
    _check_order(workload, topology, where)
    _check_records(workload, topology, where)
    publishers = sum(len(entry.at) * entry.count for entry in workload.publishers)
    subscribers = sum(len(entry.at) * entry.count for entry in workload.subscribers)
    for noun, number in (("publishers", publishers), ("subscribers", subscribers)):
        if number > MAXIMUM_CLIENTS:
            raise SpecError(f"{where}: {noun}: {number} in all; at most {MAXIMUM_CLIENTS}")
        key = f"{noun.removesuffix('s')}_processes"
        processes = getattr(workload.load, key)
        if processes > number:
            raise SpecError(
                f"{where}: load.{key} = {processes}: at most {number}, one for each of the {noun}"
            )


def _check_records(workload: Workload, topology: Topology, where: str) -> None:
    """Refuse stretches unless subscribers are owed publisher order.

    Stretches record the publications of one source to one subscriber in order, and nothing else.
    """
    if (records := workload.load.records) == "full":
        return
    promised = protocol_on(topology, workload.protocol).promises().order
    order = str(promised) if workload.guarantee.order == "promised" else workload.guarantee.order
    why = ""
    if order != "publisher":
        why = f"subscribers are held to an order other than each publisher's ({order})"
    elif not promised.is_of_sources:
        why = f"{workload.protocol} promises no publisher order"
    elif any(entry.own_process for entry in workload.subscribers):
        why = "subscribers are processes of their own, which note each transaction"
    if why:
        raise SpecError(f'{where}: load.records = {records!r}: only "full" here, for {why}')


def _check_consumers(workload: Workload, topology: Topology, where: str) -> None:
    """Refuse subscribers that commit at brokers that keep no positions."""
    for subscribers in workload.subscribers:
        mode = subscribers.acknowledge
        if mode and not protocol_on(topology, workload.protocol).promises().keeps_committed:
            raise SpecError(
                f"{where}: subscribers[{subscribers.place}].acknowledge = {mode!r}: brokers of "
                f"{workload.protocol} keep no committed positions; durable does"
            )


def _check_places(workload: Workload, topology: Topology, where: str) -> None:
    homes = definition_of(workload.protocol).homes(topology)
    entries: list[tuple[str, Publishers | Subscribers]] = [
        (f"publishers[{place}]", entry) for place, entry in enumerate(workload.publishers)
    ]
    entries += [(f"subscribers[{entry.place}]", entry) for entry in workload.subscribers]
    for noun, entry in entries:
        places = [("at", name) for name in entry.at]
        places += [("failover", name) for name in entry.failover or ()]
        for key, name in places:
            found = f"{where}: {noun}.{key} = {name!r}"
            if name not in topology.brokers:
                raise SpecError(
                    f"{found}: topology {topology.name!r} has no such broker"
                    f"{nearest(name, topology.brokers)}"
                )
            if name not in homes:
                raise SpecError(
                    f"{found}: no clients may be there; {workload.protocol} has them at "
                    f"{', '.join(homes)}"
                )


def _check_failover(workload: Workload, topology: Topology, where: str) -> None:
    """Refuse failover of clients that would change their source or lose promised publications.

    In these cases the client library waits for the client's own broker.
    """
    promises = protocol_on(topology, workload.protocol).promises()
    protocol = workload.protocol
    for number, publishers in enumerate(workload.publishers):
        if publishers.failover and not promises.leaves_freely:
            raise SpecError(
                f"{where}: publishers[{number}].failover: at another broker a publisher of "
                f"{protocol} is another source, and what it has not been answered it waits for"
            )
    for subscribers in workload.subscribers:
        if not subscribers.failover:
            continue
        found = f"{where}: subscribers[{subscribers.place}].failover"
        if subscribers.own_process:
            raise SpecError(f"{found}: subscribers that are processes of their own stay")
        if promises.exactly_once and not promises.resumes_elsewhere:
            raise SpecError(
                f"{found}: what a broker of {protocol} has for a subscription no other one "
                "delivers; it waits for its broker"
            )


def _check_topic(workload: Workload, topology: Topology, where: str) -> None:
    """Check that workload and protocol use the same topic attribute."""
    taken_from = definition_of(workload.protocol).topic_attribute
    if taken_from is None or workload.topic is None:
        return
    attribute = taken_from(parameters_on(topology, workload.protocol))
    if attribute != workload.topic:
        raise SpecError(
            f"{where}: topic = {workload.topic!r}: {workload.protocol} on topology "
            f"{topology.name!r} has topics by {attribute!r} (topic_attribute in "
            f"[parameters.{workload.protocol}])"
        )


def _check_order(workload: Workload, topology: Topology, where: str) -> None:
    """Refuse an order of topics without a topic attribute."""
    if workload.guarantee.order != "topic" or workload.topic is not None:
        return
    if not protocol_on(topology, workload.protocol).promises().topic:
        raise SpecError(
            f"{where}: guarantee.order = 'topic': {workload.protocol} has no topics, and the "
            "workload names no topic attribute (topic)"
        )


def _kinds_that_differ(definition: Mapping[str, Any], value: object) -> str:
    """Return why no value of an attribute is of the kind of a test's value; "" if one is."""
    ((way, argument),) = definition.items()
    drawn = argument if way == "choose" and isinstance(argument, list) else []
    has_numbers = way in ("uniform", NUMBERED)
    kinds = {_kind_of(each) for each in drawn} or {"numbers" if has_numbers else "texts"}
    values = value if isinstance(value, tuple) else (value,)
    if kinds & {_kind_of(each) for each in values}:
        return ""
    shown_value = predicate_value(values[0])
    if _kind_of(values[0]) == "numbers" and "texts" in kinds:
        remedy = f"write '{shown_value}' in quotes"
    elif "numbers" in kinds and re.fullmatch(r"-?\d+(\.\d+)?", str(values[0])):
        remedy = f"write {values[0]} without quotes"
    else:
        remedy = "no publication matches"
    return f"{' and '.join(sorted(kinds))}, and {shown_value} is none; {remedy}"


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "texts" if isinstance(value, str) else "numbers"


def _check_filters(workload: Workload, where: str) -> None:
    """Refuse filters on an attribute that no publication has, which is certainly a mistake.

    A filter on a counting attribute is refused, too: the receivers of a publication follow from its
    attribute set.
    """
    counting = find_counting_attribute(workload.attributes)
    for entry in workload.subscribers:
        found = f"{where}: subscribers[{entry.place}].filter = {shown(entry.predicate)}: "
        for conjunction in parse_predicate(entry.predicate).any_of:
            for constraint in conjunction:
                if counting is not None and constraint.attribute == counting[0]:
                    raise SpecError(
                        f"{found}{constraint.attribute!r} counts publications; no filter may "
                        "name it"
                    )
                absent = constraint.attribute not in workload.attributes
                if absent and constraint.operator not in ("exists", "not exists"):
                    known = list(workload.attributes)
                    raise SpecError(
                        f"{found}no publication has an attribute {constraint.attribute!r}"
                        f"{nearest(constraint.attribute, known)}"
                    )
                if constraint.value is not None and not absent:
                    definition = workload.attributes[constraint.attribute]
                    if problem := _kinds_that_differ(definition, constraint.value):
                        raise SpecError(f"{found}{constraint.attribute!r} has {problem}")
