"""Conditions that must be equal for a comparison of runs, and conditions that may differ.

Protocol, links between brokers, parameters and program may differ, because comparisons concern
these. All else that affects a number must be equal: the machine, publishers, subscribers, faults,
and durability. If a run is of another system's brokers, the same place counts as the same broker,
regardless of names and numbers of brokers, and the promise may differ, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from results.tables.json_files import (
    IntegrityError,
    ResultsError,
    problem_of_manifest,
    read_json,
    read_toml,
)
from results.tables.seals import CHECKSUMS, verify_derived, verify_seal

_WORKLOAD_MAY_DIFFER: Final = ("protocol", "topology", "name")
VERDICT: Final = "verdict.json"
_LOAD: Final = ("publishers", "phases")
_SCALE: Final = ("subscribers",)


class NotComparable(ResultsError):
    """Runs with numbers that must not be compared."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of a run.

    Attributes:
        must: conditions that must be equal, in order of the check: reason → value.
        may: conditions that may differ: name → value.
    """

    must: Mapping[str, Any]
    may: Mapping[str, Any]


def _read_checked_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of a complete run of brokers.

    Raises:
        NotComparable, IntegrityError: see `conditions_of`.
    """
    if not verify_seal(run).is_there:
        raise IntegrityError(f"{run}: no {CHECKSUMS}: its files may have changed since it ended")
    if (run / VERDICT).is_file():
        verify_derived(run, VERDICT)
    manifest = read_json(run / "manifest.json")
    if problem := problem_of_manifest(manifest):
        raise IntegrityError(f"{run / 'manifest.json'}: {problem}")
    if manifest.get("state") != "complete":
        why = "; ".join(manifest.get("reasons") or ()) or "no reason given"
        raise NotComparable(f"{run}: the run is {manifest.get('state')}: {why}")
    headline = manifest.get("headline") or {}
    if manifest.get("loadgen_saturated") or headline.get("is_load_generator_limit"):
        raise NotComparable(f"{run}: its load generators were the limit")
    if not manifest.get("roles"):
        raise NotComparable(f"{run}: not a run of brokers")
    return manifest


def conditions_of(run: Path, *, by_place: bool) -> Conditions:
    """Return the conditions of a run.

    Args:
        by_place: identify brokers by role in the load, not by name.

    Raises:
        NotComparable: the run is incomplete, or its load generators were the limit.
        IntegrityError: the run has no seal, or a file has changed since the end.
    """
    manifest = _read_checked_manifest(run)
    spec = run / "spec"
    workload = read_toml(spec / "workload.toml")
    topology = read_toml(spec / "topology.toml")
    faults = read_toml(spec / "faults.toml") if (spec / "faults.toml").is_file() else {}
    brokers = [name for name, role in manifest["roles"].items() if role["role"] == "broker"]
    rest = {
        key: value
        for key, value in workload.items()
        if key not in (*_WORKLOAD_MAY_DIFFER, *_LOAD, *_SCALE)
    }
    machines: Any = sorted({role["host"] for role in manifest["roles"].values()})
    scale: dict[str, Any] = {key: workload.get(key) for key in _SCALE}
    load = {key: workload.get(key) for key in _LOAD}
    steps = faults.get("step")
    promise: dict[str, Any] = {}
    if by_place:
        promise = {"brokers": len(brokers), "promised": rest.pop("guarantee", None)}
        # Several hosts of an inventory may be one machine, like the machine of a system.
        machines = len({*(manifest.get("clock") or {}).get("clock_ids", {}).values()})
        clients = [
            entry for key in ("publishers", "subscribers") for entry in workload.get(key, ())
        ]
        homes = [name for entry in clients for name in entry["at"]]
        steps = [_replace_target(step, homes) for step in steps or ()]
        for each, key in ((scale, "subscribers"), (load, "publishers")):
            each[key] = [_without_place(entry) for entry in workload.get(key, ())]
    else:
        scale["brokers"] = brokers
    return Conditions(
        must={
            "hardware": {key: manifest.get(key) for key in ("cpu", "cores", "platform")},
            "machines": machines,
            "transport": manifest.get("transport"),
            "fsync policy": manifest.get("without_fsync"),
            "scale": scale,
            "load": load,
            "workload": rest,
            "faults": {"seed": faults.get("seed"), "step": steps, "guard": faults.get("guard")},
        },
        may={
            **promise,
            "protocol": manifest.get("protocol"),
            "topology": topology.get("name"),
            "parameters": topology.get("parameters"),
            "commit": manifest.get("git_commit"),
        },
    )


def check_comparable(runs: Sequence[Path]) -> dict[str, list[Any]]:
    """Check that runs can be compared; return the differing conditions of `may`.

    Raises:
        NotComparable: names two runs, the reason, and both values.
    """
    by_place = any("system" in read_json(run / "manifest.json") for run in runs)
    found = [conditions_of(run, by_place=by_place) for run in runs]
    first = found[0]
    for run, conditions in zip(runs[1:], found[1:], strict=True):
        for reason, value in first.must.items():
            if conditions.must[reason] != value:
                ours, theirs = _first_difference(value, conditions.must[reason])
                raise NotComparable(
                    f"{runs[0]} and {run} cannot be compared: {reason}: {ours} and {theirs}"
                )
    differing: dict[str, list[Any]] = {}
    for name in first.may:
        values = [conditions.may[name] for conditions in found]
        if any(value != values[0] for value in values):
            differing[name] = values
    return differing


def check_groups(groups: Sequence[Sequence[Path]], differing: Mapping[str, Sequence[Any]]) -> None:
    """Check that each run counts once, and that all runs of a group are alike.

    Args:
        groups: the folders of each group.
        differing: the result of `check_comparable` for the runs of all groups.

    Raises:
        NotComparable: names two folders, and what is alike or differs.
    """
    seen: dict[str, Path] = {}
    for run in (run for group in groups for run in group):
        run_id = str(read_json(run / "manifest.json").get("run_id", run.name))
        if (other := seen.get(run_id)) is not None:
            raise NotComparable(f"{other} and {run} are one run, {run_id}: it counts once")
        seen[run_id] = run
    check_distinct([*seen.values()])
    place = 0
    for group in groups:
        for name, values in differing.items():
            for number, run in enumerate(group):
                first, other = values[place], values[place + number]
                if first != other:
                    raise NotComparable(
                        f"{group[0]} and {run} are no repetitions of one run: {name}: "
                        f"{_shown(first)} and {_shown(other)}"
                    )
        place += len(group)


def check_distinct(runs: Sequence[Path]) -> None:
    """Check that no two folders have the same records of deliveries: a run counts once.

    Repeated simulations are equal, and are left aside.

    Raises:
        NotComparable: names two folders with equal records.
    """
    seen: dict[str, Path] = {}
    for run in runs:
        labels = read_json(run / "manifest.json").get("labels") or {}
        if labels.get("brokers") or not (run / CHECKSUMS).is_file():
            continue
        lines = (run / CHECKSUMS).read_text(encoding="utf-8").splitlines()
        for line in lines:
            digest, _, name = line.partition("  ")
            if not name.endswith("/deliveries.rec") or not (run / name).stat().st_size:
                continue
            if (other := seen.setdefault(digest, run)) != run:
                raise NotComparable(f"{other} and {run} have the same {name}: a run counts once")


def _without_place(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a workload with the number of its brokers instead of names."""
    return {**entry, "at": len(entry["at"])}


def _replace_target(step: Mapping[str, Any], homes: Sequence[str]) -> dict[str, Any]:
    """Return a step with its target's role in the load in place of a broker's name.

    Another system has other broker names.

    Args:
        homes: brokers with clients, publishers' brokers first.
    """
    on = str(step.get("on"))
    role = next((text for text in ("-pub-", "-sub-") if text in on), "")
    if on in homes:
        role = "publishers" if on == homes[0] else "others"
    return {**step, "on": role or on}


def _first_difference(one: Any, other: Any, where: str = "") -> tuple[str, str]:
    """Return both values at the first difference, each with its place."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if one.get(key) != other.get(key):
                place = f"{where}.{key}" if where else str(key)
                return _first_difference(one.get(key), other.get(key), place)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b:
                return _first_difference(a, b, f"{where}[{number}]")
    name = f"{where} = " if where else ""
    return f"{name}{_shown(one)}", f"{name}{_shown(other)}"


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
