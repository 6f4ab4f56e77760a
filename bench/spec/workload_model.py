"""Closed models of a workload file, with units.

Unknown keys, values and units are refused here; `bench.spec.spec` explains the errors in words, and
checks conditions that involve several files.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from bench.load.content import FENCE, NUMBERED
from bench.load.records import Level
from bench.run.expectations import Expectation, component_of
from bench.spec.values import Rate, read_rate, topic_names
from brokerd.errors import ConfigError
from brokerd.model.predicate import PredicateError, check_scalar
from brokerd.model.predicate_text import parse_predicate
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import DEFAULT, definition_of
from brokerd.text import expand_ranges, shown
from brokerd.units import (
    format_duration,
    format_size,
    parse_duration_ns,
    parse_latency_ns,
    parse_size_bytes,
)

MAXIMUM_SEED = (1 << 63) - 1
MAXIMUM_CLIENTS = 65_535  # records number publishers with 16 bits
MAXIMUM_ATTRIBUTES = 63  # a publication has at most 64, and the fence is one
MAXIMUM_SIZE_BYTES = 256 * 1024

EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_NUMBER = "number"
MAXIMUM_PROCESSES = 64


DURATION_TEXT = {"type": "string", "title": "duration", "examples": ["250ms", "2s", "1min30s"]}
SIZE_TEXT = {"type": ["string", "integer"], "title": "size", "examples": ["100B", "64KiB"]}
_RATE = {"type": "string", "examples": ["25/s", "1.5k/s", "90/min", "max"]}
RATE_TEXT = {
    "title": "rate",
    "examples": ["25/s"],
    "anyOf": [
        _RATE,
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["for", "at"],
                "additionalProperties": False,
                "properties": {"for": DURATION_TEXT, "at": _RATE, "to": _RATE},
            },
        },
    ],
}
NAMES = {
    "title": "names",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
}
"""JSON Schemas of values that are texts in a file, and numbers in the program."""

ATTRIBUTES = {
    "type": "object",
    "title": "attributes",
    "properties": {"sets": {"type": "integer", "minimum": 1, "maximum": 1_000_000, "default": 100}},
    "additionalProperties": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {
            "choose": {"type": ["integer", "array"]},
            "cycle": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
            "uniform": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
            NUMBERED: {"type": "integer", "minimum": 0},
        },
    },
}

Duration = Annotated[
    int,
    BeforeValidator(parse_duration_ns),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema(DURATION_TEXT),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema(SIZE_TEXT),
]
RateText = Annotated[
    Rate,
    BeforeValidator(read_rate),
    PlainSerializer(Rate.written),
    WithJsonSchema(RATE_TEXT),
]


def _names(value: object) -> object:
    """Return a single name as a list, and ranges such as `b[1:99:2]` as a list of names."""
    return expand_ranges([value] if isinstance(value, str) else value)


Places = Annotated[list[str], BeforeValidator(_names), Field(min_length=1), WithJsonSchema(NAMES)]
Count = Annotated[int, Field(ge=1, le=MAXIMUM_CLIENTS, strict=True)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def described(text: str, example: str = "", **limits: Any) -> Any:
    """Return the description of a key, for `help`, `schema` and editors.

    Args:
        text: the meaning, with its unit.
        example: a value in the notation of TOML, if the default shows too little.
        limits: limits of pydantic's `Field`.
    """
    extra: dict[str, Any] | None = {"x-example": example} if example else None
    return Field(description=text, json_schema_extra=extra, **limits)


class Guarantee(_Closed):
    """The guarantee that decides the verdict of a run, beside the promise of the protocol.

    The default order, `promised`, is the order of that promise. `topic` is publisher order within a
    value of the topic attribute, `stream` publisher order within a stream of places.
    """

    delivery: Annotated[
        Literal["exactly-once", "at-least-once", "at-most-once"],
        described("deliveries that the verdict asks for"),
    ] = "exactly-once"
    order: Annotated[
        Literal["promised", "publisher", "total", "topic", "stream", "none"],
        described("order that the verdict asks for; `promised` is that of the protocol"),
    ] = "promised"
    gapless: Annotated[
        bool, described("false: missing publications are no violation", strict=True)
    ] = True


class Bars(_Closed):
    """Least amounts of traffic for a verdict with a meaning."""

    deliveries_per_pair_min: Annotated[
        int,
        described("fewer owed deliveries of any pair leave the run UNKNOWN", ge=0, strict=True),
    ] = 0


class Publishers(_Closed):
    """`count` publishers at each broker in `at`, each with this rate.

    `window` bounds the unacknowledged publications of a publisher. Beyond the window publications
    wait, and keep their intended times. `batch` bounds the publications that a publisher passes to
    its client at once; the default is 1,024. `failover` are brokers to which a publisher moves, in
    this order, if its own broker is unreachable.
    """

    at: Annotated[Places, described("broker or brokers of these publishers", '["p1", "p[2:4]"]')]
    count: Annotated[Count, described("publishers at each of them")] = 1
    rate: Annotated[
        RateText,
        described(
            "rate of each publisher; or a shape of steps, ramps and pauses, which repeats",
            '"1.5k/s", or [{ for = "10s", at = "50/s" }, { for = "5s", at = "500/s" }]',
        ),
    ]
    size_bytes: Annotated[
        Size, described("payload of a publication, at most 256KiB", alias="size")
    ] = 100
    arrivals: Annotated[
        Literal["fixed", "poisson"], described("equal or random times between publications")
    ] = "fixed"
    window: Annotated[
        int,
        described("unacknowledged publications of a publisher", ge=1, le=1_000_000, strict=True),
    ] = 16_384
    batch: Annotated[
        Annotated[int, Field(ge=1, le=1_024, strict=True)] | None,
        described("publications that its client receives at once; 1024 without this key"),
    ] = None
    failover: Annotated[
        Places | None, described("brokers to move to, in this order, if its own is unreachable")
    ] = None

    @field_validator("size_bytes")
    @classmethod
    def _size_in_range(cls, size_bytes: int) -> int:
        if size_bytes > MAXIMUM_SIZE_BYTES:
            raise ValueError(f"at most {format_size(MAXIMUM_SIZE_BYTES)}")
        return size_bytes

    def load_keys(self) -> dict[str, Any]:
        """Return the keys for `PublisherSetting`, as plain values."""
        return _load_keys(self)


class Subscribers(_Closed):
    """`count` subscribers at each broker in `at`, each with this one subscription.

    In `filter`, `{number}` stands for the subscriber's place among the `count`, as three digits
    from 000 on: the last part of attributes that choose or cycle among N values.

    `subscribes` is the time of the subscription from the start of the measurement; without it,
    subscribers subscribe before the measurement. Only simulated brokers support late subscriptions
    so far.

    With `own_process` each subscriber is a process of its own with a database of received
    publications, from which the process resumes. `client-crash` needs this.

    With `acknowledge` the broker keeps the position instead, as for a JMS consumer: the process
    commits each publication ("auto") or each transaction ("transacted") at its broker. A process
    that is killed before the commit receives the publications again, marked.

    `failover` are brokers to which a subscriber moves, in this order, if its own broker is
    unreachable.
    """

    at: Annotated[Places, described("broker or brokers of these subscribers", '"s[1:5]"')]
    count: Annotated[Count, described("subscribers at each of them")] = 1
    predicate: Annotated[
        str,
        described(
            "predicate on attributes (`help predicates`); {number} is 000 to count - 1",
            "\"price > 100 and symbol = 'SYMBOL{number}'\"",
            alias="filter",
        ),
    ] = "true"
    subscribes_ns: Annotated[
        Duration | None,
        described(
            "subscription at this time of the measurement; simulated brokers only",
            '"10s"',
            alias="subscribes",
        ),
    ] = None
    own_process: Annotated[
        Annotated[bool, Field(strict=True)] | None,
        described("true: a process and a database of its own for each; client-crash needs this"),
    ] = None
    acknowledge: Annotated[
        Literal["auto", "transacted"] | None,
        described("own processes commit at their broker: each publication, or transactions"),
    ] = None
    failover: Annotated[
        Places | None, described("brokers to move to, in this order, if its own is unreachable")
    ] = None

    _place: int = PrivateAttr(default=0)

    @field_validator("predicate")
    @classmethod
    def _filter_can_be_read(cls, text: str) -> str:
        for word in _PLACEHOLDER.findall(text):
            if word != _NUMBER:
                raise ValueError(f"{{{word}}} is not a placeholder{nearest(word, [_NUMBER])}")
        one = text.replace(f"{{{_NUMBER}}}", "000")
        try:
            parse_predicate(one)
            parse_predicate(f"({one}) or {FENCE} = 'any run'")  # the form of the subscription
        except PredicateError as error:
            raise ValueError(str(error)) from error
        return text

    def __eq__(self, other: object) -> bool:
        """Compare the keys only: an entry is equal wherever it stands."""
        return isinstance(other, Subscribers) and self.__dict__ == other.__dict__

    @model_validator(mode="after")
    def _consumes_in_its_own_process(self) -> Self:
        if self.acknowledge and not self.own_process:
            raise ValueError(f"acknowledge = {self.acknowledge!r}: needs own_process = true")
        return self

    @property
    def place(self) -> int:
        """The place of the entry in the file; equal for the entries of `one_by_one`."""
        return self._place

    def one_by_one(self) -> "list[Subscribers]":
        """Return an equivalent list with one entry per number in the filter."""
        placeholder = f"{{{_NUMBER}}}"
        if placeholder not in self.predicate:
            return [self]
        return [
            self.model_copy(
                update={
                    "count": 1,
                    "predicate": self.predicate.replace(placeholder, f"{number:03d}"),
                }
            )
            for number in range(self.count)
        ]

    def load_keys(self) -> dict[str, Any]:
        """Return the keys for `SubscriberSetting`, as plain values."""
        return _load_keys(self)


_BY_CONTROLLER = ("at", "count", "failover", "subscribes_ns")
"""Keys of clients that only the controller uses, or that it resolves to addresses."""


def _load_keys(entry: BaseModel) -> dict[str, Any]:
    """Return the keys that a load generator receives; absent keys keep its defaults."""
    values = {
        name: getattr(entry, name)
        for name in type(entry).model_fields
        if name not in _BY_CONTROLLER
    }
    return {
        name: value.as_pair() if isinstance(value, Rate) else value
        for name, value in values.items()
        if value is not None
    }


Processes = Annotated[int, Field(ge=1, le=MAXIMUM_PROCESSES, strict=True)]


class LoadGenerators(_Closed):
    """Numbers of processes that share the publishers, and the subscribers.

    The default is one process each. Workloads that exceed the capacity of one process need more.

    Attributes:
        records: records of deliveries: a row of each, or stretches and a sample
            (`bench.load.records`).
    """

    publisher_processes: Annotated[Processes, described("processes that share the publishers")] = 1
    subscriber_processes: Annotated[
        Processes, described("processes that share the subscribers")
    ] = 1
    records: Annotated[Level, described("rows of deliveries: each, or stretches and a sample")] = (
        "full"
    )


class Churn(_Closed):
    """Repeated disconnections of subscribers during the measurement.

    A subscriber is disconnected for `disconnected` once in every `every`: at times of its own,
    drawn from the seed, or at the same time as all others. No subscriber is disconnected at the end
    of the measurement.

    Paper: [DS03] §5.1.
    """

    disconnected: Annotated[Duration, described("length of each absence", '"5s"')]
    every: Annotated[Duration, described("time with one absence per subscriber", '"2min"')]
    pattern: Annotated[
        Literal["independent", "simultaneous"],
        described("absences at times of its own, or of all subscribers at once"),
    ] = "independent"

    @model_validator(mode="after")
    def _comes_back(self) -> "Churn":
        if not 0 < self.disconnected < self.every:
            raise ValueError(
                f"disconnected = {format_duration(self.disconnected)!r}: more than nothing, and "
                f"less than every = {format_duration(self.every)!r}"
            )
        return self


class Phases(_Closed):
    """The length of each phase.

    Attributes:
        drain: the longest drain if nothing arrives any more; it ends earlier on evidence.
        drain_bound: the longest drain while deliveries arrive; ten times `drain` by default. A
            drain that the bound ends leaves the verdict UNKNOWN.
    """

    warmup: Annotated[Duration, described("load before the measurement")] = 2_000_000_000
    measure: Annotated[Duration, described("the measurement", '"1min"')]
    drain: Annotated[Duration, described("longest drain if nothing arrives any more")] = (
        30_000_000_000
    )
    drain_bound: Annotated[
        Duration | None,
        described("longest drain while deliveries arrive; 10 times `drain` without it"),
    ] = None

    @field_validator("measure")
    @classmethod
    def _measures_something(cls, duration_ns: int) -> int:
        if duration_ns == 0:
            raise ValueError("nothing is measured in no time")
        return duration_ns

    @model_validator(mode="after")
    def _drains_longer_than_it_waits(self) -> Self:
        if self.drain_bound is not None and self.drain_bound < max(self.drain, 1):
            raise ValueError(
                f"drain_bound = {format_duration(self.drain_bound)!r}: at least as long as "
                f"drain = {format_duration(self.drain)!r}, and more than nothing"
            )
        return self

    @property
    def longest_drain_ns(self) -> int:
        """The bound of the drain, given or by default."""
        return 10 * self.drain if self.drain_bound is None else self.drain_bound


_UNIFORM_LIMIT = 1 << 53


def _attribute(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(
            "expected { choose = N }, { choose = [values] }, { cycle = N }, "
            "{ uniform = [low, high] } or { sequence = START }"
        )
    ((kind, argument),) = value.items()
    if kind == "choose" and type(argument) not in (int, list):
        raise ValueError(f"choose = {shown(argument)}: a number of values, or a list of values")
    if kind == "cycle" or (kind == "choose" and type(argument) is int):
        if type(argument) is not int or not 1 <= argument <= 1_000_000:
            raise ValueError(f"{kind} = N takes from 1 to 1000000 values")
    elif kind == "choose" and isinstance(argument, list):
        if not argument or any(not isinstance(item, str | int | float) for item in argument):
            raise ValueError("choose = [...] needs strings, numbers or booleans")
        for item in argument:
            check_scalar(item)
    elif kind == "uniform":
        bounds = argument if isinstance(argument, list) else []
        if len(bounds) != 2 or any(type(bound) not in (int, float) for bound in bounds):
            raise ValueError("uniform = [low, high] needs two numbers")
        if not -_UNIFORM_LIMIT <= bounds[0] <= bounds[1] <= _UNIFORM_LIMIT:
            raise ValueError("uniform = [low, high] needs low <= high, within 2^53")
    elif kind == NUMBERED:
        if type(argument) is not int or not 0 <= argument <= _UNIFORM_LIMIT:
            raise ValueError("sequence = START counts up from 0 to 2^53")
    else:
        raise ValueError(
            f"unknown way to draw {kind!r} = {argument!r}"
            f"{nearest(kind, ('choose', 'cycle', 'uniform', NUMBERED))}"
        )
    return {kind: argument}


class Threshold:
    """A limit such as "< 50ms" on a duration.

    Attributes:
        limit_ns: the value must be below it.
    """

    def __init__(self, text: object) -> None:
        if not isinstance(text, str) or not text.startswith("<"):
            raise ValueError('write a threshold with a comparison, as in "< 50ms"')
        self.limit_ns = parse_latency_ns(text.removeprefix("<").strip())

    def __str__(self) -> str:
        return f"< {format_duration(self.limit_ns)}"


ThresholdText = Annotated[
    Threshold,
    BeforeValidator(Threshold),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "title": "limit", "default": "< 50ms"}),
]


class Thresholds(_Closed):
    """Limits beyond which a run is no evidence about the brokers."""

    loadgen_lateness_p99: Annotated[
        ThresholdText,
        described("a load generator that is later is no evidence", alias="loadgen.lateness_p99"),
    ] = Field(default_factory=lambda: Threshold("< 50ms"))


def _known_protocol(name: str) -> str:
    try:
        return definition_of(name).name
    except ConfigError as error:
        raise ValueError(str(error)) from None


class Workload(_Closed):
    """One workload file.

    `topic` names the attribute with a publication's topic; without it, there are no topics.
    """

    schema_: Annotated[
        Literal["pubsubctl/workload/1"],
        described("version of the format", '"pubsubctl/workload/1"', alias="schema"),
    ]
    name: Annotated[str, described("name of the workload and of the folder of its runs", '"tenth"')]
    topology: Annotated[str, described("path, or bare name in bench/topologies", '"chain3"')]
    protocol: Annotated[
        str, AfterValidator(_known_protocol), described("protocol of the brokers", f'"{DEFAULT}"')
    ]
    seed: Annotated[
        int, described("draws contents, arrivals and absences", ge=0, le=MAXIMUM_SEED, strict=True)
    ] = 1
    calm: Annotated[
        bool,
        described("true: no faults; `--faults` is refused, and no risk is needed", strict=True),
    ] = False
    sets: Annotated[int, Field(ge=1, le=1_000_000, strict=True, exclude=True)] = 100
    guarantee: Guarantee = Guarantee()
    bars: Bars = Bars()
    phases: Phases
    thresholds: Thresholds = Thresholds()
    load: LoadGenerators = LoadGenerators()
    churn: Churn | None = None
    expectations: Annotated[
        dict[str, str],
        described("metrics with limits; status 1 if missed", '"delivered.rate" = ">= 1000/s"'),
    ] = Field(default_factory=dict)
    attributes: Annotated[
        dict[str, dict[str, Any]],
        WithJsonSchema(ATTRIBUTES),
        described(
            "attributes by name, each with the way to draw it", "price = { uniform = [1, 500] }"
        ),
    ] = Field(default_factory=dict)
    topic: Annotated[
        str | None,
        described("attribute that is the topic; without it, there are no topics", '"symbol"'),
    ] = None
    publishers: Annotated[list[Publishers], Field(min_length=1)]
    subscribers: Annotated[list[Subscribers], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _take_sets_out_of_attributes(cls, values: Any) -> Any:
        """Separate `sets`, which is no attribute, from the attributes in the file."""
        if not isinstance(values, Mapping) or not isinstance(values.get("attributes"), Mapping):
            return values
        attributes = dict(values["attributes"])
        taken = {"sets": attributes.pop("sets")} if "sets" in attributes else {}
        return {**values, **taken, "attributes": attributes}

    @field_validator("name")
    @classmethod
    def _name_fits_a_folder(cls, name: str) -> str:
        if not EXPERIMENT_NAME.fullmatch(name):
            raise ValueError(
                "letters, digits, '.' and '-', at most 64, not starting with '.' or '-'"
            )
        return name

    @field_validator("subscribers")
    @classmethod
    def _one_entry_per_number(cls, subscribers: list[Subscribers]) -> list[Subscribers]:
        for place, entry in enumerate(subscribers):
            entry._place = place
        return [each for entry in subscribers for each in entry.one_by_one()]

    @field_validator("expectations", mode="before")
    @classmethod
    def _expectations_can_be_judged(cls, expectations: Any) -> Any:
        if not isinstance(expectations, Mapping):
            raise ValueError("expected a table of metrics and limits")
        for name in expectations:
            if component := component_of(str(name)):
                raise ValueError(f"{name} is no metric of runs, but of {component} by itself")
        return {name: Expectation.of(name, text).wanted for name, text in expectations.items()}

    @field_validator("attributes", mode="before")
    @classmethod
    def _attributes_can_be_drawn(cls, attributes: Any) -> Any:
        if not isinstance(attributes, Mapping):
            raise ValueError("expected a table of attributes")
        if len(attributes) > MAXIMUM_ATTRIBUTES:
            raise ValueError(f"{len(attributes)} attributes; at most {MAXIMUM_ATTRIBUTES}")
        drawn = {}
        for name, value in attributes.items():
            if name == FENCE or not _ATTRIBUTE_NAME.fullmatch(name):
                raise ValueError(
                    f"an attribute cannot be called {name!r} (letters, digits, '_', '.', '-'; "
                    f"{FENCE!r} and 'sets' are taken)"
                )
            try:
                drawn[name] = _attribute(value)
            except (ValueError, PredicateError) as error:
                raise ValueError(f"{name}: {error}") from error
        if len(counting := [name for name, way in drawn.items() if NUMBERED in way]) > 1:
            raise ValueError(f"{' and '.join(counting)} count; one attribute may")
        return drawn

    @model_validator(mode="after")
    def _topic_is_an_attribute(self) -> Self:
        if self.topic is None:
            return self
        if self.topic not in self.attributes:
            known = nearest(self.topic, [*self.attributes])
            raise ValueError(f"topic = {self.topic!r}: no attribute has this name{known}")
        try:
            topic_names(self.topic, self.attributes[self.topic])
        except ValueError as error:
            raise ValueError(f"topic = {self.topic!r}: {error}") from error
        return self
