"""Specifications that a judge can read; other values are refused by name."""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

from results.reference.files import FileRefusal

_GUARANTEES: Mapping[str, tuple[Any, ...]] = {
    "delivery": ("exactly-once", "at-least-once", "at-most-once"),
    "order": ("promised", "publisher", "total", "topic", "stream", "none"),
    "gapless": (True, False),
}
_CHOICES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("load", "records"): ("full", "sampled", "hist"),
    ("churn", "pattern"): ("independent", "simultaneous"),
}
_UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_LENGTHS = (("phases", "warmup"), ("phases", "measure"), ("phases", "drain"),
            ("phases", "drain_bound"), ("churn", "disconnected"), ("churn", "every"))  # fmt: skip
_LEVELS = 64


def nanoseconds(text: Any) -> int:
    """Return the nanoseconds of a duration.

    Raises:
        ValueError: the text is no duration.
    """
    for unit in sorted(_UNITS_NS, key=len, reverse=True):
        digits = str(text).removesuffix(unit).strip()
        whole, point, part = digits.partition(".")
        if str(text).endswith(unit) and whole.isdecimal() and (part.isdecimal() or not point):
            scaled = int(whole + part) * _UNITS_NS[unit]
            return int(scaled // 10 ** len(part))
    raise ValueError(f"{text!r} is no duration")


def verify(folder: Path, workload: Mapping[str, Any], topology: Mapping[str, Any]) -> None:
    """Check the types and words of a specification.

    Raises:
        Refused: a value is invalid; names file, key, value and the nearest valid value.
    """
    for name, document, problems in (
        ("workload.toml", workload, _workload_of),
        ("topology.toml", topology, _topology_of),
    ):
        for key, value in _allow_all(document, "", 0):
            if isinstance(value, float) and not isfinite(value):
                raise FileRefusal(
                    f"{folder / 'spec' / name}: {key} = {value} is no number to go by"
                )
        for problem in problems(document):
            raise FileRefusal(f"{folder / 'spec' / name}: {problem}")


def _allow_all(value: Any, key: str, level: int) -> Iterator[tuple[str, Any]]:
    if level > _LEVELS:
        raise FileRefusal(f"{key[:60]} lies too deep")
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(f"{key}.{name}".lstrip("."), each) for name, each in value.items()]
    elif isinstance(value, list):
        inner = [(f"{key}[{place}]", each) for place, each in enumerate(value)]
    else:
        yield key, value
    for name, each in inner:
        yield from _allow_all(each, name, level + 1)


def _workload_of(workload: Mapping[str, Any]) -> Iterator[str]:
    for name in ("guarantee", "bars", "phases", "load", "churn", "attributes"):
        if not isinstance(workload.get(name, {}), dict):
            yield f"{name} = {workload[name]!r} is no table"
            return
    for name in ("calm",):
        if type(workload.get(name, False)) is not bool:
            yield f"{name} = {workload[name]!r} is neither true nor false"
    for name in ("name", "protocol", "topology", "topic"):
        if type(workload.get(name, "")) is not str:
            yield f"{name} = {workload[name]!r} is no text"
    seed = workload.get("seed", 1)
    if type(seed) is not int or not 0 <= seed < 2**63:
        yield f"seed = {seed!r} is no seed"
    least = workload.get("bars", {}).get("deliveries_per_pair_min", 0)
    if type(least) is not int or least < 0:
        yield f"bars.deliveries_per_pair_min = {least!r} is no number"
    for key, value in workload.get("guarantee", {}).items():
        if key not in _GUARANTEES:
            yield f"guarantee: unknown key {key!r}{_suggest(key, [*_GUARANTEES])}"
        # 1 is True in Python, and no truth value in a file.
        elif value not in _GUARANTEES[key] or type(value) is not type(_GUARANTEES[key][0]):
            yield f"guarantee.{key} = {value!r}{_suggest(value, _GUARANTEES[key])}"
    for (table, key), known in _CHOICES.items():
        value = workload.get(table, {}).get(key, known[0])
        if value not in known:
            yield f"{table}.{key} = {value!r}{_suggest(value, known)}"
    for table, key in _LENGTHS:
        value = workload.get(table, {}).get(key, "0s")
        try:
            nanoseconds(value)
        except ValueError:
            yield f"{table}.{key} = {value!r} is no duration"
    yield from _clients_of(workload)
    for name, how in workload.get("attributes", {}).items():
        if name != "sets" and not _draws(how):
            yield f"attributes.{name} = {how!r} draws nothing"
    sets = workload.get("attributes", {}).get("sets", 1)
    if type(sets) is not int or not 1 <= sets <= 10**6:
        yield f"attributes.sets = {sets!r} is no number of sets"


def _clients_of(workload: Mapping[str, Any]) -> Iterator[str]:
    kinds: Mapping[str, Callable[[Any], bool]] = {
        "at": lambda value: type(value) is str or (type(value) is list and bool(value)),
        "count": lambda value: type(value) is int and 0 < value < 2**16,
        "filter": lambda value: type(value) is str,
        "own_process": lambda value: type(value) is bool,
        "acknowledge": lambda value: value in ("auto", "transacted"),
        "arrivals": lambda value: value in ("fixed", "poisson"),
        "rate": lambda value: type(value) is str or _is_shape(value),
    }
    for section in ("publishers", "subscribers"):
        entries = workload.get(section, [])
        if type(entries) is not list:
            yield f"{section} = {entries!r} is no list"
            return
        for place, entry in enumerate(entries):
            if type(entry) is not dict or "at" not in entry:
                yield f"{section}[{place}] = {entry!r} is nowhere"
                return
            for key, is_right in kinds.items():
                if key in entry and not is_right(entry[key]):
                    yield f"{section}[{place}].{key} = {entry[key]!r} cannot be"


def _is_shape(value: Any) -> bool:
    return (
        type(value) is list
        and bool(value)
        and all(
            type(step) is dict
            and {"for", "at"} <= {*step} <= {"for", "at", "to"}
            and all(type(each) is str for each in step.values())
            for step in value
        )
    )


def _topology_of(topology: Mapping[str, Any]) -> Iterator[str]:
    brokers = topology.get("brokers")
    if type(brokers) is not list or len({str(each) for each in brokers}) < len(brokers):
        yield f"brokers = {brokers!r} are not brokers, each once"
        return
    for place, link in enumerate(topology.get("links", [])):
        if type(link) is not list or len(link) != 2:
            yield f"links[{place}] = {link!r} is no link"
        elif unknown := [end for end in link if end not in brokers]:
            yield f"links[{place}]: no broker {unknown[0]!r}{_suggest(unknown[0], brokers)}"


def _draws(how: Any) -> bool:
    if type(how) is not dict or len(how) != 1:
        return False
    ((kind, argument),) = how.items()
    count = type(argument) is int
    several = type(argument) is list and argument and all(type(v) is not dict for v in argument)
    return bool(
        (kind in ("choose", "cycle") and count and 1 <= argument <= 10**6)
        or (kind == "choose" and several)
        or (kind == "uniform" and several and len(argument) == 2)
        or (kind == "sequence" and count)
    )


def _suggest(value: Any, known: Any) -> str:
    found = get_close_matches(str(value), [str(each) for each in known], 1, 0.5)
    return f"; nearest is {found[0]!r}" if found else f"; known are {', '.join(map(str, known))}"
