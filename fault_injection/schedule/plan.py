"""Plans: the steps of a schedule with every random value drawn from a seed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from brokerd.model.fault_verbs import ENDING_VERBS, HOLDING_VERBS
from brokerd.units import format_duration
from fault_injection.schedule.schedule import FaultSchedule
from fault_injection.schedule.span import Span
from fault_injection.schedule.step import (
    END,
    OBSERVE_WITHIN_NS,
    RECOVER_WITHIN_NS,
    Await,
    Expect,
    Step,
)
from fault_injection.schedule.targets import is_same_target


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step with every random value drawn.

    Attributes:
        at_ns: start after the origin; None for a step that waits for another step.
        after: (step, stage) that the step waits for; None if `at_ns` is given.
        delay_ns: time between the stage in `after` and the start.
        duration_ns: length of the step's `for`; None for a step that ends at once.
        exit_signal: recorded exit signal that a kill must show; None for any.
        parameters: parameters of the verb, in the form for agents and brokers.
        ended_by: the step that kills or cuts the target at the end of this absorb, so that held
            messages are never released; "" for none.
    """

    id: str
    verb: str
    on: str
    at_ns: int | None = None
    after: tuple[str, str] | None = None
    delay_ns: int = 0
    duration_ns: int | None = None
    signal: str = "KILL"
    exit_signal: int | None = None
    observe_within_ns: int = OBSERVE_WITHIN_NS
    recover_within_ns: int = RECOVER_WITHIN_NS
    ended_by: str = ""
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.after is None:
            when = f"at {format_duration(self.at_ns or 0)}"
        else:
            step, stage = self.after
            when = f"after {step}" + ("" if stage == END else f".{stage}")
            when += f" + {format_duration(self.delay_ns)}" if self.delay_ns else ""
        lasts = f" for {format_duration(self.duration_ns)}" if self.duration_ns else ""
        released = f", never released ({self.ended_by} ends it)" if self.ended_by else ""
        known = ", ".join(f"{key} {value}" for key, value in self.parameters.items())
        how = f" ({known})" if known else ""
        drawn = f", drawn: {self.params['drawn']}" if "drawn" in self.params else ""
        return f"{self.id}: {when}: {self.verb} {self.on}{how}{lasts}{released}{drawn}"


def expand(schedule: FaultSchedule, seed: int | None = None) -> tuple[PlannedStep, ...]:
    """Return the steps with every random value drawn, from `seed` or else the schedule's own.

    The same seed gives the same values. The values of a step do not depend on other steps.
    `draw_targets` must have drawn all targets before.
    """
    chosen = schedule.seed if seed is None else seed
    return tuple(_plan(step, schedule, chosen) for step in schedule.steps)


def ender_of(step: Step, steps: Iterable[Step]) -> Step | None:
    """Return the step that kills or cuts the target of a holding step at its end, or None."""
    if step.do not in HOLDING_VERBS:
        return None
    for other in steps:
        ends = other.do in (*ENDING_VERBS, "cut") and is_same_target(other.on, step.on)
        at_once = other.delay is None or other.delay == Span(0, 0)
        if ends and at_once and other.anchor == (step.id, END):
            return other
    return None


def _plan(step: Step, schedule: FaultSchedule, seed: int) -> PlannedStep:
    assert step.pick is None, f"{step.id}: its targets were not drawn"

    def draw(key: str, span: Span | None) -> int | None:
        if span is None:
            return None
        value_ns = span.draw(Random(f"{seed}/{step.id}/{key}"))
        if not span.is_fixed:
            params[key] = format_duration(value_ns)
        return value_ns

    params: dict[str, str] = {}
    ender = ender_of(step, schedule.steps)
    at_ns, delay_ns = draw("at", step.at), draw("delay", step.delay) or 0
    duration_ns = draw("for", step.lasts)
    if duration_ns is not None:
        params["for"] = format_duration(duration_ns)
    if step.do == "kill":
        params["signal"] = step.signal or "KILL"
    if step.id in schedule.drawn:
        params["drawn"] = schedule.drawn[step.id]
    parameters = _parameters_of(step)
    params.update((key, str(value)) for key, value in parameters.items())
    expect, awaits = step.expect or Expect(), step.awaits or Await()
    return PlannedStep(
        id=step.id,
        verb=step.do,
        on=step.on,
        at_ns=at_ns,
        after=step.anchor,
        delay_ns=delay_ns,
        duration_ns=duration_ns,
        signal=step.signal or "KILL",
        exit_signal=expect.exit_signal,
        observe_within_ns=expect.within,
        recover_within_ns=awaits.within,
        ended_by=ender.id if ender else "",
        parameters=parameters,
        params=params,
    )


def _parameters_of(step: Step) -> dict[str, int | str]:
    """Return the verb's parameters of a step, in the form for agents and brokers."""
    assert not isinstance(step.to, list), f"{step} stands for several"
    found: dict[str, int | str | None] = {
        "delay_ms": None if step.latency is None else step.latency // 1_000_000,
        "bytes_per_second": step.bytes_per_second,
        "free_bytes": step.free_bytes,
        "share_percent": step.share,
        "mode": step.mode,
        "backend": step.backend,
        "to": step.to,
        "down_ms": None if step.down is None else step.down.high_ns // 1_000_000,
    }
    return {key: value for key, value in found.items() if value is not None}
