"""The types of a manifest's values, for commands that read a manifest and nothing else.

A judge reads a run whole and refuses what no run holds. Lists of runs, comparisons and pages read
manifests alone, of runs and of series.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from brokerd.text import is_plain_name

_MOST_RUNS: Final = 100_000
_SHOWN: Final = 60


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_labels(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_roles(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(role, dict) and _is_text(role.get("role")) and _is_text(role.get("host"))
        for role in value.values()
    )


def _is_runs(value: Any) -> bool:
    """Return True for lists of runs by point, each run once."""
    if not isinstance(value, dict) or not all(map(_is_list, value.values())):
        return False
    runs = [run for of_point in value.values() for run in of_point]
    return len(runs) <= _MOST_RUNS and all(map(is_plain_name, runs)) and len({*runs}) == len(runs)


_TEXTS: Final = (
    *("kind", "state", "run_id", "experiment", "protocol", "started_utc", "ended_utc"),
    *("cpu", "platform", "python", "git_commit", "tool_version", "transport"),
)
_SHAPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(_TEXTS, (_is_text, "a text")),
    **dict.fromkeys(("cores", "instances"), (_is_count, "a number")),
    **dict.fromkeys(("headline", "clock", "parameters"), (_is_object, "an object")),
    **dict.fromkeys(("reasons", "argv", "without_fsync"), (_is_texts, "a list of texts")),
    "phases": (_is_list, "a list"),
    "labels": (_is_labels, "texts by name"),
    "roles": (_is_roles, "role and host by process"),
    "runs": (_is_runs, "names of runs by point, each run once"),
}


def problem_of_manifest(manifest: Mapping[str, Any]) -> str:
    """Return the first value of a type that no manifest has; "" without one."""
    for key, (has_shape, wanted) in _SHAPES.items():
        value = manifest.get(key)
        if value is not None and not has_shape(value):
            shown = repr(value)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
            return f"{key} = {shown}: not {wanted}"
    return ""
