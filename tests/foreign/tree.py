"""The project with a protocol that somebody else brings: a folder, and two lines in `registry`."""

import re
import runpy
import shutil
from pathlib import Path

from brokerd.named_bugs import NamedBug

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "ring_flood"
FILES = ("ring.toml", "flood.toml")
"""A topology that it runs on, and a load on that; beside its folder."""
PACKAGES = ("bench", "brokerd", "fault_injection", "pubsubctl", "results")
REGISTRY = "brokerd/protocols/registry.py"
_IMPORT = "from brokerd.protocols.ring_flood.definition import RING_FLOOD\n"
_REGISTERED = re.compile(r"(= registered\(\s*\([A-Z_,\s]+?)(,?\s*\)\s*\))")


def make_tree(to: Path) -> Path:
    """The project's packages with the protocol, in a folder of their own."""
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", "runs")
        shutil.copytree(ROOT / package, to / package, ignore=ignore)
    shutil.copytree(FOLDER, to / "brokerd/protocols/ring_flood")
    registry = to / REGISTRY
    text = registry.read_text(encoding="utf-8")
    before = "from brokerd.protocols.interface import DeliveryProtocol\n"
    assert text.count(before) == 1
    text, places = _REGISTERED.subn(r"\1, RING_FLOOD\2", text.replace(before, before + _IMPORT))
    assert places == 1, "the registry registers otherwise"
    registry.write_text(text, encoding="utf-8")
    return to


def plant(tree: Path, bug: NamedBug) -> None:
    """Let every process of that tree have a bug of the protocol's."""
    for edit in bug.edits:
        path = tree / edit.file
        text = path.read_text(encoding="utf-8")
        assert text.count(edit.text) == 1, f"{bug.name}: {edit.text!r} is not in {edit.file} once"
        path.write_text(text.replace(edit.text, edit.mistaken), encoding="utf-8")


def bugs(tree: Path) -> dict[str, NamedBug]:
    """The named bugs that the protocol brings."""
    rows = runpy.run_path(str(tree / "brokerd/protocols/ring_flood/mutants.py"))
    found: dict[str, NamedBug] = rows["MUTANTS"]
    return found
