"""Differences between runs, in words and as a document."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.run.series import KIND
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError
from pubsubctl.running.runs import manifest, run_beside

if TYPE_CHECKING:
    from results.repetitions.comparison import Compared, Comparison, Group


def differences(call: Invocation, runs: Sequence[Path]) -> Result:
    """Compare runs, or the points of series, with the first run.

    Raises:
        UserError: the runs cannot be compared: names runs, reason and values.
    """
    from results.repetitions.comparable import NotComparable
    from results.repetitions.comparison import compare

    groups = [group for run in runs for group in groups_of(run)]
    if len(groups) < 2:
        raise UserError("compare: name at least two runs, or a series of several points")
    try:
        comparison = compare(groups)
    except NotComparable as error:
        raise UserError(str(error)) from None
    return Result(document=comparison.document(), text=_text(call, comparison))


def groups_of(run: Path) -> "list[Group]":
    """Return the points of a series, or a single run."""
    from results.repetitions.comparison import Group

    about = manifest(run)
    if about.get("kind") != KIND:
        return [Group(run.name, (run,))]
    if about.get("state") != "complete":
        raise UserError(f"{run}: this series is {about.get('state')}; bench goes on with it")
    return [
        Group(point if len(about["runs"]) > 1 else f"{run.name} {point}",
              tuple(run_beside(run, run_id) for run_id in run_ids))
        for point, run_ids in about["runs"].items()
    ]  # fmt: skip


def _text(call: Invocation, comparison: "Comparison") -> str:
    first = comparison.groups[0]
    lines = [f"compared with {first.name} ({len(first.runs)} runs)"]
    for name, values in comparison.differing.items():
        told = ", ".join(
            f"{group.name}: {value}" for group, value in zip(comparison.groups, values, strict=True)
        )
        lines.append(f"differs: {name}: {told}")
    if not comparison.differing:
        lines.append("differs: nothing but chance")
    header = ("RUNS", "NUMBER", first.name.upper(), "THEIRS", "RATIO", "95 % INTERVAL", "SO")
    lines.append(call.console.table(header, [_row(row) for row in comparison.rows]))
    tested = sum(row.p is not None for row in comparison.rows)
    if tested > 1:
        lines.append(
            f"{tested} numbers were compared: one is said to differ only where it does after "
            "Holm's correction, so a table in which nothing differs says so in 95 % of cases"
        )
    return "\n".join(lines)


def _row(row: "Compared") -> tuple[str, ...]:
    difference = row.difference
    low, high = difference.low, difference.high
    interval = "" if low is None or high is None else f"{low:.3g} … {high:.3g}"
    if difference.ratio is None and interval:
        interval = f"{interval} (difference)"
    unit = f" {row.number.unit}" if row.number.unit else ""
    return (
        f"{row.group} ({len(row.second.values)})",
        row.number.name,
        f"{row.first.mean:.4g}{unit}",
        f"{row.second.mean:.4g}{unit}",
        "" if difference.ratio is None else f"{difference.ratio:.3g}",
        interval,
        row.verdict,
    )
