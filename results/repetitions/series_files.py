"""The files of a series as witnesses against each other and against the folders of its runs.

The ledger (`instances.jsonl`) and the plan (`spec/plan.json`) were written before the runs, the
summary (`series.json`) and the manifest after the runs. Verdicts and numbers are always those of
the runs, never those of the summary; where the summary has others, it is doubted.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any, Final

from results.repetitions.comparable import check_distinct
from results.repetitions.comparison import spreads_of
from results.repetitions.numbers import beyond
from results.tables.derived import VERDICT, find_unsealed_derived, has_changed_verdict, read_verdict
from results.tables.json_files import IntegrityError, ResultsError, read_json, read_json_lines
from results.tables.seals import verify_seal

LEDGER: Final = "instances.jsonl"
PLAN: Final = "spec/plan.json"
SUMMARY: Final = "series.json"
_MANIFEST: Final = "manifest.json"
_STATES: Final = ("began", "failed")
"""States of lines of the ledger about runs that have not ended."""
_CLOSE: Final = 1e-9
_OF_RECORDS: Final = ("latency_", "delivered_per_s", "delivered_new_per_s", "cpu_")
"""Beginnings of names of numbers that no later verdict changes."""

Points = Mapping[str, Mapping[str, Any]]


def check_files(folder: Path, manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Check that the ledger, the plan, the summary and the manifest of a series agree.

    Raises:
        IntegrityError: two files differ; names both, and the key.
    """
    runs: Mapping[str, Sequence[str]] = manifest["runs"]
    ended: dict[str, dict[int, str]] = {}
    for line in read_json_lines(folder / LEDGER):
        if line.get("state") not in _STATES:
            ended.setdefault(str(line.get("point")), {})[line.get("number", 0)] = line["run_id"]
    for point in sorted({*ended} | {*runs}):
        of_point = ended.get(point, {})
        if [of_point[number] for number in sorted(of_point)] != [*runs.get(point, ())]:
            raise IntegrityError(f"{folder}: {LEDGER} and {_MANIFEST} differ on runs.{point}")
        if len(of_point) != manifest.get("instances", len(of_point)):
            raise IntegrityError(f"{folder}: {LEDGER} and {_MANIFEST} differ on instances")
    plan = read_json(folder / PLAN)
    planned: Any = plan.get("points")
    if not isinstance(planned, dict) or {*planned} != {*runs}:
        raise IntegrityError(f"{folder}: {PLAN} and {_MANIFEST} differ on points")
    axes = summary.get("axes") or []
    if axes != (plan.get("axes") or []):
        raise IntegrityError(f"{folder}: {PLAN} and {SUMMARY} differ on axes")
    for point, about in summary["points"].items():
        for key in find_misplaced(point, about.get("keys") or {}, axes):
            raise IntegrityError(f"{folder}: {SUMMARY} and {_MANIFEST} differ on {key} of {point}")


def find_misplaced(
    point: str, keys: Mapping[str, Any], axes: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the varied keys with another value than in the name of a point, or without one."""
    if "=" not in point:
        return
    for axis in axes:
        key = str(axis["key"])
        if len(axis["values"]) < 2:
            continue
        words = key, key.rpartition(".")[2]
        if key not in keys:
            if any(f",{word}=" in f",{point}" for word in words):
                yield key
            continue
        value = keys[key]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not any(f",{word}={text}," in f",{point}," for word in words):
            yield key


def check_members(folder: Path, runs: Mapping[str, Sequence[str]]) -> None:
    """Check that each run of a series is there, is of its point, and counts once.

    Raises:
        ResultsError: a run is missing.
        NotComparable: two folders have the same records.
        IntegrityError: a run is of another point or series.
    """
    plan = read_json(folder / PLAN)
    folders = {run_id: folder.parent / run_id for of_point in runs.values() for run_id in of_point}
    for run_id, run in folders.items():
        if not (run / _MANIFEST).is_file():
            raise ResultsError(f"{folder}: {run} is missing: its numbers are those of its runs")
        if (of := read_json(run / _MANIFEST).get("run_id")) != run_id:
            raise IntegrityError(f"{run / _MANIFEST}: run_id = {of!r}: the folder of {run_id}")
    check_distinct([*folders.values()])
    commits = plan.get("commits") or {}
    for point, of_point in runs.items():
        planned = plan["points"][point]
        for run_id in of_point:
            file = _find_differing(folders[run_id] / "spec", planned, exact=point not in commits)
            if file:
                raise IntegrityError(
                    f"{folder / PLAN} and {folders[run_id] / 'spec' / file} differ: no run of "
                    f"point {point}"
                )


def _find_differing(spec: Path, planned: Mapping[str, Any], *, exact: bool) -> str:
    """Return the first file of a specification that differs from the plan; "" without one.

    Args:
        exact: False for runs of another revision, which may write other keys.
    """
    topology = tomllib.loads(str(planned.get("topology") or ""))
    for name, wanted in (
        ("workload.toml", planned.get("workload")),
        ("topology.toml", topology),
        ("faults.toml", planned.get("faults")),
    ):
        found = tomllib.loads((spec / name).read_text("utf-8")) if (spec / name).is_file() else None
        if name == "topology.toml" and found is not None and "joined" in found:
            continue
        if not exact and isinstance(found, dict) and isinstance(wanted, dict):
            keys = found.keys() & wanted.keys()
            found, wanted = ({key: each[key] for key in keys} for each in (found, wanted))
        if found != wanted:
            return name
    return ""


def points_of_runs(folder: Path, summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the points of a series with the verdicts and numbers of their runs.

    Raises:
        ResultsError: a run has no verdict.
        IntegrityError: a file of a run, or its verdict, has changed.
    """
    points: dict[str, dict[str, Any]] = {}
    bounds = summary.get("bounds") or {}
    for point, stated in summary["points"].items():
        for run_id in stated["runs"]:
            verify_seal(folder.parent / run_id)
        verdicts = {run_id: verdict_of(folder.parent / run_id) for run_id in stated["runs"]}
        whole = [
            folder.parent / run_id for run_id, word in verdicts.items() if word != "UNKNOWN"
        ] or [folder.parent / run_id for run_id in verdicts]
        numbers = {name: spread.row() for name, spread in spreads_of(whole).items()}
        about = {**stated, "runs": verdicts, "numbers": numbers}
        points[point] = {**about, "beyond": [*beyond(about, bounds)]}
    return points


def verdict_of(run: Path) -> str:
    """Return the verdict in the folder of a run.

    Raises:
        ResultsError: the run has no verdict.
        IntegrityError: the verdict is of another run, or has changed since the check.
    """
    path = find_unsealed_derived(run) / VERDICT
    if not path.is_file():
        raise ResultsError(f"{run}: no {VERDICT}; `pubsubctl check` judges the run")
    if has_changed_verdict(path.parent):
        raise IntegrityError(f"{path} has changed; `pubsubctl check {run}` judges the run again")
    return str(read_verdict(path, run.name).get("verdict", "")).upper()


def differences(stated: Points, found: Points) -> Iterator[str]:
    """Yield the verdicts and numbers of a summary that its runs contradict, in words.

    Numbers that depend on a verdict are left aside: a later program may judge a run differently.
    """
    for point, about in found.items():
        said = stated[point]
        for run_id, verdict in about["runs"].items():
            if said["runs"].get(run_id) != verdict:
                yield (
                    f"{SUMMARY} and {run_id}/{VERDICT} differ: {said['runs'].get(run_id)}, "
                    f"and {verdict}"
                )
        if said["runs"] != about["runs"]:
            continue
        numbers = said.get("numbers") or {}
        for name, row in about["numbers"].items():
            if name.startswith(_OF_RECORDS) and not _is_alike(numbers.get(name), row):
                yield f"{SUMMARY} and the records of its runs differ on {name} of {point}"


def _is_alike(stated: Any, found: Mapping[str, Any]) -> bool:
    if not isinstance(stated, dict) or stated.keys() != found.keys():
        return False
    return all(_is_close(stated[key], value) for key, value in found.items())


def _is_close(stated: Any, found: Any) -> bool:
    if isinstance(found, list):
        return isinstance(stated, list) and len(stated) == len(found) and all(
            map(_is_close, stated, found)
        )  # fmt: skip
    if found is None or stated is None:
        return stated is found
    try:
        return isclose(float(stated), float(found), rel_tol=_CLOSE)
    except (TypeError, ValueError):
        return False
