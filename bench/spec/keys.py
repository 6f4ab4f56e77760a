"""Values named by dotted keys: what a sweep varies, and what is typed with --set.

`phases.measure` is a key in a table, `publishers.rate` one in every entry of a list of tables,
`publishers[0].rate` one in its first entry. Keys of the topology file begin with `topology.`,
those of a step of the fault schedule with `faults.STEP.`; all others are of the workload file.
In sweeps `simulated` says whether a run is one on simulated brokers.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from brokerd.text import parse_toml

TOPOLOGY: Final = "topology."
FAULTS: Final = "faults"
SIMULATED: Final = "simulated"
_PART: Final = re.compile(r"(?P<name>[A-Za-z0-9_-]+)(?:\[(?P<place>\d+)\])?")
_FILES: Final = ("topology", FAULTS)

Keys = Mapping[str, Any]


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys that cannot be read, and two that mean the same value.

    Raises:
        ConfigError: names them.
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


def of_workload(keys: Keys) -> dict[str, Any]:
    """Those of the workload file."""
    return {
        key: value
        for key, value in keys.items()
        if not key.startswith(TOPOLOGY) and key.split(".")[0] != FAULTS
    }


def of_topology(keys: Keys) -> dict[str, Any]:
    """Those of the topology file, as they are called there."""
    return {
        key.removeprefix(TOPOLOGY): value for key, value in keys.items() if key.startswith(TOPOLOGY)
    }


def of_steps(keys: Keys) -> dict[str, dict[str, Any]]:
    """By step of the fault schedule, its keys; one in a table of a step has a dot.

    Raises:
        ConfigError: a key names no step, or nothing in it.
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
    """A value that was typed: a number, true or false, a list or text in quotes as TOML has them.

    What is none of these is the text that it is.
    """
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return value if isinstance(value, str | int | float | list) else text


def with_keys(values: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """A file's values with these in their place; `values` stays as it is.

    Raises:
        ConfigError: a key leads through something that is neither a table nor a list of them, or
            to an entry that is not there. Whether a table knows the last part is not looked at.
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
    """The tables that a path leads to, made where there are none."""
    found = [table]
    for name, place in path:
        found = [each for one in found for each in _inside(one, name, place, key)]
    return found


def _inside(table: dict[str, Any], name: str, place: int | None, key: str) -> list[dict[str, Any]]:
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
    raise ConfigError(f"{key!r}: {name!r} is no table or list of tables{nearest(name, known)}")


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
    """Whether both mean the same value, or one of them what the other one is in.

    Which file a topology or schedule is, and a key in it, are two things.
    """
    short, long = sorted((_parts(one), _parts(other)), key=len)
    if len(short) == 1 < len(long) and short[0][0] in _FILES:
        return False
    return all(
        a[0] == b[0] and (a[1] is None or b[1] is None or a[1] == b[1])
        for a, b in zip(short, long, strict=False)
    )
