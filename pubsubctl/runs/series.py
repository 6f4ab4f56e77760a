"""A series of runs: settings of all runs, the check of a running deployment, and verdicts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.spec.experiment import Point
from bench.spec.spec import ExperimentSpec
from pubsubctl.console.console import Console
from pubsubctl.deployment.deploy import choose_deployment
from pubsubctl.deployment.plan import deploy_plan
from pubsubctl.errors import PreflightFailed, PubsubctlError
from pubsubctl.hosts.hosts import Lab

_Point = TypeVar("_Point", bound=Point)

_VERDICTS: Final = ("VALID", "INVALID", "UNKNOWN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Labels of runs, and the acts after the last run.

    Attributes:
        labels: labels of each run, beside those of the series.
        check: True to judge all runs after the last one.
        teardown: False to keep the brokers of the last run, if it deployed them.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    check: bool = True
    teardown: bool = True

    def with_labels(self, point: _Point) -> _Point:
        """Return a point with these labels; labels of the point win."""
        labels = {**self.labels, **point.spec.labels}
        return replace(point, spec=replace(point.spec, labels=labels))


async def check_deployment(lab: Lab, runs: Iterable[tuple[str, ExperimentSpec]]) -> None:
    """Check the running deployment, if there is one, against all runs.

    Requires `lab.operate`.

    Args:
        runs: names and specifications.

    Raises:
        PreflightFailed: the deployment does not fit some runs; names them and the differences.
    """
    found = await lab.observe()
    if all(row.deployment is None for row in found):
        return
    checked: set[tuple[str, str]] = set()
    problems: list[str] = []
    for name, spec in runs:
        key = spec.topology.content_digest(), spec.protocol
        if key in checked:
            continue
        checked.add(key)
        try:
            deploy_plan(await choose_deployment(lab, spec.topology, spec.protocol), found)
        except PreflightFailed as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise PreflightFailed(
            *problems, "nothing was run; without a deployment, each run deploys its own"
        )


def verdict_table(console: Console, points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table with the number of runs of each verdict, and the typical run, by point."""
    rows = []
    for point, about in points.items():
        verdicts = [*about["runs"].values()]
        counts = (str(verdicts.count(verdict)) for verdict in _VERDICTS)
        rows.append((point, *counts, about["modal"]))
    return console.table(("POINT", *_VERDICTS, "TYPICAL RUN"), rows)


def merge_equal(found: Iterable[tuple[Path, PubsubctlError]]) -> list[PubsubctlError]:
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
