"""Checks of imports and names in a source tree, read with `ast`.

`tests/architecture` has the rules. This module reads the tree, finds the rule of a module,
and decides which statements count as imports. A dependency under `if TYPE_CHECKING` or inside a
function is a dependency like any other, unless a rule permits late imports only.
"""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True)
class Layer:
    """The imports that the modules of one package may make.

    A pattern is a dotted name that stands for a module and all modules below; `*` is any one part
    of a name. The longest pattern that fits a module governs it, a name before a `*`; with
    `only_itself` the pattern is one module, such as a package's `__init__`, without the modules
    below.

    Attributes:
        ours: patterns of the project's modules; a package may always import itself.
        own: pattern of the module's own package; "" for `pattern`.
        except_: patterns taken out of `ours` again.
        third_party: top-level names of installed packages.
        late: patterns that may be imported inside functions only.
        reason: why, in words for the author of a change that breaks the rule.
    """

    pattern: str
    reason: str
    ours: tuple[str, ...] = ()
    except_: tuple[str, ...] = ()
    third_party: frozenset[str] = frozenset()
    late: tuple[str, ...] = ()
    only_itself: bool = False
    own: str = ""

    def governs(self, module: str) -> bool:
        return module == self.pattern if self.only_itself else fits(module, self.pattern)


@dataclass(frozen=True, order=True)
class Finding:
    """A place that breaks a rule; users see only the text."""

    path: str
    line: int
    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}\n    because {self.reason}"


@dataclass(frozen=True)
class Import:
    """The name in one import statement, resolved to the imported module."""

    target: str
    line: int
    late: bool  # inside a function, or for type checkers only
    name: str = ""  # what is taken out of the module, where it is not a module itself


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    path: str
    tree: ast.Module = field(repr=False)
    is_package: bool


_PROTOCOLS = "brokerd.protocols"


def fits(module: str, pattern: str) -> bool:
    """Return whether a module is the pattern or lies below."""
    parts, wanted = module.split("."), pattern.split(".")
    return len(parts) >= len(wanted) and all(
        want in ("*", part) for part, want in zip(parts, wanted, strict=False)
    )


def read_modules(root: Path, packages: Iterable[str]) -> dict[str, Module]:
    """Return all modules of these top-level folders, by dotted name."""
    modules = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            tree = _parse(path.read_text(encoding="utf-8"), str(path))
            modules[name] = Module(name, str(path.relative_to(root)), tree, is_package)
    return modules


def imports_of(module: Module, known: Mapping[str, Module]) -> Iterator[Import]:
    """Yield the imports of a module; `from package import module` counts as one of the module."""
    for node, late in _import_statements(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, late)
        else:
            source = _absolute(node, module)
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                if submodule in known:
                    yield Import(submodule, node.lineno, late)
                else:
                    yield Import(source, node.lineno, late, alias.name)


def find_forbidden_imports(
    modules: Mapping[str, Module], layers: Sequence[Layer], ours: Iterable[str]
) -> list[Finding]:
    """Return imports that the layers do not allow, and modules without a layer."""
    ours = set(ours)
    findings = []
    for module in modules.values():
        governing = [layer for layer in layers if layer.governs(module.name)]
        if not governing:
            findings.append(
                Finding(module.path, 1, "no rule says what this may import", "each package has one")
            )
            continue
        layer = max(governing, key=_closeness)
        for found in imports_of(module, modules):
            top = found.target.partition(".")[0]
            if top in ours:
                what = _objection_to_ours(module, layer, found)
            elif top in sys.stdlib_module_names or top in layer.third_party:
                what = None
            else:
                what = f"{module.name} imports the package {top}"
            if what:
                findings.append(Finding(module.path, found.line, what, layer.reason))
    return sorted(findings)


def find_protocol_imports(
    modules: Mapping[str, Module],
    protocols: Sequence[str],
    rooms: Sequence[str],
    narrow: Mapping[str, Sequence[str]],
) -> list[Finding]:
    """Return forbidden imports of a protocol by other modules, and excess imports of `protocols`.

    Args:
        protocols: names of their packages.
        rooms: patterns of modules that may import any protocol.
        narrow: pattern of modules → the only names of `brokerd.protocols` that these modules may
            import.
    """
    reason = "a protocol is known by its definition, so that another one needs no shared code"
    findings = []
    for module in modules.values():
        own = [name for name in protocols if fits(module.name, f"{_PROTOCOLS}.{name}")]
        if own or any(fits(module.name, room) for room in rooms):
            continue
        allowed = [names for pattern, names in narrow.items() if fits(module.name, pattern)]
        for found in imports_of(module, modules):
            if not fits(found.target, _PROTOCOLS):
                continue
            of_one = any(fits(found.target, f"{_PROTOCOLS}.{name}") for name in protocols)
            if of_one or any(found.target not in names for names in allowed):
                what = f"{module.name} imports {found.target}"
                findings.append(Finding(module.path, found.line, what, reason))
    return sorted(findings)


def find_protocol_names(
    root: Path,
    packages: Iterable[str],
    protocols: Sequence[str],
    rooms: Sequence[str],
    literals: Mapping[str, str] = MappingProxyType({}),
    words: Mapping[str, str] = MappingProxyType({}),
) -> list[Finding]:
    """Return a finding for each line outside these rooms (folders or files) with a protocol's word.

    Args:
        literals: literals to search for in place of names that are common words.
        words: further literals to search for, with the meaning of each.
    """
    words = dict(words)
    for name in protocols:
        if name in literals:
            words[literals[name]] = name
            continue
        words[name] = name
        words["".join(part.capitalize() for part in name.split("_"))] = name
    findings = []
    for path in sorted(path for package in packages for path in (root / package).rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if any(place == room or place.startswith(f"{room}/") for room in rooms):
            continue
        source = path.read_text(encoding="utf-8")
        here = {word: name for word, name in words.items() if word in source}
        for line, text in enumerate(source.splitlines(), start=1) if here else ():
            findings += [
                Finding(place, line, f"names {name}", "what is one protocol's lies in its rooms")
                for word, name in here.items()
                if word in text
            ]
    return findings


def find_import_circles(modules: Mapping[str, Module]) -> list[Finding]:
    """Return a finding for each cycle of files that import each other, late imports included."""
    imported = {
        name: sorted({found.target for found in imports_of(module, modules)} & modules.keys())
        for name, module in modules.items()
    }
    findings = []
    for circle in strongly_connected(imported):
        first = modules[circle[0]]
        what = f"{' and '.join(circle)} import each other"
        findings.append(Finding(first.path, 1, what, "layers import downward only"))
    return findings


def strongly_connected(graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other, with two nodes or more, each sorted.

    Tarjan's algorithm, without recursion.
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups = []
    for start in graph:
        if start in order:
            continue
        order[start] = lowest[start] = len(order)
        stack.append(start)
        work = [(start, iter(graph[start]))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    stack.append(target)
                    work.append((target, iter(graph[target])))
                    break
                if target in stack:
                    lowest[node] = min(lowest[node], order[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == order[node]:
                    group = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    if len(group) > 1:
                        groups.append(sorted(group))
    return groups


def find_imports_of_commands(
    modules: Mapping[str, Module], commands: str, entry: Sequence[str]
) -> list[Finding]:
    """Return a finding for each import from a library up into the commands.

    Args:
        commands: the package of the commands.
        entry: modules that start the commands.
    """
    return [
        Finding(
            module.path,
            found.line,
            f"{module.name} imports {found.target}",
            "a command calls libraries; a library does not call commands",
        )
        for module in modules.values()
        if not fits(module.name, commands) and module.name not in entry
        for found in imports_of(module, modules)
        if fits(found.target, commands)
    ]


def find_impurities(
    modules: Mapping[str, Module],
    pure: Sequence[str],
    refused_modules: Mapping[str, str],
    refused_calls: Mapping[str, str],
    allowed_names: frozenset[tuple[str, str]],
) -> list[Finding]:
    """Return code that makes a pure package depend on hidden inputs, or on the order of a set.

    Args:
        pure: patterns of the modules looked at.
        refused_modules: top-level name to reason.
        refused_calls: name of a built-in function to reason.
        allowed_names: (module, name) pairs that may be imported from refused modules.
    """
    findings = []
    for module in modules.values():
        if not any(fits(module.name, pattern) for pattern in pure):
            continue
        for found in imports_of(module, modules):
            top = found.target.partition(".")[0]
            if top in refused_modules and (found.target, found.name) not in allowed_names:
                what = f"{module.name} is pure and imports {top}"
                findings.append(Finding(module.path, found.line, what, refused_modules[top]))
        for node, _ in _nodes(module.tree):
            if isinstance(node, ast.Call) and (name := _plain_name(node.func)) in refused_calls:
                what = f"{module.name} is pure and calls {name}()"
                findings.append(Finding(module.path, node.lineno, what, refused_calls[name]))
            elif isinstance(node, ast.For | ast.comprehension) and _is_a_set(node.iter):
                what = f"{module.name} is pure and walks through a set"
                reason = "its order differs from run to run; walk through sorted(...) of it"
                findings.append(Finding(module.path, node.iter.lineno, what, reason))
    return sorted(findings)


def find_dangers(modules: Mapping[str, Module]) -> list[Finding]:
    """Return code that executes data, and SSH code that accepts any host key."""
    findings = []
    for module in modules.values():
        for line, what, reason in _dangers(module):
            findings.append(Finding(module.path, line, what, reason))
    return sorted(findings)


def find_dead_modules(
    modules: Mapping[str, Module], entry_points: Iterable[str], kept: Mapping[str, str]
) -> list[Finding]:
    """Return modules that no product code imports, names in a string, or starts.

    A string that is a module's dotted name, also with `:attribute` behind it, counts as a use:
    `python -m` and registries refer to modules by name.

    Args:
        entry_points: modules that are started from outside the product.
        kept: module to the reason for keeping the unused module.
    """
    used = set(entry_points)
    for module in modules.values():
        used |= {found.target for found in imports_of(module, modules)} - {module.name}
        for node, _ in _nodes(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value.partition(":")[0])
    findings = [
        Finding(
            module.path, 1, f"nothing imports {module.name}", "code that nothing reaches is deleted"
        )
        for module in modules.values()
        if not (module.is_package or module.name in used or module.name in kept)
        and not module.name.endswith(".__main__")
        and not _runs_as_script(module)
    ]
    findings += [
        Finding(
            modules[name].path if name in modules else name, 1, f"{name} is not dead", "tidy up"
        )
        for name in kept
        if name in used or name not in modules
    ]
    return sorted(findings)


def console_scripts(pyproject: Path) -> set[str]:
    """Return the modules that the installed commands start."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return {target.partition(":")[0] for target in project.get("scripts", {}).values()}


def _closeness(layer: Layer) -> tuple[int, bool, bool]:
    return layer.pattern.count("."), "*" not in layer.pattern, layer.only_itself


def _objection_to_ours(module: Module, layer: Layer, found: Import) -> str | None:
    target = found.target
    if not layer.only_itself and fits(target, _concrete(layer.own or layer.pattern, module.name)):
        return None
    if module.name.startswith(target + "."):  # a package above: it ran long before this module
        return None
    allowed = any(fits(target, pattern) for pattern in layer.ours)
    if not allowed or any(fits(target, pattern) for pattern in layer.except_):
        return f"{module.name} imports {target}"
    if not found.late and any(fits(target, pattern) for pattern in layer.late):
        return f"{module.name} imports {target} outside a function"
    return None


def _concrete(pattern: str, module: str) -> str:
    """Return the part of a module's name that a pattern, possibly with `*`, stands for."""
    return ".".join(module.split(".")[: pattern.count(".") + 1])


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    up = node.level - 1 if module.is_package else node.level
    return ".".join(parts[: len(parts) - up] + ([node.module] if node.module else []))


@cache
def _import_statements(root: ast.AST) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return the import statements among all nodes; several rules read them."""
    return [
        (node, late) for node, late in _nodes(root) if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def _nodes(root: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all nodes in order, with a flag for nodes that run after the import of the module."""
    waiting = [(child, False) for child in _children_last_first(root)]
    while waiting:
        node, late = waiting.pop()
        yield node, late
        for_type_checkers = isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING"
        a_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        late = late or for_type_checkers or a_function
        waiting += [(child, late) for child in _children_last_first(node)]


def _children_last_first(node: ast.AST) -> list[ast.AST]:
    """Return the nodes below a node, except the contexts of names."""
    found: list[ast.AST] = []
    for name in node._fields:
        if name != "ctx":
            value = getattr(node, name, None)
            if isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    found.reverse()
    return found


@cache
def _parse(source: str, file: str) -> ast.Module:
    return ast.parse(source, file)


def _dangers(module: Module) -> Iterator[tuple[int, str, str]]:
    for node, _ in _nodes(module.tree):
        if isinstance(node, ast.Call):
            name = _plain_name(node.func)
            if name in ("eval", "exec") and ast.unparse(node) != "eval('None')":
                yield node.lineno, f"{name}() is called", "it runs whatever the data says"
            for keyword in node.keywords:
                if keyword.arg == "shell" and not _is_false(keyword.value):
                    reason = "file and host names would be read as shell code; pass a list"
                    yield keyword.value.lineno, "shell= is used", reason
        elif isinstance(node, ast.List | ast.Tuple):
            of_ours = not module.name.startswith("tests.")
            words = [ast.unparse(word) for word in node.elts[:2]] if of_ours else []
            if words == ["sys.executable", "'-m'"]:
                yield node.lineno, "a module is run without -P", _MODULE_OF_THE_USER
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            sources = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            for source in sources:
                if source.partition(".")[0] in ("pickle", "cloudpickle", "dill", "marshal"):
                    yield node.lineno, f"{source} is imported", "loading its data runs code from it"
            if "AutoAddPolicy" in names:
                yield node.lineno, *_AUTO_ADD
        elif _last_name(node) == "AutoAddPolicy":
            yield node.lineno, *_AUTO_ADD  # type: ignore[attr-defined]


_MODULE_OF_THE_USER = "a user's random.py would replace the library's; use module_command"
_AUTO_ADD = ("AutoAddPolicy is used", "an unknown host key is refused, never taken on trust")


def _runs_as_script(module: Module) -> bool:
    return any(
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and _plain_name(node.test.left) == "__name__"
        for node in module.tree.body
    )


def _is_a_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and _plain_name(node.func) in ("set", "frozenset")


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _plain_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else _plain_name(node)
