"""Named bugs: rows of data that describe a file with a mistake in it.

No product code uses named bugs. A simulation or a test plants a bug in its own process and must
detect it; rows stay valid because text that is not found exactly once is an error.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Edit:
    """One place of a bug, within functions.

    Attributes:
        file: path in the project, as in "brokerd/sessions/outbox.py".
        text: the text of the file, found exactly once.
        mistaken: the text with the bug.
    """

    file: str
    text: str
    mistaken: str


@dataclass(frozen=True, slots=True)
class NamedBug:
    """A plausible mistake.

    Attributes:
        name: name in commands and tables.
        leaves_out: the rule that the bug breaks, as a sentence.
        edits: all edits of the bug.
    """

    name: str
    leaves_out: str
    edits: tuple[Edit, ...]


class BugNotFound(AssertionError):
    """A row that no longer fits its file."""


_now: list[tuple[NamedBug, ...]] = []


@contextmanager
def planted(bugs: Iterable[NamedBug]) -> Iterator[None]:
    """Replace the functions with planted bugs, in this process, within a `with` block.

    Only one set of bugs is planted at a time; the same set again inside changes nothing. Earlier
    results, such as cached values, stay unchanged.

    Raises:
        BugNotFound: a text is not found exactly once, or is not within a function.
    """
    chosen = tuple(dict.fromkeys(bugs))
    if not chosen or _now == [chosen]:
        yield
        return
    assert not _now, f"{_now[0]} are planted, so {chosen} cannot be"
    swaps = mistaken_functions(chosen)
    sound = [(function, function.__code__) for function, _ in swaps]
    _now.append(chosen)
    try:
        for function, code in swaps:
            function.__code__ = code
        yield
    finally:
        for function, code in sound:
            function.__code__ = code
        _now.clear()


@lru_cache(maxsize=256)
def mistaken_functions(bugs: tuple[NamedBug, ...]) -> tuple[tuple[FunctionType, CodeType], ...]:
    """Return the functions that the bugs change, each with its changed code.

    Raises:
        BugNotFound: as `planted`.
    """
    files: dict[str, list[Edit]] = {}
    for bug in bugs:
        for edit in bug.edits:
            files.setdefault(edit.file, []).append(edit)
    return tuple(swap for file, edits in files.items() for swap in _of_file(file, edits))


def _of_file(file: str, edits: list[Edit]) -> Iterator[tuple[FunctionType, CodeType]]:
    path = _ROOT / file
    standing = path.read_text(encoding="utf-8")
    mistaken = standing
    for edit in edits:
        if mistaken.count(edit.text) != 1:
            raise BugNotFound(f"{file} has {mistaken.count(edit.text)} times: {edit.text!r}")
        mistaken = mistaken.replace(edit.text, edit.mistaken)
    before, after = _functions(standing), _functions(mistaken)
    changed = [name for name in after if after[name] != before.get(name)]
    if not changed or before.keys() != after.keys() or "" in changed:
        raise BugNotFound(f"{file}: a bug changes what is in functions, and only that: {edits}")
    module = import_module(file.removesuffix(".py").replace("/", "."))
    codes = _codes(compile(mistaken, str(path), "exec", dont_inherit=True))
    for name in changed:
        function = _live(module, name)
        if codes[name].co_freevars != function.__code__.co_freevars:
            raise BugNotFound(f"{file}: {name} would use other names of its surroundings")
        yield function, codes[name]


def _functions(source: str) -> dict[str, str]:
    """Return the source of each function and method, by dotted name; "" has everything else."""
    found: dict[str, str] = {}

    def take(body: list[ast.stmt], prefix: str) -> None:
        for item in body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                content = [ast.dump(statement) for statement in item.body]
                found[_free(prefix + item.name, found)] = repr(content)
                item.body = []
            elif isinstance(item, ast.ClassDef):
                take(item.body, f"{prefix}{item.name}.")

    tree = ast.parse(source)
    take(tree.body, "")
    return {"": ast.dump(tree), **found}


def _codes(code: CodeType) -> dict[str, CodeType]:
    """Return the code of each function and method, by the names of `_functions`."""
    found: dict[str, CodeType] = {}

    def take(inside: CodeType, prefix: str) -> None:
        for item in inside.co_consts:
            if not isinstance(item, CodeType) or item.co_name.startswith("<"):
                continue
            if item.co_flags & inspect.CO_OPTIMIZED:
                found[_free(prefix + item.co_name, found)] = item
            else:
                take(item, f"{prefix}{item.co_name}.")

    take(code, "")
    return found


def _free(name: str, taken: dict[str, Any]) -> str:
    """Return a name with a number if it is taken, because a setter has the name of its property."""
    return name if name not in taken else f"{name}#{sum(each.startswith(name) for each in taken)}"


def _live(module: Any, name: str) -> FunctionType:
    """Return the function of the running module by name, without its decorators."""
    *classes, last = name.partition("#")[0].split(".")
    found: Any = module
    for part in classes:
        found = vars(found)[part]
    found = vars(found)[last]
    if isinstance(found, property):
        found = found.fset if "#" in name else found.fget
    found = inspect.unwrap(getattr(found, "__func__", None) or getattr(found, "func", found))
    assert isinstance(found, FunctionType), f"{name} of {module.__name__} is {found!r}"
    return found
