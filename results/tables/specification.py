"""Checks of the specification in a run folder: the types and words that a verdict reads.

`pubsubctl check` also compares the specification with the schemas of workloads, topologies and
fault schedules.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from results.rules.terms import DELIVERIES, ORDERS, PROMISED
from results.tables.json_files import IntegrityError

LARGEST = 1 << 63
DEEPEST = 64
RECORDS = ("full", "sampled", "hist")

_DURATION = re.compile(r"\d+(\.\d+)?\s*(ns|us|µs|ms|s|min|h|d)")
_RATE = re.compile(r"max|\d+(\.\d+)?\s*[kM]?/(s|min|h)")
_SIZE = re.compile(r"\d+(\.\d+)?\s*(B|kB|KiB|MB|MiB)")

Check = Callable[[Any], bool]


def check_workload(path: Path, workload: Mapping[str, Any]) -> None:
    """Check the values of a workload file.

    Raises:
        IntegrityError: a value is invalid; names file, key, value and the nearest valid value.
    """
    _check_numbers(path, workload)
    _check_table(path, "", workload, _WORKLOAD)
    for name, keys in _CLOSED.items():
        table = workload.get(name, {})
        for key in table:
            if key not in keys:
                raise IntegrityError(f"{path}: {name}: unknown key {key!r}{_nearest(key, [*keys])}")
        _check_table(path, f"{name}.", table, keys)
    for name, keys in _ENTRIES.items():
        for number, entry in enumerate(workload.get(name, ())):
            where = f"{name}[{number}]"
            if not isinstance(entry, Mapping) or "at" not in entry:
                raise IntegrityError(f"{path}: {where} = {entry!r} has no place in the file")
            _check_table(path, f"{where}.", entry, keys)
    for name, how in workload.get("attributes", {}).items():
        if name != "sets" and not _is_drawn(how):
            raise IntegrityError(f"{path}: attributes.{name} = {how!r} is no way to draw a value")


def check_topology(path: Path, topology: Mapping[str, Any]) -> None:
    """Check the brokers and links of a topology file.

    Raises:
        IntegrityError: a value is invalid; names file, key and value.
    """
    _check_numbers(path, topology)
    brokers = topology.get("brokers")
    if not _is_texts(brokers) or len(set(brokers)) < len(brokers):  # type: ignore[arg-type]
        raise IntegrityError(f"{path}: brokers = {brokers!r} are no names, each once")
    assert brokers is not None
    for number, link in enumerate(topology.get("links", ())):
        if not _is_texts(link) or len(link) != 2:
            raise IntegrityError(f"{path}: links[{number}] = {link!r} is no pair of brokers")
        for end in link:
            if end not in brokers:
                nearest = _nearest(end, brokers)
                raise IntegrityError(f"{path}: links[{number}]: no broker {end!r}{nearest}")
    section = topology.get("tree") or topology.get("parameters") or {}
    if not _is_count(section.get("delta", 1) if isinstance(section, Mapping) else None):
        raise IntegrityError(f"{path}: tree.delta = {section!r} is no number of brokers")


def check_faults(path: Path, schedule: Mapping[str, Any]) -> None:
    """Check the demands of a fault schedule.

    Raises:
        IntegrityError: a value is invalid; names file, key and value.
    """
    _check_numbers(path, schedule)
    exercised = schedule.get("exercised", {})
    if not isinstance(exercised, Mapping):
        raise IntegrityError(f"{path}: exercised = {exercised!r} is no table")
    if not _is_count(exercised.get("absorbed_msgs_min", 0)):
        value = exercised["absorbed_msgs_min"]
        raise IntegrityError(f"{path}: exercised.absorbed_msgs_min = {value!r} is no number")
    if not _is_texts(exercised.get("subscribers_on_path", [])):
        value = exercised["subscribers_on_path"]
        raise IntegrityError(f"{path}: exercised.subscribers_on_path = {value!r} are no brokers")


def _check_table(
    path: Path, where: str, table: Mapping[str, Any], keys: Mapping[str, "Check | Sequence[str]"]
) -> None:
    for key, allowed in keys.items():
        if key not in table:
            continue
        value = table[key]
        if callable(allowed):
            if not allowed(value):
                raise IntegrityError(f"{path}: {where}{key} = {value!r}{_KINDS[allowed]}")
        elif value not in allowed:
            nearest = _nearest(value, allowed)
            raise IntegrityError(f"{path}: {where}{key} = {value!r}{nearest}")


def _check_numbers(path: Path, document: Mapping[str, Any]) -> None:
    """Refuse numbers without a finite value, huge numbers and deep documents."""
    for key, value, depth in _leaves("", document, 0):
        if depth > DEEPEST:
            raise IntegrityError(f"{path}: {key[:80]} is more than {DEEPEST} levels deep")
        if isinstance(value, float) and not math.isfinite(value):
            raise IntegrityError(f"{path}: {key} = {value!r} is no finite number")
        if type(value) is int and abs(value) > LARGEST:
            raise IntegrityError(f"{path}: {key} has {len(str(abs(value)))} digits: too large")


def _leaves(key: str, value: Any, depth: int) -> Iterator[tuple[str, Any, int]]:
    if depth > DEEPEST or not isinstance(value, Mapping | list):
        yield key, value, depth
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), each, depth + 1)
    else:
        for number, each in enumerate(value):
            yield from _leaves(f"{key}[{number}]", each, depth + 1)


def _nearest(value: object, among: Sequence[str]) -> str:
    found = get_close_matches(str(value), among, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else f"; one of {', '.join(among)}"


def _is_drawn(how: Any) -> bool:
    if not isinstance(how, Mapping) or len(how) != 1:
        return False
    ((kind, argument),) = how.items()
    if kind in ("cycle", "choose") and type(argument) is int:
        return 1 <= argument <= 1_000_000
    if kind == "choose":
        return isinstance(argument, list) and bool(argument) and all(map(_is_scalar, argument))
    if kind == "uniform":
        if not isinstance(argument, list) or len(argument) != 2:
            return False
        return all(type(each) in (int, float) for each in argument) and argument[0] <= argument[1]
    return kind == "sequence" and _is_count(argument)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_clients(value: Any) -> bool:
    return type(value) is int and 1 <= value <= 65_535


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_places(value: Any) -> bool:
    return isinstance(value, str) or (_is_texts(value) and bool(value))


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _is_duration(value: Any) -> bool:
    return isinstance(value, str) and _DURATION.fullmatch(value) is not None


def _is_rate(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(
            isinstance(step, Mapping)
            and {"for", "at"} <= {*step} <= {"for", "at", "to"}
            and _is_duration(step["for"])
            and all(_is_rate(step[key]) and step[key] != "max" for key in step if key != "for")
            for step in value
        )
    return isinstance(value, str) and _RATE.fullmatch(value) is not None


def _is_size(value: Any) -> bool:
    return type(value) is int or (isinstance(value, str) and _SIZE.fullmatch(value) is not None)


_KINDS: Mapping[Check, str] = {
    _is_bool: " is neither true nor false",
    _is_text: " is no text",
    _is_count: " is no number from 0 on",
    _is_clients: " is no number of clients",
    _is_places: " are no names of brokers",
    _is_table: " is no table",
    _is_tables: " are no tables",
    _is_duration: ' is no duration, such as "10s"',
    _is_rate: ' is no rate, such as "25/s"',
    _is_size: ' is no size, such as "100B"',
}
_WORKLOAD: Mapping[str, Check | Sequence[str]] = {
    "schema": ("pubsubctl/workload/1",),
    "name": _is_text,
    "topology": _is_text,
    "protocol": _is_text,
    "topic": _is_text,
    "seed": _is_count,
    "calm": _is_bool,
    "guarantee": _is_table,
    "bars": _is_table,
    "phases": _is_table,
    "load": _is_table,
    "churn": _is_table,
    "attributes": _is_table,
    "publishers": _is_tables,
    "subscribers": _is_tables,
}
_CLOSED: Mapping[str, Mapping[str, Check | Sequence[str]]] = {
    "guarantee": {
        "delivery": DELIVERIES,
        "order": (PROMISED, *ORDERS),
        "gapless": _is_bool,
    },
    "bars": {"deliveries_per_pair_min": _is_count},
    "phases": dict.fromkeys(("warmup", "measure", "drain", "drain_bound"), _is_duration),
    "load": {
        "publisher_processes": _is_clients,
        "subscriber_processes": _is_clients,
        "records": RECORDS,
    },
    "churn": {
        "disconnected": _is_duration,
        "every": _is_duration,
        "pattern": ("independent", "simultaneous"),
    },
}
_ENTRIES: Mapping[str, Mapping[str, Check | Sequence[str]]] = {
    "publishers": {
        "at": _is_places,
        "count": _is_clients,
        "rate": _is_rate,
        "size": _is_size,
        "arrivals": ("fixed", "poisson"),
        "window": _is_count,
    },
    "subscribers": {
        "at": _is_places,
        "count": _is_clients,
        "filter": _is_text,
        "subscribes": _is_duration,
        "own_process": _is_bool,
        "acknowledge": ("auto", "transacted"),
    },
}
