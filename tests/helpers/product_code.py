"""The product's source code."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("bench", "brokerd", "fault_injection", "pubsubctl", "results")


def python_files(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the product's modules in which one of these words occurs."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in words):
                yield path, ast.parse(text)
