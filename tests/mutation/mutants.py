"""Mutants of a module: small mistakes, generated from the syntax tree.

The kinds are mistakes of everyday changes: a boundary, an off by one, a dropped statement, swapped
branches, a dropped condition or operand, `min` for `max`, a forgotten field, and a reset that is
forgotten, so that the second episode differs from the first. Assertions, errors and texts stay as
they are.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from brokerd.simulator.anchors import AnchorLost, Source
from brokerd.simulator.named_bugs import swaps_of

ROOT: Final = Path(__file__).parents[2]
KINDS: Final = (
    *("boundary", "off by one", "statement", "reset", "branches", "condition", "operand"),
    *("min and max", "field"),
)

Block = tuple[int, int]
"""Line and column of the first statement of a list of statements."""
Swap = tuple[FunctionType, CodeType]

_BOUNDARIES: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt
}  # fmt: skip
_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_REMOVALS: Final = ("clear", "pop", "discard", "remove", "popleft", "reset")
_JUMPS: Final = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_FIXED: Final = (ast.Assert, ast.Raise, ast.Pass, ast.Import, ast.ImportFrom, ast.ClassDef)
_FIRST: Final = ("__init__", "__post_init__", "__new__")
"""Functions that set the first values of attributes, which any use would miss."""
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake in a function.

    Attributes:
        module: path in the project.
        number: place in the order of `places`.
        block: the statements that must run before a test can detect the mistake.
        before, after: the changed source; `after` is "" for a dropped statement.
    """

    module: str
    number: int
    function: str
    kind: str
    line: int
    block: Block
    before: str
    after: str

    def describe(self) -> str:
        """Return a line with file, line, and mutated text."""
        return f"{self.module}:{self.line} {self.function} [{self.kind}] {self.change}"

    @property
    def change(self) -> str:
        """The source before and after."""
        return f"{self.before}  ->  {self.after or '(dropped)'}"

    @property
    def key(self) -> str:
        """The name of the mutant, which survives changes of other lines."""
        return f"{self.module} {self.function}: {self.change}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A place of a tree and the mistake there: `new` replaces the node at `owner.field[index]`."""

    kind: str
    block: Block
    node: ast.AST
    owner: ast.AST
    field: str
    index: int | None
    new: ast.AST | None

    def apply(self) -> None:
        if self.new is not None:
            for each in ast.walk(self.new):
                ast.copy_location(each, self.node)
        if self.index is None:
            setattr(self.owner, self.field, self.new)
            return
        items = getattr(self.owner, self.field)
        items[self.index : self.index + 1] = [] if self.new is None else [self.new]
        if not items and self.field in ("body", "finalbody"):
            items.append(ast.copy_location(ast.Pass(), self.node))


def mutants_of(module: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of the source."""
    source = read_source(module)
    return [
        Mutant(
            module=module,
            number=number,
            function=name,
            kind=place.kind,
            line=getattr(place.node, "lineno", source.functions[name].lineno),
            block=place.block,
            before=_shorten(place.node),
            after="" if place.new is None else _shorten(place.new),
        )
        for number, (name, place) in enumerate(_places(source))
    ]


def read_source(module: str) -> Source:
    """Return the source of a module of the project."""
    return Source(module, (ROOT / module).read_text(encoding="utf-8"))


def swaps_of_mutant(mutant: Mutant) -> list[Swap]:
    """Return the live function of a mutant with the changed code; empty if that is impossible."""
    try:
        return [*swaps_of(source_of_mutant(mutant))]
    except (AnchorLost, SyntaxError):  # such as a variable of its surroundings that is left out
        return []


def source_of_mutant(mutant: Mutant) -> Source:
    """Return the source of a module with a mutant."""
    source = read_source(mutant.module)
    name, place = [*_places(source)][mutant.number]
    place.apply()
    source.changed[name] = "mutant"
    return source


def swaps_with_records(module: str) -> list[Swap]:
    """Return all live functions of a module with code that records every executed block.

    The blocks are in the set `__reached__` of the module.
    """
    vars(import_module(module.removesuffix(".py").replace("/", ".")))["__reached__"] = set()
    return [*swaps_of(source_with_records(module))]


def source_with_records(module: str) -> Source:
    """Return the source of a module that records every executed block in `__reached__`."""
    source = read_source(module)
    for function in source.functions.values():
        for body, block in [*_bodies(function)]:
            call = ast.parse(f"__reached__.add({block!r})").body[0]
            for each in ast.walk(call):
                ast.copy_location(each, body[0])
            body.insert(0, call)
    source.changed = dict.fromkeys(source.functions, "record")
    return source


# ---------------------------------------------------------------- places


def _places(source: Source) -> Iterator[tuple[str, _Place]]:
    for name, function in source.functions.items():
        yields = sum(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function))
        for owner, field, block in _lists(function):
            for index, statement in enumerate(getattr(owner, field)):
                if isinstance(statement, _FIXED) or _is_text(statement):
                    continue
                kind = _kind_of_drop(statement, yields)
                if kind and not (function.name in _FIRST and kind in ("statement", "reset")):
                    yield name, _Place(kind, block, statement, owner, field, index, None)
                for place in _of_branches(statement, owner, field, index, block):
                    yield name, place
                for place in _of_expressions(statement, block):
                    yield name, place


def _lists(node: ast.AST) -> Iterator[tuple[ast.AST, str, Block]]:
    """Yield every list of statements: the owner, the field, and the block."""
    for field, value in ast.iter_fields(node):
        if not isinstance(value, list) or not value:
            continue
        if isinstance(value[0], ast.stmt):
            yield node, field, (value[0].lineno, value[0].col_offset)
        for each in value:
            if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from _lists(each)


def _bodies(function: ast.AST) -> Iterator[tuple[list[ast.stmt], Block]]:
    for owner, field, block in _lists(function):
        yield getattr(owner, field), block


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _kind_of_drop(statement: ast.stmt, yields: int) -> str:
    """Return the kind of mistake of a statement that is dropped; "" if the statement stays."""
    match statement:
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            return "statement" if yields > 1 else ""
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))):
            return "reset" if name in _REMOVALS else "statement"
        case ast.Expr() | ast.AugAssign() | ast.Continue() | ast.Break():
            return "statement"
        case ast.Delete():
            return "reset"
        case ast.Assign(targets=[*targets], value=value):
            if not all(isinstance(each, ast.Attribute | ast.Subscript) for each in targets):
                return ""
            return "reset" if _is_empty(value) else "statement"
        case ast.AnnAssign(target=ast.Attribute(), value=ast.AST()):
            return ""  # the first value of an attribute
        case ast.If(body=[jump], orelse=[]) if isinstance(jump, _JUMPS):
            return "statement"
    return ""


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.Constant():
            return True
        case ast.Dict(keys=[]) | ast.List(elts=[]) | ast.Tuple(elts=[]):
            return True
        case ast.Call(func=ast.Name(), args=[], keywords=[]):
            return True
    return False


def _of_branches(
    statement: ast.stmt, owner: ast.AST, field: str, index: int, block: Block
) -> Iterator[_Place]:
    match statement:
        case ast.If(test=test, body=body, orelse=[_, *_] as other):
            new = ast.If(test=_copy(test), body=_copies(other), orelse=_copies(body))
            yield _Place("branches", block, statement, owner, field, index, new)
        case ast.If(test=test, body=body, orelse=[]) if not isinstance(body[-1], _JUMPS):
            true = ast.Constant(True)
            yield _Place("condition", block, test, statement, "test", None, true)
        case ast.Assign(targets=[_, _, *_] as targets):
            for number, target in enumerate(targets):
                if isinstance(target, ast.Attribute | ast.Subscript):
                    yield _Place("field", block, target, statement, "targets", number, None)


def _of_expressions(statement: ast.stmt, block: Block) -> Iterator[_Place]:
    """Yield the places of the expressions of a statement, without statements inside."""
    if isinstance(statement, _SCOPES):
        return
    for field, value in ast.iter_fields(statement):
        if field == "annotation":
            continue
        for index, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(each, ast.match_case) and each.guard is not None:
                yield from _of_expression(each.guard, each, "guard", None, block)
            elif isinstance(each, ast.withitem):
                yield from _of_expression(each.context_expr, each, "context_expr", None, block)
            elif isinstance(each, ast.expr):
                yield from _of_expression(each, statement, field, index, block)


def _of_expression(
    node: ast.AST, owner: ast.AST, field: str, index: int | None, block: Block
) -> Iterator[_Place]:
    if isinstance(node, ast.JoinedStr):
        return
    for kind, new in _mistakes(node):
        yield _Place(kind, block, node, owner, field, index, new)
    for name, value in ast.iter_fields(node):
        for number, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(each, ast.expr | ast.comprehension | ast.keyword):
                yield from _of_expression(each, node, name, number, block)


def _mistakes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=right):
            for turn, operator in enumerate(ops):
                if new := _BOUNDARIES.get(type(operator)):
                    others = [*ops[:turn], new(), *ops[turn + 1 :]]
                    yield "boundary", ast.Compare(_copy(left), others, _copies(right))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
            yield "off by one", _copy(left)
        case ast.BoolOp(op=op, values=values):
            for number in range(len(values)):
                rest = _copies(values[:number] + values[number + 1 :])
                yield "operand", rest[0] if len(rest) == 1 else ast.BoolOp(type(op)(), rest)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "branches", ast.IfExp(_copy(test), _copy(orelse), _copy(body))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _CALLS:
            called = ast.Name(_CALLS[name], ast.Load())
            keeps = [each for each in keywords if not (each.arg == "default" and name == "any")]
            yield "min and max", ast.Call(called, _copies(args), _copies(keeps))
        case ast.Call(func=ast.Name(id="replace") as called, args=args, keywords=[*keywords]):
            for number in range(len(keywords)):
                rest = _copies(keywords[:number] + keywords[number + 1 :])
                yield "field", ast.Call(_copy(called), _copies(args), rest)


def _copy(node: Any) -> Any:
    """Return a copy of a node with the same source."""
    if isinstance(node, list):
        return _copies(node)
    if not isinstance(node, ast.AST):
        return node
    new = type(node)(**{name: _copy(value) for name, value in ast.iter_fields(node)})
    return ast.copy_location(new, node)


def _copies(nodes: list[Any]) -> list[Any]:
    return [_copy(node) for node in nodes]


def _shorten(node: ast.AST) -> str:
    """Return the source of a node in a line."""
    return " ⏎ ".join(line.strip() for line in ast.unparse(node).splitlines())
