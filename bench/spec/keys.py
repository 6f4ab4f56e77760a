"""Dotted keys: names of the values that a sweep varies, or that the command line replaces.

`phases.measure` is a key in a table, `publishers.rate` a key in every entry of a list of tables,
`publishers[0].rate` a key in the first entry. Keys of the topology file begin with `topology.`, and
keys of a step of the fault schedule with `faults.STEP.`. All other keys belong to the workload
file. In sweeps, `simulated` selects simulated brokers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from brokerd.config import parse_value
from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest

TOPOLOGY: Final = "topology."
FAULTS: Final = "faults"
SIMULATED: Final = "simulated"
_PART: Final = re.compile(r"(?P<name>[A-Za-z0-9_-]+)(?:\[(?P<place>\d+)\])?")
_FILES: Final = ("topology", FAULTS)

Keys = Mapping[str, Any]


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys that cannot be read, and two keys with the same value.

    Raises:
        ConfigError: a key cannot be used, or two keys have the same value; names the keys.
    """
    seen: list[str] = []
    for key in keys:
        _parts(key)
        for other in seen:
            if key == other:
                raise ConfigError(f"{key!r} is given twice")
            if _contradict(key, other):
                raise ConfigError(f"{other!r} and {key!r} mean the same value")
        seen.append(key)


def workload_keys(keys: Keys) -> dict[str, Any]:
    return {
        key: value
        for key, value in keys.items()
        if not key.startswith(TOPOLOGY) and key.split(".")[0] != FAULTS
    }


def topology_keys(keys: Keys) -> dict[str, Any]:
    """Return the keys of the topology file, with their names in that file."""
    return {
        key.removeprefix(TOPOLOGY): value for key, value in keys.items() if key.startswith(TOPOLOGY)
    }


def step_keys(keys: Keys) -> dict[str, dict[str, Any]]:
    """Return the keys of each step of the fault schedule; a key in a table of a step has a dot.

    Raises:
        ConfigError: a key names no step, or nothing in a step.
    """
    found: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        parts = key.split(".")
        if parts[0] != FAULTS or len(parts) == 1:
            continue
        if len(parts) not in (3, 4):
            raise ConfigError(f"{key!r}: write {FAULTS}.STEP.KEY, or {FAULTS}.STEP.TABLE.KEY")
        found.setdefault(parts[1], {})[".".join(parts[2:])] = value
    return found


def value_of(text: str) -> Any:
    """Return the value of a text on the command line; see `parse_value`."""
    return parse_value(text)


def with_keys(values: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Return a copy of a file's values with the values of `keys` in place.

    The last part of a key is not checked against its table.

    Raises:
        ConfigError: a key leads through a value that is neither a table nor a list of tables, or to
            a missing entry.
    """
    changed = deepcopy(dict(values))
    for key, value in keys.items():
        parts = _parts(key)
        for table in _tables(changed, parts[:-1], key):
            name, place = parts[-1]
            if place is not None:
                raise ConfigError(f"{key!r}: no value can be at [{place}]; name a key of it")
            table[name] = value
    return changed


def _tables(
    table: dict[str, Any], path: Sequence[tuple[str, int | None]], key: str
) -> list[dict[str, Any]]:
    """Return the tables that a path leads to; create missing tables."""
    found = [table]
    for name, place in path:
        found = [each for one in found for each in _find_inside(one, name, place, key)]
    return found


def _find_inside(
    table: dict[str, Any], name: str, place: int | None, key: str
) -> list[dict[str, Any]]:
    inner = table.setdefault(name, {}) if place is None else table.get(name)
    if place is None and isinstance(inner, dict):
        return [inner]
    if isinstance(inner, list) and all(isinstance(each, dict) for each in inner):
        if place is None:
            return inner
        if place < len(inner):
            return [inner[place]]
        raise ConfigError(f"{key!r}: {name!r} has {len(inner)} entries, [0] is the first")
    known = [each for each, value in table.items() if isinstance(value, dict | list)]
    raise ConfigError(f"{key!r}: {name!r} is not a table or a list of tables{nearest(name, known)}")


def _parts(key: str) -> list[tuple[str, int | None]]:
    parts = []
    for text in key.split("."):
        match = _PART.fullmatch(text)
        if match is None:
            raise ConfigError(f"{key!r} is no key; write names with dots between: publishers.rate")
        place = match["place"]
        parts.append((match["name"], None if place is None else int(place)))
    return parts


def _contradict(one: str, other: str) -> bool:
    """Return True if two keys mean the same value, or one key a part of the other's value.

    The file of a topology or schedule, and a key in this file, are different values.
    """
    short, long = sorted((_parts(one), _parts(other)), key=len)
    if len(short) == 1 < len(long) and short[0][0] in _FILES:
        return False
    return all(
        a[0] == b[0] and (a[1] is None or b[1] is None or a[1] == b[1])
        for a, b in zip(short, long, strict=False)
    )


_KEYS: Final = {
    "protocol": "protocol", "topology": "topology", "seed": "seed",
    "rate": "publishers.rate", "size": "publishers.size", "publishers": "publishers.count",
    "subscribers": "subscribers.count", "warmup": "phases.warmup", "measure": "phases.measure",
    "drain": "phases.drain", "churn": "churn", "records": "load.records",
}  # fmt: skip
_OPTIONS: Final = {
    "protocol": "--protocol", "topology": "--topology", "seed": "--seed", "rate": "--rate",
    "size": "--size", "publishers": "--publishers", "subscribers": "--subscribers",
    "warmup": "--warmup", "measure": "--duration", "records": "--records",
}  # fmt: skip


def option_keys(word: str) -> list[str]:
    """Return the keys that an option of this name sets: `phases.measure` for `duration`."""
    return [_KEYS[name] for name, option in _OPTIONS.items() if option == f"--{word}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Overrides of a workload file; None for a value that is not overridden.

    Values are texts as in the file ("50/s", "10s"). `rate`, `size` and `publishers` apply to every
    [[publishers]] entry, `subscribers` to every [[subscribers]] entry. If `churn` is False, no
    subscriber is disconnected, and a workload with churn becomes calm. `keys` are values by dotted
    key, and no other override changes the same value; see `bench.spec.keys`. If `is_typed`, errors
    name the options of the command line.
    """

    protocol: str | None = None
    topology: str | None = None
    seed: int | None = None
    rate: str | None = None
    size: str | None = None
    publishers: int | None = None
    subscribers: int | None = None
    warmup: str | None = None
    measure: str | None = None
    drain: str | None = None
    churn: bool | None = None
    records: str | None = None
    keys: Mapping[str, Any] | None = None
    is_typed: bool = False

    def list_origins(self) -> dict[str, str]:
        """Return the option of each override by dotted key; the key itself without an option."""
        named = [name for name in self.as_mapping() if name in _OPTIONS]
        options = {_KEYS[name]: _OPTIONS[name] if self.is_typed else _KEYS[name] for name in named}
        return {**{key: key for key in self.keys or {}}, **options}

    def list_keys(self) -> list[str]:
        """Return the dotted keys of all overrides, with duplicates."""
        return [
            *(_KEYS[name] for name in self.as_mapping() if name in _KEYS), *(self.keys or {}),
        ]  # fmt: skip

    def as_mapping(self) -> dict[str, Any]:
        """Return only the overridden values."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "is_typed"}
        return {name: value for name, value in values.items() if value is not None}


def with_overrides(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return a workload file's values with the overrides in place.

    Values of a wrong shape are left for the validation.

    Raises:
        ConfigError: a key leads nowhere, or two overrides set the same value.
    """
    check_keys(overrides.list_keys())
    typed = overrides.as_mapping()
    changed: dict[str, Any] = dict(values)
    for key in ("protocol", "topology", "seed"):
        if key in typed:
            changed[key] = typed[key]
    phases = {key: typed[key] for key in ("warmup", "measure", "drain") if key in typed}
    if phases:
        changed["phases"] = {**_table(changed.get("phases")), **phases}
    if typed.get("churn") is False and changed.pop("churn", None) is not None:
        changed["calm"] = True
    if "records" in typed:
        changed["load"] = {**_table(changed.get("load")), "records": typed["records"]}
    _override_entries(
        changed, "publishers", typed, {"rate": "rate", "size": "size", "publishers": "count"}
    )
    _override_entries(changed, "subscribers", typed, {"subscribers": "count"})
    return with_keys(changed, workload_keys(overrides.keys or {}))


def _override_entries(
    values: dict[str, Any], key: str, typed: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    changes = {names[name]: value for name, value in typed.items() if name in names}
    entries = values.get(key)
    if changes and isinstance(entries, list):
        values[key] = [{**_table(entry), **changes} for entry in entries]


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
