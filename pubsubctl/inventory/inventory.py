"""Reader for inventories: the available hosts, in groups, with variables and their origins.

A file becomes an Inventory of single hosts: ranges like `n[01:16]` are expanded, variables are
resolved (host before group before [defaults]; two groups with different values are an error), and
conflicts between hosts are refused. The reader opens no connections.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerd.text import MOST_NAMES, NAME, expand_range, nearest
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import Place, TomlFile, check_schema, load_toml, shown, validate
from pubsubctl.inventory.inventory_model import (
    LOCAL_ADDRESS,
    Gateway,
    Host,
    Inventory,
    Origin,
    SshSettings,
    machine_of,
)
from pubsubctl.inventory.inventory_schema import (
    MOST_GATEWAYS,
    NO_JUMP,
    SCHEMA,
    HostEntry,
    InventoryFile,
    Variables,
    check_address,
    check_bench_address,
    is_ip,
    is_loopback,
    secrets_in,
)

__all__ = ["Gateway", "Host", "Inventory", "Origin", "SshSettings", "load_inventory"]

MOST_PROBLEMS = 50
DEFAULT_PORTS = "21000-21999"

# In a host's own entry these may hold a range as long as the name's.
_RANGED = ("root", "data_dir", "bench_address")
_SHARED = ("root", "data_dir")  # may be the same on different machines
_SSH_ONLY = ("port", "user", "identity", "jump", "python")


def load_inventory(path: Path) -> Inventory:
    """Return the inventory in a file.

    Raises:
        UserError: with every problem, one line per problem: unknown key, bad or repeated name,
            ranges of unequal length, ports or roots shared by two hosts, a group with an
            unknown host, groups that disagree, circular gateways, a value that looks like a
            secret.
    """
    file = load_toml(path)
    check_schema(file, SCHEMA)
    if secrets := secrets_in(file.values):
        raise UserError(*(f"{file.where(place)}: {text}" for place, text in secrets))
    return _Builder(file, validate(InventoryFile, file)).inventory()


@dataclass
class _HostVariables:
    """A host in the making: variable → (value, origin)."""

    name: str
    place: Place
    groups: set[str]
    values: dict[str, tuple[Any, Origin]]


class _Builder:
    """A builder of single hosts from a valid file; collects problems instead of stopping."""

    def __init__(self, file: TomlFile, content: InventoryFile) -> None:
        self._file = file
        self._content = content
        self._problems: list[str] = []
        self._has_all_hosts = True  # otherwise an unknown host in another table is not reported
        self._hosts: dict[str, _HostVariables] = {}
        self._gateways: dict[str, Gateway] = {}

    def inventory(self) -> Inventory:
        self._check_name(self._content.name, ("name",))
        if not self._content.hosts:
            self._problem(("hosts",), "an inventory has at least one host")
        for place, entry in enumerate(self._content.hosts):
            self._add_hosts(entry, ("hosts", place))
        self._add_groups()
        self._settle()
        self._refuse_shared_names()
        self._add_gateways()
        self._check_connections()
        ports = self._divide_ports()
        for key in _SHARED:
            self._refuse_shared_folders(key)
        if self._problems:
            raise UserError(*self._problems)
        hosts = tuple(self._host(settled, ports[name]) for name, settled in self._hosts.items())
        ssh = self._content.ssh
        return Inventory(
            self._content.name,
            self._file.path,
            hosts,
            self._file.path.read_text("utf-8-sig"),
            self._find_known_hosts(hosts),
            self._gateways,
            SshSettings(
                ssh.forks, ssh.forks_per_gateway, ssh.connect_timeout, ssh.keepalive, ssh.retries
            ),
            self._content.transport,
            self._content.expect,
        )

    def _find_known_hosts(self, hosts: Sequence[Host]) -> Path | None:
        stated = self._content.defaults.known_hosts
        if stated is None and all(host.connector == "local" for host in hosts):
            return None
        named = Path(stated or f"known_hosts.{self._content.name}").expanduser()
        return (self._file.path.parent / named).absolute()

    def _add_hosts(self, entry: HostEntry, place: Place) -> None:
        names = self._expand(entry.name, (*place, "name"))
        if not names:
            self._has_all_hosts = False
            return
        for group in entry.groups:
            self._check_name(group, (*place, "groups"))
        own = self._values(entry.vars, (*place, "vars"), "host")
        for key in ("connector", "address"):
            if (value := getattr(entry, key)) is not None:
                line = self._file.line_of((*place, key))
                own[key] = (value, Origin("host", self._file.path, line))
        ranged: dict[str, list[str]] = {}
        for key in (*_RANGED, "address"):
            if key not in own:
                continue
            where = (*place, key) if key == "address" else (*place, "vars", key)
            ranged[key] = self._pair(own[key][0], names, key, where)
            if not ranged[key]:
                self._has_all_hosts = False
                return
        if len(self._hosts) + len(names) > MOST_NAMES:
            self._problem((*place, "name"), f"= {shown(entry.name)}: more than {MOST_NAMES} hosts")
            return
        for index, name in enumerate(names):
            if not self._check_name(name, (*place, "name")):
                return
            if name in self._hosts:
                line = self._file.line_of((*self._hosts[name].place, "name"))
                self._problem(
                    (*place, "name"), f"= {shown(name)}: there is a host of that name, line {line}"
                )
                continue
            each = {key: (found[index], own[key][1]) for key, found in ranged.items()}
            self._hosts[name] = _HostVariables(name, place, set(entry.groups), {**own, **each})

    def _pair(self, text: str, names: Sequence[str], key: str, place: Place) -> list[str]:
        """Return a value per name; empty after a reported problem if the counts differ."""
        found = self._expand(text, place)
        if key in _SHARED and len(found) == 1:
            return found * len(names)
        if found and len(found) != len(names):
            self._problem(
                place,
                f"= {shown(text)}: {_count(found, 'value')} for {_count(names, 'host')}; "
                f"give {key} a range as long as the name's",
            )
            return []
        return found

    def _add_groups(self) -> None:
        for group, entry in self._content.groups.items():
            self._check_name(group, ("groups", group))
            for pattern in entry.hosts:
                for name in self._expand(pattern, ("groups", group, "hosts")):
                    if name in self._hosts:
                        self._hosts[name].groups.add(group)
                    elif self._has_all_hosts:
                        self._problem(
                            ("groups", group, "hosts"),
                            f"no host called {shown(name)}{nearest(name, list(self._hosts))}",
                        )
            there = any(group in host.groups for host in self._hosts.values())
            if self._has_all_hosts and not there and not entry.hosts:
                self._problem(("groups", group), "no host is in this group")

    def _settle(self) -> None:
        """Fill in missing values of hosts: from the host's groups, then from [defaults]."""
        defaults = self._values(self._content.defaults, ("defaults",), "defaults")
        by_group = {
            group: self._values(entry.vars, ("groups", group, "vars"), f"group {group}")
            for group, entry in self._content.groups.items()
        }
        for host in self._hosts.values():
            for variable in Variables.model_fields:
                if variable in host.values:
                    continue
                rows = [
                    by_group[group][variable]
                    for group in sorted(host.groups)
                    if variable in by_group.get(group, {})
                ]
                for value, origin in rows[1:]:
                    if value != rows[0][0]:
                        self._add_problem(
                            f"{self._file.path}:{origin.line}: {variable} = {shown(value)} for "
                            f"{host.name}, but {rows[0][1].layer} has {shown(rows[0][0])} in line "
                            f"{rows[0][1].line}; set it in the host's own vars"
                        )
                if rows:
                    host.values[variable] = rows[0]
                elif variable in defaults:
                    host.values[variable] = defaults[variable]
            if "connector" not in host.values:
                if "address" in host.values:
                    host.values["connector"] = ("ssh", Origin("default, as it has an address"))
                else:
                    self._problem(
                        host.place,
                        f"key 'connector' of {shown(host.name)} is missing; "
                        'connector = "local", or "ssh" and an address',
                    )

    def _refuse_shared_names(self) -> None:
        for host in self._hosts.values():
            for group in sorted(host.groups & {*self._hosts, "all"}):
                self._problem((*host.place, "groups"), f"{shown(group)} is also a host, or `all`")

    def _add_gateways(self) -> None:
        defaults = self._content.defaults
        for name, entry in self._content.gateways.items():
            place = ("gateways", name)
            self._check_name(name, place)
            if name in self._hosts:
                self._problem(place, f"{shown(name)} is also a host")
            self._check((*place, "address"), entry.address, check_address)
            chain: tuple[str, ...] = ()
            try:
                chain = self._chain(entry.jump, (name,))
            except ValueError as error:
                self._problem((*place, "jump"), f"= {shown(','.join(entry.jump))}: {error}")
            identities = entry.identity or defaults.identity or []
            self._gateways[name] = Gateway(
                name,
                entry.address,
                entry.port,
                entry.user or defaults.user,
                identities[0] if identities else None,
                chain,
                tuple(identities[1:]),
            )

    def _chain(self, jump: Sequence[str], behind: tuple[str, ...]) -> tuple[str, ...]:
        """Return all gateways on the route, outermost first, with the jumps of the first."""
        if not jump:
            return ()
        for name in jump:
            if name not in self._content.gateways:
                known = [*self._content.gateways, NO_JUMP]
                raise ValueError(f"no gateway called {shown(name)}{nearest(name, known)}")
        way = (*jump, *behind)
        if len(set(way)) < len(way):
            raise ValueError("the way leads in a circle")
        if len(way) > MOST_GATEWAYS:
            raise ValueError(f"more than {MOST_GATEWAYS} gateways in a row")
        return (*self._chain(self._content.gateways[jump[0]].jump, way), *jump)

    def _check_connections(self) -> None:
        """Check that each host has the values of its connector, and no others."""
        for host in self._hosts.values():
            values = host.values
            for key in _RANGED:
                if key in values and "[" in values[key][0]:
                    self._wrong(
                        key, values[key], "a range is permitted in the host's own vars only"
                    )
            if values.get("cores", ("share",))[0] == "own" and values.get("broker_nice", (0,))[0]:
                why = f"brokers of {host.name} have cores of their own, so it has no effect"
                self._wrong("broker_nice", values["broker_nice"], why)
            if "connector" not in values:
                continue
            if values["connector"][0] == "ssh":
                self._check_ssh(host)
                continue
            for key in ("address", *_SSH_ONLY):
                if key in values and values[key][1].layer == "host":
                    self._wrong(
                        key, values[key], f"{host.name} is local, and {key} is for hosts over SSH"
                    )
            if "bench_address" in values and not is_loopback(values["bench_address"][0]):
                self._wrong(
                    "bench_address",
                    values["bench_address"],
                    f"{host.name} is local: its brokers listen on loopback only; "
                    'connector = "ssh" to use the network',
                )

    def _check_ssh(self, host: _HostVariables) -> None:
        values = host.values
        if "address" not in values:
            self._problem(host.place, f"key 'address' of {shown(host.name)} is missing")
            return
        for key, check in (("address", check_address), ("bench_address", check_bench_address)):
            if key in values:
                try:
                    check(values[key][0])
                except ValueError as error:
                    self._wrong(key, values[key], str(error))
        if "jump" in values:
            jump, origin = values["jump"]
            try:
                values["jump"] = (self._chain(jump, ()), origin)
            except ValueError as error:
                self._wrong("jump", (",".join(jump), origin), str(error))

    def _divide_ports(self) -> dict[str, range]:
        """Return host → ports. Hosts of a machine with a range from the same line get equal shares.

        Ports of hosts on the same machine must not overlap; on different machines ports may.
        """
        sharing: dict[tuple[str, str, Origin], list[str]] = {}
        for name, host in self._hosts.items():
            text, origin = host.values.get("ports", (DEFAULT_PORTS, Origin("default")))
            sharing.setdefault((_listens_on(host), text, origin), []).append(name)
        divided: dict[str, range] = {}
        taken: dict[str, list[tuple[range, Origin, str]]] = {}
        for (machine, text, origin), names in sharing.items():
            first, last = (int(part) for part in text.split("-"))
            whole = range(first, last + 1)
            there = taken.setdefault(machine, [])
            for other, other_origin, other_names in there:
                if whole.start < other.stop and other.start < whole.stop:
                    self._add_problem(
                        f"{self._file.path}:{origin.line or 1}: ports = {shown(text)} of "
                        f"{_shorten(names)} overlap with {other.start}-{other.stop - 1} of "
                        f"{other_names} ({other_origin}); the next free range begins at "
                        f"{max(row[0].stop for row in there)}"
                    )
                    break
            there.append((whole, origin, _shorten(names)))
            each = len(whole) // len(names)
            if each == 0:
                self._add_problem(
                    f"{self._file.path}:{origin.line or 1}: ports = {shown(text)}: fewer ports "
                    f"than the {len(names)} hosts that share them"
                )
            for index, name in enumerate(names):
                divided[name] = range(first + index * each, first + (index + 1) * each)
        return divided

    def _refuse_shared_folders(self, key: str) -> None:
        taken: dict[str, dict[Path, str]] = {}
        above: dict[str, dict[Path, str]] = {}  # every parent of a used folder
        for host in self._hosts.values():
            if key not in host.values:
                continue
            text, origin = host.values[key]
            folder = Path(text)
            if host.values.get("connector", ("",))[0] == "local":
                folder = folder.expanduser().resolve()
            there = taken.setdefault(_machine(host), {})
            around = above.setdefault(_machine(host), {})
            name = around.get(folder) or next(
                (there[other] for other in (folder, *folder.parents) if other in there), None
            )
            if name is not None:
                self._add_problem(
                    f"{self._file.path}:{origin.line}: {key} = {shown(text)} of {host.name} "
                    f"is, holds or lies in the folder of {name}; give each host its own"
                )
            there[folder] = host.name
            around.update(dict.fromkeys(folder.parents, host.name))

    def _host(self, settled: _HostVariables, ports: range) -> Host:
        values = settled.values

        def value(variable: str, default: Any) -> Any:
            return values[variable][0] if variable in values else default

        connector = values["connector"][0]
        address = value("address", "")
        nearby = address if is_ip(address) else ""
        identities = value("identity", [])
        return Host(
            name=settled.name,
            connector=connector,
            groups=tuple(sorted(settled.groups)),
            ports=ports,
            cores=value("cores", "share"),
            cores_reserved=tuple(value("cores_reserved", ())),
            root=value("root", None),
            origins={
                variable: values[variable][1] if variable in values else Origin("default")
                for variable in ("address", *Variables.model_fields)
            },
            address=address,
            port=value("port", 22),
            user=value("user", None),
            identity=next(iter(identities), None),
            more_identities=tuple(identities[1:]),
            jump=tuple(value("jump", ())) if connector == "ssh" else (),
            python=value("python", "python3"),
            bench_address=value("bench_address", LOCAL_ADDRESS if connector == "local" else nearby),
            failure_domain=value("failure_domain", settled.name),
            data_dir=value("data_dir", None),
            smt=value("smt", "allow"),
            numa=value("numa", ""),
            broker_nice=value("broker_nice", 0),
            mem_per_broker_bytes=value("mem_per_broker", 0),
            bench_nic=value("bench_nic", ""),
            fsync=value("fsync", "real"),
            metrics=value("metrics", "off"),
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

    def _check(self, place: Place, value: str, check: Callable[[str], object]) -> None:
        try:
            check(value)
        except ValueError as error:
            self._problem(place, f"= {shown(value)}: {error}")

    def _wrong(self, key: str, stated: tuple[Any, Origin], text: str) -> None:
        """Report a problem with a resolved value, once per line of origin."""
        value, origin = stated
        where = f"{origin.file}:{origin.line}" if origin.file else str(self._file.path)
        if not any(row.startswith(f"{where}: {key} = ") for row in self._problems):
            self._add_problem(f"{where}: {key} = {shown(value)}: {text}")

    def _expand(self, text: str, place: Place) -> list[str]:
        try:
            return expand_range(text)
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
        self._add_problem(f"{self._file.where(place)}{separator}{text}")

    def _add_problem(self, text: str) -> None:
        self._problems.append(text)
        if len(self._problems) >= MOST_PROBLEMS:
            raise UserError(*self._problems, f"{self._file.path}: and perhaps more")


def _machine(host: _HostVariables) -> str:
    connector, _ = host.values.get("connector", ("local", None))
    address, _ = host.values.get("address", ("", None))
    jump, _ = host.values.get("jump", ((), None))
    return machine_of(connector, address, jump)


def _listens_on(host: _HostVariables) -> str:
    """Return the scope in which ports must differ: a network address, or a whole machine."""
    bench_address, _ = host.values.get("bench_address", ("", None))
    if bench_address and not is_loopback(bench_address):
        return str(bench_address)
    return _machine(host)


def _count(things: Sequence[str], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _shorten(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"
