"""Tests of commands: no library imports a command, and no function of a command is long."""

import ast
from pathlib import Path

from tests.architecture.layers import OURS
from tests.architecture.small_trees import ROOT, complain, plant
from tests.helpers.architecture import (
    find_imports_of_commands,
    read_modules,
)


def test_no_library_imports_a_command() -> None:
    entry = ("pubsubctl.entry", "pubsubctl.__main__")
    modules = read_modules(ROOT, OURS)
    complain(find_imports_of_commands(modules, "pubsubctl.commands", entry))


def test_an_import_of_a_command_is_found(tmp_path: Path) -> None:
    sources = {"pubsubctl.commands.run": "", "pubsubctl.lib": "", "pubsubctl.entry": ""}
    for name in ("pubsubctl.lib", "pubsubctl.entry"):
        sources[name] = "from pubsubctl.commands import run"
    modules = read_modules(plant(tmp_path, sources), ("pubsubctl",))
    (found,) = find_imports_of_commands(modules, "pubsubctl.commands", ("pubsubctl.entry",))
    assert found.what == "pubsubctl.lib imports pubsubctl.commands.run"


def test_no_function_of_a_command_is_longer_than_60_lines() -> None:
    """A command decides; options are declared in groups, and libraries do the work."""
    folder = ROOT / "pubsubctl" / "commands"
    assert long_functions(folder, 60) == []


def test_a_long_function_is_found(tmp_path: Path) -> None:
    lines = "\n".join(f"    x = {number}" for number in range(4))
    (tmp_path / "verb.py").write_text(f"def short():\n    pass\n\n\nasync def long():\n{lines}\n")
    assert long_functions(tmp_path, 4) == ["verb.py: long has 5 lines"]


def long_functions(folder: Path, most: int) -> list[str]:
    """Return the functions below a folder with more lines than allowed, from `def` to the last."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > most:
                    found.append(f"{path.relative_to(folder)}: {node.name} has {lines} lines")
    return found
