"""The share of the named bugs that one run of `make test` plants.

Planting each named bug takes a tenth of the suite. With `--draw-bugs=new` a run plants a third of
the rows of each test that is marked `drawn`, by a seed that it prints, and all rows whose module
differs from HEAD~20, or which differ themselves. Without history, all rows are planted.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from secrets import randbits
from typing import Any, Final

from brokerd.simulator.checks.protocol_checks import named_bug, simulated
from brokerd.simulator.named_bugs import NamedBug
from tests.helpers.planted_stories import Row

ROOT: Final = Path(__file__).parents[2]
SINCE: Final = "HEAD~20"
ALL: Final = "all"
NEW: Final = "new"
SHARE: Final = 3
"""One row of so many is drawn."""

_NAME: Final = re.compile(r'^\+name = "(.+)"$', re.MULTILINE)


def new_seed() -> str:
    """Return a seed that differs in each run."""
    return str(randbits(32))


def changes(root: Path = ROOT, since: str = SINCE) -> list[str] | None:
    """Return the files, and the names of the named bugs, that differ from an earlier commit.

    Returns:
        None if the commit is unknown, as in a shallow clone.
    """
    files = _git(root, "diff", "--name-only", since)
    rows = _git(root, "diff", "--unified=0", since, "--", "tests/named_bugs/*.toml")
    if files is None or rows is None:
        return None
    return [*files.splitlines(), *_NAME.findall(rows)]


def drawn_rows(
    rows: Mapping[str, Iterable[str]], seed: str, changed: Sequence[str] | None
) -> set[str]:
    """Return the rows of one test that a run plants.

    Args:
        rows: files and names that each row depends on, by its id.
        seed: determines the drawn third; `ALL` for all rows.
        changed: as from `changes`.
    """
    if seed == ALL or changed is None:
        return {*rows}
    concerned = {row for row, about in rows.items() if not {*changed}.isdisjoint(about)}
    return concerned | {*Random(seed).sample(sorted(rows), -(-len(rows) // SHARE))}


def depends_on(value: object, protocol: str) -> set[str]:
    """Return the files and names that the parameter of a test with named bugs depends on.

    Args:
        value: a row, a named bug, or the name of a named bug or of an ablation.
        protocol: the protocol of the name.
    """
    if isinstance(value, Row):
        return _about(value.bug)
    if isinstance(value, NamedBug):
        return _about(value)
    name = str(value)
    ablations: Mapping[str, Any] = simulated(protocol).ablations
    names = ablations[name].mutants if name in ablations else (name,)
    return {about for each in names for about in _about(named_bug(each, protocol))}


def _about(bug: NamedBug) -> set[str]:
    return {bug.name, *(edit.module for edit in bug.edits)}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
