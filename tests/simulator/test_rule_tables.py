"""Tests of the tables that lead from a broken rule to the function that checks it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIMULATOR = ROOT / "brokerd/simulator"
TABLES = (
    SIMULATOR / "checks/invariants.py",
    *sorted((ROOT / "brokerd/protocols").glob("*/checks/steps.py")),
)
_CHECKS = re.compile(r"\b(\w+): ((?:`\w+`(?:,\s+)?(?: \([^)]*\)(?:,\s+)?)?)+)")
"""A module, and the functions of it."""


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.parts[-3])
def test_a_table_of_rules_names_functions_that_exist(table: Path) -> None:
    text = ast.get_docstring(ast.parse(table.read_text(encoding="utf-8"))) or ""
    for module, names in _CHECKS.findall(text):
        for name in re.findall(r"`(\w+)`", names):
            assert name in _names_of(_find(module, table)), f"{module}: {name}"


def _find(module: str, table: Path) -> Path:
    """Return the file of a module of the same folder, or of the simulator."""
    if module == "here":
        return table
    found = [*table.parent.glob(f"{module}.py"), *SIMULATOR.rglob(f"{module}.py")]
    assert found, f"no module {module}"
    return found[0]


def _names_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
