"""The share of the named bugs that one run of `make test` plants, and of the cases of long tests.

Planting each named bug takes a tenth of the suite. With `--draw-bugs=new` a run plants a third of
the rows of each test that is marked `drawn`, by a printed seed, and all rows that differ from
HEAD~20 or have a function that differs, at most 60 per test. New names, comments, docstrings and
moves of a module are no differences. Without history, as in a shallow clone, nothing differs.

Each run takes a third of the tests that are marked `sampled`: long stories and tables of similar
cases. `make bugs` plants all rows, and runs all sampled tests.
"""

import ast
import builtins
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from secrets import randbits
from typing import Any, Final

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.anchors import Edit, Function, functions_of
from brokerd.simulator.checks.protocol_checks import named_bug, simulation_of
from brokerd.simulator.named_bugs import NamedBug, bugs_of
from tests.helpers.planted_stories import Row
from tests.named_bugs.rows import ROWS

ROOT: Final = Path(__file__).parents[2]
SINCE: Final = "HEAD~20"
ALL: Final = "all"
NEW: Final = "new"
SHARE: Final = 3
"""One row in this many is drawn."""
MOST_CHANGED: Final = 60
"""Changed rows of one test in one run: a merge may touch the functions of nearly all."""

_BUILT_IN: Final = frozenset(dir(builtins))
_NAME: Final = re.compile(r'^\+name = "(.+)"$', re.MULTILINE)
_CHANGE: Final = re.compile(
    r"^(?:--- (?:a/(.+)|/dev/null)|\+\+\+ b/(.+)|@@ -\S+ \+(\d+)(?:,(\d+))? @@.*)$", re.MULTILINE
)


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
        for module, change in _changes_by_file(sources).items()
        if module in functions
        for name in _changed_functions(root, since, module, change, functions[module])
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
    if seed == ALL:
        return {*rows}
    random = Random(seed)
    drawn = {*random.sample(sorted(rows), -(-len(rows) // SHARE))}
    differing = {*(changed or ())}
    concerned = sorted(row for row, about in rows.items() if not differing.isdisjoint(about))
    return drawn | {*random.sample(concerned, min(len(concerned), MOST_CHANGED))}


def drawn_cases(cases: Iterable[str], seed: str) -> set[str]:
    """Return the sampled tests of a run: a third of each folder, or all with `ALL`."""
    folders: dict[str, list[str]] = {}
    for case in sorted(cases):
        folders.setdefault(case.partition("::")[0].rpartition("/")[0], []).append(case)
    if seed == ALL:
        return {case for some in folders.values() for case in some}
    return {
        case
        for folder, some in folders.items()
        for case in Random(f"{seed} {folder}").sample(some, -(-len(some) // SHARE))
    }


def is_drawn(case: str, seed: str) -> bool:
    """Return True if a run tries a case of a long test: one in `SHARE`, or each with `ALL`."""
    return seed == ALL or Random(f"{seed} {case}").randrange(SHARE) == 0


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


@dataclass(slots=True)
class _Change:
    """The lines of a file that a diff adds, and the neighbours of those that it removes.

    Attributes:
        former: the former path; empty for a new file.
    """

    former: str
    lines: list[range] = field(default_factory=list)


def _changes_by_file(diff: str) -> dict[str, _Change]:
    """Return the changes of a diff without context, by the present path."""
    found: dict[str, _Change] = {}
    former, change = "", _Change("")
    for match in _CHANGE.finditer(diff):
        if match[2]:
            change = found[match[2]] = _Change(former)
        elif match[3]:
            first, count = int(match[3]), int(match[4] or 1)
            change.lines.append(range(first, first + (count or 2)))
        else:
            former = match[1] or ""
    return found


def _changed_functions(
    root: Path, since: str, module: str, change: _Change, names: Iterable[str]
) -> Iterator[str]:
    """Yield the functions of a module, among these names, that differ by more than names."""
    if not (root / module).exists():
        return
    now = functions_of(ast.parse((root / module).read_bytes()))
    touched = [name for name in now if name in {*names} and _is_at(now[name], change.lines)]
    if not touched:
        return
    former = _git(root, "show", f"{since}:{change.former}") if change.former else None
    before = {_shape_of(each) for each in functions_of(ast.parse(former or "")).values()}
    yield from (name for name in touched if _shape_of(now[name]) not in before)


def _is_at(function: Function, lines: Iterable[range]) -> bool:
    end = function.end_lineno or function.lineno
    first = min((function.lineno, *(each.lineno for each in function.decorator_list)))
    return any(each.start <= end and first < each.stop for each in lines)


def _shape_of(function: Function) -> str:
    """Return the syntax tree of a function in words, with numbers for all names but built-in ones.

    Docstrings are left out. Equal names have equal numbers, in the order of their first use.
    """
    numbers: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, Function | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        for key, value in ast.iter_fields(node):
            is_name = isinstance(value, str) and not isinstance(node, ast.Constant)
            if is_name and value not in _BUILT_IN:
                setattr(node, key, numbers.setdefault(value, f"_{len(numbers)}"))
    return ast.dump(function)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
