"""The user's own OpenSSH configuration, which only --use-ssh-config reads.

The configuration completes the inventory, and never overrules the inventory: host name behind an
alias, port, user, key, and route. ProxyCommand and `Match exec` run commands on this machine, so
nothing is read without --use-ssh-config. Host keys always come from the inventory's known_hosts.
"""

import getpass
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.ssh.line import Hop, LineError, in_background, own_settings, said
from pubsubctl.inventory.inventory import Gateway, Inventory

MOST_GATEWAYS: Final = 8

_SSH_PORT = 22
_PROXY_COMMAND = re.compile(r"^\s*ProxyCommand[\s=].*$", re.IGNORECASE | re.MULTILINE)
_MARK = "\x01"  # in the place of %


class UserConfig:
    """Hosts and gateways of an inventory, completed."""

    def __init__(self, inventory: Inventory, path: Path) -> None:
        """
        Raises:
            UserError: the file cannot be read.
        """
        self._path = path
        try:
            text = path.expanduser().read_text(encoding="utf-8")
            # The tokens are filled in later, because the inventory may have a better port.
            self._lookup = own_settings(_PROXY_COMMAND.sub(_without_tokens, text))
        except (OSError, ValueError, LineError) as error:
            raise UserError(f"{path}: {said(error)}") from None
        self._gateways = dict(inventory.gateways)
        self._settled: dict[tuple[bool, str, tuple[str, ...]], Hop] = {}
        self._commands: dict[tuple[bool, str, tuple[str, ...]], str] = {}

    @property
    def gateways(self) -> Mapping[str, Gateway]:
        """Return the gateways of the inventory and of the configuration."""
        return self._gateways

    def settled(self, hop: Hop) -> Hop:
        """Return the host or gateway with every setting filled in.

        Raises:
            UserError: the route is endless, or cannot be parsed.
        """
        key = _key(hop)
        if key not in self._settled:
            found = self._settle(hop, 0)
            self._settled[key] = found
            self._settled[_key(found)] = found  # nothing is looked up twice
        return self._settled[key]

    def proxy_command(self, hop: Hop) -> str | None:
        """Return the command through which a settled host is reached, if any."""
        return self._commands.get(_key(hop))

    def _settle(self, hop: Hop, depth: int) -> Hop:
        if depth > MOST_GATEWAYS:
            raise UserError(f"{self._path}: more than {MOST_GATEWAYS} gateways to {hop.name}")
        said = self._lookup(hop.address)
        found = replace(
            hop,
            address=said.get("hostname", hop.address),
            port=int(said.get("port", _SSH_PORT)) if hop.port == _SSH_PORT else hop.port,
            user=hop.user or said.get("user"),
            identity=hop.identity or next(iter(said.get("identityfile", ())), None),
        )
        if hop.jump:
            return found
        way = said.get("proxyjump", "none")
        if way != "none":
            return replace(found, jump=self._way(way, depth))
        command = said.get("proxycommand", "none")
        if command != "none":
            self._commands[_key(found)] = _filled_in(command, found, hop.address)
        return found

    def _way(self, text: str, depth: int) -> tuple[str, ...]:
        """Return the gateways of a ProxyJump, outermost first, by generated names."""
        way: tuple[str, ...] = ()
        for spec in text.split(","):
            name = f"{self._path}: {spec}"
            gateway: Hop = self._settle(replace(self._gateway(name, spec), jump=way), depth + 1)
            assert isinstance(gateway, Gateway), gateway
            self._gateways[name] = gateway
            self._settled[_key(gateway)] = gateway
            way = (*gateway.jump, name)
        return way

    def _gateway(self, name: str, spec: str) -> Gateway:
        user, _, place = spec.strip().removeprefix("ssh://").rpartition("@")
        address, port = place, ""
        if place.startswith("["):
            address, _, port = place[1:].partition("]")
            port = port.removeprefix(":")
        elif place.count(":") == 1:
            address, _, port = place.partition(":")
        if not address or (port and not port.isdigit()):
            raise UserError(f"{self._path}: ProxyJump {shown(spec)}: expected [user@]host[:port]")
        return Gateway(name, address, int(port or _SSH_PORT), user or None)


def _without_tokens(line: "re.Match[str]") -> str:
    return line[0].replace("%", _MARK)


def _filled_in(command: str, hop: Hop, alias: str) -> str:
    """Return a ProxyCommand with tokens replaced: host, port, user, and the requested name."""
    values = {"h": hop.address, "p": str(hop.port), "n": alias, "%": "%"}
    values["r"] = hop.user or getpass.getuser()
    return re.sub(f"{_MARK}(.)", lambda found: values.get(found[1], f"%{found[1]}"), command)


def through_command(command: str) -> socket.socket:
    """Return a byte stream through a command of this machine; closing the stream ends the command.

    Raises:
        LineError: there is no such command.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            shlex.split(command),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        ours.close()
        raise LineError(f"ProxyCommand {shown(command)}: {error}") from error
    finally:
        theirs.close()
    in_background(process.wait)  # so that no zombie is left
    return ours


def _key(hop: Any) -> tuple[bool, str, tuple[str, ...]]:
    return isinstance(hop, Gateway), hop.name, hop.jump
