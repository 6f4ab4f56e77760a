"""Importer for ssh_config: Host blocks become hosts and gateways.

The importer takes only names and addresses. `ProxyCommand ssh -W %h:%p HOP` is read as the
equivalent ProxyJump. Other commands that OpenSSH would run (ProxyCommand, Match exec, LocalCommand,
KnownHostsCommand) are neither run nor kept, other files are not followed, and no name is resolved.
"""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.inventory.importers.found import (
    Found,
    FoundHost,
    hops_of_command,
    read_hops,
    unique_names,
)

_LINE = re.compile(r"\s*([A-Za-z][A-Za-z0-9]*)(?:\s*=\s*|\s+)(.*?)\s*")
_TAKEN = ("hostname", "port", "user", "identityfile", "proxyjump")
_RUNS = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand", "match", "include")


@dataclass
class _Block:
    patterns: list[str]
    values: dict[str, str] = field(default_factory=dict)

    def holds_for(self, name: str) -> bool:
        refused = any(fnmatch.fnmatchcase(name, p[1:]) for p in self.patterns if p[:1] == "!")
        return not refused and any(
            fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns if pattern[:1] != "!"
        )


def read_ssh_config(text: str, source: Path) -> Found:
    """Return the hosts of all Host blocks; hosts on the route to others become gateways.

    Raises:
        UserError: a line is malformed, or a value is invalid; names the line.
    """
    found = Found()
    blocks = _blocks(text, source, found)
    names = [
        pattern
        for block in blocks
        for pattern in block.patterns
        if not re.search(r"[*?!]", pattern)
    ]
    names = list(dict.fromkeys(names))
    jumps = {name: read_hops(_value(blocks, name, "proxyjump"), source) for name in names}
    through = list(dict.fromkeys(hop for hops in jumps.values() for _, hop, _ in hops))
    ours = unique_names([*names, *through])
    for name in names:
        if name in through:
            continue
        host = FoundHost(ours[name], address=_address(blocks, name))
        host.variables.update(_variables(blocks, name, source))
        if jumps[name]:
            host.variables["jump"] = [ours[hop] for _, hop, _ in jumps[name]]
        found.hosts.append(host)
    for name in names:
        for user, hop, port in jumps[name]:
            entry: dict[str, Any] = {"address": _address(blocks, hop)}
            entry |= _variables(blocks, hop, source)
            entry |= {"user": user} if user else {}
            entry |= {"port": port} if port else {}
            if before := [ours[outer] for _, outer, _ in jumps.get(hop, [])]:
                entry["jump"] = before
            if found.gateways.setdefault(ours[hop], entry) != entry:
                raise UserError(f"{source}: {shown(hop)} is jumped through in different ways")
    return found


def _blocks(text: str, source: Path, found: Found) -> list[_Block]:
    blocks = [_Block(["*"])]
    skipping = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise UserError(f"{source}:{number}: {shown(line.strip())}: no keyword with a value")
        key, value = match[1].lower(), match[2]
        if key in ("host", "match"):
            skipping = key == "match"
        if key == "proxycommand" and (hops := hops_of_command(value)):
            key, value = "proxyjump", hops
        if key == "include":
            found.note(
                f"{source}:{number}: Include is not followed; import {shown(value)} by itself"
            )
        elif key in _RUNS:
            found.note(f"{source}:{number}: {match[1]} is not taken over")
        if key == "host":
            blocks.append(_Block([word.strip('"') for word in value.split()]))
        elif not skipping and key in _TAKEN:
            # OpenSSH takes the first value of an option.
            blocks[-1].values.setdefault(key, value.strip('"'))
    return blocks


def _value(blocks: list[_Block], name: str, key: str) -> str:
    for block in blocks:
        if key in block.values and block.holds_for(name):
            return block.values[key]
    return ""


def _address(blocks: list[_Block], name: str) -> str:
    address = _value(blocks, name, "hostname") or name
    return address.replace("%h", name).replace("%%", "%")


def _variables(blocks: list[_Block], name: str, source: Path) -> Mapping[str, str | int]:
    found: dict[str, str | int] = {}
    if port := _value(blocks, name, "port"):
        if not re.fullmatch(r"\d{1,5}", port):
            raise UserError(f"{source}: Port {shown(port)} of {shown(name)} is no number")
        found["port"] = int(port)
    if user := _value(blocks, name, "user"):
        found["user"] = user
    identity = _value(blocks, name, "identityfile")
    if identity and identity.lower() != "none":
        found["identity"] = identity.replace("%d", "~").replace("%%", "%")
    return found
