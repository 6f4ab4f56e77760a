"""Small files of a run: JSON, JSON lines and TOML, read and written whole; a manifest's types.

A judge reads a run whole and refuses what no run holds. Lists of runs, comparisons and pages read
manifests alone, of runs and of series.
"""

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from brokerd import files
from brokerd.text import is_plain_name, parse_json, problem_of


class ResultsError(Exception):
    """A run that cannot be processed because of the user's request."""

    exit_status = 2


class IntegrityError(Exception):
    """A file of a run has changed since the run's end; names the file and the difference.

    Neither the tool nor the brokers are at fault: the files were changed from outside.
    """

    exit_status = 8


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file; a pipe has no end, and a device any content.

    Raises:
        FileNotFoundError: there is no file.
        IntegrityError: the entry is no regular file, or cannot be read.
    """
    if not path.is_file() and os.path.lexists(path):
        raise IntegrityError(f"{path}: no regular file")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise IntegrityError(f"{path}: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        IntegrityError: the file is missing or has other content.
    """
    try:
        value = parse_json(read_regular(path).decode("utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing") from None
    except ValueError as error:
        raise IntegrityError(f"{path}: {problem_of(error)}") from None
    if not isinstance(value, dict):
        raise IntegrityError(f"{path}: not a JSON object")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the TOML document in a file.

    Raises:
        IntegrityError: the file is missing or cannot be read.
    """
    try:
        return tomllib.loads(read_regular(path).decode("utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: {problem_of(error)}") from None


def read_json_lines(path: Path, *, missing_ok: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a file, one per line; a torn last line is left out.

    Raises:
        IntegrityError: the file is missing, or a line before the last cannot be read.
    """
    try:
        text = read_regular(path)
    except FileNotFoundError:
        if missing_ok:
            return
        raise IntegrityError(f"{path} is missing") from None
    whole, _, _torn = text.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
        try:
            value = parse_json(line.decode("utf-8"))
        except ValueError as error:
            raise IntegrityError(f"{path}, line {number}: {problem_of(error)}") from None
        if not isinstance(value, dict):
            raise IntegrityError(f"{path}, line {number}: not a JSON object")
        yield value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON document, whole or not at all, the same bytes for the same value."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_json_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Write JSON objects, one per line."""
    write_whole(path, "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file with its folder: a reader finds the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, content)


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


JOURNAL: Final = "log.jsonl"
_NOT_JOURNALED: Final = ("argv", "started_utc", "ended_utc")


def check_journal(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the journal of a series or an experiment repeats its manifest.

    Returns:
        The line about the rows of an experiment; {} without one.

    Raises:
        IntegrityError: the files differ; names both, and the key.
    """
    lines = [*read_json_lines(folder / JOURNAL, missing_ok=True)]
    for line in lines:
        repeated = line.get("manifest")
        if line.get("what") != "end" or not isinstance(repeated, dict):
            continue
        for key in sorted({*repeated} | {*manifest} - {*_NOT_JOURNALED}):
            ends = (json.dumps(each.get(key), sort_keys=True) for each in (manifest, repeated))
            if len({*ends}) > 1:
                raise IntegrityError(f"{folder}: manifest.json and {JOURNAL} differ on {key}")
    return next((line for line in lines if line.get("what") == "rows"), {})
