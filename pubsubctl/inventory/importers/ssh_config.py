"""Importer for ssh_config: Host blocks become hosts and gateways, as `ssh -G` resolves the blocks.

The importer takes names, addresses, keys and routes. The reader is our own, because `ssh -G` runs
`Match exec`; nothing is run here, no name is looked up, and Include leads to files in the same
folder only. A host whose route or value depends on a command is unusable.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.ssh.client_config import ClientConfig
from pubsubctl.hosts.ssh.config_syntax import Target
from pubsubctl.hosts.ssh.host_settings import SSH_PORT, HostSettings
from pubsubctl.hosts.ssh.proxies import Hop, route_of
from pubsubctl.inventory.importers.findings import (
    Findings,
    FoundHost,
    key_paths,
    locate_problems,
    make_host_name,
    printable_errors,
    settle_names,
)
from pubsubctl.inventory.inventory_schema import MOST_GATEWAYS


def read_ssh_config(text: str, source: Path) -> Findings:
    """Return the hosts of all Host blocks; hosts on the route to others become gateways.

    Raises:
        UserError: lines are malformed; names all.
    """
    with printable_errors():
        config = ClientConfig(text, source)
    found = Findings()
    for note in config.notes:
        found.note(note)
    settings: dict[str, HostSettings] = {}
    routes: dict[str, list[Hop]] = {}
    for name in config.names():
        if "," in name:
            words = f"blanks separate names, commas do not: Host {name.replace(',', ' ')}"
            found.leave_out(f"host {shown(name)}", [f"{config.place_of(name)}: {words}"])
            continue
        try:
            settings[name] = config.settings(name)
            routes[name] = _route(settings[name])
        except UserError as error:
            found.leave_out(f"host {shown(name)}", locate_problems(error.problems, source))
            settings.pop(name, None)
    through = {hop.host for hops in routes.values() for hop in hops}
    hosts = [name for name in routes if name not in through]
    ours, problems = settle_names([*hosts, *(name for name in routes if name in through)])
    builder = _Builder(config, source, found, [ours[name] for name in hosts if name in ours])
    for name in hosts:
        entry = f"host {shown(name)}"
        if name in problems:
            found.leave_out(entry, [f"{source}: {problems[name]}"])
            continue
        host = FoundHost(ours[name], address=settings[name].hostname)
        host.variables.update(builder.variables(settings[name]))
        try:
            if routes[name]:
                host.variables["jump"] = builder.gateways(routes[name], (Hop(name),))
        except UserError as error:
            found.leave_out(entry, locate_problems(error.problems, source))
            continue
        found.add_host(host, entry, str(source))
    return found


def _route(settings: HostSettings) -> list[Hop]:
    proxy = settings.proxy
    if proxy is None:
        return []
    target = Target(
        settings.alias,
        settings.hostname,
        settings.port or SSH_PORT,
        settings.user or "",
        settings.key_alias,
    )
    return route_of(proxy.text, is_jump=proxy.is_jump, target=target, where=proxy.where)


@dataclass
class _Builder:
    """A builder of gateways for routes.

    Attributes:
        reserved: the names of hosts.
    """

    config: ClientConfig
    source: Path
    found: Findings
    reserved: list[str]

    def variables(self, settings: HostSettings) -> dict[str, Any]:
        """Return port, user and identity of a host or gateway, as far as the file has values."""
        values: dict[str, Any] = {}
        if settings.port is not None:
            values["port"] = settings.port
        if settings.user is not None:
            values["user"] = settings.user
        if settings.identities:
            values["identity"] = key_paths(settings.identities, self.source, self.found)
        return values

    def gateways(self, route: list[Hop], behind: tuple[Hop, ...]) -> list[str]:
        """Return the names of the gateways of a route, added to the findings on first use.

        Raises:
            UserError: a route is a loop, or a value is invalid.
        """
        return [self._gateway(hop, behind) for hop in route]

    def _gateway(self, hop: Hop, behind: tuple[Hop, ...]) -> str:
        if hop in behind or len(behind) > MOST_GATEWAYS:
            route = " through ".join(one.host for one in (*behind, hop))
            raise UserError(f"{self.source}: the route is a loop: {shown(route)}")
        settings = HostSettings(hop.host, hop.host, None, None, (), None)
        if hop.uses_config:
            settings = self.config.settings(hop.host, hop.user or None, hop.port or None)
        values = self.variables(settings)
        values |= {"user": hop.user} if hop.user else {}
        values |= {"port": hop.port} if hop.port else {}
        if identities := (*hop.identities, *settings.identities):
            values["identity"] = key_paths(identities, self.source, self.found)
        entry: dict[str, Any] = {"address": hop.address or settings.hostname, **values}
        if not hop.is_direct and (before := _route(settings)):
            entry["jump"] = self.gateways(before, (*behind, hop))
        return self.found.add_gateway(
            make_host_name(hop.host), entry, self.reserved, str(self.source)
        )
