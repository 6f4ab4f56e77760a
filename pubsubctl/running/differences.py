"""Differences between runs, and a test of such comparisons on this machine.

The self-test compares series of one number: the processor time per message of a simulated run. The
work is always the same, with the noise of this machine. A slowed run repeats a tenth of the work.
"""

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.run.series import KIND
from brokerd.protocols.registry import DEFAULT
from brokerd.simulator.scenario import play_scenario
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError, VerdictUnknown
from pubsubctl.running.runs import manifest, run_beside

if TYPE_CHECKING:
    from results.repetitions.comparison import Compared, Comparison, Group

FIGURE: Final = "least processor time per message of five simulated runs"
_PARTS: Final = 10
_MESSAGES: Final = 2
_TRIES: Final = 5
_PUBLISH: Final = "quietly publish b1 a=1\nquietly run 5ms\n"
_SCENARIO: Final = (
    f"protocol {DEFAULT}\nchain b1 b2 b3\nsubscribe b3 a = 1\nquietly stabilize\n"
    f"{_PUBLISH * _MESSAGES}quietly stabilize\n"
)


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
        raise UserError(
            f"{run}: this series is {about.get('state')}; the command that began it resumes it"
        )
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


def selftest(call: Invocation, trials: int, instances: int) -> Result:
    """Run `trials` trials of each kind, and report if comparisons are reliable here."""
    from results.repetitions.selftest import SCHEMA, SLOWDOWN, Trial, can_be_believed, trial_of

    done: list[Trial] = []
    with call.console.progress() as progress:
        processor_us_per_message(slowed=False)  # a warm-up outside of the measurement
        for planted in (False, True):
            for number in range(1, trials + 1):
                progress.phase(f"trial {len(done) + 1} of {2 * trials}")
                done.append(trial_of(number, planted, instances, _measure))
    rows = [
        (
            f"{trial.number}",
            f"{SLOWDOWN:.0%} slower" if trial.planted else "the same",
            f"{trial.difference.ratio or 0:.3f}",
            f"{trial.difference.low or 0:.3f} … {trial.difference.high or 0:.3f}",
            trial.said,
            "" if trial.is_right else "WRONG",
        )
        for trial in done
    ]
    header = ("TRIAL", "SECOND SERIES IS", "RATIO", "95 % INTERVAL", "SAID", "")
    differ = sum(not trial.is_right for trial in done if not trial.planted)
    found = sum(trial.is_right for trial in done if trial.planted)
    told = (
        f"{differ} of {trials} of the same said to differ, {found} of {trials} slowdowns found "
        f"({instances} runs a side, {FIGURE})"
    )
    document = {
        "schema": SCHEMA, "figure": FIGURE, "instances": instances, "differ": differ,
        "found": found, "trials": [trial.row() for trial in done],
    }  # fmt: skip
    because = () if can_be_believed(done) else (
        VerdictUnknown(f"comparisons cannot be believed on this machine now: {told}"),
    )  # fmt: skip
    return Result(
        document=document, text=f"{call.console.table(header, rows)}\n{told}", because=because
    )


def processor_us_per_message(*, slowed: bool) -> float:
    """Return the processor time of a repetition per message of a normal run, in microseconds.

    The result is the minimum of several tries: disturbance of this machine's caches only adds time.
    """
    gc.collect()
    return min(_tried_ns(_PARTS + slowed) for _ in range(_TRIES)) / 1000 / (_PARTS * _MESSAGES)


def _tried_ns(parts: int) -> int:
    began_ns = time.process_time_ns()
    for _ in range(parts):
        play_scenario(_SCENARIO)
    return time.process_time_ns() - began_ns


def _measure(slowed: bool) -> float:
    return processor_us_per_message(slowed=slowed)
