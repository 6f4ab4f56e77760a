"""Tests of the structure of the product: no measure may get worse.

`tests/structure.json` has the best measures of the whole product. `python -m tests.test_structure`
prints all measures by package, and records better measures.
"""

import ast
import json
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.structure import Structure, code_lines, measure, product_files

ROOT = Path(__file__).parents[1]
RATCHET = Path(__file__).parent / "structure.json"
KEPT = ("small_files", "callables", "depth", "methods")
"""Measures that may only fall. Lines and files grow with the product."""

SAMPLE = '''
"""A module."""


class Base:
    """A base."""

    def __init__(self, count: int, reach: Callable[[int], bool], *, other: int) -> None:
        """Begin."""
        self.count = count


class Middle(Base):
    look: int


class Leaf(Middle, Generic[T]):
    def see(
        self,
        # a comment
        far: int,
    ) -> None: ...

    async def hear(self) -> None: ...
'''


def test_the_structure_gets_no_worse() -> None:
    reached = json.loads(RATCHET.read_text("utf-8"))
    found = asdict(measure(product_files(ROOT)))
    worse = {name: (found[name], reached[name]) for name in KEPT if found[name] > reached[name]}
    assert worse == {}, "measure: (found, allowed); see CONTRIBUTING.md"


def test_callables_depth_and_methods_are_counted(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE)
    found = measure([tmp_path / "sample.py"])
    assert found == Structure(
        lines=SAMPLE.count("\n"), files=1, small_files=1, callables=1, depth=2, methods=2
    )


@pytest.mark.parametrize(
    "text, count",
    [
        ('"""Only a docstring."""\n\n# and a comment\n', 0),
        ("a = (\n    1,\n    2,\n)\n", 4),
        ('def f(\n    a: int,\n) -> int:\n    """Return a."""\n\n    # why\n    return a\n', 4),
    ],
)
def test_comments_and_docstrings_are_no_code(text: str, count: int) -> None:
    assert code_lines(ast.parse(text)) == count


def _package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts[:-1]
    return "/".join(parts[:3] if parts[:2] == ("brokerd", "protocols") else parts[:2])


if __name__ == "__main__":
    every = product_files(ROOT)
    by_package: defaultdict[str, list[Path]] = defaultdict(list)
    for each in every:
        by_package[_package_of(each)].append(each)
    whole = measure(every)
    write = partial(print, flush=True)
    columns = list(asdict(whole))
    write("package".ljust(34), *(name.rjust(11) for name in columns))
    for package, files in sorted(by_package.items()):
        values = asdict(measure(files)).values()
        write(package.ljust(34), *(str(value).rjust(11) for value in values))
    write("all".ljust(34), *(str(value).rjust(11) for value in asdict(whole).values()))
    now = asdict(whole)
    best = json.loads(RATCHET.read_text("utf-8")) if RATCHET.exists() else now
    kept = {name: min(now[name], best[name]) for name in KEPT}
    RATCHET.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
