"""Inventories: the hosts one may use, in groups, with variables whose origin is known.

A file becomes an Inventory of single hosts: ranges like `n[01:16]` are expanded, variables are
settled (host before group before [defaults]; two groups that disagree are an error), and what
could make two hosts get in each other's way is refused. Nothing is connected to here.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from brokerd.overlay.topology import NAME, nearest
from pubsubctl.errors import UserError
from pubsubctl.files import Place, TomlFile, check_schema, load_toml, shown, validated

SCHEMA = "pubsubctl/inventory/1"
MOST_HOSTS = 4096
DEFAULT_PORTS = "21000-21999"

_RANGE = re.compile(r"\[(\d{1,6}):(\d{1,6})\]")
_SSH_LATER = (
    "connector 'ssh' is not in this release: it comes with the lab work; "
    "'local' runs hosts as processes of this machine"
)


def _connector(value: Any) -> Any:
    if value == "ssh":
        raise ValueError(_SSH_LATER)
    if value != "local":
        raise ValueError("connector is 'local'" + nearest(value, ["local"]))
    return value


def _ports(value: Any) -> Any:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value) if isinstance(value, str) else None
    if not found:
        raise ValueError('ports are a range in quotes, such as "21000-21999"')
    first, last = int(found[1]), int(found[2])
    if not 1024 <= first <= last <= 65535:
        raise ValueError("ports lie between 1024 and 65535, the smaller one first")
    return value


def _root(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(("/", "~/")):
        raise ValueError("root is an absolute path, or one that begins with ~/")
    if ".." in value.split("/") or not value.isprintable():
        raise ValueError("root must not contain '..' or characters that cannot be printed")
    return value


Connector = Annotated[str, BeforeValidator(_connector)]


class Variables(BaseModel):
    """What can be said of a host; every value may also come from a group or [defaults]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connector: Connector | None = None
    cores: Literal["share", "own"] | None = None
    cores_reserved: list[Annotated[int, Field(ge=0, le=4095)]] | None = None
    ports: Annotated[str, BeforeValidator(_ports)] | None = None
    root: Annotated[str, BeforeValidator(_root)] | None = None


class _HostEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    connector: Connector | None = None
    groups: list[str] = []
    vars: Variables = Variables()


class _GroupEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: list[str] = []
    vars: Variables = Variables()


class _InventoryFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["pubsubctl/inventory/1"] = Field(alias="schema")
    name: str
    defaults: Variables = Variables()
    hosts: list[_HostEntry]
    groups: dict[str, _GroupEntry] = {}


@dataclass(frozen=True)
class Origin:
    """Where a value was written: file and line, or that it is our default."""

    layer: str
    file: Path | None = None
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.layer})" if self.file else self.layer


@dataclass(frozen=True)
class Host:
    """One (logical) machine.

    Attributes:
        name: unique in the inventory.
        connector: how it is reached.
        groups: sorted.
        ports: the TCP ports its brokers may listen on.
        cores: "share" lets the kernel place brokers, "own" gives each one a core.
        cores_reserved: cores no broker gets.
        root: the folder of everything we keep on it; None for the connector's usual place.
        origins: variable → where its value was written.
    """

    name: str
    connector: str
    groups: tuple[str, ...]
    ports: range
    cores: Literal["share", "own"]
    cores_reserved: tuple[int, ...]
    root: str | None
    origins: Mapping[str, Origin] = field(compare=False)

    def variables(self) -> dict[str, Any]:
        """Name → value, as `inventory show` prints them."""
        return {
            "connector": self.connector,
            "cores": self.cores,
            "cores_reserved": list(self.cores_reserved),
            "ports": f"{self.ports.start}-{self.ports.stop - 1}",
            "root": self.root,
        }


@dataclass(frozen=True)
class Inventory:
    """The hosts of a file, in file order, and the groups they are in."""

    name: str
    path: Path
    hosts: tuple[Host, ...]
    text: str = field(repr=False)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Group → names of its hosts, groups sorted."""
        names = sorted({group for host in self.hosts for group in host.groups})
        return {
            name: tuple(host.name for host in self.hosts if name in host.groups) for name in names
        }

    def host(self, name: str) -> Host:
        """One host.

        Raises:
            UserError: there is none called so; names the nearest.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        raise UserError(
            f"{self.path}: no host called {shown(name)}"
            + nearest(name, [host.name for host in self.hosts])
        )

    def select(self, selectors: Sequence[str]) -> tuple[Host, ...]:
        """The hosts that any selector names, less those a `!selector` names; all without any.

        A selector is a host, a group, `all`, or a pattern with * ? [ ].

        Raises:
            UserError: a selector matches nothing, or nothing is left.
        """
        wanted = [selector for selector in selectors if not selector.startswith("!")]
        chosen = {name for selector in wanted or ["all"] for name in self._matching(selector)}
        for selector in selectors:
            if selector.startswith("!"):
                chosen -= set(self._matching(selector[1:]))
        if not chosen:
            raise UserError(f"{self.path}: no host is left by --limit {' '.join(selectors)}")
        return tuple(host for host in self.hosts if host.name in chosen)

    def _matching(self, selector: str) -> list[str]:
        names = [host.name for host in self.hosts]
        if selector == "all":
            return names
        found = [
            host.name
            for host in self.hosts
            if fnmatch.fnmatchcase(host.name, selector)
            or any(fnmatch.fnmatchcase(group, selector) for group in host.groups)
        ]
        if not found:
            known = [*names, *self.groups, "all"]
            raise UserError(
                f"{self.path}: no host or group called {shown(selector)}{nearest(selector, known)}"
            )
        return found


def load_inventory(path: Path) -> Inventory:
    """The inventory in a file.

    Raises:
        UserError: with every problem found, one line each: unknown key, bad or repeated name,
            ranges of unequal length, ports or roots that two hosts would share, a group whose
            host does not exist, groups that disagree, a connector this release lacks.
    """
    file = load_toml(path)
    check_schema(file, SCHEMA)
    return _Builder(file, validated(_InventoryFile, file)).inventory()


def expanded(text: str) -> list[str]:
    """A name with `[01:16]` in it as the single names; leading zeros are kept.

    Raises:
        ValueError: says what is wrong with the range.
    """
    ranges = list(_RANGE.finditer(text))
    if not ranges:
        if "[" in text or "]" in text:
            raise ValueError("a range is written [1:16] or [01:16]")
        return [text]
    if len(ranges) > 1:
        raise ValueError("only one range")
    found = ranges[0]
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise ValueError(f"the range runs backwards, from {first} to {last}")
    if last - first >= MOST_HOSTS:
        raise ValueError(f"more than {MOST_HOSTS} hosts")
    width = len(found[1]) if found[1].startswith("0") else 0
    before, after = text[: found.start()], text[found.end() :]
    return [f"{before}{number:0{width}d}{after}" for number in range(first, last + 1)]


@dataclass
class _Settled:
    """A host in the making: variable → (value, origin)."""

    name: str
    place: Place
    groups: set[str]
    values: dict[str, tuple[Any, Origin]]


class _Builder:
    """Turns a valid file into single hosts, collecting problems instead of stopping at one."""

    def __init__(self, file: TomlFile, content: _InventoryFile) -> None:
        self._file = file
        self._content = content
        self._problems: list[str] = []
        self._hosts: dict[str, _Settled] = {}

    def inventory(self) -> Inventory:
        self._check_name(self._content.name, ("name",))
        if not self._content.hosts:
            self._problem(("hosts",), "an inventory has at least one host")
        for place, entry in enumerate(self._content.hosts):
            self._add_hosts(entry, ("hosts", place))
        self._add_groups()
        self._settle()
        self._refuse_shared_names()
        ports = self._divide_ports()
        self._refuse_shared_roots()
        if self._problems:
            raise UserError(*self._problems)
        hosts = tuple(self._host(settled, ports[name]) for name, settled in self._hosts.items())
        return Inventory(
            self._content.name, self._file.path, hosts, self._file.path.read_text("utf-8")
        )

    def _add_hosts(self, entry: _HostEntry, place: Place) -> None:
        names = self._expanded(entry.name, (*place, "name"))
        for group in entry.groups:
            self._check_name(group, (*place, "groups"))
        own = self._values(entry.vars, (*place, "vars"), "host")
        if entry.connector is not None:
            line = self._file.line_of((*place, "connector"))
            own["connector"] = (entry.connector, Origin("host", self._file.path, line))
        roots = self._expanded(entry.vars.root or "", (*place, "vars", "root"))
        if entry.vars.root and len(roots) != len(names):
            self._problem(
                (*place, "vars", "root"),
                f"= {shown(entry.vars.root)}: {_count(roots, 'folder')} for "
                f"{_count(names, 'host')}; give the root a range as long as the name's",
            )
            return
        for index, name in enumerate(names):
            if not self._check_name(name, (*place, "name")):
                continue
            if name in self._hosts:
                line = self._file.line_of((*self._hosts[name].place, "name"))
                self._problem(
                    (*place, "name"), f"= {shown(name)}: there is a host of that name, line {line}"
                )
                continue
            values = dict(own)
            if entry.vars.root:
                values["root"] = (roots[index], own["root"][1])
            self._hosts[name] = _Settled(name, place, set(entry.groups), values)

    def _add_groups(self) -> None:
        for group, entry in self._content.groups.items():
            self._check_name(group, ("groups", group))
            for pattern in entry.hosts:
                for name in self._expanded(pattern, ("groups", group, "hosts")):
                    if name in self._hosts:
                        self._hosts[name].groups.add(group)
                    else:
                        self._problem(
                            ("groups", group, "hosts"),
                            f"no host called {shown(name)}{nearest(name, list(self._hosts))}",
                        )
            if not any(group in host.groups for host in self._hosts.values()):
                self._problem(("groups", group), "no host is in this group")

    def _settle(self) -> None:
        """Fill in what a host does not say itself: from its groups, then from [defaults]."""
        defaults = self._values(self._content.defaults, ("defaults",), "defaults")
        by_group = {
            group: self._values(entry.vars, ("groups", group, "vars"), f"group {group}")
            for group, entry in self._content.groups.items()
        }
        for host in self._hosts.values():
            for variable in Variables.model_fields:
                if variable in host.values:
                    continue
                said = [
                    by_group[group][variable]
                    for group in sorted(host.groups)
                    if variable in by_group.get(group, {})
                ]
                for value, origin in said[1:]:
                    if value != said[0][0]:
                        self._problems.append(
                            f"{self._file.path}:{origin.line}: {variable} = {shown(value)} for "
                            f"{host.name}, but {said[0][1].layer} says {shown(said[0][0])} in line "
                            f"{said[0][1].line}; say it in the host's own vars"
                        )
                if said:
                    host.values[variable] = said[0]
                elif variable in defaults:
                    host.values[variable] = defaults[variable]
            if "connector" not in host.values:
                self._problem(host.place, "key 'connector' is missing; connector = \"local\"")

    def _refuse_shared_names(self) -> None:
        for host in self._hosts.values():
            for group in sorted(host.groups & {*self._hosts, "all"}):
                self._problem((*host.place, "groups"), f"{shown(group)} is also a host, or `all`")

    def _divide_ports(self) -> dict[str, range]:
        """Host → ports. Hosts that got their range from the same line share it out evenly.

        All hosts are processes of this machine, so their ports must not overlap.
        """
        sharing: dict[tuple[str, Origin], list[str]] = {}
        for name, host in self._hosts.items():
            text, origin = host.values.get("ports", (DEFAULT_PORTS, Origin("default")))
            sharing.setdefault((text, origin), []).append(name)
        divided: dict[str, range] = {}
        taken: list[tuple[range, Origin, str]] = []
        for (text, origin), names in sharing.items():
            first, last = (int(part) for part in text.split("-"))
            whole = range(first, last + 1)
            for other, other_origin, other_names in taken:
                if whole.start < other.stop and other.start < whole.stop:
                    self._problems.append(
                        f"{self._file.path}:{origin.line or 1}: ports = {shown(text)} of "
                        f"{_some(names)} overlap with {other.start}-{other.stop - 1} of "
                        f"{other_names} ({other_origin}); the next free range begins at "
                        f"{max(row[0].stop for row in taken)}"
                    )
                    break
            taken.append((whole, origin, _some(names)))
            each = len(whole) // len(names)
            if each == 0:
                self._problems.append(
                    f"{self._file.path}:{origin.line or 1}: ports = {shown(text)}: fewer ports "
                    f"than the {len(names)} hosts that share them"
                )
            for index, name in enumerate(names):
                divided[name] = range(first + index * each, first + (index + 1) * each)
        return divided

    def _refuse_shared_roots(self) -> None:
        taken: dict[Path, str] = {}
        for host in self._hosts.values():
            if "root" not in host.values:
                continue
            text, origin = host.values["root"]
            root = Path(text).expanduser().resolve()
            for other, name in taken.items():
                if root == other or root in other.parents or other in root.parents:
                    self._problems.append(
                        f"{self._file.path}:{origin.line}: root = {shown(text)} of {host.name} "
                        f"is or lies in the folder of {name}, {other}; give each host its own"
                    )
                    break
            taken[root] = host.name

    def _host(self, settled: _Settled, ports: range) -> Host:
        values = settled.values
        return Host(
            name=settled.name,
            connector=values["connector"][0],
            groups=tuple(sorted(settled.groups)),
            ports=ports,
            cores=values["cores"][0] if "cores" in values else "share",
            cores_reserved=tuple(values["cores_reserved"][0]) if "cores_reserved" in values else (),
            root=values["root"][0] if "root" in values else None,
            origins={
                variable: values[variable][1] if variable in values else Origin("default")
                for variable in Variables.model_fields
            },
        )

    def _values(
        self, variables: Variables, place: Place, layer: str
    ) -> dict[str, tuple[Any, Origin]]:
        return {
            name: (
                getattr(variables, name),
                Origin(layer, self._file.path, self._file.line_of((*place, name))),
            )
            for name in variables.model_fields_set
            if getattr(variables, name) is not None
        }

    def _expanded(self, text: str, place: Place) -> list[str]:
        try:
            return expanded(text)
        except ValueError as error:
            self._problem(place, f"= {shown(text)}: {error}")
            return []

    def _check_name(self, name: str, place: Place) -> bool:
        if NAME.fullmatch(name):
            return True
        self._problem(
            place,
            f"= {shown(name)}: names are lower-case letters, digits and '-', at most 32, "
            "not starting with '-'",
        )
        return False

    def _problem(self, place: Place, text: str) -> None:
        separator = " " if text.startswith("=") else ": "
        self._problems.append(f"{self._file.where(place)}{separator}{text}")


def _count(things: Sequence[str], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"
