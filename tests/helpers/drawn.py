"""The share of the named bugs that one run of `make test` plants.

Planting each named bug takes a tenth of the suite. With `--draw-bugs=new` a run plants a third of
the rows of each test that is marked `drawn`, by a seed that it prints, and all rows whose function
differs from HEAD~20, or which differ themselves. Without history, all rows are planted.
"""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from secrets import randbits
from typing import Any, Final

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.anchors import Edit, functions_of
from brokerd.simulator.checks.protocol_checks import named_bug, simulation_of
from brokerd.simulator.named_bugs import NamedBug, bugs_of
from tests.helpers.planted_stories import Row
from tests.named_bugs.rows import ROWS

ROOT: Final = Path(__file__).parents[2]
SINCE: Final = "HEAD~20"
ALL: Final = "all"
NEW: Final = "new"
SHARE: Final = 3
"""One row of so many is drawn."""

_NAME: Final = re.compile(r'^\+name = "(.+)"$', re.MULTILINE)
_CHANGE: Final = re.compile(r"^(?:\+\+\+ b/(.+)|@@ -\S+ \+(\d+)(?:,(\d+))? @@.*)$", re.MULTILINE)


def new_seed() -> str:
    """Return a seed that differs in each run."""
    return str(randbits(32))


def changes(edits: Iterable[Edit], root: Path = ROOT, since: str = SINCE) -> list[str] | None:
    """Return the edited functions, and the names of the rows, that differ from an earlier commit.

    Returns:
        None if the commit is unknown, as in a shallow clone.
    """
    sources = _git(root, "diff", "--unified=0", since, "--", "*.py")
    rows = _git(root, "diff", "--unified=0", since, "--", "tests/named_bugs/*.toml")
    if sources is None or rows is None:
        return None
    functions: dict[str, set[str]] = {}
    for edit in edits:
        functions.setdefault(edit.module, set()).add(edit.function)
    found = [
        _place(module, name)
        for module, lines in _changed_lines(sources).items()
        if module in functions
        for name in _functions_at(root / module, lines)
        if name in functions[module]
    ]
    return [*found, *_NAME.findall(rows)]


def all_edits() -> Iterator[Edit]:
    """Yield the edits of all named bugs."""
    of_protocols = (bug for protocol in DEFINITIONS for bug in bugs_of(protocol).values())
    for bug in (*of_protocols, *(row.bug for row in ROWS)):
        yield from bug.edits


def drawn_rows(
    rows: Mapping[str, Iterable[str]], seed: str, changed: Sequence[str] | None
) -> set[str]:
    """Return the rows of one test that a run plants.

    Args:
        rows: functions and names that each row depends on, by its id.
        seed: determines the drawn third; `ALL` for all rows.
        changed: as from `changes`.
    """
    if seed == ALL or changed is None:
        return {*rows}
    concerned = {row for row, about in rows.items() if not {*changed}.isdisjoint(about)}
    return concerned | {*Random(seed).sample(sorted(rows), -(-len(rows) // SHARE))}


def depends_on(value: object, protocol: str) -> set[str]:
    """Return the functions and names that the parameter of a test with named bugs depends on.

    Args:
        value: a row, a named bug, or the name of a named bug or of an ablation.
        protocol: the protocol of the name.
    """
    if isinstance(value, Row):
        return _about(value.bug)
    if isinstance(value, NamedBug):
        return _about(value)
    name = str(value)
    ablations: Mapping[str, Any] = simulation_of(protocol).ablations
    names = ablations[name].mutants if name in ablations else (name,)
    return {about for each in names for about in _about(named_bug(each, protocol))}


def _about(bug: NamedBug) -> set[str]:
    return {bug.name, *(_place(edit.module, edit.function) for edit in bug.edits)}


def _place(module: str, function: str) -> str:
    return f"{module}::{function}"


def _changed_lines(diff: str) -> dict[str, list[range]]:
    """Return the lines that a diff without context adds, by file; the neighbours of removals."""
    found: dict[str, list[range]] = {}
    path = ""
    for match in _CHANGE.finditer(diff):
        if match[1]:
            path = match[1]
        else:
            first, count = int(match[2]), int(match[3] or 1)
            found.setdefault(path, []).append(range(first, first + (count or 2)))
    return found


def _functions_at(path: Path, lines: Iterable[range]) -> Iterator[str]:
    """Yield the functions of a module that have some of these lines."""
    if not path.exists():
        return
    for name, function in functions_of(ast.parse(path.read_bytes())).items():
        end = function.end_lineno or function.lineno
        first = min((function.lineno, *(each.lineno for each in function.decorator_list)))
        if any(each.start <= end and first < each.stop for each in lines):
            yield name


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
