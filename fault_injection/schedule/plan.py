"""Plans: the steps of a schedule with every random value drawn from a seed.

The same seed draws the same targets. A schedule may name brokers and clients by their part in the
load: a schedule with roles fits brokers of any names. "publishers" is the broker of the first
publisher, "subscribers" the broker of the first subscriber. "publisher 1" and "subscriber 2" are
clients, numbered in the order of the workload.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from brokerd.model.fault_verbs import (
    CLIENT_VERBS,
    ENDING_VERBS,
    HOLDING_VERBS,
    LINK_VERBS,
    MOST_DRAWN,
    VERB_TABLE,
)
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import Topology, nearest
from brokerd.protocols.registry import RunningProtocol, protocol_on
from brokerd.units import format_duration
from fault_injection.schedule.schedule import FaultSchedule, Problem, ScheduleError, wrong_target
from fault_injection.schedule.step import (
    END,
    OBSERVE_WITHIN_NS,
    RECOVER_WITHIN_NS,
    Await,
    Expect,
    Pick,
    Span,
    Step,
    expand_short_form,
    is_to_be_tolerated,
)
from fault_injection.schedule.targets import Machines, is_same_target, read_target


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
    parameters = _parameters_of(step, seed)
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


def _parameters_of(step: Step, seed: int) -> dict[str, int | str]:
    """Return the verb's parameters of a step, in the form for agents and brokers."""
    assert not isinstance(step.to, list), f"{step} stands for several"
    number = VERB_TABLE[step.do].number
    is_drawn = number is not None and number.name == "draw"
    found: dict[str, int | str | None] = {
        "delay_ms": None if step.latency is None else step.latency // 1_000_000,
        "bytes_per_second": step.bytes_per_second,
        "free_bytes": step.free_bytes,
        "share_percent": step.share,
        "mode": step.mode,
        "backend": step.backend,
        "damage": step.damage,
        "file": step.file,
        "draw": Random(f"{seed}/{step.id}/draw").randint(0, MOST_DRAWN) if is_drawn else None,
        "to": step.to,
        "down_ms": None if step.down is None else step.down.high_ns // 1_000_000,
    }
    return {key: value for key, value in found.items() if value is not None}


ATTEMPTS: Final = 2_000
"""Number of draws before a pick counts as impossible."""
_MOST_NAMES: Final = 6
_MOST_DRAWN: Final = 12


def draw_targets(
    schedule: FaultSchedule,
    topology: Topology,
    seed: int | None = None,
    *,
    machines: Machines | None = None,
    protocol: str | None = None,
) -> FaultSchedule:
    """Return the schedule with one step per drawn target, and with the seed of the draw.

    A step that picks one target keeps its id. A step that picks several targets becomes steps
    `ID-1`, `ID-2` and so on. A step `like` another step has the same number of targets. If it was
    anchored at the other step, every part is anchored at its counterpart.

    Args:
        seed: replaces the schedule's own seed.
        protocol: the protocol that runs; None for the usual protocol of the topology.

    Raises:
        ScheduleError: a pick is impossible: an unknown name, too few candidates, or no draw with
            the wanted chains.
    """
    seed = schedule.seed if seed is None else seed
    if not any(step.pick for step in schedule.steps):
        return replace(schedule, seed=seed)
    known = protocol_on(topology, protocol)
    targets: dict[str, tuple[str, ...]] = {}
    drawn: dict[str, str] = {}
    steps: list[Step] = []
    alike = _families(schedule)
    for step in schedule.steps:
        if step.pick is None:
            steps.append(step)
            continue
        try:
            if step.pick.like is not None:
                targets[step.id] = targets[step.pick.like]
            else:
                targets[step.id] = _draw(step, step.pick, known, seed, machines)
        except ValueError as error:
            problem = Problem(schedule.source, step.id, "pick", _shown(step.pick), str(error))
            raise ScheduleError([problem]) from None
        for number, target in enumerate(targets[step.id], start=1):
            suffix = f"-{number}" if len(targets[step.id]) > 1 else ""
            changes: dict[str, object] = {"id": step.id + suffix, "on": target, "pick": None}
            if step.anchor is not None and alike.get(step.anchor[0]) == alike[step.id]:
                assert step.after is not None, step
                name, dot, stage = step.after.partition(".")
                changes["after"] = name + suffix + dot + stage
            for spelled in expand_short_form(step.model_copy(update=changes)):
                drawn[spelled.id] = f"{_shown(step.pick)}, seed {seed}"
                steps.append(spelled)
    return replace(schedule, steps=tuple(steps), seed=seed, drawn=drawn)


def describe_draws(schedule: FaultSchedule) -> list[str]:
    """Return a line for each draw and verb, with the targets that were drawn."""
    alike: dict[tuple[str, str], list[Step]] = {}
    for step in schedule.steps:
        if step.id in schedule.drawn:
            alike.setdefault((schedule.drawn[step.id], step.do), []).append(step)
    found = []
    for (drawn, verb), steps in alike.items():
        names = list(dict.fromkeys(str(step.on) for step in steps))
        more = f" and {len(names) - _MOST_DRAWN} more" if len(names) > _MOST_DRAWN else ""
        ids = steps[0].id if len(steps) == 1 else f"{steps[0].id} to {steps[-1].id}"
        found.append(f"{ids}: {verb} {', '.join(names[:_MOST_DRAWN])}{more}, drawn: {drawn}")
    return found


def _families(schedule: FaultSchedule) -> Mapping[str, str]:
    """Return a map from each step with a pick to the step that draws the targets of the pick.

    Raises:
        ScheduleError: `like` names no earlier step with a pick.
    """
    found: dict[str, str] = {}
    for step in schedule.steps:
        if step.pick is None:
            continue
        like = step.pick.like
        if like is not None and like not in found:
            text = f"no step before it that picks is called {like!r}{nearest(like, list(found))}"
            raise ScheduleError([Problem(schedule.source, step.id, "pick.like", like, text)])
        found[step.id] = step.id if like is None else found[like]
    return found


def _draw(
    step: Step, pick: Pick, known: RunningProtocol, seed: int, machines: Machines | None
) -> tuple[str, ...]:
    candidates = list(dict.fromkeys(_candidates(step, pick, known.topology, machines)))
    number = pick.number(len(candidates))
    if number > len(candidates):
        raise ValueError(f"there are {len(candidates)} to draw from, not {number}")
    random = Random(f"{seed}/{step.id}/pick")
    for _ in range(ATTEMPTS):
        places = sorted(random.sample(range(len(candidates)), number))
        chosen = tuple(candidates[place] for place in places)
        if _has_chains(chosen, pick.chains, known):
            return chosen
    raise ValueError(
        f"no draw of {number} of {len(candidates)} has chains {pick.chains} for {known.description}"
    )


def _candidates(
    step: Step, pick: Pick, topology: Topology, machines: Machines | None
) -> Iterator[str]:
    if pick.out_of == "brokers":
        yield from topology.present()
    elif pick.out_of == "links":
        names = topology.brokers
        yield from (f"{names[a]}-{names[b]}" for a, b in topology.links)
    else:
        for name in pick.out_of:
            target = read_target(name, topology, step.do, machines)
            if target.is_link and step.do not in LINK_VERBS:
                raise ValueError(f"{name}: {wrong_target(step.do)}")
            if pick.chains != "any" and name not in topology.brokers:
                raise ValueError(f"{name} is no broker, and chains are of brokers")
            yield name


def _has_chains(chosen: Sequence[str], chains: str, known: RunningProtocol) -> bool:
    is_tolerated = is_to_be_tolerated(chains)
    if is_tolerated is None:
        return True
    lost = FailedElements(tuple(sorted(map(known.topology.number_of, chosen))))
    return known.tolerates(lost) == is_tolerated


def _shown(pick: Pick) -> str:
    if pick.like is not None:
        return f"like {pick.like}"
    named = list(pick.out_of) if isinstance(pick.out_of, list) else [f"all {pick.out_of}"]
    more = f" and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    chains = f" with chains {pick.chains}" if pick.chains != "any" else ""
    return f"{pick.count} of {', '.join(named[:_MOST_NAMES])}{more}{chains}"


ROLES: Final = ("publisher", "subscriber")
_CLIENT: Final = re.compile(rf"({'|'.join(ROLES)}) ([1-9][0-9]{{0,5}})\Z")

Placed = Sequence[tuple[str, str]]
"""Clients in their order: name, and broker that the client is attached to."""


def resolve_roles(
    schedule: FaultSchedule, publishers: Placed, subscribers: Placed
) -> FaultSchedule:
    """Return the schedule with names in place of roles. A broker name precedes an equal role name.

    Raises:
        ScheduleError: the load has no client with this role and number.
    """
    clients = dict(zip(ROLES, (publishers, subscribers), strict=True))
    brokers = {broker for each in clients.values() for _, broker in each}
    steps, problems = [], []
    for step in schedule.steps:
        try:
            on = step.on if step.on in brokers else _name(step, clients)
        except LookupError as error:
            problems.append(Problem(schedule.source, step.id, "on", step.on, str(error.args[0])))
            continue
        steps.append(step if on == step.on else step.model_copy(update={"on": on}))
    if problems:
        raise ScheduleError(problems)
    return replace(schedule, steps=tuple(steps))


def _name(step: Step, clients: dict[str, Placed]) -> str:
    for role, those in clients.items():
        if step.on == f"{role}s" and step.do not in CLIENT_VERBS:
            if not those:
                raise LookupError(f"the load has no {role}")
            return those[0][1]
    found = _CLIENT.match(step.on)
    if found is None or step.do not in CLIENT_VERBS:
        return step.on
    role, number = found[1], int(found[2])
    if number > len(clients[role]):
        raise LookupError(f"the load has {len(clients[role])} {role}s")
    return clients[role][number - 1][0]
