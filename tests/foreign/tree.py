"""The project with a foreign protocol: a folder, and a line in `registry`."""

import ast
import re
import shutil
from pathlib import Path

from brokerd.simulator.named_bugs import bug_of, edit_sources, read_rows

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "ring_flood"
FILES = ("ring.toml", "flood.toml")
"""A topology for the protocol, and a load on the topology; beside the protocol's folder."""
BUGS = Path(__file__).parent / "ring_flood.bugs.toml"
"""The named bugs of the protocol; in the project they are `tests/named_bugs/ring_flood.toml`."""
PACKAGES = ("bench", "brokerd", "fault_injection", "pubsubctl", "results")
REGISTRY = "brokerd/protocols/registry.py"
_LAST = re.compile(r"(\n        _registration\([^\n]+\),)(?=\n    \)\n\)\n)")
_ADDED = '\n        _registration("ring_flood", "hierarchy", range(240, 250)),'


def make_tree(to: Path) -> Path:
    """Copy the project's packages with the protocol into a folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, to / package, ignore=_ignore_measured_runs)
    shutil.copytree(FOLDER, to / "brokerd/protocols/ring_flood")
    (to / "tests/named_bugs").mkdir(parents=True)
    shutil.copy(BUGS, to / "tests/named_bugs/ring_flood.toml")
    registry = to / REGISTRY
    text = registry.read_text(encoding="utf-8")
    text, places = _LAST.subn(lambda match: match[1] + _ADDED, text)
    assert places == 1, "the registry registers otherwise"
    registry.write_text(text, encoding="utf-8")
    return to


def _ignore_measured_runs(folder: str, names: list[str]) -> list[str]:
    """Return `runs` for the folder of results; compiled modules are copied, and stay valid."""
    return [name for name in names if name == "runs" and Path(folder) == ROOT / "results"]


def plant(tree: Path, name: str) -> None:
    """Plant a named bug of the protocol in the tree."""
    rows = read_rows(BUGS)
    (bug,) = (bug_of(row, BUGS, "leaves_out") for row in rows if row["name"] == name)
    for source in edit_sources([bug], tree):
        (tree / source.module).write_text(ast.unparse(source.tree), encoding="utf-8")
