"""Named bugs: planted mistakes that the tests must find.

A named bug is a row of data in a source checkout, `tests/named_bugs/<protocol>.toml`. It names a
module, a function of that module, source to find there, and its replacement. The planter parses
the module, finds the source in the syntax tree of the function, compiles the changed tree and
exchanges the code of the live function.

No deployed code imports this module.
"""

import ast
import inspect
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, ClassVar, Final

from brokerd.errors import BrokerError, ConfigError
from brokerd.simulator.anchors import AnchorLost, Edit, Function, Source

_ROOT: Final = Path(__file__).parents[2]
_FOLDER: Final = "tests/named_bugs"


@dataclass(frozen=True, slots=True)
class NamedBug:
    """A mistake that a change may make.

    Attributes:
        name: in commands and tables.
        leaves_out: the rule that does not hold with it, as a sentence.
        edits: all changes.
    """

    name: str
    leaves_out: str
    edits: tuple[Edit, ...]


class NoCheckout(BrokerError):
    """The data of named bugs is not here, because this is no source checkout."""

    exit_status: ClassVar = 2

    def __init__(self) -> None:
        super().__init__(f"named bugs are data of a source checkout: {_FOLDER} is not here")


# -------------------------------------------------------------------------------- data


def has_data() -> bool:
    """Return whether this is a source checkout with named bugs."""
    return (_ROOT / _FOLDER).is_dir()


@lru_cache(maxsize=64)
def bugs_of(protocol: str) -> Mapping[str, NamedBug]:
    """Return the named bugs of a protocol by name; empty if it has none.

    Raises:
        NoCheckout: there is no folder of named bugs.
        ConfigError: the file cannot be used; names file, row and key.
    """
    if not has_data():
        raise NoCheckout
    path = _ROOT / _FOLDER / f"{protocol}.toml"
    if not path.exists():
        return {}
    return {bug.name: bug for bug in (bug_of(row, path, "leaves_out") for row in read_rows(path))}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of named bugs, each with a name of its own.

    Raises:
        ConfigError: the file is no TOML, a row has no name, or two rows have the same name.
    """
    try:
        rows: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("bug", [])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    names = [row.get("name") for row in rows]
    for place, name in enumerate(names):
        if not name or not isinstance(name, str):
            raise ConfigError(f"{path}: bug {place + 1}: name = {name!r}")
        if name in names[:place]:
            raise ConfigError(f"{path}: two bugs are called {name!r}")
    return rows


def bug_of(row: Mapping[str, Any], path: Path, sentence: str) -> NamedBug:
    """Return the named bug of a row.

    Args:
        row: as from `read_rows`.
        path: of its file, for errors.
        sentence: the key of the rule that the bug leaves out.

    Raises:
        ConfigError: a key is missing or has another type; names file, row and key.
    """
    where = f"{path}: {row['name']}"

    def text(table: Mapping[str, Any], key: str) -> str:
        value = table.get(key)
        if not isinstance(value, str) or (key != "replace" and not value.strip()):
            raise ConfigError(f"{where}: {key} = {value!r}; text is needed")
        return value

    edits = []
    for edit in row.get("edit", []):
        occurrence = edit.get("occurrence", 0)
        if type(occurrence) is not int or occurrence < 0:
            raise ConfigError(f"{where}: occurrence = {occurrence!r}; a number from 1 is needed")
        if unknown := edit.keys() - {*Edit.__slots__}:
            raise ConfigError(f"{where}: no key {sorted(unknown)[0]!r} of an edit")
        texts = {key: text(edit, key) for key in ("module", "function", "find", "replace")}
        if "context" in edit:
            texts["context"] = text(edit, "context")
        edits.append(Edit(**texts, occurrence=occurrence))
    if not edits:
        raise ConfigError(f"{where}: no [[bug.edit]]")
    return NamedBug(row["name"], text(row, sentence), tuple(edits))


# ----------------------------------------------------------------------------- planting

_now: list[tuple[NamedBug, ...]] = []


@contextmanager
def plant(bugs: Iterable[NamedBug]) -> Iterator[None]:
    """Plant bugs in this process for the duration of the context.

    Only one set of bugs is planted at a time; the same set again inside changes nothing. Results
    that were cached before stay as they are.

    Raises:
        AnchorLost: a place is not in the source exactly once.
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
        AnchorLost: as `plant`.
    """
    return tuple(swap for source in edit_sources(bugs) for swap in swaps_of(source))


def edit_sources(bugs: Iterable[NamedBug], root: Path | None = None) -> list[Source]:
    """Return the changed modules, read from `root`, or else from this source checkout.

    Raises:
        AnchorLost: as `plant`.
    """
    sources: dict[str, Source] = {}
    for bug in bugs:
        for edit in bug.edits:
            if edit.module not in sources:
                path = (root or _ROOT) / edit.module
                if not path.is_file():
                    raise AnchorLost(bug.name, edit.module, edit.function, "", "no such module")
                sources[edit.module] = Source(edit.module, path.read_text(encoding="utf-8"))
            sources[edit.module].apply(bug.name, edit)
    return [*sources.values()]


def swaps_of(source: Source) -> Iterator[tuple[FunctionType, CodeType]]:
    """Yield each live function that has edits, with its changed code.

    Raises:
        AnchorLost: a changed function uses other names of its surroundings.
    """
    module = import_module(source.module.removesuffix(".py").replace("/", "."))
    changed = {id(source.functions[name]) for name in source.changed}
    # The rest of a module takes nine tenths of the time.
    tree = ast.Module([*_kept(source.tree.body, changed)], [])
    compiled = compile(tree, str(_ROOT / source.module), "exec", dont_inherit=True)
    codes = {(code.co_name, code.co_firstlineno): code for code in _codes(compiled)}
    for name, bug in source.changed.items():
        node = source.functions[name]
        line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        code = codes[node.name, line]
        function = _live(module, name, node)
        if code.co_freevars != function.__code__.co_freevars:
            reason = "the edit uses other names of its surroundings"
            raise AnchorLost(bug, source.module, name, "", reason)
        yield function, code


def _kept(body: Iterable[ast.AST], changed: Container[int]) -> Iterator[ast.stmt]:
    """Yield the changed functions, within their classes, and what determines their meaning.

    Args:
        changed: identities of the functions.
    """
    for item in body:
        if isinstance(item, Function):
            if id(item) in changed:
                yield item
        elif isinstance(item, ast.ClassDef):
            if inside := [*_kept(item.body, changed)]:
                alone = ast.parse(f"class {item.name}: pass").body[0]
                assert isinstance(alone, ast.ClassDef)
                alone.body = inside
                yield ast.copy_location(alone, item)
        elif isinstance(item, ast.If | ast.Try | ast.With):
            yield from _kept(ast.iter_child_nodes(item), changed)
        elif isinstance(item, ast.ImportFrom) and item.module == "__future__":
            yield item


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of everything inside, however deep."""
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield item
            yield from _codes(item)


def _live(module: Any, name: str, node: Function) -> FunctionType:
    """Return the running function of that name, whatever decorates it."""
    *classes, last = name.partition("#")[0].split(".")
    found: Any = module
    for part in classes:
        found = vars(found)[part]
    found = vars(found)[last]
    if isinstance(found, property):
        roles = {each.attr for each in node.decorator_list if isinstance(each, ast.Attribute)}
        found = found.fset if "setter" in roles else found.fget
    found = inspect.unwrap(getattr(found, "__func__", None) or getattr(found, "func", found))
    assert isinstance(found, FunctionType), f"{name} of {module.__name__} is {found!r}"
    return found
