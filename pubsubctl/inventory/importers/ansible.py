"""Importer for Ansible inventories: hosts, groups, and connection variables.

Of the folders group_vars and host_vars beside the inventory, only files of its groups and hosts are
read, as data. A file that is encrypted as a whole is noted, and not read.

The readers are our own, because `ansible-inventory` runs executable files and plugins. Nothing is
rendered, looked up or run here. A host that needs a template, a value in a vault, or a route that
is no list of ssh servers is unusable.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.ssh.config_syntax import Target, connection_tokens, fill_tokens
from pubsubctl.hosts.ssh.host_settings import SSH_PORT
from pubsubctl.hosts.ssh.proxies import CommandLine, Hop, read_command_line, route_of
from pubsubctl.inventory.importers.ansible_files import (
    Table,
    plain_yaml,
    read_ini,
    read_toml,
    read_yaml,
)
from pubsubctl.inventory.importers.ansible_groups import ALL, UNGROUPED, Groups, Setting
from pubsubctl.inventory.importers.findings import (
    Findings,
    FoundHost,
    key_paths,
    locate_problems,
    make_host_name,
    printable_errors,
    read_source,
    settle_names,
)

MOST_FILES: Final = 512
LARGEST_BYTES: Final = 4 << 20
DEEPEST_FOLDER: Final = 8

_SUFFIXES: Final = ("", ".yml", ".yaml", ".json")
_VAULT: Final = "$ANSIBLE_VAULT"


def read_folders(groups: Groups, source: Path) -> None:
    """Add the variables of the folders to the groups and hosts; followed folders are noted.

    Raises:
        UserError: a file is malformed, too large, or leads out of the folder of the inventory.
    """
    reader = _Reader(groups, source.expanduser().parent)
    for kind, names in (("group_vars", groups.groups), ("host_vars", groups.hosts)):
        variables = groups.group_files if kind == "group_vars" else groups.host_files
        before = reader.files
        if not (reader.folder / kind).is_dir():
            continue
        for name in names:
            if found := reader.variables(kind, name):
                variables[name] = found
        if count := reader.files - before:
            files = f"{count} file{'' if count == 1 else 's'}"
            groups.note(f"{source}: {kind} in its folder is followed: {files}")


@dataclass
class _Reader:
    """A reader of files of variables, with bounds."""

    groups: Groups
    folder: Path
    files: int = 0
    size_bytes: int = 0

    def variables(self, kind: str, name: str) -> dict[str, Setting]:
        """Return the variables of a group or host; the first existing suffix decides."""
        if "/" in name or name in ("", ".", ".."):
            return {}
        found: dict[str, Setting] = {}
        for suffix in _SUFFIXES:
            path = self.folder / kind / f"{name}{suffix}"
            if not os.path.lexists(path):
                continue
            for file in self._files_of(path, 0):
                found |= self._read(file)
            break
        return found

    def _files_of(self, path: Path, depth: int) -> Iterator[Path]:
        if path.is_file():
            yield path
        elif path.is_dir() and depth < DEEPEST_FOLDER:
            for inner in sorted(path.iterdir()):
                if inner.name.startswith(".") or inner.name.endswith("~"):
                    continue
                if inner.suffix in _SUFFIXES and (inner.is_file() or not inner.suffix):
                    yield from self._files_of(inner, depth + 1)

    def _read(self, file: Path) -> dict[str, Setting]:
        if not file.resolve().is_relative_to(self.folder.resolve()):
            raise UserError(f"{file}: leads out of {self.folder}, and is not followed")
        self.files += 1
        if self.files > MOST_FILES:
            raise UserError(f"{file}: more than {MOST_FILES} files of variables")
        text = read_source(file)
        self.size_bytes += len(text)
        if self.size_bytes > LARGEST_BYTES:
            raise UserError(f"{file}: more than {LARGEST_BYTES >> 20} MiB of variables")
        if text.startswith(_VAULT):
            self.groups.note(f"{file}: is encrypted, and not read")
            return {}
        content = plain_yaml(text, file, self.groups.notes)
        if content is None or content == "":
            return {}
        if not isinstance(content, Table):
            raise UserError(f"{file}: expected a map of variables, got {shown(content)}")
        return {key: Setting(content[key], content.where(file, key)) for key in content}


MOST_NOTED: Final = 100

_YAML_SUFFIXES: Final = ("", ".yml", ".yaml", ".json")
# Ansible takes the last that is set.
_ADDRESS: Final = ("ansible_host", "ansible_ssh_host")
_PORT: Final = ("ansible_port", "ansible_ssh_port")
_USER: Final = ("ansible_user", "ansible_ssh_user")
_IDENTITY: Final = ("ansible_private_key_file", "ansible_ssh_private_key_file")
_PYTHON: Final = ("ansible_python_interpreter",)
_CONNECTION: Final = ("ansible_connection",)
_ARGUMENTS: Final = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_USED: Final = {*_ADDRESS, *_PORT, *_USER, *_IDENTITY, *_PYTHON, *_CONNECTION, *_ARGUMENTS}
_OVER_SSH: Final = ("ssh", "smart", "paramiko", "paramiko_ssh")
_NAMESPACE: Final = "ansible.builtin."


def read_ansible(text: str, source: Path) -> Findings:
    """Return the hosts of an Ansible inventory; the content decides between INI and YAML.

    Raises:
        UserError: the text is in no format of Ansible, or is malformed; names line or host.
    """
    found = Findings()
    with printable_errors():
        groups = _groups_of(text, source)
        read_folders(groups, source)
        for note in groups.notes:
            found.note(note)
        _take_over(groups, source, found)
    if not any("brokers" in host.groups for host in found.hosts):
        found.note("no group is called brokers, so brokers go to all hosts; see help inventories")
    return found


def _groups_of(text: str, source: Path) -> Groups:
    """Return the content, read as Ansible does: the name of a file decides on the first format."""
    if text.startswith("#!"):
        raise UserError(
            f"{source}:1: {shown(text.splitlines()[0])}: a program, which is not run; import "
            "what `ansible-inventory -i FILE --list --yaml` writes"
        )
    if source.suffix == ".toml":
        return read_toml(text, source)
    readers: list[Callable[[str, Path], Groups]] = [read_ini]
    if source.suffix in _YAML_SUFFIXES:
        readers = [read_yaml, read_ini]
    elif text.lstrip().startswith(("---", "all:")):
        readers = [read_ini, read_yaml]
    errors: dict[Callable[[str, Path], Groups], UserError] = {}
    for reader in readers:
        try:
            return reader(text, source)
        except UserError as error:
            errors[reader] = error
    likely = read_yaml if _looks_like_yaml(text) else read_ini
    raise errors.get(likely) or errors[read_ini]


def _looks_like_yaml(text: str) -> bool:
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    first = next((line for line in lines if line), "")
    if first.startswith("[") and first.count("]") == 1 and first.endswith("]"):
        return False
    words = first.split()
    return first.startswith(("%", "-", "?", "[", "{")) or (bool(words) and words[0].endswith(":"))


def _take_over(groups: Groups, source: Path, found: Findings) -> None:
    unused = sorted(groups.variable_names() - _USED)
    for key in unused[:MOST_NOTED]:
        found.note(f"{source}: variable {shown(key)} is not taken over")
    if len(unused) > MOST_NOTED:
        found.note(f"{source}: {len(unused) - MOST_NOTED} more variables are not taken over")
    settled = groups.settle(sorted(_USED))
    hosts: dict[str, _Connection] = {}
    for host, variables in settled.items():
        try:
            place = _Variables(variables, groups.places[host], source)
            hosts[host] = _connection(host, place, found)
        except UserError as error:
            found.leave_out(f"host {shown(host)}", locate_problems(error.problems, source))
    through = {hop.host for connection in hosts.values() for hop in connection.route}
    wanted = [host for host in hosts if host not in through]
    ours, problems = settle_names([*wanted, *sorted(through)])
    group_names = _group_names(groups, set(ours.values()), source, found)
    members = groups.members()
    for host, connection in hosts.items():
        entry = f"host {shown(host)}"
        where = groups.places[host]
        if host in through:
            found.note(f"{source}: {shown(host)} is a gateway of others, and so no host")
            continue
        if host in problems:
            found.leave_out(entry, [f"{where}: {problems[host]}"])
            continue
        taken = FoundHost(ours[host], connection.connector, connection.address)
        taken.variables = connection.variables
        taken.groups = list(
            dict.fromkeys(group_names[name] for name in group_names if host in members[name])
        )
        reserved = [ours[name] for name in wanted if name in ours]
        try:
            if connection.route:
                names = [
                    found.add_gateway(
                        make_host_name(hop.host), _gateway(hop, source, found), reserved, where
                    )
                    for hop in connection.route
                ]
                taken.variables["jump"] = names
        except UserError as error:
            found.leave_out(entry, locate_problems(error.problems, source))
            continue
        found.add_host(taken, entry, where)


def _group_names(groups: Groups, hosts: set[str], source: Path, found: Findings) -> dict[str, str]:
    """Return group → our name; groups without a name of ours are recorded as unusable."""
    names: dict[str, str] = {}
    for group in sorted(groups.groups):
        if group in (ALL, UNGROUPED):
            continue
        try:
            name = make_host_name(group)
        except UserError as error:
            found.leave_out(f"group {shown(group)}", locate_problems(error.problems, source))
            continue
        if name in hosts or name == ALL:
            found.note(f"{source}: group {shown(group)} has the name of a host: {name[:26]}-hosts")
            name = f"{name[:26]}-hosts"
        names[group] = name
    return names


@dataclass
class _Connection:
    """The values of a host that Ansible connects with."""

    connector: str
    address: str
    variables: dict[str, Any]
    route: list[Hop]


@dataclass
class _Variables:
    """The variables of a host.

    Attributes:
        where: the place of the host.
    """

    settings: Mapping[str, Setting]
    where: str
    source: Path

    def text(self, names: tuple[str, ...]) -> tuple[str, str]:
        """Return the deciding variable as text, "" if none is set, and the place of the value.

        Raises:
            UserError: the value is a template, in a vault, or no text.
        """
        for name in reversed(names):
            value, where = self.settings.get(name, (None, ""))
            if value is None or value == "":
                continue
            if isinstance(value, dict | list | tuple | set):
                raise UserError(f"{where}: {name} {shown(value)} is no text")
            text = str(value)
            if "{{" in text or "{%" in text:
                raise UserError(f"{where}: {name} is a template, {shown(text)}")
            return text, where
        return "", self.where

    def arguments(self, name: str, found: Findings) -> tuple[CommandLine, str]:
        """Return the ssh options in a variable, and the place of the variable.

        Raises:
            UserError: an option decides on the connection and cannot be taken over.
        """
        text, where = self.text((name,))
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UserError(f"{where}: {name}: {str(error).lower()}") from None
        line = read_command_line(words, f"{where}: {name}")
        if line.words:
            raise UserError(f"{where}: {name}: {shown(line.words[0])} is no option")
        for option in line.ignored:
            found.note(f"{self.source}: {name}: {shown(option)} is not taken over")
        return line, f"{where}: {name}"


def _connection(host: str, variables: _Variables, found: Findings) -> _Connection:
    """Return how Ansible reaches a host.

    Raises:
        UserError: a value cannot be taken over; names the place.
    """
    connection, where = variables.text(_CONNECTION)
    kind = (connection or "ssh").removeprefix(_NAMESPACE)
    if kind == "local":
        return _Connection("local", "", {}, [])
    if kind not in _OVER_SSH:
        raise UserError(f"{where}: ansible_connection {shown(kind)}: only ssh and local are taken")
    # Ansible passes these options in this order; ssh takes the first value.
    lines = [variables.arguments(name, found) for name in _ARGUMENTS]
    early, late = lines[0][0].settings, _merge(line.settings for line, _ in lines)
    address = late.get("hostname") or variables.text(_ADDRESS)[0] or host
    values: dict[str, Any] = {}
    port, where = variables.text(_PORT)
    if port := early.get("port") or port or late.get("port", ""):
        if not (port.isascii() and port.isdecimal() and len(port) <= 5):
            raise UserError(f"{where}: ansible_port {shown(port)} is no number")
        values["port"] = int(port)
    if user := early.get("user") or variables.text(_USER)[0] or late.get("user"):
        values["user"] = user
    named = variables.text(_ADDRESS)[0] or host
    alias = late.get("hostkeyalias", "")
    target = Target(named, address, values.get("port", SSH_PORT), user or "", alias)
    paths = lines[0][0].identities(target, lines[0][1])
    identity, where = variables.text(_IDENTITY)
    if identity:
        paths.append(fill_tokens(identity, connection_tokens(target), where, is_path=True))
    paths += [path for line, place in lines[1:] for path in line.identities(target, place)]
    if paths:
        values["identity"] = key_paths(paths, variables.source, found)
    python = variables.text(_PYTHON)[0]
    if python and not python.startswith("auto"):
        values["python"] = python
    route: list[Hop] = []
    for line, place in lines:
        if line.proxy():
            is_jump = line.is_jump
            route = route_of(line.proxy(), is_jump=is_jump, target=target, where=place)
            break
    return _Connection("ssh", address, values, route)


def _merge(layers: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return all settings; the first value of a key wins."""
    found: dict[str, str] = {}
    for layer in layers:
        found = {**layer, **found}
    return found


def _gateway(hop: Hop, source: Path, found: Findings) -> dict[str, Any]:
    entry: dict[str, Any] = {"address": hop.address or hop.host}
    entry |= {"user": hop.user} if hop.user else {}
    entry |= {"port": hop.port} if hop.port else {}
    if hop.identities:
        entry["identity"] = key_paths(hop.identities, source, found)
    return entry
