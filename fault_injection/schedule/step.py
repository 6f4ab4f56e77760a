"""Steps of a schedule file, and their durations.

A short form is expanded to several steps. A duration is fixed, or a span that is drawn from the
seed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from brokerd.model.fault_verbs import LASTING_VERBS
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import DEFINITIONS
from brokerd.text import expand_ranges
from brokerd.units import (
    MILLISECOND_NS,
    SECOND_NS,
    format_duration,
    parse_duration_ns,
    parse_latency_ns,
)

SHORTEST_LEASE_NS: Final = SECOND_NS
"""The least lease, which is renewed three times in its length."""


@dataclass(frozen=True, slots=True)
class Span:
    """A duration between two bounds, both included, in whole milliseconds."""

    low_ns: int
    high_ns: int

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the span of "5s", "2s..3s" or { uniform = ["2s", "3s"] }.

        Raises:
            ValueError: the value is none of these.
        """
        if isinstance(value, Span):
            return cls(value.low_ns, value.high_ns)
        bounds: list[object]
        if isinstance(value, dict) and set(value) == {"uniform"}:
            found = value["uniform"]
            bounds = found if isinstance(found, list) else []
        elif isinstance(value, str):
            bounds = list(value.split(".."))
            bounds = bounds * 2 if len(bounds) == 1 else bounds
        else:
            bounds = []
        if len(bounds) != 2:
            raise ValueError('a duration is "2.5s", "2s..3s" or { uniform = ["2s", "3s"] }')
        low_ns, high_ns = (parse_duration_ns(bound, MILLISECOND_NS) for bound in bounds)
        if low_ns > high_ns:
            raise ValueError("write the shorter bound first")
        return cls(low_ns, high_ns)

    @property
    def is_fixed(self) -> bool:
        return self.low_ns == self.high_ns

    def draw(self, random: Random) -> int:
        """Return a duration of the span, in nanoseconds."""
        if self.is_fixed:
            return self.low_ns
        low_ms, high_ms = self.low_ns // MILLISECOND_NS, self.high_ns // MILLISECOND_NS
        return random.randint(low_ms, high_ms) * MILLISECOND_NS

    def to_value(self) -> object:
        """Return a value that `read` reads as this span."""
        if self.is_fixed:
            return format_duration(self.low_ns)
        return {"uniform": [format_duration(self.low_ns), format_duration(self.high_ns)]}

    def __str__(self) -> str:
        low, high = format_duration(self.low_ns), format_duration(self.high_ns)
        return low if self.is_fixed else f"{low}..{high}"


STAGES: Final = ("applied", "observed", "healed", "recovered")
END: Final = "end"
"""The stage of a bare step id: the end of its `for`."""

OBSERVE_WITHIN_NS: Final = 5 * 10**9
RECOVER_WITHIN_NS: Final = 60 * 10**9
STARTED_WITHIN_NS: Final = 20 * 10**9
"""Least time limit for observing a started broker, or a client that moves."""
MOST_PICKED: Final = 10_000

SpanText = Annotated[
    Span,
    BeforeValidator(Span.read),
    PlainSerializer(lambda span: span.to_value()),
    WithJsonSchema(
        {
            "title": "span",
            "examples": ["5s", "2s..3s"],
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "required": ["uniform"],
                    "additionalProperties": False,
                    "properties": {
                        "uniform": {
                            "type": "array",
                            "items": {"type": "string"},
                            "minItems": 2,
                            "maxItems": 2,
                        }
                    },
                },
            ],
        }
    ),
]
DurationText = Annotated[
    int,
    BeforeValidator(parse_duration_ns),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "title": "duration", "examples": ["250ms", "2s"]}),
]
LatencyText = Annotated[
    int,
    BeforeValidator(parse_latency_ns),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "title": "duration", "examples": ["20ms", "250us"]}),
]


def _percent(value: object) -> int:
    found = re.fullmatch(r"([1-9][0-9]?)%", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a share is "1%" to "99%"')
    return int(found[1])


ShareText = Annotated[
    int,
    BeforeValidator(_percent),
    PlainSerializer(lambda percent: f"{percent}%", return_type=str),
    WithJsonSchema({"type": "string", "title": "share", "examples": ["17%"]}),
]


class Closed(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True
    )


def _check_lease(lease_ns: int) -> int:
    if lease_ns < SHORTEST_LEASE_NS:
        raise ValueError(f"at least {format_duration(SHORTEST_LEASE_NS)}")
    return lease_ns


class Guard(Closed):
    """Limits that hold for all steps.

    Attributes:
        lease: targets heal themselves this long after the controller vanishes.
        max_faulty_brokers: greatest number of brokers and links failed at once; δ by default.
    """

    lease: Annotated[DurationText, AfterValidator(_check_lease)] = 15 * 10**9
    max_faulty_brokers: Annotated[int, Field(ge=0)] | None = None


class Exercised(Closed):
    """Conditions on a run; an unfulfilled condition makes the verdict unknown.

    Attributes:
        absorbed_msgs_min: least number of absorbed publications, over all steps.
        subscribers_on_path: brokers with subscribers that must be owed some publications at risk.
    """

    absorbed_msgs_min: Annotated[int, Field(ge=0)] = 0
    subscribers_on_path: list[str] = Field(default_factory=list)


class Expect(Closed):
    """The observable effect of a kill, with a time limit."""

    exit_signal: Annotated[int, Field(ge=1, le=64)] | None = None
    within: DurationText = OBSERVE_WITHIN_NS


class Await(Closed):
    """The time limit for the recovery of a broker or link; a step without recovery has failed."""

    state: Literal["ready"] = "ready"
    within: DurationText = RECOVER_WITHIN_NS


_CHAINS: Final[Mapping[str, bool | None]] = {"any": None, "tolerated": True, "excess": False}


def is_to_be_tolerated(chains: str) -> bool | None:
    """Return True if the joint failure of drawn targets is to be tolerated, None for either.

    Raises:
        ValueError: no protocol has such a word; suggests the nearest word.
    """
    if chains in _CHAINS:
        return _CHAINS[chains]
    words = dict(_CHAINS)
    for each in DEFINITIONS.values():  # imports all of them
        words.update(zip(each.chain_words, (True, False), strict=False))
    if chains not in words:
        raise ValueError(f"no chains called so{nearest(chains, [*words])}")
    return words[chains]


def _parse_chains(word: str) -> str:
    is_to_be_tolerated(word)
    return word


class Pick(Closed):
    """Targets that are drawn from the seed, in place of `on`.

    Attributes:
        count: number of targets, or a share of all candidates, such as "17%".
        out_of: the candidates, with ranges such as `b[2:98:2]`; all brokers, or all links, by
            default.
        chains: "tolerated" for targets whose joint failure the protocol tolerates, "excess" for
            others, "any" for either; protocols have further words for the two.
        like: id of a step; its targets are used, one by one.
    """

    count: int | str = 1
    out_of: Annotated[
        list[str] | Literal["brokers", "links"],
        BeforeValidator(expand_ranges, json_schema_input_type=list[str] | str),
        Field(alias="from"),
    ] = "brokers"
    chains: Annotated[str, AfterValidator(_parse_chains)] = "any"
    like: str | None = None

    @classmethod
    def read(cls, value: object) -> object:
        """Return a table for a plain count or share; return any other value unchanged."""
        return {"count": value} if isinstance(value, int | str) else value

    def number(self, available: int) -> int:
        """Return the number of targets out of `available`; a share is at least one."""
        if isinstance(self.count, int):
            return self.count
        share = Fraction(self.count.removesuffix("%")) / 100
        return max(1, round(share * available))


class Step(Closed):
    """One [[step]] of a schedule file; `plan.expand` draws its values."""

    id: str = ""
    at: SpanText | None = None
    after: str | None = None
    delay: SpanText | None = None
    do: str
    on: str = ""
    pick: Annotated[
        Pick | None, BeforeValidator(Pick.read, json_schema_input_type=Pick | int | str | None)
    ] = None
    lasts: Annotated[SpanText | None, Field(alias="for")] = None
    signal: str | None = None
    expect: Expect | None = None
    awaits: Annotated[Await | None, Field(alias="await")] = None
    stall: SpanText | None = None
    down: SpanText | None = None
    latency: LatencyText | None = None
    bytes_per_second: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    free_bytes: Annotated[int, Field(ge=0, le=1 << 40)] | None = None
    share: ShareText | None = None
    mode: str | None = None
    backend: str | None = None
    damage: str | None = None
    file: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    to: str | Annotated[list[str], Field(min_length=1)] | None = None
    times: Annotated[int, Field(ge=1, le=1000)] | None = None
    pause: SpanText | None = None

    @property
    def anchor(self) -> tuple[str, str] | None:
        """(step, stage) that `after` names."""
        if self.after is None:
            return None
        step, dot, stage = self.after.partition(".")
        return step, stage if dot else END


def expand_short_form(step: Step) -> list[Step]:
    """Return the steps that a short form is expanded to: repetitions, and the parts of a crash."""
    return [each for one in repetitions(step) for each in _expand_crash(one)]


def repetitions(step: Step) -> Iterator[Step]:
    """Yield the repetitions `id-1`, `id-2` and so on of a step; yield any other step unchanged.

    Every repetition begins `pause` after the end of the one before. Several brokers in `to` are
    used in turn.
    """
    if step.times is None:
        yield step
        return
    over = END if step.do in LASTING_VERBS else "observed"
    for number in range(1, step.times + 1):
        changes: dict[str, Any] = {"id": f"{step.id}-{number}", "times": None, "pause": None}
        if isinstance(step.to, list):
            changes["to"] = step.to[(number - 1) % len(step.to)]
        if number > 1:
            before = f"{step.id}-{number - 1}"
            changes |= {"at": None, "delay": step.pause}
            changes["after"] = before if over == END else f"{before}.{over}"
        yield step.model_copy(update=changes)


def _expand_crash(step: Step) -> list[Step]:
    if step.do != "crash":
        return [step]
    kill_id, steps = f"{step.id}-kill", []
    start: dict[str, Any] = {"at": step.at, "after": step.after, "delay": step.delay}
    if step.stall is not None:
        stall_id = f"{step.id}-stall"
        steps.append(
            Step.model_construct(id=stall_id, do="absorb", on=step.on, lasts=step.stall, **start)
        )
        start = {"at": None, "after": stall_id, "delay": None}
    steps.append(
        Step.model_construct(
            id=kill_id, do="kill", on=step.on, expect=Expect(exit_signal=9), **start
        )
    )
    if step.down is not None:
        steps.append(
            Step.model_construct(
                id=f"{step.id}-restart",
                do="restart",
                on=step.on,
                after=f"{kill_id}.applied",
                delay=step.down,
                awaits=step.awaits,
            )
        )
    return steps
