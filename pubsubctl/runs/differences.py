"""`compare`: differences between runs, and between a workload unchanged and changed.

`compare --against` runs a workload unchanged and changed, in turn. The order is A B, B A and so on,
so that drift of the machine affects both sides alike. The comparison uses only repetitions, never
the messages of a single run.

The self-test of such comparisons uses series of one number: the processor time per message of a
simulated run. The work is always the same, with the noise of this machine. A slowed run repeats a
tenth of the work.
"""

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.run.series import KIND, alternate
from bench.spec.keys import TOPOLOGY, Overrides, check_keys, value_of
from bench.spec.spec import ExperimentSpec
from bench.spec.sweep import Sweep, points_of
from bench.spec.validation import validate
from bench.systems.configuration import EXTERNAL
from brokerd.errors import ConfigError
from brokerd.protocols.registry import DEFAULT, DEFINITIONS
from brokerd.simulator.scenario import play_scenario
from brokerd.text import counted, format_number, nearest
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import PubsubctlError, UserError, VerdictUnknown
from pubsubctl.runs.plan import Run, SeriesPlan, announce, expect_time, plan_faults_of_points
from pubsubctl.runs.repetitions import Design, run_series
from pubsubctl.runs.revisions import (
    SOURCE,
    Program,
    check_out,
    commit_of,
    is_checkout,
    names_of_revisions,
)
from pubsubctl.runs.runs import manifest, sibling_run
from pubsubctl.runs.series import Habits, merge_equal, verdict_table
from pubsubctl.runs.verdicts import announce_verdicts, find_standing

if TYPE_CHECKING:
    from results.repetitions.comparison import ComparedNumber, Comparison, Group

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
    with call.console.progress() as progress:
        because = find_doubts([run for group in groups for run in group.runs], progress)
    text = _text(call, comparison)
    return Result(document=comparison.document(), text=text, because=tuple(because))


def find_doubts(runs: Sequence[Path], progress: Progress) -> list[PubsubctlError]:
    """Return why the numbers of runs cannot be trusted: an UNKNOWN verdict, or one of other logs.

    Judges the runs without a verdict of this program again.
    """
    from results.repetitions.numbers import doubts_about_verdict

    standing = find_standing(runs, progress, is_named=False)
    waiting = [run for run in runs if run not in standing]
    judgements = announce_verdicts(waiting, progress, named=True)
    found: list[tuple[Path, PubsubctlError]] = []
    for run in runs:
        if run in standing:
            if standing[run].verdict == "UNKNOWN":
                found += [(run, error) for error in standing[run].because]
        elif (judgement := judgements.get(run)) is None:
            progress.print(f"{run.name}: not judged; its {VERDICT} is taken on trust")
        else:
            doubts = judgement.because if judgement.verdict == "UNKNOWN" else ()
            for doubt in (*doubts, *doubts_about_verdict(run, judgement)):
                found.append((run, VerdictUnknown(f"{run}: UNKNOWN: {doubt}")))
    return merge_equal(found)


def groups_of(run: Path) -> "list[Group]":
    """Return the points of a series, or a single run."""
    from results.repetitions.comparison import Group
    from results.repetitions.series_runs import read_series

    about = manifest(run)
    if about.get("kind") != KIND:
        return [Group(run.name, (run,))]
    if about.get("state") != "complete":
        raise UserError(
            f"{run}: this series is {about.get('state')}; the command that began it resumes it"
        )
    read_series(run)
    return [
        Group(point if len(about["runs"]) > 1 else f"{run.name} {point}",
              tuple(sibling_run(run, run_id) for run_id in run_ids))
        for point, run_ids in about["runs"].items()
    ]  # fmt: skip


def _text(call: Invocation, comparison: "Comparison") -> str:
    first = comparison.groups[0]
    lines = [f"compared with {first.name} ({counted(len(first.runs), 'run')})"]
    for name, values in comparison.differing.items():
        text = ", ".join(
            f"{group.name}: {value}" for group, value in zip(comparison.groups, values, strict=True)
        )
        lines.append(f"differs: {name}: {text}")
    if not comparison.differing:
        lines.append("differs: nothing but chance")
    header = ("NUMBER", "FIRST", "THESE", "RATIO", "95 % INTERVAL", "RESULT")
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in comparison.rows:
        title, *cells = _row(row)
        groups.setdefault(title, []).append(tuple(cells))
    lines.append(call.console.grouped_table(header, groups))
    tested = sum(row.p is not None for row in comparison.rows)
    if tested > 1:
        lines.append(
            f"{tested} numbers were compared, with Holm's correction: of tables without a real "
            "difference, 95 % show none. So a single interval without 1 may be chance"
        )
    return "\n".join(lines)


def _row(row: "ComparedNumber") -> tuple[str, ...]:
    difference = row.difference
    low, high = difference.low, difference.high
    interval = (
        "" if low is None or high is None else f"{format_number(low, 3)} … {format_number(high, 3)}"
    )
    if difference.ratio is None and interval:
        interval = f"{interval} (difference)"
    unit = f" {row.number.unit}" if row.number.unit else ""
    return (
        f"{row.group} ({len(row.second.values)})",
        row.number.name,
        f"{format_number(row.first.mean)}{unit}",
        f"{format_number(row.second.mean)}{unit}",
        "" if difference.ratio is None else format_number(difference.ratio, 3),
        interval,
        row.verdict,
    )


def selftest(call: Invocation, trials: int, instances: int) -> Result:
    """Run `trials` trials of each kind, and report if comparisons are reliable here."""
    from results.repetitions.comparison import (
        SLOWDOWN,
        TRIALS_SCHEMA,
        Trial,
        can_be_believed,
        trial_of,
    )

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
            trial.outcome,
            "" if trial.is_right else "WRONG",
        )
        for trial in done
    ]
    header = ("TRIAL", "SECOND SERIES IS", "RATIO", "95 % INTERVAL", "SAID", "")
    differ = sum(not trial.is_right for trial in done if not trial.planted)
    found = sum(trial.is_right for trial in done if trial.planted)
    text = (
        f"{differ} of {trials} equal pairs differ, {found} of {trials} slowdowns found "
        f"({instances} runs a side, {FIGURE})"
    )
    document = {
        "schema": TRIALS_SCHEMA, "figure": FIGURE, "instances": instances, "differ": differ,
        "found": found, "trials": [trial.row() for trial in done],
    }  # fmt: skip
    because = () if can_be_believed(done) else (
        VerdictUnknown(f"comparisons on this machine are not reliable now: {text}"),
    )  # fmt: skip
    return Result(
        document=document, text=f"{call.console.table(header, rows)}\n{text}", because=because
    )


def processor_us_per_message(*, slowed: bool) -> float:
    """Return the processor time of a repetition per message of a normal run, in microseconds.

    The result is the minimum of several tries: disturbance of this machine's caches only adds time.
    """
    gc.collect()
    return min(_estimate_ns(_PARTS + slowed) for _ in range(_TRIES)) / 1000 / (_PARTS * _MESSAGES)


def _estimate_ns(parts: int) -> int:
    began_ns = time.process_time_ns()
    for _ in range(parts):
        play_scenario(_SCENARIO)
    return time.process_time_ns() - began_ns


def _measure(slowed: bool) -> float:
    return processor_us_per_message(slowed=slowed)


SCHEMA: Final = "pubsubctl/against/1"
INSTANCES: Final = 5
GIVEN: Final = "as-given"
VERDICT: Final = "verdict.json"
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
    changes, revision = _read_changes(call, request, overrides)
    workload = call.project.find("workload", request.workload)
    other = ",".join(f"{key}={value}" for key, value in changes.items())
    commit = ""
    if revision is not None:
        other, commit = f"{_REVISION}={revision}", _commit_of(str(revision))
    sides = _sweep_of_sides(request, workload, other, changes)
    points = map(request.habits.with_labels, points_of(sides, workload, overrides, _OPTION))
    planned = plan_faults_of_points(call, ((point, point.faults, False) for point in points))
    given, changed = (point.spec for point, _ in planned)
    _check_comparable(given, changed)
    if revision is None and _is_same(given, changed):
        call.console.warn(f"{_OPTION} {other}: both sides are the same, and differ by chance only")
    predictions = announce(
        call,
        (Run(point.name, point.spec, faults) for point, faults in planned),
        call.project.results_folder(results),
    )
    if call.dry_run:
        times = [expect_time(call, point.spec) for point, _ in planned] * sides.repetitions
        keys = {point.name: point.keys for point, _ in planned}
        schema = "pubsubctl/against-plan/1"
        plan = SeriesPlan(keys, sides.repetitions, times, predictions, schema, "side")
        return plan.result()
    design = Design(
        instances=sides.repetitions,
        order=alternate,
        budget_ns=sides.budget.time if sides.budget is not None else None,
        habits=request.habits,
    )
    with ExitStack() as stack:
        if revision is not None:
            arguments = _command_line(call, request, workload, overrides, sides)
            here = Program(commit_of("HEAD") or "", SOURCE, arguments)
            there = Program(commit, stack.enter_context(check_out(commit)), arguments)
            design = replace(design, makers={GIVEN: here, other: there})
        found = run_series(call, sides.name, planned, design, results=results)
    return _compare_series(call, found) if "points" in found.document else found


def _sweep_of_sides(
    request: VariantRequest, workload: Path, other: str, changes: Mapping[str, Any]
) -> Sweep:
    """Return the sweep whose two points are the sides, the changed side under the name `other`."""
    values: dict[str, Any] = {
        "schema": "pubsubctl/sweep/1",
        "name": f"{workload.stem}-against",
        "workload": str(workload),
        "faults": request.faults or "",
        "repetitions": INSTANCES if request.instances is None else request.instances,
        "points": [{"name": GIVEN}, {"name": other, **changes}],
        **({"budget": {"time": request.budget}} if request.budget is not None else {}),
    }
    return validate(Sweep, values, _OPTION)


def _compare_series(call: Invocation, found: Result) -> Result:
    """Return the result of a complete series, with the differences between its two points."""
    series = Path(str(found.document["run_directory"]))
    compared = differences(call, [series])
    document = {
        "schema": SCHEMA, "series": dict(found.document), "comparison": dict(compared.document),
        "run_directory": str(series),
    }  # fmt: skip
    verdicts = verdict_table(call.console, found.document["points"])
    text = f"{verdicts}\n{compared.text}\n{series}"
    return Result(document=document, text=text, because=found.because)


def _read_changes(
    call: Invocation, request: VariantRequest, overrides: Overrides
) -> tuple[dict[str, Any], Any]:
    """Return the keys that one side changes, and its revision, or None.

    Raises:
        UserError: there is no such key, or a revision beside other changes.
    """
    changes = _changes_of([_complete_option(call, text) for text in request.changes])
    revision = changes.pop(_REVISION, None)
    if revision is not None and changes:
        raise UserError(
            f"{_OPTION} {revision}: a revision is compared with nothing else changed; leave out "
            f"{', '.join(changes)}"
        )
    try:
        check_keys([*overrides.list_keys(), *changes])
    except ConfigError as error:
        raise UserError(f"{_OPTION}: {error}") from None
    return changes, revision


def _is_same(given: ExperimentSpec, changed: ExperimentSpec) -> bool:
    """Return True if two specifications differ in their labels only."""
    mappings = (given.workload_mapping(), changed.workload_mapping())
    workloads = [{**mapping, "labels": None} for mapping in mappings]
    return workloads[0] == workloads[1] and given.topology_toml() == changed.topology_toml()


def _complete_option(call: Invocation, text: str) -> str:
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
    if text.startswith(EXTERNAL):
        raise UserError(
            f"{_OPTION} {text}: other message brokers are entries of a comparison's file, as "
            f'`system = "{text}"`: `pubsubctl help comparing`'
        )
    known = [*DEFINITIONS, *topologies, *names_of_revisions()]
    raise UserError(
        f"{_OPTION} {text}: write KEY=VALUE, or the name of a protocol, a topology or a git "
        f"revision of this program{nearest(text, known)}{_explain_no_checkout()}"
    )


def _commit_of(revision: str) -> str:
    commit = commit_of(revision)
    if commit is None:
        hint = _explain_no_checkout() or nearest(revision, names_of_revisions())
        raise UserError(f"{_OPTION} {_REVISION}={revision}: no commit of {SOURCE}{hint}")
    return commit


def _explain_no_checkout() -> str:
    """Return why no revision can be named; "" in a git checkout."""
    if is_checkout():
        return ""
    return f"; {SOURCE} is no git checkout, so it has no revisions"


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
            f"{_OPTION}: topology {changed.topology.name!r} has brokers {_shorten(theirs)}, and "
            f"{given.topology.name!r} has {_shorten(ours)}; only the same brokers are comparable"
        )


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
