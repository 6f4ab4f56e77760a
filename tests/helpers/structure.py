"""Measures of the structure of the product: files, constructors, and inheritance."""

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PRODUCT = ("brokerd", "bench", "pubsubctl", "results", "fault_injection")
SMALL_LINES = 40
"""A file with fewer lines of code is a fragment, unless it is an `__init__` or a `__main__`."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Measures of a tree.

    Attributes:
        lines: lines of all files, blank lines and docstrings included.
        files: number of files.
        small_files: number of files with fewer than SMALL_LINES lines of code.
        callables: constructor parameters whose annotation is a callable.
        depth: greatest number of our classes above a class.
        methods: number of methods of the largest class.
    """

    lines: int
    files: int
    small_files: int
    callables: int
    depth: int
    methods: int


def product_files(root: Path) -> list[Path]:
    """Return the Python files of the product that are under version control."""
    done = subprocess.run(
        ["git", "ls-files", "--", *(f"{package}/*.py" for package in PRODUCT)],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for name in done.stdout.splitlines() if (path := root / name).exists()]


def measure(paths: Iterable[Path]) -> Structure:
    """Measure some files together. Classes are matched by name."""
    lines = files = small = callables = methods = 0
    bases: dict[str, tuple[str, ...]] = {}
    for path in paths:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        files += 1
        lines += text.count("\n")
        is_entry = path.name in ("__init__.py", "__main__.py")
        small += not is_entry and code_lines(tree) < SMALL_LINES
        for node in _statements(tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = tuple(map(_last_name, node.bases))
                callables += sum(_is_callable(each) for each in _constructor_annotations(node))
                methods = max(methods, sum(map(_is_method, node.body)))
    depth = max((_depth(name, bases, ()) for name in bases), default=0)
    return Structure(lines, files, small, callables, depth, methods)


def code_lines(tree: ast.Module) -> int:
    """Return the number of lines that hold code; comments and docstrings hold none."""
    found: set[int] = set()
    for node in _statements(tree):
        if not _is_text(node):
            first = node.lineno
            last = node.body[0].lineno - 1 if _has_body(node) else node.end_lineno
            found.update(range(first, max(first, last or first) + 1))
    return len(found)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements below a node, without a look into expressions."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        for each in getattr(node, name, ()):
            if isinstance(each, ast.stmt):
                yield each
            yield from _statements(each)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _has_body(node: ast.stmt) -> bool:
    return bool(getattr(node, "body", None))


def _is_method(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _constructor_annotations(node: ast.ClassDef) -> Iterator[ast.expr]:
    is_dataclass = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            arguments = each.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if argument.annotation is not None:
                    yield argument.annotation
        elif is_dataclass and isinstance(each, ast.AnnAssign):
            yield each.annotation


def _is_callable(annotation: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == "Callable" for node in ast.walk(annotation)
    )


def _last_name(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        return _last_name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _depth(name: str, bases: Mapping[str, tuple[str, ...]], below: tuple[str, ...]) -> int:
    if name in below:
        return 0
    above = [each for each in bases.get(name, ()) if each in bases and each != name]
    return max((1 + _depth(each, bases, (*below, name)) for each in above), default=0)
