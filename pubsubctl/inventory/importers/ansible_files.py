"""Readers for Ansible inventories in INI, TOML and YAML format, within bounds.

The reader of YAML builds maps, lists and scalars out of parser events, so that nothing in the file
constructs an object. An alias shares the value of its anchor, so the content is not larger than the
file; keys that merges copy are counted.
"""

import ast
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from brokerd.text import nearest
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import TomlFile, shown, toml_of
from pubsubctl.inventory.importers.ansible_groups import (
    ALL,
    MOST_ENTRIES,
    UNGROUPED,
    Groups,
    Setting,
)

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
        f"{place}: {groups.describe_undefined(name, sorted(defined))}"
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


DEEPEST_YAML: Final = 32
MOST_MERGED_KEYS: Final = 50_000
MOST_SKIPPED: Final = 50
LONGEST_NUMBER: Final = 64
VAULTED: Final = "{{ a value in a vault }}"
"""Stands for a value in a vault; refused like a template if the value is needed."""

AMBIGUOUS: Final = "{{ a value on which merged maps disagree }}"
"""Stands for a value that depends on the YAML library; refused like a template if needed."""

_CORE_TAG: Final = "tag:yaml.org,2002:"
_CORE_TYPES: Final = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq")
_VAULT_TAGS: Final = ("!vault", "!vault-encrypted")
_UNSAFE_TAG: Final = "!unsafe"
_SECTIONS: Final = ("hosts", "vars", "children")
_MERGE: Final = "<<"


class Table(dict[str, Any]):
    """A map with the line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}

    def where(self, source: Path, key: str) -> str:
        """Return the file and the line of a key."""
        return f"{source}:{self.lines[key]}" if key in self.lines else str(source)


def read_yaml(text: str, source: Path) -> Groups:
    """Return the content of an inventory in YAML format.

    Raises:
        UserError: the text is no inventory in YAML format; names line or key.
    """
    groups = Groups(source)
    content = plain_yaml(text, source, groups.notes)
    if not isinstance(content, dict):
        raise UserError(f"{source}: an Ansible inventory is a map of groups")
    if "plugin" in content:
        raise UserError(f"{source}: plugin {shown(content['plugin'])} is a program, and is not run")
    reader = _GroupReader(source, groups)
    for name, body in content.items():
        reader.read(name, body, 0)
    return reader.groups


def read_toml(text: str, source: Path) -> Groups:
    """Return the content of an inventory in TOML format.

    Raises:
        UserError: the text is no inventory in TOML format; names line and key.
    """
    file = toml_of(text, source)
    if "plugin" in file.values:
        plugin = shown(file.values["plugin"])
        raise UserError(f"{file.where(('plugin',))} {plugin} is a program, and is not run")
    reader = _GroupReader(source, Groups(source))
    for name, body in file.values.items():
        if isinstance(body, dict):
            reader.read(name, _group_of_toml(file, name, body), 0)
        else:
            reader.groups.note(f"{file.where((name,))}: is no group, and is skipped")
    for name, group in reader.groups.groups.items():
        for child in (child for child in group.children if child not in file.values):
            text = reader.groups.describe_undefined(child, [*file.values])
            reader.groups.note(f"{file.where((name, 'children'))}: {text}")
    return reader.groups


def _group_of_toml(file: TomlFile, name: str, body: Mapping[str, Any]) -> Table:
    """Return the body of a group as YAML has it: children are keys of a map."""
    for key in _SECTIONS:
        kind, text = (list, "list") if key == "children" else (dict, "table")
        if not isinstance(body.get(key, kind()), kind):
            raise UserError(f"{file.where((name, key))}: expected a {text}, got {shown(body[key])}")
    children = body.get("children", [])
    if bad := [child for child in children if not isinstance(child, str)]:
        raise UserError(f"{file.where((name, 'children'))}: {shown(bad[0])} is no name of a group")
    return _with_lines(file, (name,), {**body, "children": dict.fromkeys(children)})


def _with_lines(file: TomlFile, place: tuple[str, ...], values: Mapping[str, Any]) -> Table:
    """Return a table of a TOML file with the lines of its keys."""
    found = Table()
    for key, value in values.items():
        inner = (*place, key)
        found[key] = _with_lines(file, inner, value) if isinstance(value, dict) else value
        found.lines[key] = file.line_of(inner)
    return found


@dataclass
class _GroupReader:
    """A reader of nested groups, with a bound for groups that aliases repeat."""

    source: Path
    groups: Groups
    steps: int = 0

    def read(self, name: str, body: Any, depth: int) -> None:
        """Read a group, and all groups below."""
        self.steps += 1
        if depth > DEEPEST_YAML or self.steps > MOST_ENTRIES:
            raise UserError(f"{self.source}: group {shown(name)}: too many groups below another")
        self.groups.add_group(name)
        for key, value in self._table(body, f"group {shown(name)}").items():
            where = f"{shown(name)}.{key}"
            if key not in _SECTIONS:
                self._skip(key, f"group {shown(name)}: {shown(key)}")
                continue
            if isinstance(value, str) and value:
                text, value = value, Table()
                value[text] = None
            table = self._table(value, where)
            if key == "hosts":
                for pattern, variables in table.items():
                    body = self._table(variables, f"host {shown(pattern)}")
                    own = {
                        key: Setting(value, body.where(self.source, key))
                        for key, value in body.items()
                    }
                    place = table.where(self.source, pattern)
                    self.groups.add_hosts(name, pattern, own, place)
            elif key == "vars":
                for variable, setting in table.items():
                    place = table.where(self.source, variable)
                    self.groups.set_variable(name, variable, setting, place)
            else:
                for child, below in table.items():
                    self.read(child, below, depth + 1)
                    self.groups.add_child(name, child)

    def _skip(self, key: str, where: str) -> None:
        """Note a key that Ansible skips, unless the key is a typo."""
        text = f"{self.source}: {where}: a group has hosts, vars and children"
        near = nearest(key, _SECTIONS)
        if "did you mean" in near:
            raise UserError(f"{text}{near}")
        self.groups.note(f"{text}; {shown(key)} is skipped")
        if len(self.groups.notes) > MOST_SKIPPED:
            raise UserError(f"{text}; more than {MOST_SKIPPED} other keys")

    def _table(self, value: Any, where: str) -> Table:
        if value is None or value == "":
            return Table()
        if not isinstance(value, Table):
            raise UserError(f"{self.source}: {where}: expected a map")
        return value


def plain_yaml(text: str, source: Path, notes: list[str]) -> Any:
    """Return the single document of a file, of maps, lists and scalars.

    Adds a note for each key that stands twice in a map: the last value counts, as for Ansible.

    Raises:
        UserError: the text is no YAML, has objects, is nested too deeply, or has aliases of an
            enclosing value.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Composer(source, notes).document(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{source}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{source}: not YAML: {shown(str(error))}") from None


def _is_same(one: Any, other: Any) -> bool:
    """Return True for equal scalars and shared maps; nothing nested is compared."""
    if isinstance(one, dict | list) or isinstance(other, dict | list):
        return one is other
    return bool(one == other)


@dataclass
class _Open:
    """A map or list whose end is not read.

    Attributes:
        keys: the key that waits for its value.
        merged: values that `<<` merges with their events, in order.
    """

    value: Any
    anchor: str | None
    keys: list[str] = field(default_factory=list)
    merged: list[tuple[Any, Any]] = field(default_factory=list)

    def wants_key(self) -> bool:
        """Return True if the next value is a key."""
        return isinstance(self.value, dict) and not self.keys


class _Composer:
    """Builds maps, lists and scalars out of events, and refuses everything else."""

    def __init__(self, source: Path, notes: list[str]) -> None:
        self._source = source
        self._notes = notes
        self._anchors: dict[str, Any] = {}
        self._open: list[_Open] = []
        self._merged_keys = 0
        self._result: Any = None
        self._resolver = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()

    def document(self, events: Iterator[Any]) -> Any:
        """Return the content of the single document; None without a document."""
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "more than one document")
            elif isinstance(event, yaml.AliasEvent):
                anchor = event.anchor or ""
                if anchor not in self._anchors:
                    self._refuse(event, f"alias {shown(anchor)} has no complete anchor")
                self._place(self._anchors[anchor], event)
            elif isinstance(event, yaml.ScalarEvent):
                self._check(event)
                value = self._scalar(event)
                if event.anchor:
                    self._anchors[event.anchor] = value
                self._place(value, event)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                self._check(event)
                inner: Any = Table() if isinstance(event, yaml.MappingStartEvent) else []
                self._place(inner, event)
                self._open.append(_Open(inner, event.anchor))
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self._close(event)
        return self._result

    def _place(self, value: Any, event: Any) -> None:
        """Put a value into the innermost open map or list."""
        if not self._open:
            self._result = value
            return
        inner = self._open[-1]
        if isinstance(inner.value, list):
            inner.value.append(value)
        elif inner.wants_key():
            key = event.value if isinstance(event, yaml.ScalarEvent) else value
            if not isinstance(key, str):
                self._refuse(event, "a key is a text")
            if key in inner.value:
                self._note(event, f"{shown(key)} is there twice; the last value counts")
            inner.keys.append(key)
            inner.value.lines[key] = event.start_mark.line + 1
        elif (key := inner.keys.pop()) == _MERGE:
            inner.merged.append((value, event))
        else:
            inner.value[key] = value

    def _close(self, event: Any) -> None:
        inner = self._open.pop()
        if inner.merged:
            own = dict(inner.value)
            inner.value.clear()
            for value, place in inner.merged:
                merged: dict[str, Any] = {}
                for one in value if isinstance(value, list) else [value]:
                    if not isinstance(one, Table):
                        self._refuse(place, "<< merges maps")
                    self._merged_keys += len(one)
                    if self._merged_keys > MOST_MERGED_KEYS:
                        self._refuse(place, f"<< merges more than {MOST_MERGED_KEYS} keys")
                    disagreed = {
                        key for key in one if key in merged and not _is_same(merged[key], one[key])
                    }
                    merged |= {**one, **dict.fromkeys(disagreed, AMBIGUOUS)}
                    inner.value.lines = {**one.lines, **inner.value.lines}
                inner.value.update(merged)
            inner.value.update(own)
        if inner.anchor:
            self._anchors[inner.anchor] = inner.value

    def _scalar(self, event: Any) -> Any:
        """Return the value of a scalar, as YAML 1.1 resolves plain scalars."""
        if event.tag in _VAULT_TAGS:
            return VAULTED
        tag = event.tag
        if tag in (None, "!", _UNSAFE_TAG):
            is_plain = not event.style
            implicit = (is_plain, not is_plain)
            tag = self._resolver.resolve(  # type: ignore[no-untyped-call]
                yaml.ScalarNode, event.value, implicit
            )
        if tag == f"{_CORE_TAG}null":
            return None
        if tag == f"{_CORE_TAG}str" or len(event.value) > LONGEST_NUMBER:
            return event.value
        if tag.removeprefix(_CORE_TAG) not in _CORE_TYPES:
            if not event.style and not (self._open and self._open[-1].wants_key()):
                self._refuse(event, f"{shown(event.value)} is no value of YAML; put it in quotes")
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            return self._constructor.construct_object(node)
        except (ValueError, TypeError, AttributeError, LookupError, yaml.YAMLError):
            self._refuse(event, f"{shown(event.value)} is no {tag.removeprefix(_CORE_TAG)}")

    def _check(self, event: Any) -> None:
        if len(self._open) > DEEPEST_YAML:
            self._refuse(event, f"nested deeper than {DEEPEST_YAML}")
        tag = event.tag
        if tag == _UNSAFE_TAG or (tag in _VAULT_TAGS and isinstance(event, yaml.ScalarEvent)):
            return
        if tag not in (None, "!") and tag.removeprefix(_CORE_TAG) not in _CORE_TYPES:
            self._refuse(event, f"tag {shown(tag)} is not read here")

    def _note(self, event: Any, text: str) -> None:
        if len(self._notes) < MOST_SKIPPED:
            self._notes.append(f"{self._source}:{event.start_mark.line + 1}: {text}")

    def _refuse(self, event: Any, text: str) -> None:
        raise UserError(f"{self._source}:{event.start_mark.line + 1}: {text}")
