"""Mutations of a single fact of a run folder: a field of a small file, or a row."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_STAMP: Final = 10**11
"""Numbers from here on are times in nanoseconds."""
_SECOND: Final = 10**9


@dataclass(frozen=True)
class Mutation:
    """One change of one file.

    Attributes:
        file: from the run's folder.
        field: the path to the changed value, without list indices.
        how: description of the change, for people.
        content: the new content of the file; None to remove the file.
    """

    file: str
    field: str
    how: str
    content: str | None

    @property
    def name(self) -> str:
        return f"{self.file} {self.field} {self.how}"

    @property
    def kind(self) -> str:
        """Return the file, without host and process, and the field."""
        parts = self.file.split("/")
        of = f"raw/{parts[-1]}" if parts[0] == "raw" else self.file
        return f"{of}: {self.field}" if self.field else of


def mutations(folder: Path) -> Iterator[Mutation]:
    """Yield every change of one field, one row or one whole file of a folder's JSON files."""
    for path in sorted(folder.rglob("*.json*")):
        name = path.relative_to(folder).as_posix()
        yield Mutation(name, "", "removed", None)
        if path.suffix == ".jsonl":
            yield from _of_lines(name, path)
        else:
            document = json.loads(path.read_text())
            yield from _of_value(name, document, lambda value: json.dumps(value))


def sample_mutations(folder: Path, most: int = 1) -> Iterator[Mutation]:
    """Yield some changes of each kind.

    Args:
        most: maximum number of each kind.
    """
    found: dict[tuple[str, str], list[Mutation]] = {}
    for mutation in mutations(folder):
        how = mutation.how.partition(": ")[2] or mutation.how
        word = "becomes" if " becomes " in how else how.split()[-1]
        found.setdefault((mutation.kind, word), []).append(mutation)
    for each in found.values():
        yield from each if len(each) <= most else (each[len(each) * n // most] for n in range(most))


def _of_lines(name: str, path: Path) -> Iterator[Mutation]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    def text(lines: list[Any]) -> str:
        return "".join(json.dumps(line) + "\n" for line in lines)

    for place, row in enumerate(rows):
        before, after = rows[:place], rows[place + 1 :]
        yield Mutation(name, "row", f"{place} deleted", text([*before, *after]))
        yield Mutation(name, "row", f"{place} twice", text([*before, row, row, *after]))
        if after:
            swapped = [*before, after[0], row, *after[1:]]
            yield Mutation(name, "order", f"{place} swapped", text(swapped))
        around: Callable[[Any], str] = lambda value, b=before, a=after: text([*b, value, *a])  # type: ignore[misc]  # noqa: E731
        for mutation in _of_value(name, row, around):
            yield Mutation(
                mutation.file, mutation.field, f"row {place}: {mutation.how}", mutation.content
            )


def _of_value(name: str, value: Any, text: Callable[[Any], str]) -> Iterator[Mutation]:
    for names, changed, how in _list_changes(value):
        yield Mutation(name, ".".join(names), how, text(changed))


def _list_changes(value: Any) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Yield the path, the whole value with one change, and the change in words."""
    if isinstance(value, dict):
        for key, inner in value.items():
            rest = {other: value[other] for other in value if other != key}
            if inner is not None:  # a key that is null reads as one that is missing
                yield (key,), rest, "deleted"
            for names, changed, how in _list_changes(inner):
                yield (key, *names), {**value, key: changed}, how
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield (), [*value[:place], *value[place + 1 :]], f"[{place}] deleted"
            for names, changed, how in _list_changes(inner):
                yield names, [*value[:place], changed, *value[place + 1 :]], f"[{place}] {how}"
    else:
        for other in _others(value):
            yield (), other, f"{value!r} becomes {other!r}"


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        far = value > _STAMP
        return [value + 3 * _SECOND, value - 3 * _SECOND] if far else [value + 1, value + 1000]
    if isinstance(value, float):
        return [value * 0.5 + 0.25]
    if isinstance(value, str):
        return [f"{value}x"]
    return [1]
