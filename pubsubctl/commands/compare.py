"""`compare`: which of several runs, variants, protocols or systems is better, and by how much."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.commands.options.results import RunsFolder
from pubsubctl.commands.options.runs import Budget, Instances, SeriesOptions
from pubsubctl.commands.options.workload import Faults, LoadOptions
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from pubsubctl.runs.differences import VariantRequest

_SIDES = "Two variants of a workload"
_comparison_option = options_in("Comparison of a file")
_selftest_option = options_in("Self-test")

_LONG_NAMES = {"settings": "--set"}
"""Options of a group whose names differ from their fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options that select the compared sides; none of them for finished runs."""

    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="REVISION|TOPOLOGY|PROTOCOL|KEY=VALUE",
            rich_help_panel=_SIDES,
            help="Run WORKLOAD in turn with another protocol, topology or topology.KEY, or with "
            "another git revision of this program. Repeatable, but for a revision.",
        ),
    ] = None
    comparison: Annotated[
        str | None,
        _comparison_option(
            "--comparison",
            metavar="NAME",
            help="Run the comparison of a file, or of bench/comparisons (s1, s3, all), and "
            "write one report.",
            autocompletion=names.comparisons,
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        _comparison_option("--only", metavar="NAME", help="Run this entry only. Repeatable."),
    ] = None
    also: Annotated[
        list[str] | None,
        _comparison_option(
            "--also", metavar="FILE", help="Run a broker of your own, too. Repeatable."
        ),
    ] = None
    selftest: Annotated[
        bool,
        _selftest_option(
            "--selftest",
            help="Test on this machine if equal series compare as equal, and if a slowdown of "
            "10 % is found.",
        ),
    ] = False
    trials: Annotated[
        int | None,
        _selftest_option(
            "--trials", metavar="N", min=1, show_default="20", help="Make N trials of each kind."
        ),
    ] = None


def compare(
    context: typer.Context,
    source: SourceOptions,
    load: LoadOptions,
    series: SeriesOptions,
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...|WORKLOAD",
            help="Folders or ids of runs or series, compared with the first; or a workload for "
            "--against.",
            autocompletion=names.sides,
        ),
    ] = None,
    faults: Faults = None,
    instances: Instances = None,
    budget: Budget = None,
    output: RunsFolder = None,
) -> Result:
    """Compare runs, variants or systems, with intervals.

    Prints the means of repetitions with a 95 % interval of their ratio: faster, slower, better,
    worse, the same (within 5 %), or cannot tell. Refuses runs on other hardware, or of another
    load, scale, fsync policy, workload or fault schedule.

    A protocol that does not promise the tested property is not run; the report has the reason.
    Status 0 for any verdict, 3 if one is UNKNOWN. With --selftest: 3 if comparisons are unreliable.
    """
    call = invocation(context)
    words = sides or []
    kind = _kind_of(source)
    _refuse_foreign(kind, source, load, faults, instances)
    _refuse_of_series(kind, series, budget)
    if source.against:
        from pubsubctl.runs.differences import run_variants

        request = _request(words, source.against, faults, instances, budget, series)
        return run_variants(call, request, load.overrides(), output)
    if kind != "RUN…" and words:
        raise UserError(f"compare {kind} {words[0]}: {kind} makes the runs that it compares")
    if source.selftest:
        return _selftest(call, source.trials or 20, instances or 10)
    if source.comparison is not None:
        from pubsubctl.runs.external_brokers import compare_as

        only, also = source.only or [], source.also or []
        return compare_as(call, source.comparison, only, also, load.duration, output)
    from pubsubctl.runs.differences import differences
    from pubsubctl.runs.runs import find_runs

    if len(words) == 1 and words[0] in call.project.names("workload"):
        raise UserError(
            f"compare {words[0]}: a workload has two sides with --against: "
            f"`pubsubctl compare {words[0]} --against protocol=NAME`"
        )
    call.refuse_dry_run("compare")
    return differences(call, find_runs(call.project, words, output))


def _kind_of(source: SourceOptions) -> str:
    """Return the option that selects the sides; `RUN…` without one.

    Raises:
        UserError: several options do.
    """
    kinds = [
        name
        for name, given in (
            ("--against", source.against),
            ("--selftest", source.selftest),
            ("--comparison", source.comparison is not None),
        )
        if given
    ]
    if len(kinds) > 1:
        raise UserError(f"compare {' '.join(kinds)}: only one of them")
    return kinds[0] if kinds else "RUN…"


def _request(
    words: list[str],
    against: list[str],
    faults: str | None,
    instances: int | None,
    budget: str | None,
    series: SeriesOptions,
) -> "VariantRequest":
    from pubsubctl.runs.differences import VariantRequest

    if len(words) != 1:
        raise UserError(f"compare --against {against[0]}: name one WORKLOAD before")
    return VariantRequest(words[0], tuple(against), faults, instances, budget, series.habits())


def _refuse_foreign(
    kind: str, source: SourceOptions, load: LoadOptions, faults: str | None, instances: int | None
) -> None:
    """Refuse options without an effect on this kind of comparison.

    Raises:
        UserError: names the option and the kinds that take it.
    """
    of_load = {
        _LONG_NAMES.get(field.name, f"--{field.name.replace('_', '-')}"): getattr(load, field.name)
        for field in fields(load)
    }
    duration = of_load.pop("--duration")
    taken: tuple[tuple[str, object, tuple[str, ...]], ...] = (
        ("--only", source.only, ("--comparison",)),
        ("--also", source.also, ("--comparison",)),
        ("--trials", source.trials, ("--selftest",)),
        ("--instances", instances, ("--against", "--selftest")),
        ("--duration", duration, ("--against", "--comparison")),
        ("--faults", faults, ("--against",)),
        *((name, value, ("--against",)) for name, value in of_load.items()),
    )
    for option, value, kinds in taken:
        is_given = value is not None and value is not False
        if is_given and kind not in kinds:
            raise UserError(
                f"compare {option} {_text(value)}: can be used with {' or '.join(kinds)} only"
            )


def _text(value: object) -> str:
    return str(value[0] if isinstance(value, list) else value)


def _refuse_of_series(kind: str, series: SeriesOptions, budget: str | None) -> None:
    """Refuse options of a series without a series.

    Raises:
        UserError: names the option.
    """
    given = [*series.list_given(), *(["--budget"] if budget is not None else [])]
    if given and kind != "--against":
        raise UserError(f"compare {given[0]}: can be used with --against only")


def _selftest(call: Invocation, trials: int, instances: int) -> Result:
    from pubsubctl.runs.differences import selftest

    if instances < 2:
        raise UserError(f"compare --selftest --instances {instances}: at least 2")
    call.refuse_dry_run("compare --selftest")
    return selftest(call, trials, instances)
