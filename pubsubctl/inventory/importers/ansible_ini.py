"""Reader for Ansible inventories in INI format: hosts, groups, children and variables."""

import ast
import re
import shlex
import warnings
from pathlib import Path
from typing import Any, Final

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.inventory.importers.ansible_groups import ALL, UNGROUPED, Groups, Setting

LONGEST_VALUE: Final = 4096
MOST_BRACKETS: Final = 32

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_KINDS = ("hosts", "vars", "children")
_CHILD = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
_LITERAL = re.compile(r"[\"'\[({0-9.+-]|[rRbBuUfF]{1,2}[\"']|True\b|False\b|None\b")


def read_ini(text: str, source: Path) -> Groups:
    """Return the content of an inventory in INI format.

    Raises:
        UserError: lines are malformed, or groups are not defined; names all undefined groups.
    """
    groups = Groups(source)
    defined = {ALL, UNGROUPED}
    mentioned: list[tuple[str, str]] = []
    section, kind = UNGROUPED, "hosts"
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        where = f"{source}:{number}"
        if header := _SECTION.fullmatch(line):
            section, kind = header[1], header[2] or "hosts"
            if kind not in _KINDS:
                raise UserError(f"{where}: {shown(line)}: a section has hosts, vars or children")
            groups.add_group(section)
            if kind == "vars":
                mentioned.append((section, f"{where}: {_header(section, kind)}"))
            else:
                defined.add(section)
        elif line.startswith("[") and line.endswith("]"):
            raise UserError(f"{where}: {shown(line)}: no section; names have no blanks and colons")
        elif kind == "vars":
            key, equals, value = line.partition("=")
            if not equals:
                raise UserError(f"{where}: {shown(line)}: a variable is written key=value")
            groups.set_variable(section, key.strip(), literal(value.strip()), where)
        elif kind == "children":
            child = _CHILD.fullmatch(line)
            if child is None:
                raise UserError(f"{where}: {shown(line)}: expected the name of a group")
            groups.add_group(child[1])
            groups.add_child(section, child[1])
            mentioned.append((child[1], f"{where}: {_header(section, kind)}"))
        else:
            _read_host(groups, section, line, where)
    problems = [
        f"{place}: {groups.undefined(name, sorted(defined))}"
        for name, place in mentioned
        if name not in defined
    ]
    if problems:
        raise UserError(*problems)
    return groups


def _header(section: str, kind: str) -> str:
    header = f"[{section}:{kind}]"
    return header if header.isprintable() else shown(header)


def _read_host(groups: Groups, section: str, line: str, where: str) -> None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise UserError(f"{where}: {shown(line)}: {error}") from None
    if not words:
        raise UserError(f"{where}: {shown(line)}: expected a host")
    pairs = [word.partition("=") for word in words[1:]]
    if bad := [word for word, equals, _ in pairs if not equals]:
        raise UserError(f"{where}: {shown(bad[0])}: a variable is written key=value")
    if words[0].endswith(":") or words[0] == "---":
        raise UserError(f"{where}: {shown(words[0])}: no host")
    values = {key: Setting(literal(value), where) for key, _, value in pairs}
    groups.add_hosts(section, words[0], values, where)


def literal(text: str) -> Any:
    """Return the value of a text: a Python literal as in Ansible, or else the text itself."""
    is_bounded = len(text) <= LONGEST_VALUE and sum(map(text.count, "[({-+")) <= MOST_BRACKETS
    if not is_bounded or not _LITERAL.match(text):
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    if value is ...:
        return text
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if isinstance(value, complex) else value
