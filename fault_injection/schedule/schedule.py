"""Fault schedules: lists of steps, read from TOML and checked step by step.

A step begins `at` a time after the origin (the start of the measure phase), or `after` another
step: "x.applied", "x.observed", "x.healed", "x.recovered", or plain "x", the end of x's `for`.
Steps may be written as `lanes`. Random values remain ranges here; `fault_injection.schedule.plan`
draws the values.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from brokerd.errors import ConfigError
from brokerd.model.fault_verbs import (
    ALIASES,
    CLIENT_VERBS,
    DAMAGES,
    ENDING_VERBS,
    LASTING_VERBS,
    LINK_VERBS,
    MACHINE_VERBS,
    MODES,
    ROAM,
    SET_VERBS,
    VERB_TABLE,
    VERBS,
    takers,
)
from brokerd.overlay.topology import nearest
from brokerd.text import explain_problem, explain_schema, parse_toml, read_utf8, shown
from brokerd.units import format_duration
from fault_injection.schedule.lanes import LaneError, steps_of
from fault_injection.schedule.step import (
    END,
    MOST_PICKED,
    STAGES,
    Await,
    Closed,
    Exercised,
    Expect,
    Guard,
    Pick,
    Step,
    expand_short_form,
)

SCHEMA: Final = "pubsubctl/faults/1"
FOLDER: Final = Path(__file__).parents[1]
MOST_STEPS: Final = 2_000
"""Greatest number of steps that lint can compare pairwise within seconds."""

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SIGNALS: Final = ("KILL", "TERM", "INT", "QUIT")
BACKENDS: Final = ("broker", "nft")
MOST_LATENCY_NS: Final = 60 * 10**9


@dataclass(frozen=True, slots=True)
class Problem:
    """An error or warning about a schedule, with its place.

    Attributes:
        where: the file.
        step: id of the step, or "" for the schedule itself.
        severity: error (the schedule cannot run) or warning (a step may have another effect than
            its text suggests).
    """

    where: str
    step: str
    key: str
    value: object
    text: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        step = f" step {self.step}:" if self.step else ""
        key = f" {self.key} = {shown(self.value)}:" if self.key else ""
        return f"{self.where}:{step}{key} {self.text}"


class ScheduleError(ConfigError):
    """A schedule that cannot be used; the user's fault.

    Attributes:
        problems: all problems of the schedule.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


_OPTIONS: Final = (
    *(
        "stall",
        "down",
        "latency",
        "bytes_per_second",
        "free_bytes",
        "share",
        "mode",
        "backend",
        "damage",
        "file",
        "to",
    ),
)
_TABLES: Final[Mapping[str, type[BaseModel]]] = {
    "guard": Guard,
    "exercised": Exercised,
    "expect": Expect,
    "await": Await,
    "pick": Pick,
}


class ScheduleFile(Closed):
    schema_: Annotated[Literal["pubsubctl/faults/1"], Field(alias="schema")]
    name: str
    seed: Annotated[int, Field(ge=0)] = 1
    origin: Literal["measure"] = "measure"
    guard: Guard = Guard()
    exercised: Exercised = Exercised()
    step: Annotated[list[Step], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """A schedule of valid steps; `lint` checks the steps together.

    Attributes:
        steps: in file order, each with an id; `crash` is spelled out, unless its targets are not
            drawn yet.
        source: the file.
        drawn: id of a step with a drawn target → description of the draw.
    """

    name: str
    seed: int
    guard: Guard
    exercised: Exercised
    steps: tuple[Step, ...]
    source: str = ""
    drawn: Mapping[str, str] = field(default_factory=dict)

    def step(self, step_id: str) -> Step:
        return next(step for step in self.steps if step.id == step_id)

    def problem(
        self,
        step: Step,
        key: str,
        value: object,
        text: str,
        severity: Literal["error", "warning"] = "error",
    ) -> Problem:
        return Problem(self.source, step.id, key, value, text, severity)

    def to_mapping(self) -> dict[str, Any]:
        """Return the content of an equivalent TOML file."""
        dump: dict[str, Any] = {"by_alias": True, "exclude_none": True}
        return {
            "schema": SCHEMA,
            "name": self.name,
            "seed": self.seed,
            "origin": "measure",
            "guard": self.guard.model_dump(**dump),
            "exercised": self.exercised.model_dump(**dump),
            "step": [step.model_dump(**dump) for step in self.steps],
        }


def load_schedule(
    path_or_name: str | Path, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> FaultSchedule:
    """Return the schedule in a file, or the schedule with this name in the project's own folder.

    Args:
        changes: by id of a step, values that replace values of the file; a key in a table of the
            step has a dot, as in `pick.count`.

    Raises:
        ScheduleError: the file is missing or not TOML, or a step is invalid.
    """
    path = Path(path_or_name)
    if not path.exists() and path.suffix == "" and len(path.parts) == 1:
        names = sorted(file.stem for file in FOLDER.glob("*.toml"))
        if str(path) not in names:
            text = f"no schedule called so{nearest(path, names)}"
            raise ScheduleError([Problem(str(path), "", "", None, text)])
        path = FOLDER / f"{path}.toml"
    try:
        document = parse_toml(read_utf8(path))
    except (OSError, ValueError) as error:
        text = (error.strerror or "").lower() if isinstance(error, OSError) else ""
        raise ScheduleError([Problem(str(path), "", "", None, text or str(error))]) from error
    return read_schedule(_with_changes(document, changes or {}, str(path)), str(path))


def read_schedule(document: Mapping[str, Any], where: str) -> FaultSchedule:
    """Return the schedule in the content of a TOML document.

    Raises:
        ScheduleError: unknown or missing keys, wrong values, invalid steps; names all errors of
            all steps.
    """
    if problem := explain_schema(document.get("schema", SCHEMA), SCHEMA):
        raise ScheduleError([Problem(where, "", "", None, problem)])
    document = _without_lanes(document, where)
    _check_count(_step_count(document), where)
    try:
        read = ScheduleFile.model_validate(document)
    except ValidationError as error:
        found = [*_explain(error, document, where), *_check_rest(error, document, where)]
        raise ScheduleError(found) from None
    problems: list[Problem] = []
    steps: list[Step] = []
    for step in read.step:
        named = step.model_copy(update={"id": step.id or _default_id(step)})
        own = [Problem(where, named.id, *found) for found in _check_step(named)]
        problems += own
        if not own:
            steps += [named] if named.pick else expand_short_form(named)
    seen: set[str] = set()
    for step in steps:
        if step.id in seen:
            problems.append(Problem(where, step.id, "id", step.id, "another step has this id"))
        seen.add(step.id)
    if problems:
        raise ScheduleError(problems)
    _check_count(len(steps), where)
    return FaultSchedule(read.name, read.seed, read.guard, read.exercised, tuple(steps), where)


def _with_changes(
    document: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]], where: str
) -> Mapping[str, Any]:
    if not changes:
        return document
    rows = document.get("step", [])
    steps = [dict(row) if isinstance(row, Mapping) else row for row in rows]
    by_id = {_id_in(row): row for row in steps if isinstance(row, dict)}
    for step, keys in changes.items():
        if step not in by_id:
            text = f"no such step{nearest(step, [*by_id])}"
            raise ScheduleError([Problem(where, step, "", None, text)])
        for key, value in keys.items():
            _change(by_id[step], key, value, step, where)
    return {**document, "step": steps}


def _change(row: dict[str, Any], key: str, value: Any, step: str, where: str) -> None:
    name, dot, inner = key.partition(".")
    if not dot:
        row[name] = value
        return
    table = row.get(name, {})
    if not isinstance(table, Mapping):
        text = f"is no table, and so has no {inner!r}; change {name!r} itself"
        raise ScheduleError([Problem(where, step, name, table, text)])
    row[name] = {**table, inner: value}


def _id_in(row: Mapping[str, Any]) -> str:
    """Return the id of a step, which is derived from verb and target if the step has no id."""
    return str(row.get("id") or _id_of(str(row.get("do", "")), str(row.get("on", ""))))


def _check_count(steps: int, where: str) -> None:
    if steps > MOST_STEPS:
        text = f"{steps:,} steps; at most {MOST_STEPS:,}"
        raise ScheduleError([Problem(where, "", "", None, text)])


def _step_count(document: Mapping[str, Any]) -> int:
    steps = document.get("step", [])
    return len(steps) if isinstance(steps, list) else 0


def _without_lanes(document: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the document with steps in place of lanes."""
    if "lanes" not in document:
        return document
    rest = {key: value for key, value in document.items() if key != "lanes"}
    steps = rest.get("step", [])
    try:
        return {
            **rest,
            "step": [*(steps if isinstance(steps, list) else []), *steps_of(document["lanes"])],
        }
    except LaneError as error:
        key = f"lanes.{error.key}" if error.key else "lanes"
        raise ScheduleError([Problem(where, "", key, error.value, str(error))]) from None


def _default_id(step: Step) -> str:
    return _id_of(step.do, step.on)


def _id_of(verb: str, target: str) -> str:
    words = re.sub(r"[^a-z0-9-]+", "-", target.lower().replace("->", "-to-")) or "picked"
    return f"{verb}-{words}"[:64]


def _check_step(step: Step) -> Iterator[tuple[str, object, str]]:
    """Yield (key, value, text) for each error of a step by itself."""
    if not _ID.fullmatch(step.id):
        yield "id", step.id, "ids are of [a-z0-9-], at most 64"
    if step.do not in VERBS:
        yield "do", step.do, _no_verb(step.do)
        return
    if (step.at is None) == (step.after is None):
        yield "", None, "needs either at or after"
    if step.delay is not None and step.after is None:
        yield "delay", str(step.delay), "can be used with `after` only; `at` is exact"
    if step.anchor is not None and step.anchor[1] not in (*STAGES, END):
        stage = step.anchor[1]
        yield "after", step.after, f"no stage {stage!r}{nearest(stage, STAGES)}"
    takes = {
        "for": (step.lasts, LASTING_VERBS),
        "signal": (step.signal, takers("signal")),
        "expect": (step.expect, ENDING_VERBS),
        "await": (step.awaits, (*LASTING_VERBS, "restart", "crash")),
        "times": (step.times, (*LASTING_VERBS, ROAM)),
        **{key: (getattr(step, key), takers(key)) for key in _OPTIONS},
        "latency": (step.latency and format_duration(step.latency), takers("latency")),
        "share": (step.share and f"{step.share}%", takers("share")),
    }
    for key, (value, verbs) in takes.items():
        if value is not None and step.do not in verbs:
            yield key, _plain(value), f"{step.do} takes none; only {', '.join(verbs)}"
    if step.do in LASTING_VERBS and step.lasts is None:
        yield "do", step.do, "needs a for: how long it lasts"
    if step.lasts is not None and step.lasts.low_ns == 0:
        yield "for", str(step.lasts), "lasts no time at all"
    for key in VERB_TABLE[step.do].required:
        if getattr(step, key) is None:
            yield "do", step.do, f"needs {key}"
    if step.latency is not None and not 0 < step.latency <= MOST_LATENCY_NS:
        yield "latency", format_duration(step.latency), "is between 1ms and 60s"
    for key, known in (("mode", MODES), ("backend", BACKENDS), ("damage", DAMAGES)):
        value = getattr(step, key)
        if value is not None and step.do in takers(key) and value not in known:
            yield key, value, f"no such {key}{nearest(value, known)}"
    if step.signal is not None and step.signal not in _SIGNALS:
        yield "signal", step.signal, f"no signal that kills{nearest(step.signal, _SIGNALS)}"
    yield from _check_repetition(step)
    if "->" in step.on and step.do not in LINK_VERBS:
        yield "on", step.on, wrong_target(step.do)
    if bool(step.on) == (step.pick is not None):
        yield "", None, "needs either on or pick"
    if step.pick is not None:
        yield from _check_pick(step.do, step.pick)


def _check_repetition(step: Step) -> Iterator[tuple[str, object, str]]:
    if (step.times is None) != (step.pause is None):
        yield "", None, "times and pause go together: how often, and how long in between"
    if isinstance(step.to, list) and step.times is None:
        yield "to", step.to, "several places are for a step with times"
    if step.times is not None and step.pick is not None:
        yield "times", step.times, "what is drawn is done once; give on"


def _check_pick(verb: str, pick: Pick) -> Iterator[tuple[str, object, str]]:
    is_share = isinstance(pick.count, str)
    if is_share and not re.fullmatch(r"\d{1,2}(\.\d+)?%|100%", str(pick.count)):
        yield "pick.count", pick.count, 'is a number, or a share such as "17%"'
    if not is_share and not 1 <= int(pick.count) <= MOST_PICKED:
        yield "pick.count", pick.count, f"is between 1 and {MOST_PICKED}"
    if pick.like is not None and pick.model_fields_set - {"like"}:
        yield "pick.like", pick.like, "what the other step drew is all that it can be"
    if pick.out_of == "links" and verb not in LINK_VERBS:
        yield "pick.from", pick.out_of, wrong_target(verb)
    needs_names = verb in (*SET_VERBS, *MACHINE_VERBS, *CLIENT_VERBS)
    if isinstance(pick.out_of, str) and needs_names and not pick.like:
        yield "pick.from", pick.out_of, f"{wrong_target(verb)}; name them"
    if pick.out_of == [] or (isinstance(pick.out_of, list) and "" in pick.out_of):
        yield "pick.from", pick.out_of, "no targets to draw from"


def wrong_target(verb: str) -> str:
    """Return the reason why this verb takes no link, or no target that was drawn without names."""
    if verb in SET_VERBS:
        return f'{verb} is for sets of brokers, as in "b1,s1|b2"'
    if verb in CLIENT_VERBS:
        return f"{verb} is for {VERB_TABLE[verb].on[0]}s of the load, as in b1-sub-1"
    kind = "machines" if verb in MACHINE_VERBS else "brokers, not for links"
    return f"{verb} is for {kind}"


def _explain(error: ValidationError, document: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield the errors of pydantic as problems of the schedule."""
    for found in error.errors():
        location = [part for part in found["loc"] if part != "schema_"]
        step, names = "", _list_keys(ScheduleFile)
        if location[:1] == ["step"] and len(location) > 1:
            place = location[1]
            assert isinstance(place, int), found
            step = _name_of(document["step"][place], place)
            location, names = location[2:], _list_keys(Step)
        if len(location) > 1:
            inner = _TABLES.get(str(location[0]))
            names = _list_keys(inner) if inner else ()
        key = ".".join(map(str, location))
        if found["type"] == "extra_forbidden":
            yield Problem(
                where, step, "", None, f"unknown key {key!r}{nearest(location[-1], names)}"
            )
        elif found["type"] == "missing":
            yield Problem(where, step, "", None, f"key {key!r} is missing")
        else:
            yield Problem(where, step, key, found["input"], explain_problem(found))


def _check_rest(
    error: ValidationError, document: Mapping[str, Any], where: str
) -> Iterator[Problem]:
    """Yield the errors that pydantic does not find, of steps in a document with other errors."""
    rows = document.get("step")
    if not isinstance(rows, list):
        return
    broken = {
        found["loc"][1]
        for found in error.errors()
        if len(found["loc"]) > 1 and found["loc"][0] == "step"
    }
    for place, row in enumerate(rows):
        if place not in broken:
            step = Step.model_validate(row)
            named = step.model_copy(update={"id": step.id or _default_id(step)})
            yield from (Problem(where, named.id, *found) for found in _check_step(named))
        elif isinstance(row, Mapping):
            verb = row.get("do")
            if isinstance(verb, str) and verb not in VERBS:
                yield Problem(where, _name_of(row, place), "do", verb, _no_verb(verb))


def _no_verb(verb: str) -> str:
    return f"no such verb{nearest(ALIASES.get(verb, verb), VERBS)}"


def _list_keys(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(info.alias or name for name, info in model.model_fields.items())


def _name_of(step: Any, place: int) -> str:
    name = step.get("id") if isinstance(step, Mapping) else None
    return name if isinstance(name, str) else f"number {place + 1}"


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True, exclude_none=True)
    return str(value)
