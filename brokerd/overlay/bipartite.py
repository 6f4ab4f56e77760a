"""A bipartite overlay: proxies on one side, servers and edges on the other.

    [bipartite]
    proxies = ["b1", "b3"]
    servers = ["p1", "b2", "b4"]   # own topics
    edges = ["s1", "s2"]           # own none; absent: there are none

Each proxy is linked to every broker that is no proxy. Brokers determine at run time which server
owns a topic, so no file assigns topics, and any proxy serves any topic. Without proxies, or without
servers, no topic could be reached.

Paper: [MP22] §1, §3 (clients, a fixed set of proxies, servers).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Bundle, Link, Route, Step
from brokerd.overlay.section_checks import broker_numbers, table
from brokerd.text import counted

_KEYS = ("proxies", "servers", "edges")


@dataclass(frozen=True, slots=True)
class Bipartite:
    """Brokers by role.

    Attributes:
        brokers: names.
        proxies: route by topic; in the order in which clients try proxies.
        servers: own topics.
        edges: access brokers of clients without another role.
    """

    brokers: tuple[str, ...]
    proxies: tuple[BrokerNumber, ...]
    servers: tuple[BrokerNumber, ...]
    edges: tuple[BrokerNumber, ...] = ()

    @property
    def kind(self) -> str:
        return "bipartite"

    @property
    def links(self) -> tuple[Link, ...]:
        """Links from all proxies to all servers, then to all edges."""
        return _links(self.proxies, (*self.servers, *self.edges))

    @property
    def description(self) -> str:
        """A description for people, as `2 proxies`."""
        return counted(len(self.proxies), "proxy")

    def to_mapping(self) -> dict[str, Any]:
        """Return the content of the file's `[bipartite]`."""
        sides = {"proxies": self.proxies, "servers": self.servers, "edges": self.edges}
        return {
            key: [self.brokers[number] for number in numbers]
            for key, numbers in sides.items()
            if numbers
        }

    def role(self, broker: BrokerNumber) -> str:
        """Return the role of a broker, for people."""
        if broker in self.proxies:
            return "proxy"
        return "server" if broker in self.servers else "edge"

    def surroundings(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the brokers of the other side.

        For a server, which transfers topics, other servers too.
        """
        if broker in self.proxies:
            known = (*self.servers, *self.edges)
        else:
            known = (*self.proxies, *(self.servers if broker in self.servers else ()))
        return tuple(sorted(other for other in known if other != broker))

    def facts(self) -> dict[str, int]:
        """Return figures of the overlay for review before a deployment."""
        return {"proxies": len(self.proxies), "servers": len(self.servers)}

    def route(self, origin: BrokerNumber, home: BrokerNumber) -> Route:
        """Return the route between a server and any broker.

        Over any proxy, or the one that is an end. Between two brokers that are no servers, the
        route leads over any server. For a fixed owner of the topic, the route is `route(origin,
        owner).then(route(owner, home))`.
        """
        steps: list[Step] = [origin]
        if origin in self.servers or home in self.servers:
            steps += self._other_side(origin, home)
        else:
            steps += [*self._to_servers(origin), *self._to_servers(home)[::-1]]
        return Route((*steps, home))

    def _other_side(self, origin: BrokerNumber, home: BrokerNumber) -> list[Step]:
        if origin in self.proxies or home in self.proxies:
            return [(min(origin, home), max(origin, home))]
        return [
            Bundle(_links(self.proxies, (origin,))),
            Bundle(_links(self.proxies, (home,))),
        ]

    def _to_servers(self, broker: BrokerNumber) -> list[Step]:
        if broker in self.proxies:
            return [Bundle(_links((broker,), self.servers))]
        return [Bundle(_links(self.proxies, (broker,))), Bundle(_links(self.proxies, self.servers))]


def read_bipartite(
    section: Any, brokers: Sequence[str], links: Sequence[Link], where: str
) -> Bipartite:
    """Return the sides in a topology file's `[bipartite]`.

    Args:
        links: links of the tree, which do not concern proxies.

    Raises:
        ConfigError: an unknown key or broker, no proxy or no server, or a broker on two sides or on
            none; names `where`.
    """
    where = f"{where}: bipartite"
    values = table(section, where, _KEYS)
    side_of: dict[BrokerNumber, str] = {}
    found = {key: broker_numbers(values.get(key, []), brokers, f"{where}.{key}") for key in _KEYS}
    for key, numbers in found.items():
        if not numbers and key != "edges":
            raise ConfigError(f"{where}: no {key}; no topic could be reached without")
        for number in numbers:
            if number in side_of:
                raise ConfigError(
                    f"{where}.{key}: {brokers[number]!r} is one of the {side_of[number]} already"
                )
            side_of[number] = key
    apart = [name for number, name in enumerate(brokers) if number not in side_of]
    if apart:
        raise ConfigError(
            f"{where}: {', '.join(apart[:8])} in none of {', '.join(_KEYS)}; list each "
            "broker in one of them"
        )
    return Bipartite(tuple(brokers), found["proxies"], found["servers"], found["edges"])


def _links(proxies: Sequence[BrokerNumber], others: Sequence[BrokerNumber]) -> tuple[Link, ...]:
    return tuple((min(link), max(link)) for link in product(proxies, others))
