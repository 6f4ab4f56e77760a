"""Importer for Ansible inventories, INI and YAML: hosts, groups, and connection variables.

Nothing is rendered, looked up or run: templates, values in vaults, plugins and executable
inventories are refused or left out, with a note. The YAML reader accepts no anchors, aliases or
custom tags, so the parsed content is not larger than the file.
"""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.inventory.importers.found import (
    Found,
    FoundHost,
    Hop,
    hops_of_command,
    our_name,
    read_hops,
    unique_names,
)

MOST_HOSTS: Final = 4096
MOST_GROUPS: Final = 256
DEEPEST_YAML: Final = 32
_CORE_TAG: Final = "tag:yaml.org,2002:"
_VAULT_TAG: Final = "!vault"
_CORE_TYPES: Final = ("str", "int", "float", "bool", "null", "timestamp", "map", "seq")
_RANGE = re.compile(r"\[(\w+):(\w+)(?::(\d+))?\]")
_WITH_PORT = re.compile(r"((?:[^:\[\]]|\[[^\[\]]*\])+):(\d{1,5})")
# Stands for a value in a vault; refused like a template if the value is needed.
_VAULTED: Final = "{{ a value in a vault }}"
_OURS: Final = {
    "port": ("ansible_port", "ansible_ssh_port"),
    "user": ("ansible_user", "ansible_ssh_user"),
    "identity": ("ansible_ssh_private_key_file", "ansible_private_key_file"),
    "python": ("ansible_python_interpreter",),
}
_ADDRESS: Final = ("ansible_host", "ansible_ssh_host")
_ARGUMENTS: Final = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
_SECTION = re.compile(r"\[([^\[\]:]+)(?::(vars|children|hosts))?\](?:\s*[#;].*)?")
_NOTHING: Final = ("~", "null", "Null", "NULL")
_EVERYBODY: Final = ("all", "ungrouped")


@dataclass
class _Group:
    hosts: dict[str, dict[str, str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    children: list[str] = field(default_factory=list)


class Groups(dict[str, _Group]):
    """Groups by name, bounded: a small file can name very many hosts."""

    def __init__(self, source: Path) -> None:
        super().__init__(all=_Group())
        self._source = source
        self._entries = 0

    def group(self, name: str) -> _Group:
        """Return the group of that name, created on first use."""
        if name not in self:
            if len(self) >= MOST_GROUPS:
                raise UserError(f"{self._source}: more than {MOST_GROUPS} groups")
            self[name] = _Group()
        return self[name]

    def add_hosts(self, group: str, pattern: str, variables: Mapping[str, str], where: str) -> None:
        """Add the hosts of a pattern to a group; `n[1:3]:2222` also contains a port."""
        if match := _WITH_PORT.fullmatch(pattern):
            pattern, variables = match[1], {"ansible_port": match[2], **variables}
        for name in _expanded(pattern, where):
            self._entries += 1
            if self._entries > 4 * MOST_HOSTS:
                raise UserError(f"{self._source}: more than {4 * MOST_HOSTS} entries of hosts")
            self[group].hosts.setdefault(name, {}).update(variables)


def read_ansible(text: str, source: Path) -> Found:
    """Return the hosts of an Ansible inventory; the file's name or content selects INI or YAML.

    Raises:
        UserError: the text is neither format, or has content that cannot be imported; names line
            or host.
    """
    if source.suffix in (".yml", ".yaml") or text.lstrip().startswith(("---", "all:")):
        groups = _read_yaml(text, source)
    else:
        groups = _read_ini(text, source)
    return _taken_over(groups, source)


def _taken_over(groups: Groups, source: Path) -> Found:
    found = Found()
    members = _members(groups, source)
    hosts = list(dict.fromkeys(host for group in groups.values() for host in group.hosts))
    if len(hosts) > MOST_HOSTS:
        raise UserError(f"{source}: more than {MOST_HOSTS} hosts")
    depth = _depths(groups, source)
    ordered = sorted(groups, key=lambda name: (depth[name], name))
    jumps: dict[str, list[Hop]] = {}
    settled: dict[str, dict[str, str]] = {}
    for host in hosts:
        variables: dict[str, str] = {}
        for name in ordered:
            if host in members[name] or name == "all":
                variables |= groups[name].variables
        for group in groups.values():
            variables |= group.hosts.get(host, {})
        settled[host] = variables
        jumps[host] = _jump(variables, host, source, found)
    through = {hop.host for hops in jumps.values() for hop in hops}
    ours = unique_names([*hosts, *(hop.host for hops in jumps.values() for hop in hops)])
    for host in hosts:
        if host in through:
            found.note(f"{source}: {shown(host)} is a gateway of others, and so no host")
            continue
        taken = _host(host, ours[host], settled[host], source, found)
        if taken is None:
            continue
        if taken.connector == "ssh" and jumps[host]:
            taken.variables["jump"] = [ours[hop.host] for hop in jumps[host]]
            for hop in jumps[host]:
                if found.gateways.setdefault(ours[hop.host], _gateway(hop)) != _gateway(hop):
                    raise UserError(f"{source}: {shown(hop.host)} is jumped through in two ways")
        names = sorted(name for name in groups if host in members[name] and name not in _EVERYBODY)
        taken.groups = list(dict.fromkeys(our_name(name) for name in names))
        found.hosts.append(taken)
    if not any("brokers" in host.groups for host in found.hosts):
        found.note("no group is called brokers, so brokers go to all hosts; see help inventories")
    return found


def _host(
    host: str, name: str, variables: Mapping[str, str], source: Path, found: Found
) -> FoundHost | None:
    connection = variables.get("ansible_connection", "ssh")
    if connection == "local":
        return FoundHost(name, connector="local")
    if connection not in ("ssh", "smart", "paramiko", "paramiko_ssh"):
        found.note(f"{source}: {shown(host)} is left out: ansible_connection {shown(connection)}")
        return None
    taken = FoundHost(name, address=_first(variables, _ADDRESS) or host)
    for key, theirs in _OURS.items():
        value = _first(variables, theirs)
        if not value or (key == "python" and value.startswith("auto")):
            continue
        if key == "port" and not re.fullmatch(r"\d{1,5}", value):
            raise UserError(f"{source}: {theirs[0]} {shown(value)} of {shown(host)} is no number")
        taken.variables[key] = int(value) if key == "port" else value
    used = {
        *_ADDRESS,
        *_ARGUMENTS,
        "ansible_connection",
        *(k for row in _OURS.values() for k in row),
    }
    for key in sorted(set(variables) - used):
        found.note(f"{source}: variable {shown(key)} is not taken over")
    for key, value in [("address", taken.address), *taken.variables.items()]:
        if isinstance(value, str) and ("{{" in value or "{%" in value):
            raise UserError(f"{source}: {key} of {shown(host)} is a template, {shown(value)}")
    return taken


def _first(variables: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((variables[name] for name in names if variables.get(name)), "")


def _jump(variables: Mapping[str, str], host: str, source: Path, found: Found) -> list[Hop]:
    """Return the hops in a host's ssh arguments: `-J`, ProxyJump, or an equivalent ProxyCommand."""
    hops: list[Hop] = []
    for name in _ARGUMENTS:
        try:
            words = shlex.split(variables.get(name, ""))
        except ValueError as error:
            raise UserError(f"{source}: {name} of {shown(host)}: {error}") from None
        for option, value in _options(words):
            text = ""
            if option == "-J":
                text = value
            elif match := re.fullmatch(r"(ProxyJump|ProxyCommand)\s*[= ]\s*(.+)", value, re.I):
                text = match[2] if match[1].lower() == "proxyjump" else hops_of_command(match[2])
            if text:
                hops = hops or read_hops(text, source)  # OpenSSH takes the first value
            else:
                found.note(
                    f"{source}: {name}: {shown(f'{option} {value}'.strip())} is not taken over"
                )
    return hops


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield ssh options with values: `-o X`, `-oX`; "" for an option without a value."""
    rest = iter(words)
    for word in rest:
        takes_one = word[:2] in ("-o", "-J", "-F", "-i", "-p", "-l")
        yield (word[:2], word[2:] or next(rest, "")) if takes_one else (word, "")


def _gateway(hop: Hop) -> dict[str, Any]:
    entry: dict[str, Any] = {"address": hop.host}
    entry |= {"user": hop.user} if hop.user else {}
    return entry | ({"port": hop.port} if hop.port else {})


def _members(groups: Groups, source: Path) -> dict[str, set[str]]:
    """Return group → the hosts of the group and of all groups below."""
    found: dict[str, set[str]] = {}

    def hosts_of(name: str, above: tuple[str, ...]) -> set[str]:
        if name in above:
            raise UserError(f"{source}: group {shown(name)} is below itself")
        if name not in found:
            group = groups[name]
            inside = set(group.hosts)
            for child in group.children:
                inside |= hosts_of(child, (*above, name))
            found[name] = inside
        return found[name]

    for name in groups:
        hosts_of(name, ())
    return found


def _depths(groups: Groups, source: Path) -> dict[str, int]:
    """Return the depth of each group below `all`; values of deeper groups take precedence."""
    depths = dict.fromkeys(groups, 1)
    depths["all"] = 0
    for _ in range(len(groups)):
        changed = False
        for name, group in groups.items():
            for child in group.children:
                if depths[child] <= depths[name]:
                    depths[child] = depths[name] + 1
                    changed = True
        if not changed:
            return depths
    raise UserError(f"{source}: groups are below each other in a circle")


def _read_ini(text: str, source: Path) -> Groups:
    groups = Groups(source)
    section, kind = "ungrouped", "hosts"
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        where = f"{source}:{number}"
        if header := re.fullmatch(
            r"\[([^\[\]:]+)(?::(vars|children|hosts))?\](?:\s*[#;].*)?", line
        ):
            section, kind = header[1], header[2] or "hosts"
            groups.group(section)
        elif kind == "vars":
            key, equals, value = line.partition("=")
            if not equals:
                raise UserError(f"{where}: {shown(line)}: a variable is written key=value")
            groups[section].variables[key.strip()] = value.strip().strip("\"'")
        elif kind == "children":
            child = line.split("#")[0].strip()
            groups.group(child)
            groups[section].children.append(child)
        else:
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                raise UserError(f"{where}: {shown(line)}: {error}") from None
            pairs = [word.partition("=") for word in words[1:]]
            if bad := [word for word, equals, _ in pairs if not equals]:
                raise UserError(f"{where}: {shown(bad[0])}: a variable is written key=value")
            groups.group(section)
            groups.add_hosts(section, words[0], {key: value for key, _, value in pairs}, where)
    return groups


def _expanded(pattern: str, where: str) -> Iterator[str]:
    """Yield the hosts of n[01:16], n[a:f] or n[1:9:2]; a pattern may contain several ranges."""
    parts: list[list[str]] = []
    rest = pattern
    count = 1
    while match := _RANGE.search(rest):
        items = _items(match[1], match[2], int(match[3] or 1), pattern, where)
        count *= len(items)
        if not 0 < count <= MOST_HOSTS:
            raise UserError(f"{where}: {shown(pattern)}: a range of {count} hosts")
        parts += [[rest[: match.start()]], [str(item) for item in items]]
        rest = rest[match.end() :]
    parts.append([rest])
    if any(bracket in text for part in parts for text in part for bracket in "[]"):
        raise UserError(f"{where}: {shown(pattern)}: a range is written [01:16]")
    for choice in itertools.product(*parts):
        yield "".join(choice)


def _items(first: str, last: str, step: int, pattern: str, where: str) -> Sequence[str]:
    if step == 0 or len(first) > 6 or len(last) > 6:
        raise UserError(f"{where}: {shown(pattern)}: no range")
    if first.isdecimal() and last.isdecimal():
        width = len(first) if first.startswith("0") else 0
        numbers = range(int(first), int(last) + 1, step)
        return [f"{number:0{width}d}" for number in numbers[: MOST_HOSTS + 1]]
    if re.fullmatch(r"[a-z]", first) and re.fullmatch(r"[a-z]", last):
        return [chr(letter) for letter in range(ord(first), ord(last) + 1, step)]
    raise UserError(f"{where}: {shown(pattern)}: a range is of numbers, or of letters")


def _read_yaml(text: str, source: Path) -> Groups:
    content = _plain_yaml(text, source)
    if not isinstance(content, dict):
        raise UserError(f"{source}: an Ansible inventory is a map of groups")
    groups = Groups(source)
    for name, body in content.items():
        _add_yaml_group(groups, name, body, source, 0)
    return groups


def _add_yaml_group(groups: Groups, name: str, body: Any, source: Path, depth: int) -> None:
    group = groups.group(name)
    for key, value in _table(body, f"group {shown(name)}", source).items():
        where = f"{shown(name)}.{key}"
        if key == "hosts":
            for pattern, variables in _table(value, where, source).items():
                own = _texts(_table(variables, f"host {shown(pattern)}", source))
                groups.add_hosts(name, pattern, own, str(source))
        elif key == "vars":
            group.variables |= _texts(_table(value, where, source))
        elif key == "children":
            for child, below in _table(value, where, source).items():
                if child not in group.children:
                    group.children.append(child)
                _add_yaml_group(groups, child, below, source, depth + 1)
        else:
            raise UserError(f"{source}: {where}: a group has hosts, vars and children")


def _table(value: Any, where: str, source: Path) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{source}: {where}: expected a map")
    return value


def _texts(variables: Mapping[str, Any]) -> dict[str, str]:
    return {key: value if isinstance(value, str) else "" for key, value in variables.items()}


def _plain_yaml(text: str, source: Path) -> Any:
    """Return the single document of a file, of maps, lists and text; scalars stay text.

    The reader handles event by event and refuses, before building anything: aliases (a few lines
    can expand to gigabytes), tags of objects, and unbounded nesting.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Composer(source).document(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{source}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{source}: not YAML: {shown(str(error))}") from None


class _Composer:
    """Builds maps, lists and texts out of events, and refuses everything else."""

    def __init__(self, source: Path) -> None:
        self._source = source

    def document(self, events: Iterator[Any]) -> Any:
        """Return the content of the single document; None without a document."""
        open_: list[tuple[Any, list[str]]] = []  # (map or list, the key that waits for its value)
        result: Any = None
        documents = 0
        for event in events:
            self._check(event, len(open_))
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "more than one document")
            if isinstance(event, yaml.ScalarEvent):
                plain = event.style is None or event.style == ""
                value: Any = "" if plain and event.value in _NOTHING else event.value
                value = _VAULTED if event.tag == _VAULT_TAG else value
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                value = {} if isinstance(event, yaml.MappingStartEvent) else []
                if isinstance(value, dict) and open_ and self._wants_key(open_[-1]):
                    self._refuse(event, "a key is a text")
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                open_.pop()
                continue
            else:
                continue
            if not open_:
                result = value
            elif isinstance(open_[-1][0], list):
                open_[-1][0].append(value)
            elif self._wants_key(open_[-1]):
                if not isinstance(value, str):
                    self._refuse(event, "a key is a text")
                if value in open_[-1][0]:
                    self._refuse(event, f"{shown(value)} stands there twice")
                open_[-1][1].append(value)
            else:
                open_[-1][0][open_[-1][1].pop()] = value
            if not isinstance(value, str):
                open_.append((value, []))
        return result

    def _wants_key(self, inner: tuple[Any, list[str]]) -> bool:
        return isinstance(inner[0], dict) and not inner[1]

    def _check(self, event: Any, depth: int) -> None:
        if depth > DEEPEST_YAML:
            self._refuse(event, f"nested deeper than {DEEPEST_YAML}")
        if getattr(event, "anchor", None) is not None:
            self._refuse(event, "anchors and aliases are not read here")
        tag = getattr(event, "tag", None)
        if tag == _VAULT_TAG and isinstance(event, yaml.ScalarEvent):
            return
        if tag is not None and tag.removeprefix(_CORE_TAG) not in _CORE_TYPES:
            self._refuse(event, f"tag {shown(tag)} is not read here")

    def _refuse(self, event: Any, text: str) -> None:
        raise UserError(f"{self._source}:{event.start_mark.line + 1}: {text}")
