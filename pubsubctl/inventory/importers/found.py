"""The findings of an importer, and the equivalent inventory file."""

import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.spec.toml_text import toml_text
from brokerd.overlay.topology import NAME
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import LARGEST_FILE_BYTES, shown
from pubsubctl.inventory.inventory import load_inventory
from pubsubctl.inventory.inventory_schema import NO_JUMP, SCHEMA

_HOP = re.compile(r"(?:ssh://)?(?:([^@]+)@)?(\[[0-9A-Fa-f:]+\]|[^:\[\]]+)(?::(\d{1,5}))?/?")

# Host key options of a hop are ignored: the hop's key is always checked.
_OF_HOST_KEYS = ("stricthostkeychecking", "userknownhostsfile", "loglevel")

# Variables that most hosts of a lab share, written once when all do.
_COMMON = ("port", "user", "identity", "python", "jump")


class Hop(NamedTuple):
    """A machine on the route, in the notation of ProxyJump."""

    user: str
    host: str
    port: int


@dataclass
class FoundHost:
    """A host of another tool, with all importable values."""

    name: str
    connector: str = "ssh"
    address: str = ""
    groups: list[str] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass
class Found:
    """The importable content of another tool's file.

    Attributes:
        gateways: name → the gateway's entry.
        notes: skipped content, with reasons.
    """

    hosts: list[FoundHost] = field(default_factory=list)
    gateways: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note about skipped content, once."""
        if text not in self.notes:
            self.notes.append(text)


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
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start})") from None


def read_hops(text: str, source: Path) -> list[Hop]:
    """Return the hops of a ProxyJump, outermost first; an empty list for "none".

    Raises:
        UserError: the text is not of the form [user@]host[:port],...
    """
    if text.lower() in ("", "none"):
        return []
    found = []
    for part in text.split(","):
        match = _HOP.fullmatch(part.strip())
        if match is None:
            raise UserError(f"{source}: ProxyJump {shown(text)}: {shown(part)} is no hop")
        found.append(Hop(match[1] or "", match[2].strip("[]"), int(match[3] or 0)))
    return found


def hops_of_command(text: str) -> str:
    """Return the hop of a ProxyCommand of the form `ssh -W %h:%p HOP`; "" for any other form.

    Nothing is run. An option that the hop cannot express, for example a key, makes another form.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        return ""
    if not words or words[0].rpartition("/")[2] != "ssh":
        return ""
    said: dict[str, str] = {}
    hops = []
    rest = iter(words[1:])
    for word in rest:
        if word in ("-q", "-T", "-x", "-a"):
            continue
        if word[:2] in ("-W", "-p", "-l", "-o"):
            said[word[:2]] = word[2:] or next(rest, "")
            if word[:2] == "-o" and said["-o"].split("=")[0].lower() not in _OF_HOST_KEYS:
                return ""
        elif word.startswith("-"):
            return ""
        else:
            hops.append(word)
    if len(hops) != 1 or said.get("-W") not in ("%h:%p", "[%h]:%p"):
        return ""
    user = f"{said['-l']}@" if "-l" in said else ""
    port = f":{said['-p']}" if "-p" in said else ""
    return f"{user}{hops[0]}{port}"


def our_name(text: str) -> str:
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


def unique_names(texts: Iterable[str]) -> dict[str, str]:
    """Return foreign name → our name; names that would be equal keep all their labels.

    Raises:
        UserError: two names are equal even so.
    """
    texts = list(dict.fromkeys(texts))
    short = {text: our_name(text) for text in texts}
    taken = list(short.values())
    names = {
        text: name if taken.count(name) == 1 else our_name(text.replace(".", "-"))
        for text, name in short.items()
    }
    by_name: dict[str, str] = {}
    for text, name in names.items():
        if name in by_name:
            raise UserError(f"{shown(text)} and {shown(by_name[name])} would both be called {name}")
        by_name[name] = text
    return names


def inventory_text(found: Found, name: str, source: Path) -> str:
    """Return the inventory file for the importer's findings.

    Raises:
        UserError: a finding breaks a rule of our inventories; names the finding.
    """
    if not found.hosts:
        raise UserError(f"{source}: no host in it that could be taken over", *found.notes)
    hosts = [dict(host.variables) for host in found.hosts]
    defaults = {
        key: hosts[0][key]
        for key in _COMMON
        if all(host.get(key) == hosts[0].get(key) for host in hosts) and key in hosts[0]
    }
    document: dict[str, Any] = {"schema": SCHEMA, "name": name}
    if defaults:
        document["defaults"] = _plain(defaults)
    if found.gateways:
        document["gateways"] = {key: _plain(row) for key, row in found.gateways.items()}
    document["hosts"] = [
        _host_entry(host, {key: v for key, v in row.items() if key not in defaults})
        for host, row in zip(found.hosts, hosts, strict=True)
    ]
    text = f"# Imported from {source.name if source.name.isprintable() else 'a file'}.\n"
    text += toml_text(document)
    _check(text, source)
    return text


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
