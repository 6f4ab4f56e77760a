"""Names in docstrings and comments that the product does not have.

Three kinds are found: an entry of `Attributes:` that is no attribute of the class or of its bases,
an entry of `Args:` that is no parameter, and a name in backquotes that stands nowhere in the code.
Only statements are visited, not expressions, so that one pass over the product stays fast.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

_WORD = re.compile(r"\w+")
_OF_SELF = re.compile(r"\b(?:self|cls)\.(\w+)")
_QUOTED = re.compile(r"`([\w./]+)(?:\(\))?`")
_ENTRY = re.compile(r"([\w`*, ]+?)(?: \(.*?\))?:")
_HEADING = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")


@dataclass(slots=True)
class _Class:
    """A class with its own members.

    Attributes:
        place: file and line.
    """

    place: str
    members: set[str]
    bases: list[str]
    documented: list[str]


@dataclass(slots=True)
class Names:
    """The names of some files, and the names that their docstrings and comments mention.

    Attributes:
        code: words of the code and of the names of all files.
        quoted: names in backquotes, with their places.
        stale: entries of `Args:` that are no parameters.
    """

    code: set[str] = field(default_factory=set)
    quoted: list[tuple[str, str]] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    _classes: dict[str, list[_Class]] = field(default_factory=dict)

    def read(self, root: Path, path: Path) -> None:
        """Read one Python file."""
        text = path.read_text("utf-8")
        lines = text.splitlines()
        tree = ast.parse(text)
        file = path.relative_to(root).as_posix()
        for node in (tree, *_statements(tree.body)):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                self._read_body(node, file, lines)
        for number, line in enumerate(lines, 1):
            code, sharp, comment = line.partition("# ")
            self.code.update(_WORD.findall(code))
            if sharp:
                self._quote(comment, f"{file}:{number}")

    def find_stale(self, permitted: Iterable[str] = ()) -> list[str]:
        """Return the names that do not exist, with their places."""
        known = {*self.code, *permitted}
        found = [
            f"{place}: `{name}`"
            for place, name in self.quoted
            if not all(word in known or word[0].isdigit() for word in _WORD.findall(name))
        ]
        for each in self._classes.values():
            for one in each:
                members = self._members_of(one, set())
                found += [f"{one.place}: {x}" for x in one.documented if x not in members]
        return self.stale + found

    def _read_body(
        self, node: ast.Module | ast.ClassDef | Function, file: str, lines: list[str]
    ) -> None:
        first = ast.get_docstring(node, clean=True) or ""
        place = f"{file}:{getattr(node, 'lineno', 1)}"
        parameters = self._parameters_of(node)
        self.stale += [f"{place}: {x}" for x in entries(first, "Args") if x not in parameters]
        if isinstance(node, ast.ClassDef):
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            self._classes.setdefault(node.name, []).append(
                _Class(
                    place,
                    {*_OF_SELF.findall(source), *_members(node)},
                    [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases],
                    entries(first, "Attributes"),
                )
            )
        for statement in node.body:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                self._quote(statement.value.value, f"{file}:{statement.lineno}")
                end = statement.end_lineno or statement.lineno
                lines[statement.lineno - 1 : end] = [""] * (end - statement.lineno + 1)

    def _parameters_of(self, node: ast.AST) -> set[str]:
        if isinstance(node, ast.ClassDef):
            inits = [x for x in node.body if isinstance(x, Function) and x.name == "__init__"]
            # A dataclass takes its fields.
            return self._parameters_of(inits[0]) if inits else set(_members(node))
        if not isinstance(node, Function):
            return set()
        found = node.args
        every = [*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg]
        return {each.arg for each in every if each is not None}

    def _members_of(self, one: _Class, seen: set[str]) -> set[str]:
        found = set(one.members)
        for base in one.bases:
            if base not in seen:
                seen.add(base)
                for each in self._classes.get(base, ()):
                    found |= self._members_of(each, seen)
        return found

    def _quote(self, text: str, place: str) -> None:
        if "`" in text:
            self.quoted += [(place, name) for name in _QUOTED.findall(text)]


def read_names(root: Path, tops: Iterable[str]) -> Names:
    """Return the names of the Python files below some folders; all files' names count as code."""
    names = Names()
    for top in tops:
        for path in sorted((root / top).rglob("*")):
            names.code.update(_WORD.findall(path.name))
            if path.suffix == ".py":
                names.read(root, path)
    return names


def entries(docstring: str, heading: str) -> list[str]:
    """Return the names that a section of a docstring documents."""
    found: list[str] = []
    section = depth = None
    for line in cleandoc(docstring).splitlines():
        indent = len(line) - len(line.lstrip())
        if match := _HEADING.fullmatch(line.strip()):
            section, depth = match[1], None
        elif line and not indent:
            section = None
        elif line and section == heading:
            depth = depth or indent
            if indent == depth and (match := _ENTRY.match(line.strip())):
                found += [name.strip(" `*") for name in match[1].split(",")]
    return found


def _members(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign | ast.Assign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))
        elif isinstance(statement, Function):
            yield statement.name


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for name in _BLOCKS:
            if isinstance(inner := getattr(statement, name, None), list):
                yield from _statements(inner)
