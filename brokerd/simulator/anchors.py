"""Anchors of named bugs: edits of syntax trees that survive a change of wording.

An edit names a function, source to find in it, and a replacement. Formatting, comments and
docstrings do not matter. Names are compared exactly first. If nothing matches, a one-to-one
renaming of local variables is looked for under which exactly one place matches, and the
replacement is renamed as well. Anything else is `AnchorLost`.
"""

import ast
import builtins
import difflib
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final


@dataclass(frozen=True, slots=True)
class Edit:
    """One change within one function.

    Attributes:
        module: path in the project, such as "brokerd/sessions/outbox.py".
        function: dotted name in the module, such as "Outbox.push"; "Till.full#2" is the second
            definition of that name, such as the setter of a property.
        find: an expression, or consecutive statements.
        replace: their replacement; "" removes statements.
        occurrence: number of the match, from 1, if there are several; 0 if there is one.
        context: other source of the function that uses local names of `replace` or `find`, so that
            their new names are found after a renaming; "" if `find` has all.
    """

    module: str
    function: str
    find: str
    replace: str
    occurrence: int = 0
    context: str = ""


class AnchorLost(AssertionError):
    """A named bug that cannot be planted, because its place is not in the source any more.

    Attributes:
        bug: name of the bug.
        module: path of the module.
        function: dotted name of the function.
        nearest: the function that has the place now, or else the most similar name; "" if none.
        reason: why the place was not found.
    """

    exit_status: ClassVar = 8

    def __init__(self, bug: str, module: str, function: str, nearest: str, reason: str) -> None:
        super().__init__(bug, module, function, nearest, reason)
        self.bug = bug
        self.module = module
        self.function = function
        self.nearest = nearest
        self.reason = reason

    def __str__(self) -> str:
        """Return one line with all attributes."""
        near = f"; nearest function: {self.nearest}" if self.nearest else ""
        return f"{self.bug}: anchor lost in {self.module}, {self.function}: {self.reason}{near}"


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class _Place:
    """A match of an anchor.

    Attributes:
        owner, field: the node that holds the match, and in which field.
        first, end: the matched part of that field, if it is a list.
        names: local names of the anchor that have other names here.
    """

    owner: ast.AST
    field: str
    first: int
    end: int
    names: dict[str, str]

    def position(self) -> tuple[int, int]:
        """Return line and column of the match."""
        value = getattr(self.owner, self.field)
        node = value[self.first] if isinstance(value, list) else value
        return node.lineno, node.col_offset


class Source:
    """The syntax tree of a module, to which edits are applied.

    Attributes:
        module: path of the module in the project.
        tree: as edited.
        functions: functions and methods by dotted name.
        changed: names of the functions that have edits, each with the first bug.
    """

    def __init__(self, module: str, text: str) -> None:
        self.module = module
        self.tree = ast.parse(text)
        self.functions = functions_of(self.tree)
        self.changed: dict[str, str] = {}
        self._globals = frozenset(_bound([self.tree])) | frozenset(vars(builtins))

    def apply(self, bug: str, edit: Edit) -> None:
        """Replace the place of an edit in its function.

        Raises:
            AnchorLost: the place is not there exactly once, or the edit changes nothing.
        """
        function = self.functions.get(edit.function)
        if function is None:
            raise self._fail(bug, edit, "no such function")
        find, replace = _parse(edit.find, edit.replace)
        names: dict[str, str] = {}
        if edit.context:
            context, _ = _parse(edit.context, edit.context)
            names = self._place(bug, edit, function, context, 0, names).names
        place = self._place(bug, edit, function, find, edit.occurrence, names)
        before = ast.dump(function)
        known = frozenset(_bound_everywhere(function)) | self._globals | {"__class__"}
        new = [_rename(node, place.names) for node in replace]
        _put(place, new)
        unknown = (
            _list_used(new) - _list_used(find) - known - frozenset(_bound_everywhere(function))
        )
        if unknown:
            raise self._fail(bug, edit, f"the function has no name {sorted(unknown)[0]!r}")
        if ast.dump(function) == before:
            raise self._fail(bug, edit, "the edit changes nothing")
        self.changed.setdefault(edit.function, bug)

    def _place(
        self,
        bug: str,
        edit: Edit,
        function: Function,
        find: list[ast.AST],
        occurrence: int,
        names: Mapping[str, str],
    ) -> _Place:
        text = repr("\n".join(map(ast.unparse, find)))
        found = [] if names else self._places(function, find, {}, renaming=False)
        if not found:
            found = self._places(function, find, names, renaming=True)
            if any(each.names != found[0].names for each in found):
                raise self._fail(bug, edit, f"{len(found)} places have {text} under other names")
        if not found:
            raise self._fail(bug, edit, f"it does not have {text}")
        if not occurrence and len(found) > 1:
            raise self._fail(bug, edit, f"it has {len(found)} times {text}")
        if occurrence > len(found):
            raise self._fail(bug, edit, f"it has only {len(found)} times {text}")
        return found[max(0, occurrence - 1)]

    def _places(
        self,
        function: Function,
        find: list[ast.AST],
        chosen: Mapping[str, str],
        *,
        renaming: bool,
    ) -> list[_Place]:
        inner = _bound_inside(find)
        is_expression = isinstance(find[0], ast.expr)
        found = []
        for owner, name, visible in _fields(function):
            value = getattr(owner, name)
            items = value if isinstance(value, list) else [value]
            starts = range(len(items) - len(find) + 1)
            for first in starts:
                here = items[first : first + len(find)]
                if is_expression and not (isinstance(here[0], ast.expr) and _is_loaded(here[0])):
                    continue
                names = _Names(renaming, visible, inner, self._globals, here, {**chosen})
                if all(map(names.match, find, here)):
                    found.append(_Place(owner, name, first, first + len(find), names.differing()))
        return sorted(found, key=_Place.position)

    def _fail(self, bug: str, edit: Edit, reason: str) -> AnchorLost:
        nearest = ""
        find, _ = _parse(edit.find, edit.replace)
        for renaming in (False, True):
            for name, function in self.functions.items():
                if not nearest and name != edit.function:
                    nearest = name if self._places(function, find, {}, renaming=renaming) else ""
        others = [name for name in self.functions if name != edit.function]
        close = difflib.get_close_matches(edit.function, others, 1, 0)
        nearest = nearest or (close[0] if close else "")
        return AnchorLost(bug, self.module, edit.function, nearest, reason)


def functions_of(tree: ast.Module) -> dict[str, Function]:
    """Return the functions and methods of a module by dotted name; "#2" marks a second one."""
    found: dict[str, Function] = {}

    def take(body: Iterable[ast.AST], prefix: str) -> None:
        for item in body:
            if isinstance(item, Function):
                name, number = prefix + item.name, 1
                while (name if number == 1 else f"{name}#{number}") in found:
                    number += 1
                found[name if number == 1 else f"{name}#{number}"] = item
            elif isinstance(item, ast.ClassDef):
                take(item.body, f"{prefix}{item.name}.")
            elif isinstance(item, ast.If | ast.Try | ast.With):
                take(ast.iter_child_nodes(item), prefix)

    take(tree.body, "")
    return found


_NAME_FIELDS: Final = {
    ast.Name: ("id",),
    ast.arg: ("arg",),
    ast.ExceptHandler: ("name",),
    ast.MatchAs: ("name",),
    ast.MatchStar: ("name",),
    ast.MatchMapping: ("rest",),
    ast.FunctionDef: ("name",),
    ast.AsyncFunctionDef: ("name",),
    ast.ClassDef: ("name",),
    ast.alias: ("asname",),
}
"""Fields that name a variable."""
_IGNORED: Final = ("ctx", "type_comment", "kind")
_SCOPES: Final = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(slots=True)
class _Names:
    """Comparison of an anchor with a place, and the renaming under which they are equal.

    Attributes:
        renaming: whether local names may differ.
        visible: local names that are visible at the place.
        inner: names that the anchor binds in scopes of its own, such as comprehensions.
        fixed: names of the module and of Python.
        here: the nodes of the place.
        chosen: names of the anchor and their names at the place.
    """

    renaming: bool
    visible: frozenset[str]
    inner: frozenset[str]
    fixed: frozenset[str]
    here: list[Any]
    chosen: dict[str, str] = field(default_factory=dict)

    def match(self, anchor: Any, node: Any) -> bool:
        """Return whether two nodes are equal but for the names of local variables."""
        if type(anchor) is not type(node):
            return False
        if isinstance(anchor, list):
            return len(anchor) == len(node) and all(map(self.match, anchor, node))
        if not isinstance(anchor, ast.AST):
            return bool(anchor == node)
        names = _NAME_FIELDS.get(type(anchor), ())
        for key in anchor._fields:
            if key in _IGNORED:
                continue
            one, other = getattr(anchor, key, None), getattr(node, key, None)
            if key == "body" and isinstance(anchor, Function | ast.ClassDef):
                one, other = _without_docstring(one), _without_docstring(other)
            if not (self._is_same(one, other) if key in names else self.match(one, other)):
                return False
        return True

    def differing(self) -> dict[str, str]:
        """Return the names that differ."""
        return {name: here for name, here in self.chosen.items() if name != here}

    def _is_same(self, name: str | None, here: str | None) -> bool:
        if not self.renaming or name is None or here is None:
            return name == here
        if name in self.chosen or here in self.chosen.values():
            return self.chosen.get(name) == here
        if name != here:
            is_free = name in self.inner or name not in self.visible
            is_local = here in self.visible or here in _bound_inside(self.here)
            if name in self.fixed or not is_free or not is_local:
                return False
        self.chosen[name] = here
        return True


def _parse(find: str, replace: str) -> tuple[list[ast.AST], list[ast.AST]]:
    """Parse both as expressions, or else both as statements."""
    texts = [textwrap.dedent(text).strip() for text in (find, replace)]
    try:
        nodes = [ast.parse(f"(\n{text}\n)", mode="eval").body for text in texts]
    except SyntaxError:
        statements = [ast.parse(text).body for text in texts]
        return [*statements[0]], [*statements[1]]
    if not all(texts):  # () is a tuple
        return [*ast.parse(texts[0]).body], []
    return [nodes[0]], [nodes[1]]


_Field = tuple[ast.AST, str, frozenset[str]]


def _fields(function: Function) -> Iterator[_Field]:
    """Yield fields that may hold a match, in source order, with the names visible there."""

    def visit(
        node: ast.AST, visible: frozenset[str]
    ) -> Iterator[tuple[ast.AST, str, frozenset[str]]]:
        if isinstance(node, _SCOPES):
            visible |= frozenset(_bound([node]))
        for name, value in ast.iter_fields(node):
            if node is function and name != "body":
                continue
            if isinstance(value, ast.AST | list):
                yield node, name, visible
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    yield from visit(child, visible)

    return visit(function, frozenset())


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that scopes bind, without those of scopes inside."""
    for node in nodes:
        outermost = True
        waiting = [node]
        while waiting:
            here = waiting.pop()
            if here is not node or not isinstance(node, _SCOPES):
                yield from _binds(here)
            if outermost or not isinstance(here, _SCOPES):
                waiting.extend(ast.iter_child_nodes(here))
            outermost = False


def _bound_everywhere(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        yield from _binds(each)


def _bound_inside(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names that are bound in scopes inside of the nodes."""
    inside = (each for node in nodes for each in ast.walk(node) if isinstance(each, _SCOPES))
    return frozenset(_bound(inside))


def _binds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    else:
        for key in _NAME_FIELDS.get(type(node), ()):
            if isinstance(name := getattr(node, key), str):
                yield name


def _list_used(nodes: Iterable[ast.AST]) -> frozenset[str]:
    return frozenset(
        each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)
    )


def _is_loaded(node: ast.expr) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load | None)


def _without_docstring(body: Any) -> Any:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return body[1:] if isinstance(first.value.value, str) else body
    return body


def _rename(node: ast.AST, names: Mapping[str, str]) -> ast.AST:
    for each in ast.walk(node):
        for key in _NAME_FIELDS.get(type(each), ()):
            if (name := getattr(each, key)) in names:
                setattr(each, key, names[name])
    return node


def _put(place: _Place, new: list[ast.AST]) -> None:
    value = getattr(place.owner, place.field)
    old = value[place.first] if isinstance(value, list) else value
    for each in (each for node in new for each in ast.walk(node)):
        ast.copy_location(each, old)
    if not isinstance(value, list):
        setattr(place.owner, place.field, new[0])
        return
    value[place.first : place.end] = new
    if not value and place.field == "body":
        value.append(ast.copy_location(ast.Pass(), old))
