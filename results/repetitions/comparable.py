"""What must be equal for runs to be compared, and what may differ and is told.

Protocol, the links between brokers, their parameters and the program are what one compares. All
else that decides a number must be the same: the machine, who publishes and subscribes what, the
faults, and whether what is durable really is. Where one of them is of a broker of others, the same
place counts as the same broker, whatever it is called and however many there are, and what is
promised may differ too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from results.tables.json_files import IntegrityError, ResultsError, read_json, read_toml
from results.tables.seals import CHECKSUMS, verify_derived, verify_seal

_WORKLOAD_MAY_DIFFER: Final = ("protocol", "topology", "name")
VERDICT: Final = "verdict.json"
_LOAD: Final = ("publishers", "phases")
_SCALE: Final = ("subscribers",)


class NotComparable(ResultsError):
    """Runs whose numbers say nothing about each other."""


@dataclass(frozen=True)
class Conditions:
    """Under what a run was made.

    Attributes:
        must: what has to be equal, in the order in which it is looked at: reason → value.
        may: what may differ: name → value.
    """

    must: Mapping[str, Any]
    may: Mapping[str, Any]


def conditions_of(run: Path, *, by_place: bool = False) -> Conditions:
    """Under what a run was made.

    Args:
        by_place: brokers are what they are in the load, not what they are called.

    Raises:
        NotComparable: it did not come to its end, or its load generators were the limit.
        IntegrityError: it has no seal, or a file of it has changed since it ended.
    """
    if not verify_seal(run).is_there:
        raise IntegrityError(f"{run}: no {CHECKSUMS}: its files may have changed since it ended")
    if (run / VERDICT).is_file():
        verify_derived(run, VERDICT)
    manifest = read_json(run / "manifest.json")
    if manifest.get("state") != "complete":
        why = "; ".join(manifest.get("reasons") or ()) or "no reason given"
        raise NotComparable(f"{run}: the run is {manifest.get('state')}: {why}")
    headline = manifest.get("headline") or {}
    if manifest.get("loadgen_saturated") or headline.get("is_load_generator_limit"):
        raise NotComparable(f"{run}: its load generators were the limit")
    if "roles" not in manifest:
        raise NotComparable(f"{run}: not a run of brokers")
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
        # Several hosts of an inventory may be one machine, as that of a system is.
        machines = len({*(manifest.get("clock") or {}).get("clock_ids", {}).values()})
        clients = [
            entry for key in ("publishers", "subscribers") for entry in workload.get(key, ())
        ]
        homes = [name for entry in clients for name in entry["at"]]
        steps = [_by_place(step, homes) for step in steps or ()]
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
    """Make sure that runs can be compared; what differs of what may.

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


def _without_place(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Clients of a workload, as many at so many brokers, whichever these are."""
    return {**entry, "at": len(entry["at"])}


def _by_place(step: Mapping[str, Any], homes: Sequence[str]) -> dict[str, Any]:
    """A step of a schedule, done to what its target is in the load: a broker has other names there.

    Args:
        homes: brokers with clients, those of publishers first.
    """
    on = str(step.get("on"))
    role = next((text for text in ("-pub-", "-sub-") if text in on), "")
    if on in homes:
        role = "publishers" if on == homes[0] else "others"
    return {**step, "on": role or on}


def _first_difference(one: Any, other: Any, where: str = "") -> tuple[str, str]:
    """Where two values differ first, and both there."""
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
