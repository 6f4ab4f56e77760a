"""Sweeps: runs of one workload with different values of some of its keys.

    schema = "pubsubctl/sweep/1"
    name = "demo-rates"
    workload = "demo"
    faults = "demo"
    repetitions = 3
    seed = 11
    x = "publishers.rate"

    [axes]
    "publishers.rate" = ["25/s", "50/s", "100/s"]
    "topology.tree.delta" = [0, 1, 2]

    [[points]]
    name = "large"
    "publishers.size" = "64KiB"

    [bounds]
    latency_p99_ms = 500

    [budget]
    time = "30min"

Every combination of the axes is a point, and so is every entry of [[points]]. Keys are described in
`bench.spec.keys`. With `simulated = [false, true]` among the axes, every other combination is run
on brokers and on simulated brokers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from bench.spec.experiment import Point
from bench.spec.keys import FAULTS, SIMULATED, Overrides, check_keys, step_keys
from bench.spec.spec import MAXIMUM_SEED, ExperimentSpec, load_experiment, read_toml
from bench.spec.validation import SpecError, validate
from bench.spec.values import parse_rate
from bench.spec.workload_model import DURATION_TEXT, EXPERIMENT_NAME, described
from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from brokerd.units import parse_duration_ns, parse_size_bytes

SCHEMA: Final = "pubsubctl/sweep/1"
MOST_POINTS: Final = 1_000
AROUND_RUN_NS: Final = 15_000_000_000
"""Estimated time to deploy, drain, collect and take down."""

Scalar = str | int | float | bool


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Budget(_Closed):
    """The longest total time of a sweep, in ns."""

    time: Annotated[
        int,
        BeforeValidator(parse_duration_ns),
        WithJsonSchema(DURATION_TEXT),
        described("starts no run that would end later", '"30min"'),
    ]


class Sweep(_Closed):
    """A sweep.

    Attributes:
        workload: the workload of every point, apart from the keys of the point.
        faults: name of a fault schedule; "" for none.
        repetitions: number of runs of each point.
        seed: seed of the order of points within a repetition, and of the random values in runs
            unless `seed` is a key itself; None for the seed of the workload.
        x: the x-axis of figures; "" for the first axis with numbers.
        axes: values by key.
        points: further points, each with a name and its keys.
        bounds: upper bounds on the means of numbers of a run; figures show where a mean exceeds its
            bound.
    """

    schema_: Annotated[
        Literal["pubsubctl/sweep/1"],
        described("version of the format", '"pubsubctl/sweep/1"', alias="schema"),
    ] = SCHEMA
    name: Annotated[
        str, described("name of the sweep and of the folder of its runs", '"demo-rates"')
    ]
    workload: Annotated[str, described("workload of all points: a path, or a bare name", '"demo"')]
    faults: Annotated[str, described("fault schedule of all points; none without it", '"demo"')] = (
        ""
    )
    repetitions: Annotated[int, described("runs of each point", ge=1, le=1000, strict=True)] = 1
    seed: Annotated[
        Annotated[int, Field(ge=0, le=MAXIMUM_SEED, strict=True)] | None,
        described("seed of the order of points, and of the runs; the workload's without it"),
    ] = None
    x: Annotated[
        str, described("axis of figures; the first with numbers without it", '"publishers.rate"')
    ] = ""
    axes: Annotated[
        dict[str, Annotated[list[Scalar], Field(min_length=1)]],
        described(
            "values by key; each combination is a point",
            '"publishers.rate" = ["25/s", "50/s"]',
        ),
    ] = Field(default_factory=dict)
    points: Annotated[
        list[dict[str, Scalar]],
        described(
            "further points: a name, and values by key",
            '{ name = "large", "publishers.size" = "64KiB" }',
        ),
    ] = Field(default_factory=list)
    bounds: Annotated[
        dict[str, float],
        described("upper bounds of means, for the danger zone of figures", "latency_p99_ms = 500"),
    ] = Field(default_factory=dict)
    budget: Budget | None = None

    @field_validator("name")
    @classmethod
    def _name_fits_a_folder(cls, name: str) -> str:
        if not EXPERIMENT_NAME.fullmatch(name):
            raise ValueError("letters, digits, '.' and '-', at most 64")
        return name

    @field_validator("axes")
    @classmethod
    def _check_values(cls, axes: dict[str, list[Scalar]]) -> dict[str, list[Scalar]]:
        for key, values in axes.items():
            twice = [value for value, count in Counter(map(str, values)).items() if count > 1]
            if twice:
                raise ValueError(f"{key}: {twice[0]!r} stands there twice")
        _check(axes)
        return axes

    @field_validator("points")
    @classmethod
    def _points_have_names(cls, points: list[dict[str, Scalar]]) -> list[dict[str, Scalar]]:
        for point in points:
            if not isinstance(point.get("name"), str):
                raise ValueError("each of [[points]] has a name")
            _check([key for key in point if key != "name"])
        return points

    @model_validator(mode="after")
    def _has_points(self) -> Self:
        if not self.axes and not self.points:
            raise ValueError("nothing is varied: neither [axes] nor [[points]]")
        if self.x and self.x not in self.axes:
            raise ValueError(f"x = {self.x!r} is none of [axes]{nearest(self.x, list(self.axes))}")
        return self


@dataclass(frozen=True, slots=True)
class SweepPoint(Point):
    """A point of a sweep.

    Attributes:
        keys: values by key; keys of axes in the order of the axes.
        steps: changes of the fault schedule by step.
        faults: name of the fault schedule; "" for none.
        simulated: True for simulated brokers.
    """

    keys: Mapping[str, Scalar] = field(default_factory=dict)
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    faults: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a sweep, for figures.

    Attributes:
        numbers: the values as numbers of one unit; () for other values.
        unit: unit of the numbers; "" for none.
    """

    key: str
    values: tuple[Scalar, ...]
    numbers: tuple[float, ...]
    unit: str

    def row(self) -> dict[str, Any]:
        return {
            "key": self.key, "values": list(self.values), "numbers": list(self.numbers),
            "unit": self.unit,
        }  # fmt: skip


def is_sweep(path: Path) -> bool:
    return path.is_file() and read_toml(path).get("schema") == SCHEMA


def load_sweep(path: Path) -> Sweep:
    """Return the sweep in a file.

    Raises:
        SpecError: the sweep cannot be used; names file, key, value and valid values.
    """
    return validate(Sweep, read_toml(path), str(path))


def points_of(
    sweep: Sweep, workload: str | Path, overrides: Overrides, where: str
) -> list[SweepPoint]:
    """Return all points in file order; every point passed all checks of the files.

    Args:
        workload: the file of the sweep's workload.
        overrides: overrides of the command line, for all points.
        where: name of the sweep in errors.

    Raises:
        SpecError: a point is invalid; names point, key, value and valid values.
    """
    chosen = [*_name_points(sweep)]
    if len(chosen) > MOST_POINTS:
        raise SpecError(f"{where}: {len(chosen):,} points; at most {MOST_POINTS:,}")
    for name, count in Counter(name for name, _ in chosen).items():
        if count > 1:
            raise SpecError(f"{where}: two points are called {name!r}")
    typed = overrides.as_mapping()
    return [_point(sweep, workload, name, keys, typed, where) for name, keys in chosen]


def estimate_ns(spec: ExperimentSpec) -> int:
    """Return the estimated time of a run."""
    phases = spec.workload.phases
    return phases.warmup + phases.measure + AROUND_RUN_NS


def axes_of(sweep: Sweep) -> list[Axis]:
    """Return the axes, with the x-axis of figures first."""
    found = []
    for key, values in sweep.axes.items():
        numbers, unit = _as_numbers(values)
        found.append(Axis(key, tuple(values), numbers, unit))
    chosen = sweep.x or next((axis.key for axis in found if axis.numbers), "")
    return sorted(found, key=lambda axis: axis.key != chosen)


def _check(keys: Sequence[str] | Mapping[str, Any]) -> None:
    try:
        check_keys(keys)
        step_keys(dict.fromkeys(keys))
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _name_points(sweep: Sweep) -> Iterator[tuple[str, dict[str, Scalar]]]:
    """Yield name and keys of every point."""
    varied = [key for key, values in sweep.axes.items() if len(values) > 1] or [*sweep.axes]
    last = Counter(key.rpartition(".")[2] for key in varied)
    words = {
        key: key if last[short] > 1 else short
        for key in varied
        for short in [key.rpartition(".")[2]]
    }
    if sweep.axes:
        for values in product(*sweep.axes.values()):
            keys = dict(zip(sweep.axes, values, strict=True))
            yield ",".join(f"{words[key]}={_text(keys[key])}" for key in varied), keys
    for point in sweep.points:
        keys = {key: value for key, value in point.items() if key != "name"}
        yield str(point["name"]), keys


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _point(
    sweep: Sweep,
    workload: str | Path,
    name: str,
    keys: dict[str, Scalar],
    typed: Mapping[str, Any],
    where: str,
) -> SweepPoint:
    simulated = keys.get(SIMULATED, False)
    if not isinstance(simulated, bool):
        raise SpecError(f"{where}: point {name}: {SIMULATED} = {simulated!r}: true or false")
    of_files = {key: value for key, value in keys.items() if key not in (FAULTS, SIMULATED)}
    changed = {**typed.get("keys", {}), **of_files}
    seed = {} if "seed" in changed else {"seed": sweep.seed}
    labels = {"experiment": sweep.name, "point": name}
    try:
        overrides = Overrides(**{**seed, **typed, "keys": changed})
        spec: ExperimentSpec = load_experiment(workload, overrides, labels)
    except ConfigError as error:
        raise SpecError(f"{where}: point {name}: {error}") from None
    faults = str(keys.get(FAULTS, sweep.faults))
    steps = step_keys(changed)
    if steps and not faults:
        raise SpecError(f"{where}: point {name}: faults.{next(iter(steps))}: there are no faults")
    return SweepPoint(name, spec, keys, steps, faults, simulated)


def _as_numbers(values: Sequence[Scalar]) -> tuple[tuple[float, ...], str]:
    """Return values as numbers of one unit; () if a value is no number."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return tuple(map(float, values)), ""
    for read, unit in ((_rate, "1/s"), (_bytes, "B"), (_seconds, "s")):
        try:
            return tuple(float(read(value)) for value in values), unit
        except ValueError:
            continue
    return (), ""


def _rate(value: Scalar) -> Fraction:
    per_second = parse_rate(value).per_second
    if per_second is None:
        raise ValueError("max is no number")
    return per_second


def _bytes(value: Scalar) -> int:
    return parse_size_bytes(value)


def _seconds(value: Scalar) -> float:
    return parse_duration_ns(value) / 1e9
