"""Groups and hosts of an Ansible inventory, and the variables that result for each host.

Variables of groups are merged by depth, then `ansible_group_priority`, then name; variables of the
host come last. Numbers are bounded, because a small file can name very many hosts.
"""

import ipaddress
import itertools
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from brokerd.text import nearest
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

MOST_HOSTS: Final = 4096
MOST_GROUPS: Final = 256
MOST_ENTRIES: Final = 4 * MOST_HOSTS
ALL: Final = "all"
UNGROUPED: Final = "ungrouped"

_PRIORITY = "ansible_group_priority"
_RANGE = re.compile(r"\[([^\[\]:]*):([^\[\]:]*)(?::([^\[\]:]*))?\]")
_BRACKETED_PORT = re.compile(r"\[(.+)\]:([0-9]+)")
_PORT = re.compile(r"((?:[^:\[\]]|\[[^\]]*\])*):([0-9]+)")
_LABEL = r"(?:\w|{range})(?:[\w-]|{range})*(?<![_-])".format(
    range=r"\[(?:[a-zA-Z]:[a-zA-Z]|[0-9]+:[0-9]+)(?::[0-9]+)?\]"
)
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_HEX_RANGE = re.compile(r"\[[0-9a-fA-F]+:[0-9a-fA-F]+(?::[0-9]+)?\]")


class Setting(NamedTuple):
    """A value of a variable, with file and line."""

    value: Any
    where: str


@dataclass
class Group:
    """A group with its own hosts, variables and children.

    Attributes:
        priority: the order among groups of equal depth; higher values take precedence.
    """

    hosts: dict[str, None] = field(default_factory=dict)
    variables: dict[str, Setting] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)
    priority: int = 1


@dataclass
class Groups:
    """The content of an inventory.

    Attributes:
        groups: by name; always with `all` and `ungrouped`.
        hosts: name → the host's own variables.
        places: host → file and line.
        group_files: group → variables from files beside the inventory.
        host_files: host → variables from files beside the inventory.
    """

    source: Path
    groups: dict[str, Group] = field(default_factory=lambda: {ALL: Group(), UNGROUPED: Group()})
    hosts: dict[str, dict[str, Setting]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    group_files: dict[str, dict[str, Setting]] = field(default_factory=dict)
    host_files: dict[str, dict[str, Setting]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    entries: int = 0

    def add_group(self, name: str) -> Group:
        """Return the group of that name, created on first use."""
        if name not in self.groups:
            if len(self.groups) >= MOST_GROUPS:
                raise UserError(f"{self.source}: more than {MOST_GROUPS} groups")
            self.groups[name] = Group()
        return self.groups[name]

    def add_hosts(
        self, group: str, pattern: str, variables: Mapping[str, Setting], where: str
    ) -> None:
        """Add the hosts of a pattern to a group; `n[1:3]:2222` also contains a port."""
        pattern, port = split_port(pattern)
        for name in expand_range(pattern, where):
            self.entries += 1
            if self.entries > MOST_ENTRIES:
                raise UserError(f"{self.source}: more than {MOST_ENTRIES} entries of hosts")
            if name not in self.hosts:
                if len(self.hosts) >= MOST_HOSTS:
                    raise UserError(f"{self.source}: more than {MOST_HOSTS} hosts")
                self.hosts[name] = {"ansible_port": Setting(port, where)} if port else {}
                self.places[name] = where
            self.groups[group].hosts[name] = None
            if name not in self.groups:
                self.hosts[name].update(variables)
                continue
            # Ansible looks up the name among the groups first.
            self.note(f"{where}: {shown(name)} is also a group, which takes the host's variables")
            for key, setting in variables.items():
                self.set_variable(name, key, setting.value, setting.where)

    def set_variable(self, group: str, key: str, value: Any, where: str) -> None:
        """Set a variable of a group.

        Raises:
            UserError: the priority of the group is no integer.
        """
        if key != _PRIORITY:
            self.groups[group].variables[key] = Setting(value, where)
            return
        try:
            self.groups[group].priority = int(value)
        except (TypeError, ValueError):
            raise UserError(
                f"{where}: {_PRIORITY} {shown(value)} of group {shown(group)} is no integer"
            ) from None

    def add_child(self, group: str, child: str) -> None:
        """Put a group below another."""
        self.groups[group].children[child] = None

    def settle(self, wanted: Iterable[str]) -> dict[str, dict[str, Setting]]:
        """Return host → the wanted variables.

        Raises:
            UserError: groups are below each other in a circle.
        """
        depths = self._depths()
        members = self.members()
        ordered = sorted(
            self.groups, key=lambda name: (depths[name], self.groups[name].priority, name)
        )
        found: dict[str, dict[str, Setting]] = {host: {} for host in self.hosts}
        wanted = tuple(wanted)
        inside = {name: group.variables for name, group in self.groups.items()}
        for layer in (inside, self.group_files):
            for name in ordered:
                if variables := _find_only(wanted, layer.get(name, {})):
                    for host in members[name]:
                        found[host] |= variables
        for host, variables in self.hosts.items():
            found[host] |= _find_only(wanted, variables)
            found[host] |= _find_only(wanted, self.host_files.get(host, {}))
        return found

    def variable_names(self) -> set[str]:
        """Return the names of all variables of groups and hosts."""
        tables = [group.variables for group in self.groups.values()]
        tables += [*self.hosts.values(), *self.group_files.values(), *self.host_files.values()]
        return {name for table in tables for name in table}

    def members(self) -> dict[str, set[str]]:
        """Return group → the hosts of the group and of all groups below."""
        self._depths()
        found: dict[str, set[str]] = {}

        def hosts_of(name: str) -> set[str]:
            if name not in found:
                inside = set(self.groups[name].hosts)
                for child in self.groups[name].children:
                    inside |= hosts_of(child)
                found[name] = inside
            return found[name]

        for name in self.groups:
            hosts_of(name)
        grouped = {
            host for name, hosts in found.items() if name not in (ALL, UNGROUPED) for host in hosts
        }
        found[UNGROUPED] = set(self.hosts) - grouped
        found[ALL] = set(self.hosts)
        return found

    def _depths(self) -> dict[str, int]:
        """Return the depth of each group below `all`: the length of the longest path."""
        depths = dict.fromkeys(self.groups, 1)
        depths[ALL] = 0
        for _ in range(len(self.groups) + 1):
            changed = False
            for name, group in self.groups.items():
                for child in group.children:
                    if depths[child] <= depths[name]:
                        depths[child] = depths[name] + 1
                        changed = True
            if not changed:
                return depths
        raise UserError(f"{self.source}: groups are below each other in a circle")

    def note(self, text: str) -> None:
        """Add a note about skipped content, once."""
        if text not in self.notes:
            self.notes.append(text)

    def describe_undefined(self, name: str, defined: Iterable[str]) -> str:
        """Return the text about a group that is not defined, with the nearest name."""
        return f"no group called {shown(name)} is defined{nearest(name, list(defined))}"


def _find_only(wanted: Iterable[str], variables: Mapping[str, Setting]) -> dict[str, Setting]:
    return {key: variables[key] for key in wanted if key in variables}


def split_port(pattern: str) -> tuple[str, int | None]:
    """Return a host pattern without its port, and the port.

    An address with a port stands in brackets. A pattern that is no host name or address has no
    port, as in Ansible.
    """
    name, port = pattern, None
    for form in (_BRACKETED_PORT, _PORT):
        if match := form.fullmatch(name):
            name, port = match[1], int(match[2][:6])
    if _HOST_NAME.fullmatch(name) or _is_ipv6(name):
        return name, port
    return pattern, None


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(_HEX_RANGE.sub("1", text))
    except ValueError:
        return False
    return True


def expand_range(pattern: str, where: str) -> Iterator[str]:
    """Yield the hosts of n[01:16], n[a:f], n[:3] or n[1:9:2]; several ranges are combined.

    Raises:
        UserError: the range is malformed, empty or too large.
    """
    parts: list[Sequence[str]] = []
    rest = pattern
    count = 1
    while match := _RANGE.search(rest):
        items = _items(match, pattern, where)
        count *= len(items)
        if not 0 < count <= MOST_HOSTS:
            raise UserError(f"{where}: {shown(pattern)}: a range of {count} hosts")
        parts += [[rest[: match.start()]], items]
        rest = rest[match.end() :]
    parts.append([rest])
    if any(bracket in text for part in parts for text in part for bracket in "[]"):
        raise UserError(f"{where}: {shown(pattern)}: a range is written [01:16]")
    for choice in itertools.product(*parts):
        yield "".join(choice)


def _items(match: "re.Match[str]", pattern: str, where: str) -> Sequence[str]:
    first, last, step_text = match[1] or "0", match[2], match[3]
    step = int(step_text) if step_text and re.fullmatch("[0-9]{1,6}", step_text) else 0
    step = 1 if step_text is None else step
    if not last or not step or len(first) > 6 or len(last) > 6:
        raise UserError(f"{where}: {shown(pattern)}: a range is written [01:16] or [1:9:2]")
    letters = string.ascii_letters
    if len(first) == len(last) == 1 and first in letters and last in letters:
        return letters[letters.index(first) : letters.index(last) + 1 : step]
    if not re.fullmatch("[0-9]+", first) or not re.fullmatch("[0-9]+", last):
        raise UserError(f"{where}: {shown(pattern)}: a range is of numbers, or of letters")
    width = len(first) if first.startswith("0") and len(first) > 1 else 0
    if width and width != len(last):
        raise UserError(f"{where}: {shown(pattern)}: both ends have the same number of digits")
    numbers = range(int(first), int(last) + 1, step)
    return [f"{number:0{width}d}" for number in numbers[: MOST_HOSTS + 1]]
