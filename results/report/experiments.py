"""The report on series and on experiments without real brokers: figures, numbers, claims, ledger.

The simulator's ledger is included if there is one. The HTML page contains everything it shows.
"""

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brokerd.text import format_number
from results.repetitions.series_files import SUMMARY
from results.repetitions.series_runs import KIND as SERIES_KIND
from results.report import text
from results.tables.derived import find_unsealed_derived
from results.tables.json_files import ResultsError, read_json, write_whole


@dataclass(frozen=True)
class ShownFigure:
    """A figure with its caption and numbers.

    Attributes:
        address: the picture, as `data:`.
        columns, rows: the numbers in the picture, as texts.
    """

    name: str
    address: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class PointNumbers:
    """The numbers of a series, with a column for each point.

    Attributes:
        rows: the name of a number, then its mean and interval at each point, as texts.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class ExperimentSummary:
    """A run in the form that the page shows.

    Attributes:
        lines: the output of its check; empty for a run without brokers.
        numbers: of a series with few points; None for another run.
    """

    folder: Path
    manifest: Mapping[str, Any]
    figures: Sequence[ShownFigure]
    lines: Sequence[str]
    numbers: PointNumbers | None = None

    @property
    def name(self) -> str:
        """Return the name of the experiment's figure, for people and links."""
        return str(self.manifest["figure"])

    @property
    def is_series(self) -> bool:
        """Return True for a series of runs, which are judged one by one."""
        return self.manifest.get("kind") == SERIES_KIND


_MOST_COLUMNS: Final = 8
_WITHOUT_BROKERS: Final = (
    "Worked out on trees of brokers, or measured with the protocol itself on simulated brokers "
    "under a virtual clock. Real processes appear in none of these numbers."
)
_SERIES: Final = (
    "Each run was judged by itself. A point is one setting of the series, and its numbers are "
    "means over its runs."
)


def _heading(summaries: Sequence[ExperimentSummary]) -> tuple[str, str]:
    """Return the title and the first sentences of a page."""
    series = [str(summary.manifest.get("experiment")) for summary in summaries if summary.is_series]
    others = len(summaries) - len(series)
    title = f"{others} experiment{'s' if others > 1 else ''} without real brokers"
    if not series:
        return title, _WITHOUT_BROKERS
    named = "Series " + ", ".join(dict.fromkeys(series))
    if not others:
        return named, _SERIES
    return f"{named}, and {title}", f"Series: {_SERIES} Experiments: {_WITHOUT_BROKERS}"


def _most_serious_first(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return violations without a named bug, others without a bug, then all with bugs."""
    return sorted(entries, key=lambda entry: (bool(entry["mutants"]), not entry["violations"]))


def write_experiment_report(
    run_dirs: Sequence[Path],
    output: Path,
    *,
    verdicts: Mapping[Path, Sequence[str]],
    claims: Sequence[Mapping[str, Any]],
    ledger: Mapping[str, Any] | None,
) -> Path:
    """Write a self-contained HTML page on experiments with drawn figures.

    Args:
        verdicts: the output of `check` for each run that can be judged.
        claims: rows of judged claims.
        ledger: the results of the simulator's swarm and campaign; None without a ledger.

    Returns:
        The file written, whole or not at all.

    Raises:
        ResultsError: no figure of a run has been drawn.
        IntegrityError: a file beside a figure has changed.
    """
    summaries = [_summary(Path(run), verdicts.get(run, ())) for run in run_dirs]
    title, lead = _heading(summaries)
    page = text.load_template("experiments.html").render(
        summaries=summaries,
        title=title,
        lead=lead,
        claims=claims,
        counts={
            state: sum(claim["verdict"] == state for claim in claims)
            for state in ("holds", "fails", "not run")
        },
        ledger=ledger,
        entries=_most_serious_first(ledger["entries"]) if ledger else [],
        words=text,
    )
    write_whole(output, page)
    return output


def _summary(folder: Path, lines: Sequence[str]) -> ExperimentSummary:
    manifest = read_json(folder / "manifest.json")
    figures = [
        _figure(path) for path in sorted((find_unsealed_derived(folder) / "figures").glob("*.json"))
    ]
    if not figures:
        raise ResultsError(f"{folder}: no figure has been drawn; `pubsubctl plot` draws them")
    is_series = manifest.get("kind") == SERIES_KIND and (folder / SUMMARY).is_file()
    numbers = _point_numbers(read_json(folder / SUMMARY)) if is_series else None
    return ExperimentSummary(folder, manifest, figures, lines, numbers)


def _point_numbers(summary: Mapping[str, Any]) -> PointNumbers | None:
    """Return the means of each point, with 95 % intervals; None beyond a table's width."""
    points: Mapping[str, Any] = summary.get("points") or {}
    if not 1 <= len(points) <= _MOST_COLUMNS:
        return None
    of_points = [about.get("numbers") or {} for about in points.values()]
    names = dict.fromkeys(name for numbers in of_points for name in numbers)
    rows = [[name, *(_spread_text(each.get(name)) for each in of_points)] for name in names]
    return PointNumbers(["number", *points], rows)


def _spread_text(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    mean, low, high = format_number(row["mean"]), row.get("low"), row.get("high")
    if low is None or high is None:
        return mean
    return f"{mean} ({format_number(low)} … {format_number(high)})"


def _figure(words_file: Path) -> ShownFigure:
    document = read_json(words_file)
    picture = words_file.with_suffix(".svg")
    for path in (picture, words_file.with_suffix(".csv")):
        if not path.is_file():
            raise ResultsError(f"{path} is missing; `pubsubctl plot {document['figure']}` draws it")
    text = words_file.with_suffix(".csv").read_text(encoding="utf-8")
    columns, *rows = csv.reader(io.StringIO(text))
    encoded = base64.b64encode(picture.read_bytes()).decode("ascii")
    return ShownFigure(
        name=str(document["figure"]),
        address=f"data:image/svg+xml;base64,{encoded}",
        caption=str(document["caption"]),
        columns=columns,
        rows=[[_short(cell) for cell in row] for row in rows],
    )


def _short(cell: str) -> str:
    """Return a number with a legible number of digits."""
    try:
        value = float(cell)
    except ValueError:
        return cell
    return format_number(value)
