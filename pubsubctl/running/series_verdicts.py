"""Verdicts of a series: a table by point, and each reason once."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pubsubctl.console.console import Console
from pubsubctl.errors import PubsubctlError

_VERDICTS: Final = ("VALID", "INVALID", "UNKNOWN")


def verdict_table(console: Console, points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with the number of runs of each verdict, and the typical run, by point."""
    rows = []
    for point, about in points.items():
        verdicts = [*about["runs"].values()]
        counts = (str(verdicts.count(verdict)) for verdict in _VERDICTS)
        rows.append((point, *counts, about["modal"]))
    return console.table(("POINT", *_VERDICTS, "TYPICAL RUN"), rows)


def each_once(found: Iterable[tuple[Path, PubsubctlError]]) -> list[PubsubctlError]:
    """Return errors of runs, with equal errors as one that names the first run and their number."""
    groups: dict[tuple[type[PubsubctlError], str], list[Path]] = {}
    for run, error in found:
        text = str(error).removeprefix(f"{run}: ")
        groups.setdefault((type(error), text), []).append(run)
    return [
        kind(f"{runs[0]}{_more(len(runs) - 1)}: {text}") for (kind, text), runs in groups.items()
    ]


def _more(others: int) -> str:
    if not others:
        return ""
    return f" and {others} more run{'s' if others > 1 else ''}"
