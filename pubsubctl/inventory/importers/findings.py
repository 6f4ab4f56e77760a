"""The findings of an importer, and the equivalent inventory file."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from brokerd.text import BYTE_ORDER_MARK, NAME, explain_problem, problem_of, toml_text
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import LARGEST_FILE_BYTES, adapter_of, shown
from pubsubctl.hosts.ssh.config_syntax import abbreviate_home
from pubsubctl.inventory.inventory import load_inventory
from pubsubctl.inventory.inventory_schema import (
    MOST_GATEWAYS,
    NO_JUMP,
    SCHEMA,
    GatewayEntry,
    Variables,
    check_address,
)

MOST_PROBLEMS: Final = 200

# Variables that most hosts of a lab share, written once when all do.
_COMMON = ("port", "user", "identity", "python", "jump")
# Gateways without these values would take over those of the hosts.
_INHERITED = ("user", "identity")


@dataclass
class FoundHost:
    """A host of another tool, with all importable values."""

    name: str
    connector: str = "ssh"
    address: str = ""
    groups: list[str] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unusable:
    """An entry of another tool that cannot be taken over.

    Attributes:
        reason: begins with the file, and the line if there is one.
    """

    entry: str
    reason: str

    def __str__(self) -> str:
        where, colon, rest = self.reason.partition(": ")
        return f"{where}: {self.entry}: {rest}" if colon else f"{self.entry}: {self.reason}"


@dataclass
class Findings:
    """The importable content of another tool's file.

    Attributes:
        gateways: name → the gateway's entry.
        notes: skipped content, with reasons.
        unusable: entries that cannot be taken over.
    """

    hosts: list[FoundHost] = field(default_factory=list)
    gateways: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unusable: list[Unusable] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note about skipped content, once."""
        text = printable(text)
        if text not in self.notes:
            self.notes.append(text)

    def leave_out(self, entry: str, reasons: Iterable[str]) -> None:
        """Record an entry that cannot be taken over."""
        self.unusable += [Unusable(entry, printable(reason)) for reason in reasons]

    def add_gateway(
        self, wanted: str, entry: dict[str, Any], reserved: Iterable[str], where: str
    ) -> str:
        """Return the name of a gateway; equal names with different entries get a number.

        Raises:
            UserError: a value of the gateway is invalid.
        """
        name, number = wanted, 1
        taken = set(reserved) - {wanted}
        while name in taken or self.gateways.get(name, entry) != entry:
            number += 1
            name = f"{wanted[:28].rstrip('-')}-{number}"
        if name not in self.gateways:
            _check_gateway(entry, f"{where}: gateway {shown(wanted)}")
            self.gateways[name] = entry
        return name

    def add_host(self, host: FoundHost, entry: str, where: str) -> None:
        """Add a host, or record why the host cannot be taken over."""
        try:
            _check_host(host)
            self._check_route(host.variables.get("jump", []))
        except UserError as error:
            self.leave_out(entry, [f"{where}: {problem}" for problem in error.problems])
        else:
            self.hosts.append(host)

    def gateways_in_use(self) -> dict[str, dict[str, Any]]:
        """Return the gateways on the routes of hosts, in the order of the file."""
        wanted: set[str] = set()
        open_ = [name for host in self.hosts for name in host.variables.get("jump", [])]
        while open_:
            name = open_.pop()
            if name not in wanted:
                wanted.add(name)
                open_ += self.gateways[name].get("jump", [])
        return {name: row for name, row in self.gateways.items() if name in wanted}

    def _check_route(self, jump: list[str]) -> None:
        """Refuse a route through a gateway twice, or through too many.

        Raises:
            UserError: the route is no route of an inventory.
        """
        route, first = list(jump), jump[0] if jump else ""
        while first and len(route) <= MOST_GATEWAYS:
            before = self.gateways[first].get("jump", [])
            route, first = [*before, *route], before[0] if before else ""
        text = ",".join(route)
        if len(route) > MOST_GATEWAYS:
            raise UserError(f"jump = {shown(text)}: more than {MOST_GATEWAYS} gateways")
        if len(set(route)) < len(route):
            raise UserError(f"jump = {shown(text)}: a gateway is there twice")


def _check_host(host: FoundHost) -> None:
    if host.connector != "ssh":
        return
    problems = _problems_of(Variables, _plain(host.variables))
    try:
        check_address(host.address)
    except ValueError as error:
        problems.append(f"address = {shown(host.address)}: {error}")
    if problems:
        raise UserError(*problems)


def _check_gateway(entry: Mapping[str, Any], where: str) -> None:
    problems = _problems_of(GatewayEntry, _plain(entry))
    try:
        check_address(entry["address"])
    except ValueError as error:
        problems.append(f"address = {shown(entry['address'])}: {error}")
    if problems:
        raise UserError(*(f"{where}: {problem}" for problem in problems))


def _problems_of(model: Any, values: Mapping[str, Any]) -> list[str]:
    try:
        adapter_of(model).validate_python(values)
    except ValidationError as error:
        return [
            f"{detail['loc'][0]} = {shown(detail['input'])}: " + explain_problem(detail)
            for detail in error.errors()
        ]
    return []


def read_source(path: Path) -> str:
    """Return the text of a file of another tool.

    Raises:
        UserError: the file cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise UserError(f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {problem_of(error)}") from None
    if text.startswith(BYTE_ORDER_MARK):
        raise UserError(f"{path}:1: begins with a byte order mark; save the file as plain UTF-8")
    return text


def make_host_name(text: str) -> str:
    """Return a valid host name of ours: n01.lab.example becomes n01, Node_1 becomes node-1.

    Raises:
        UserError: no part of the text is valid.
    """
    is_address = re.fullmatch(r"[0-9.]+|[0-9A-Fa-f:]+", text) is not None
    label = text if is_address else text.split(".")[0]
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:32].rstrip("-")
    if not NAME.fullmatch(name):
        raise UserError(f"{shown(text)} cannot be turned into a name of lower-case letters")
    return name


def key_paths(paths: Iterable[str], source: Path, found: Findings) -> str | list[str]:
    """Return the paths of keys, a single path as text; relative paths begin at the source."""
    absolute: dict[str, None] = {}
    for path in paths:
        whole = path
        if not path.startswith(("/", "~")):
            whole = abbreviate_home(str(source.expanduser().parent.absolute() / path))
            found.note(f"{source}: key {shown(path)} is a relative path; taken as {whole}")
        absolute[whole] = None
    return list(absolute) if len(absolute) > 1 else next(iter(absolute))


def printable(text: str) -> str:
    """Return a message in which characters that move the cursor are escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@contextmanager
def printable_errors() -> Iterator[None]:
    """Escape the messages of errors about the content of a file."""
    try:
        yield
    except UserError as error:
        raise UserError(*map(printable, error.problems)) from None


def locate_problems(problems: Iterable[str], source: Path) -> list[str]:
    """Return problems that begin with a file; the source, where a problem names no file."""
    has_place = re.compile(rf"{re.escape(str(source))}: |[^ ]\S*:\d+: ")
    return [text if has_place.match(text) else f"{source}: {text}" for text in problems]


def settle_names(texts: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return foreign name → our name, and foreign name → why there is no name of ours."""
    short: dict[str, str] = {}
    problems: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        try:
            short[text] = make_host_name(text)
        except UserError as error:
            problems[text] = str(error)
    taken: dict[str, int] = {}
    for name in short.values():
        taken[name] = taken.get(name, 0) + 1
    names: dict[str, str] = {}
    by_name: dict[str, str] = {}
    for text, name in short.items():
        name = name if taken[name] == 1 else make_host_name(text.replace(".", "-"))
        if name in by_name:
            other = shown(by_name[name])
            problems[text] = f"{shown(text)} and {other} would both be called {name}"
        else:
            names[text] = name
            by_name[name] = text
    return names, problems


def inventory_text(found: Findings, name: str, source: Path, *, skip_unusable: bool = False) -> str:
    """Return the inventory file for the importer's findings.

    Args:
        skip_unusable: leave out the entries that cannot be taken over.

    Raises:
        UserError: entries cannot be taken over; names all. Or no host is left, or a finding breaks
            a rule of our inventories.
    """
    unusable = [str(entry) for entry in found.unusable]
    if unusable and not skip_unusable:
        count = f"{len(unusable)} entr{'y' if len(unusable) == 1 else 'ies'}"
        raise UserError(
            *_shorten(unusable),
            f"{source}: {count} cannot be taken over; --skip-unusable takes the rest",
        )
    if not found.hosts:
        raise UserError(
            f"{source}: no host in it that could be taken over",
            *_shorten([*unusable, *found.notes]),
        )
    hosts = [dict(host.variables) for host in found.hosts]
    gateways = found.gateways_in_use()
    defaults = {
        key: hosts[0][key]
        for key in _COMMON
        if all(host.get(key) == hosts[0].get(key) for host in hosts)
        and key in hosts[0]
        and (key not in _INHERITED or all(key in row for row in gateways.values()))
    }
    document: dict[str, Any] = {"schema": SCHEMA, "name": name}
    if defaults:
        document["defaults"] = _plain(defaults)
    if gateways:
        document["gateways"] = {key: _plain(row) for key, row in gateways.items()}
    document["hosts"] = [
        _host_entry(host, {key: v for key, v in row.items() if key not in defaults})
        for host, row in zip(found.hosts, hosts, strict=True)
    ]
    text = f"# Imported from {source.name if source.name.isprintable() else 'a file'}.\n"
    text += toml_text(document)
    _check(text, source)
    return text


def _shorten(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_PROBLEMS:
        return lines
    return [*lines[:MOST_PROBLEMS], f"and {len(lines) - MOST_PROBLEMS} more"]


def _host_entry(host: FoundHost, variables: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": host.name, "connector": host.connector}
    if host.connector == "ssh":
        entry["address"] = host.address
    if host.groups:
        entry["groups"] = list(host.groups)
    if variables:
        entry["vars"] = _plain(variables)
    return entry


def _plain(variables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: (",".join(value) or NO_JUMP) if key == "jump" else value
        for key, value in variables.items()
    }


def _check(text: str, source: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="pubsubctl-") as folder:
        path = Path(folder) / "imported.toml"
        path.write_text(text, encoding="utf-8")
        try:
            load_inventory(path)
        except UserError as error:
            # The user has only the source file, so line numbers of our file are useless.
            place = re.compile(rf"{re.escape(str(path))}:(\d+: )?")
            raise UserError(
                *(f"{source}: {place.sub('', problem)}" for problem in error.problems)
            ) from None
