"""One step of a schedule file, and the steps that it is short for."""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from brokerd.overlay.ranges import expanded_list
from brokerd.units import format_duration, parse_duration_ns
from fault_injection.schedule.span import Span
from fault_injection.schedule.verbs import LASTING_VERBS

STAGES: Final = ("applied", "observed", "healed", "recovered")
END: Final = "end"
"""The stage that a bare step id means: the end of its `for`."""

OBSERVE_WITHIN_NS: Final = 5 * 10**9
RECOVER_WITHIN_NS: Final = 60 * 10**9
STARTED_WITHIN_NS: Final = 20 * 10**9
"""What a broker that is started, or a client that moves, is given at least to be seen so."""
MOST_PICKED: Final = 10_000

SpanText = Annotated[
    Span, BeforeValidator(Span.read), PlainSerializer(lambda span: span.to_value())
]
DurationText = Annotated[
    int,
    BeforeValidator(parse_duration_ns),
    PlainSerializer(format_duration, return_type=str),
]


def _percent(value: object) -> int:
    found = re.fullmatch(r"([1-9][0-9]?)%", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a share is "1%" to "99%"')
    return int(found[1])


ShareText = Annotated[
    int, BeforeValidator(_percent), PlainSerializer("{}%".format, return_type=str)
]


class Closed(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True
    )


class Guard(Closed):
    """Limits that hold whatever the steps say.

    Attributes:
        lease: targets heal themselves this long after the controller vanishes.
        max_faulty_brokers: how many brokers and links may be failed at once; δ by default.
    """

    lease: DurationText = 15 * 10**9
    max_faulty_brokers: Annotated[int, Field(ge=0)] | None = None


class Exercised(Closed):
    """What must have happened, or the verdict is unknown.

    Attributes:
        absorbed_msgs_min: publications that were absorbed, over all steps.
        subscribers_on_path: brokers whose subscribers must be owed some of what was at risk.
    """

    absorbed_msgs_min: Annotated[int, Field(ge=0)] = 0
    subscribers_on_path: list[str] = Field(default_factory=list)


class Expect(Closed):
    """What a kill must be seen to have done, and by when."""

    exit_signal: Annotated[int, Field(ge=1, le=64)] | None = None
    within: DurationText = OBSERVE_WITHIN_NS


class Await(Closed):
    """Until when a broker or link must have recovered; else the step has not."""

    state: Literal["ready"] = "ready"
    within: DurationText = RECOVER_WITHIN_NS


class Pick(Closed):
    """Targets that are drawn from the seed, in place of `on`.

    Attributes:
        count: how many, or a share of what there is, such as "17%".
        out_of: from which, `b[2:98:2]` standing for many; of all brokers, or all links, without.
        chains: "<=delta" for no more than delta consecutive brokers of a path among them,
            ">delta" for a chain of more.
        like: the id of a step whose targets are taken, one by one.
    """

    count: int | str = 1
    out_of: Annotated[
        list[str] | Literal["brokers", "links"], BeforeValidator(expanded_list), Field(alias="from")
    ] = "brokers"
    chains: Literal["any", "<=delta", ">delta"] = "any"
    like: str | None = None

    @classmethod
    def read(cls, value: object) -> object:
        """A count or a share alone is short for the table with it."""
        return {"count": value} if isinstance(value, int | str) else value

    def number(self, available: int) -> int:
        """How many of so many; a share is at least one."""
        if isinstance(self.count, int):
            return self.count
        share = Fraction(self.count.removesuffix("%")) / 100
        return max(1, round(share * available))


class Step(Closed):
    """One [[step]] of a schedule file; `plan.expand` gives it its drawn values."""

    id: str = ""
    at: SpanText | None = None
    after: str | None = None
    delay: SpanText | None = None
    do: str
    on: str = ""
    pick: Annotated[Pick | None, BeforeValidator(Pick.read)] = None
    lasts: Annotated[SpanText | None, Field(alias="for")] = None
    signal: str | None = None
    expect: Expect | None = None
    awaits: Annotated[Await | None, Field(alias="await")] = None
    stall: SpanText | None = None
    down: SpanText | None = None
    latency: DurationText | None = None
    bytes_per_second: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    free_bytes: Annotated[int, Field(ge=0, le=1 << 40)] | None = None
    share: ShareText | None = None
    mode: str | None = None
    backend: str | None = None
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


def spelled_out(step: Step) -> list[Step]:
    """The steps that one is short for: its repetitions, and what a crash is made of."""
    return [each for one in repetitions(step) for each in _of_crash(one)]


def repetitions(step: Step) -> Iterator[Step]:
    """A step that is done several times as so many, `id-1` and so on; any other as it is.

    Each begins `pause` after the one before was over. Several places in `to` are taken in turn.
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


def _of_crash(step: Step) -> list[Step]:
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
