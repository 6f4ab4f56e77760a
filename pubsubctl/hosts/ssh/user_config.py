"""The user's own OpenSSH configuration, which only --use-ssh-config reads.

The configuration completes the inventory, and never overrules the inventory: host name behind an
alias, port, user, key, and route. ProxyCommand and `Match exec` run commands on this machine, so
nothing is read without --use-ssh-config. Host keys always come from the inventory's known_hosts.
"""

import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import LARGEST_FILE_BYTES, shown
from pubsubctl.hosts.ssh.client_config import ClientConfig
from pubsubctl.hosts.ssh.config_syntax import Target, fill_tokens
from pubsubctl.hosts.ssh.fabric_connection import Hop, LineError, describe_error, run_in_background
from pubsubctl.hosts.ssh.host_settings import SSH_PORT, ProxySetting
from pubsubctl.hosts.ssh.proxies import read_hops
from pubsubctl.inventory.inventory import Gateway, Inventory

MOST_GATEWAYS: Final = 8


class UserConfig:
    """Hosts and gateways of an inventory, completed."""

    def __init__(self, inventory: Inventory, path: Path) -> None:
        """
        Raises:
            UserError: the file cannot be read.
        """
        self._path = path
        try:
            with path.expanduser().open("rb") as file:
                content = file.read(LARGEST_FILE_BYTES + 1)
            if len(content) > LARGEST_FILE_BYTES:
                raise UserError(f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB")
            self._config = ClientConfig(content.decode("utf-8"), path, follow_all=True)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: {describe_error(error)}") from None
        self._gateways = dict(inventory.gateways)
        self._settled: dict[tuple[bool, str, tuple[str, ...]], Hop] = {}
        self._commands: dict[tuple[bool, str, tuple[str, ...]], str] = {}

    @property
    def gateways(self) -> Mapping[str, Gateway]:
        """Return the gateways of the inventory and of the configuration."""
        return self._gateways

    def settle(self, hop: Hop) -> Hop:
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
        port = None if hop.port == SSH_PORT else hop.port
        settings = self._config.settings(hop.address, hop.user, port, run_commands=True)
        identities = hop.identities or settings.identities
        found = replace(
            hop,
            address=settings.hostname,
            port=settings.port or SSH_PORT,
            user=settings.user,
            identity=next(iter(identities), None),
            more_identities=identities[1:],
        )
        proxy = settings.proxy
        if hop.jump or proxy is None or proxy.text.lower() == "none":
            return found
        target = Target(
            hop.address, found.address, found.port, found.user or "", settings.key_alias
        )
        if proxy.is_jump:
            return replace(found, jump=self._route(proxy, target, depth))
        self._commands[_key(found)] = fill_tokens(proxy.text, target.tokens(), proxy.where)
        return found

    def _route(self, proxy: ProxySetting, target: Target, depth: int) -> tuple[str, ...]:
        """Return the gateways of a ProxyJump, outermost first, by generated names."""
        way: tuple[str, ...] = ()
        text = fill_tokens(proxy.text, target.tokens(), proxy.where)
        for spec, hop in zip(text.split(","), read_hops(text, proxy.where), strict=True):
            name = f"{self._path}: {spec}"
            named = Gateway(name, hop.host, hop.port or SSH_PORT, hop.user or None, jump=way)
            gateway: Hop = self._settle(named, depth + 1)
            assert isinstance(gateway, Gateway), gateway
            self._gateways[name] = gateway
            self._settled[_key(gateway)] = gateway
            way = (*gateway.jump, name)
        return way


def dial_through_command(command: str) -> socket.socket:
    """Return a byte stream through a command of this machine; closing the stream ends the command.

    Raises:
        LineError: there is no such command.
    """
    program = command.split()[0]
    if not re.search(r"[\"'$\\]", program) and shutil.which(program) is None:
        raise LineError(f"ProxyCommand {shown(command)}: no such file or directory")
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        ours.close()
        raise LineError(f"ProxyCommand {shown(command)}: {error}") from error
    finally:
        theirs.close()
    run_in_background(process.wait)  # so that no zombie is left
    return ours


def _key(hop: Any) -> tuple[bool, str, tuple[str, ...]]:
    return isinstance(hop, Gateway), hop.name, hop.jump
