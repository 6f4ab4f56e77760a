"""`bench --against`: a workload as it is given, and with something changed, in turn; then compared.

The two sides are run A B, B A and so on, so that what drifts on the machine befalls both alike, and
only their repetitions are compared, never the messages of one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.run.series import alternating
from bench.spec.keys import TOPOLOGY, check_keys, value_of
from bench.spec.overrides import Overrides
from bench.spec.spec import ExperimentSpec, validated
from bench.spec.sweep import Sweep, SweepPoint, expected_ns, points_of
from bench.spec.units import format_duration
from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.commands.bench import schedule_for
from pubsubctl.commands.invocation import Invocation
from pubsubctl.console.console import Result
from pubsubctl.errors import UserError
from pubsubctl.running.differences import differences
from pubsubctl.running.series import Design, run_series

SCHEMA: Final = "pubsubctl/against/1"
INSTANCES: Final = 5
GIVEN: Final = "as-given"
_OPTION: Final = "--against"
_MAY_DIFFER: Final = ("protocol", "topology")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed.

    Attributes:
        changes: KEY=VALUE each; all of them make the other side.
        instances: how often each side is run; None where nothing was typed.
    """

    workload: str
    changes: tuple[str, ...]
    faults: str | None
    instances: int | None


def run_against(
    call: Invocation, asked: Asked, overrides: Overrides, results: Path | None
) -> Result:
    """Run both sides in turn, go on where somebody was interrupted, and say how they differ.

    Raises:
        UserError, SpecError: a side cannot be run, or they could not be compared; nothing was run.
    """
    changes = _changes_of(asked.changes)
    try:
        check_keys([*overrides.dotted(), *changes])
    except ConfigError as error:
        raise UserError(f"{_OPTION}: {error}") from None
    workload = call.project.find("workload", asked.workload)
    other = ",".join(f"{key}={value}" for key, value in changes.items())
    values: dict[str, Any] = {
        "schema": "pubsubctl/sweep/1",
        "name": f"{workload.stem}-against",
        "workload": str(workload),
        "faults": asked.faults or "",
        "repetitions": INSTANCES if asked.instances is None else asked.instances,
        "points": [{"name": GIVEN}, {"name": other, **changes}],
    }
    sides = validated(Sweep, values, _OPTION)
    planned = [
        (point, schedule_for(call, point.spec, point.faults or None))
        for point in points_of(sides, workload, overrides, _OPTION)
    ]
    given, changed = (point.spec for point, _ in planned)
    _check_comparable(given, changed)
    if call.dry_run:
        return _planned(planned, sides.repetitions)
    design = Design(instances=sides.repetitions, order=alternating)
    found = run_series(call, sides.name, planned, design, results=results)
    if "missing" in found.document:
        return found
    series = Path(str(found.document["run_directory"]))
    compared = differences(call, [series])
    document = {
        "schema": SCHEMA, "series": dict(found.document), "comparison": dict(compared.document),
        "run_directory": str(series),
    }  # fmt: skip
    return Result(document=document, text=f"{compared.text}\n{series}", because=found.because)


def _changes_of(texts: Sequence[str]) -> dict[str, Any]:
    """What the other side has in place of what is given; only what runs that are compared may."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals or not value:
            raise UserError(f"{_OPTION} {text}: write KEY=VALUE")
        if key in found:
            raise UserError(f"{_OPTION} {text}: {key} has a value already")
        if key not in _MAY_DIFFER and not key.startswith(TOPOLOGY):
            raise UserError(
                f"{_OPTION} {text}: runs whose {key} differs are not comparable; --sweep varies "
                f"anything, {_OPTION} {', '.join(_MAY_DIFFER)} and {TOPOLOGY}KEY"
                f"{nearest(key, _MAY_DIFFER)}"
            )
        found[key] = value_of(value)
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
    planned: Sequence[tuple[SweepPoint, FaultSchedule | None]], repetitions: int
) -> Result:
    expected = repetitions * sum(expected_ns(point.spec) for point, _ in planned)
    lines = [f"side {point.name}" for point, _ in planned]
    lines.append(f"{2 * repetitions} runs, about {format_duration(expected)}")
    document = {
        "schema": "pubsubctl/against-plan/1",
        "sides": {point.name: dict(point.keys) for point, _ in planned},
        "repetitions": repetitions,
        "expected_ns": expected,
    }
    return Result(document=document, text="\n".join(lines))
