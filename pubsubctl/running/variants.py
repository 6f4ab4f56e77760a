"""`compare --against`: runs a workload unchanged and changed, in turn, and compares both sides.

The order is A B, B A and so on, so that drift of the machine affects both sides alike. The
comparison uses only repetitions, never the messages of a single run.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.run.series import alternating
from bench.spec.keys import TOPOLOGY, check_keys, value_of
from bench.spec.overrides import Overrides
from bench.spec.spec import ExperimentSpec, validated
from bench.spec.sweep import Sweep, SweepPoint, expected_ns, points_of
from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import DEFINITIONS
from brokerd.units import format_duration
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError
from pubsubctl.running.differences import differences
from pubsubctl.running.forecast import announce
from pubsubctl.running.habits import Habits
from pubsubctl.running.plan import plan_faults
from pubsubctl.running.repetitions import Design, run_series
from pubsubctl.running.revisions import (
    SOURCE,
    Program,
    checked_out,
    commit_of,
    names_of_revisions,
)
from pubsubctl.running.series_verdicts import verdict_table

SCHEMA: Final = "pubsubctl/against/1"
INSTANCES: Final = 5
GIVEN: Final = "as-given"
_OPTION: Final = "--against"
_MAY_DIFFER: Final = ("protocol", "topology")
_REVISION: Final = "revision"


@dataclass(frozen=True, slots=True)
class VariantRequest:
    """Two variants to compare, as the command line describes them.

    Attributes:
        changes: KEY=VALUE, or the name of a protocol, topology or git revision; all changes
            together make the other side.
        instances: the number of runs per side; None if not given.
        budget: the longest total time; None for no limit.
        habits: labels, and what happens after runs.
    """

    workload: str
    changes: tuple[str, ...]
    faults: str | None
    instances: int | None
    budget: str | None = None
    habits: Habits = field(default_factory=Habits)


def run_variants(
    call: Invocation, request: VariantRequest, overrides: Overrides, results: Path | None
) -> Result:
    """Run both sides in turn, resume an interrupted series, and report the differences.

    Raises:
        UserError, SpecError: a side cannot be run, or the sides cannot be compared; nothing was
            run.
    """
    changes = _changes_of([_in_full(call, text) for text in request.changes])
    revision = changes.pop(_REVISION, None)
    if revision is not None and changes:
        raise UserError(
            f"{_OPTION} {revision}: a revision is compared with nothing else changed; leave out "
            f"{', '.join(changes)}"
        )
    try:
        check_keys([*overrides.dotted(), *changes])
    except ConfigError as error:
        raise UserError(f"{_OPTION}: {error}") from None
    workload = call.project.find("workload", request.workload)
    other = ",".join(f"{key}={value}" for key, value in changes.items())
    commit = ""
    if revision is not None:
        other, commit = f"{_REVISION}={revision}", _commit_of(str(revision))
    values: dict[str, Any] = {
        "schema": "pubsubctl/sweep/1",
        "name": f"{workload.stem}-against",
        "workload": str(workload),
        "faults": request.faults or "",
        "repetitions": INSTANCES if request.instances is None else request.instances,
        "points": [{"name": GIVEN}, {"name": other, **changes}],
        **({"budget": {"time": request.budget}} if request.budget is not None else {}),
    }
    sides = validated(Sweep, values, _OPTION)
    planned = [
        (point, plan_faults(call, point.spec, point.faults or None))
        for point in map(request.habits.labelled, points_of(sides, workload, overrides, _OPTION))
    ]
    given, changed = (point.spec for point, _ in planned)
    _check_comparable(given, changed)
    predictions = announce(call, ((point.name, point.spec, faults) for point, faults in planned))
    if call.dry_run:
        return _planned(planned, sides.repetitions, predictions)
    design = Design(
        instances=sides.repetitions,
        order=alternating,
        budget_ns=sides.budget.time if sides.budget is not None else None,
        habits=request.habits,
    )
    with ExitStack() as stack:
        if revision is not None:
            arguments = _command_line(call, request, workload, overrides, sides)
            here = Program(commit_of("HEAD") or "", SOURCE, arguments)
            there = Program(commit, stack.enter_context(checked_out(commit)), arguments)
            design = replace(design, makers={GIVEN: here, other: there})
        found = run_series(call, sides.name, planned, design, results=results)
    if "points" not in found.document:
        return found
    series = Path(str(found.document["run_directory"]))
    compared = differences(call, [series])
    document = {
        "schema": SCHEMA, "series": dict(found.document), "comparison": dict(compared.document),
        "run_directory": str(series),
    }  # fmt: skip
    verdicts = verdict_table(call.console, found.document["points"])
    text = f"{verdicts}\n{compared.text}\n{series}"
    return Result(document=document, text=text, because=found.because)


def _in_full(call: Invocation, text: str) -> str:
    """Return KEY=VALUE for an option, completing a lone name.

    Raises:
        UserError: the name is unknown or ambiguous; lists the meanings, or the nearest name.
    """
    if not text or "=" in text:
        return text
    topologies = call.project.names("topology")
    found = [
        key
        for key, is_it in (
            ("protocol", text in DEFINITIONS),
            ("topology", text in topologies or text.endswith(".toml")),
            (_REVISION, commit_of(text) is not None),
        )
        if is_it
    ]
    if len(found) == 1:
        return f"{found[0]}={text}"
    if found:
        ways = " or ".join(f"{key}={text}" for key in found)
        raise UserError(f"{_OPTION} {text}: may mean {ways}; write one of these")
    known = [*DEFINITIONS, *topologies, *names_of_revisions()]
    raise UserError(
        f"{_OPTION} {text}: write KEY=VALUE, or the name of a protocol, a topology or a git "
        f"revision of this program{nearest(text, known)}"
    )


def _commit_of(revision: str) -> str:
    commit = commit_of(revision)
    if commit is None:
        raise UserError(
            f"{_OPTION} {_REVISION}={revision}: no commit of {SOURCE}"
            f"{nearest(revision, names_of_revisions())}"
        )
    return commit


def _command_line(
    call: Invocation, request: VariantRequest, workload: Path, overrides: Overrides, sides: Sweep
) -> list[str]:
    """Return the command line for a run of either side, with options that old revisions have."""
    typed = overrides.as_mapping()
    words = ["bench", str(workload.resolve()), "--no-check"]
    words += ["--label", f"experiment={sides.name}"]
    for key, label in request.habits.labels.items():
        words += ["--label", f"{key}={label}"]
    if "seed" in typed:
        words += ["--seed", str(typed.pop("seed"))]
    if request.faults is not None:
        words += ["--faults", request.faults]
    for key, value in typed.pop("keys", {}).items():
        words += ["--set", f"{key}={value}"]
    if typed.pop("churn", True) is False:
        words.append("--no-churn")
    for key, value in typed.items():
        words += ["--duration" if key == "measure" else f"--{key}", str(value)]
    return [*call.global_words(), *words]


def _changes_of(texts: Sequence[str]) -> dict[str, Any]:
    """Return the changes of the other side; only keys that comparable runs may differ in."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals or not value:
            raise UserError(f"{_OPTION} {text}: write KEY=VALUE")
        if key in found:
            raise UserError(f"{_OPTION} {text}: {key} has a value already")
        if key not in (*_MAY_DIFFER, _REVISION) and not key.startswith(TOPOLOGY):
            raise UserError(
                f"{_OPTION} {text}: runs whose {key} differs are not comparable; `sweep` varies "
                f"anything, {_OPTION} {', '.join(_MAY_DIFFER)} and {TOPOLOGY}KEY"
                f"{nearest(key, _MAY_DIFFER)}"
            )
        found[key] = value if key == _REVISION else value_of(value)
    return found


def _check_comparable(given: ExperimentSpec, changed: ExperimentSpec) -> None:
    """Make sure that runs of both will be comparable, before any is made."""
    ours, theirs = (sorted(each.topology.present()) for each in (given, changed))
    if ours != theirs:
        raise UserError(
            f"{_OPTION}: topology {changed.topology.name!r} has brokers {_some(theirs)}, and "
            f"{given.topology.name!r} has {_some(ours)}; only the same brokers are comparable"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _planned(
    planned: Sequence[tuple[SweepPoint, FaultSchedule | None]],
    repetitions: int,
    predictions: Sequence[Mapping[str, Any]],
) -> Result:
    expected = repetitions * sum(expected_ns(point.spec) for point, _ in planned)
    lines = [f"side {point.name}" for point, _ in planned]
    lines.append(f"{2 * repetitions} runs, about {format_duration(expected)}")
    document = {
        "schema": "pubsubctl/against-plan/1",
        "sides": {point.name: dict(point.keys) for point, _ in planned},
        "repetitions": repetitions,
        "expected_ns": expected,
        "predictions": [*predictions],
    }
    return Result(document=document, text="\n".join(lines))
