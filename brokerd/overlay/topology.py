"""Topologies: brokers, links and parameters, and what makes a topology file wrong.

The order of `brokers` in the file gives the numbers that stand for them on the wire.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from brokerd.config import MILLISECOND_NS, SECOND_NS, SessionParameters
from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.units import format_duration, parse_duration_ns

SCHEMA = "pubsubctl/topology/2"
FLAT_SCHEMA = "pubsubctl/topology/1"
"""There, one table has `delta` and the parameters of whatever protocol runs."""
KINDS = ("tree",)
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
MAXIMUM_DELTA = 16
SHORTEST_SESSION_NS = 10 * MILLISECOND_NS
LONGEST_SESSION_NS = 600 * SECOND_NS
_KEYS = ("schema", "name", "kind", "parameters", "session", "brokers", "links", "joined", "left")
ALL_PROTOCOLS = "all"
"""In place of a protocol's name: for every protocol that knows the parameter."""
_SESSION = ("heartbeat", "suspicion", "connect_timeout", "slow_after")
"""Of SessionParameters, what depends on how busy the machines are; there with `_ns`."""


Settings = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""By protocol: keys and values."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A broker that joined the running tree as a leaf.

    Attributes:
        at: the broker that it is linked to.
        address: "host:port" of its listener; "" in a simulation.
    """

    name: str
    at: str
    address: str


@dataclass(frozen=True, slots=True)
class Topology:
    """A tree of brokers.

    Attributes:
        name: of the topology, for people.
        kind: "tree".
        delta: how many failures at once it is wired for; of the kind's own section.
        brokers: names; a broker's number is its place here.
        links: pairs of numbers, each pair (smaller, larger), in file order.
        settings: what the file's `[parameters]` set, by protocol, in file order; each protocol
            checks its own and has defaults for the rest.
        session: what the file's `[session]` sets of SessionParameters, in file order.
        joined: brokers that joined at run time: the last ones of `brokers`, with the last ones
            of `links`.
        left: names of brokers that have left for good. They keep their numbers, without links.
    """

    name: str
    kind: str
    delta: int
    brokers: tuple[str, ...]
    links: tuple[tuple[BrokerNumber, BrokerNumber], ...]
    settings: Settings = ()
    session: tuple[tuple[str, int], ...] = ()
    joined: tuple[Joined, ...] = ()
    left: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """The topology in a TOML document's content.

        Raises:
            ConfigError: names `where`, the key, the value and the nearest valid one: unknown
                key, unknown or repeated broker, a link to itself or twice, a cycle, a part that
                is not connected, delta < 0.
        """
        is_flat = values.get("schema") == FLAT_SCHEMA
        known = _KEYS if is_flat else (*_KEYS, *KINDS)
        for key in values:
            if key not in known:
                raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        for key in ("schema", "name", "kind", "brokers", "links"):
            if key not in values:
                raise ConfigError(f"{where}: key {key!r} is missing")
        if values["schema"] not in (SCHEMA, FLAT_SCHEMA):
            raise ConfigError(f"{where}: schema = {values['schema']!r}; this reads {SCHEMA!r}")
        if values["kind"] not in KINDS:
            raise ConfigError(f"{where}: kind = {values['kind']!r}; one of {', '.join(KINDS)}")
        if not isinstance(values["name"], str) or not NAME.fullmatch(values["name"]):
            raise ConfigError(f"{where}: name = {values['name']!r} is not of [a-z0-9-]")
        if is_flat:
            delta, settings = _flat_parameters(values.get("parameters", {}), where)
        else:
            delta = _delta(values.get("tree", {}), f"{where}: tree")
            settings = _parameters(values.get("parameters", {}), where)
        brokers = _brokers(values["brokers"], where)
        links = _links(values["links"], brokers, where)
        session = _session(values.get("session", {}), where)
        topology = cls(values["name"], values["kind"], delta, brokers, links, settings, session)
        topology._check_tree(where)
        for place, entry in enumerate(values.get("joined", ())):
            topology = topology.with_joined(_joined(entry, f"{where}: joined[{place}]"), where)
        for name in values.get("left", ()):
            topology = topology.without(name, where)
        return topology

    def with_joined(self, joined: Joined, where: str) -> Self:
        """The topology with one more leaf.

        Raises:
            ConfigError: names `where`: its name is taken or no name, or it is to be linked to a
                broker that is not there.
        """
        if not NAME.fullmatch(joined.name):
            raise ConfigError(f"{where}: {joined.name!r} is not of [a-z0-9-], at most 32")
        if joined.name in self.brokers:
            raise ConfigError(f"{where}: a broker is or was called {joined.name!r} already")
        if joined.at not in self.present():
            known = nearest(joined.at, self.present())
            raise ConfigError(f"{where}: no broker called {joined.at!r} to link it to{known}")
        number = len(self.brokers)
        return replace(
            self,
            brokers=(*self.brokers, joined.name),
            links=(*self.links, (self.brokers.index(joined.at), number)),
            joined=(*self.joined, joined),
        )

    def without(self, name: str, where: str) -> Self:
        """The topology without a leaf.

        Raises:
            ConfigError: names `where`: there is no such broker, or it has more than one link.
        """
        if name not in self.present():
            raise ConfigError(f"{where}: no broker called {name!r}{nearest(name, self.present())}")
        near = self.neighbours()[self.brokers.index(name)]
        if len(near) != 1:
            names = ", ".join(self.brokers[number] for number in near) or "nobody"
            raise ConfigError(f"{where}: {name} is linked to {names}; only a leaf can leave")
        return replace(self, left=(*self.left, name))

    def follows(self, before: "Topology") -> bool:
        """Whether leaves that joined and left since are all that tells it from `before`."""
        return (
            self.as_deployed() == before.as_deployed()
            and [(row.name, row.at) for row in self.joined[: len(before.joined)]]
            == [(row.name, row.at) for row in before.joined]
            and self.left[: len(before.left)] == before.left
        )

    def present(self) -> tuple[str, ...]:
        """The brokers that have not left."""
        return tuple(name for name in self.brokers if name not in self.left)

    def to_mapping(self) -> dict[str, Any]:
        """The content of the topology's TOML file."""
        first = self.as_deployed()
        changes: dict[str, Any] = {}
        if self.settings:
            changes["parameters"] = {name: dict(values) for name, values in self.settings}
        if self.session:
            changes["session"] = self.session_in_words()
        if self.joined:
            changes["joined"] = [[row.name, row.at, row.address] for row in self.joined]
        if self.left:
            changes["left"] = list(self.left)
        return {
            "schema": SCHEMA,
            "name": self.name,
            "kind": self.kind,
            "tree": {"delta": self.delta},
            "brokers": list(first.brokers),
            "links": [[self.brokers[a], self.brokers[b]] for a, b in first.links],
            **changes,
        }

    def as_it_is(self) -> dict[str, Any]:
        """The content of a topology file that does not say who joined; who left has no link."""
        pairs = [(self.brokers[a], self.brokers[b]) for a, b in self.links]
        links = [list(pair) for pair in pairs if not {*pair} & {*self.left}]
        mapping = {**self.to_mapping(), "brokers": list(self.brokers), "links": links}
        mapping.pop("joined", None)
        return mapping

    def as_deployed(self) -> Self:
        """The topology before anybody joined or left."""
        joined = len(self.joined)
        return replace(
            self,
            brokers=self.brokers[: len(self.brokers) - joined],
            links=self.links[: len(self.links) - joined],
            joined=(),
            left=(),
        )

    def settings_of(self, protocol: str) -> dict[str, Any]:
        """What the file sets for one protocol, unchecked."""
        return dict(dict(self.settings).get(protocol, ()))

    def session_parameters(self) -> SessionParameters:
        """What brokers and their clients have to agree on about sessions."""
        return SessionParameters(**dict(self.session))

    def session_in_words(self) -> dict[str, str]:
        """What `[session]` sets, as a file says it."""
        return {name.removesuffix("_ns"): format_duration(ns) for name, ns in self.session}

    def number_of(self, name: str) -> BrokerNumber:
        """A broker's number.

        Raises:
            ConfigError: no broker is called so; names the nearest that is.
        """
        try:
            return self.brokers.index(name)
        except ValueError:
            raise ConfigError(
                f"topology {self.name}: no broker called {name!r}{nearest(name, self.brokers)}"
            ) from None

    def digest(self, protocol: str, parameters: Mapping[str, Any]) -> str:
        """What all brokers of a deployment must agree on, as 32 hex digits.

        Who joins and leaves does not change it: brokers learn of that one after the other.
        """
        agreed = {
            "topology": self.as_deployed().to_mapping(),
            "protocol": protocol,
            "parameters": dict(sorted(parameters.items())),
        }
        text = json.dumps(agreed, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def neighbours(self) -> tuple[tuple[BrokerNumber, ...], ...]:
        """Per broker, its neighbours in the tree, in link order; none for one that has left."""
        found: list[list[BrokerNumber]] = [[] for _ in self.brokers]
        left = [self.brokers.index(name) for name in self.left]
        for a, b in self.links:
            if a in left or b in left:
                continue
            found[a].append(b)
            found[b].append(a)
        return tuple(tuple(row) for row in found)

    def check_delta(self, where: str) -> None:
        """Make sure that so many failures can lie on a path of the tree.

        Raises:
            ConfigError: delta is larger than the longest path has links; names `where`.
        """
        neighbours = self.neighbours()
        longest = 0
        start = 0
        for _ in range(2):  # the broker farthest from the one that is farthest from any
            distances = {start: 0}
            order = [start]
            for broker in order:
                for near in neighbours[broker]:
                    if near not in distances:
                        distances[near] = distances[broker] + 1
                        order.append(near)
            start, longest = order[-1], distances[order[-1]]
        if self.delta > max(1, longest):
            raise ConfigError(
                f"{where}: delta = {self.delta}, but no two brokers are more than "
                f"{longest} links apart; {max(1, longest)} at most"
            )

    def _check_tree(self, where: str) -> None:
        leader = list(range(len(self.brokers)))

        def root(broker: int) -> int:
            while leader[broker] != broker:
                leader[broker] = leader[leader[broker]]
                broker = leader[broker]
            return broker

        for a, b in self.links:
            if root(a) == root(b):
                raise ConfigError(
                    f"{where}: links: {self.brokers[a]}-{self.brokers[b]} closes a cycle; "
                    "the primary tree has none"
                )
            leader[root(a)] = root(b)
        apart = [name for number, name in enumerate(self.brokers) if root(number) != root(0)]
        if apart:
            raise ConfigError(
                f"{where}: links: {', '.join(apart[:8])} not connected to {self.brokers[0]}"
            )


def nearest(word: object, known: tuple[str, ...] | list[str]) -> str:
    """`; did you mean 'x'?` for the known word most like `word`, or a list of what is known."""
    # Two-letter broker names differ in half of their letters at the first slip.
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return f"; known: {', '.join(list(known)[:12])}{more}"


def _flat_parameters(parameters: Any, where: str) -> tuple[int, Settings]:
    parameters = _table(parameters, f"{where}: parameters")
    delta = _delta({key: parameters[key] for key in parameters if key == "delta"}, where)
    settings = tuple((key, value) for key, value in parameters.items() if key != "delta")
    return delta, ((ALL_PROTOCOLS, settings),) if settings else ()


def _parameters(parameters: Any, where: str) -> Settings:
    where = f"{where}: parameters"
    found: list[tuple[str, tuple[tuple[str, Any], ...]]] = []
    for protocol, values in _table(parameters, where).items():
        found.append((protocol, tuple(_table(values, f"{where}.{protocol}").items())))
    return tuple(found)


def _delta(section: Any, where: str) -> int:
    for key in _table(section, where):
        if key != "delta":
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, ('delta',))}")
    delta = section.get("delta", 1)
    if type(delta) is not int or not 0 <= delta <= MAXIMUM_DELTA:
        raise ConfigError(f"{where}: delta = {delta!r}; a whole number from 0 to {MAXIMUM_DELTA}")
    return delta


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a table, got {value!r}")
    return value


def _session(values: Any, where: str) -> tuple[tuple[str, int], ...]:
    where = f"{where}: session"
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected a table, got {values!r}")
    found: dict[str, int] = {}
    for key, text in values.items():
        if key not in _SESSION:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, _SESSION)}")
        try:
            found[f"{key}_ns"] = parse_duration_ns(text)
        except ValueError as error:
            raise ConfigError(f"{where}: {key} = {text!r}: {error}") from None
        if not SHORTEST_SESSION_NS <= found[f"{key}_ns"] <= LONGEST_SESSION_NS:
            shortest, longest = map(format_duration, (SHORTEST_SESSION_NS, LONGEST_SESSION_NS))
            raise ConfigError(f"{where}: {key} = {text!r}; from {shortest} to {longest}")
    session = SessionParameters(**found)
    if session.suspicion_ns < 2 * session.heartbeat_ns:
        least = format_duration(2 * session.heartbeat_ns)
        raise ConfigError(
            f"{where}: suspicion = {format_duration(session.suspicion_ns)!r}"
            f"{'' if 'suspicion_ns' in found else ' (when not given)'} is less than two heartbeats "
            f"of {format_duration(session.heartbeat_ns)}, so a late one would be a failure; "
            f"at least {least!r}"
        )
    return tuple(found.items())


def _joined(entry: Any, where: str) -> Joined:
    plain = isinstance(entry, list | tuple) and all(isinstance(item, str) for item in entry)
    if not plain or len(entry) != 3:
        raise ConfigError(f"{where} = {entry!r} is not [name, linked to, address]")
    return Joined(*entry)


def _brokers(names: Any, where: str) -> tuple[str, ...]:
    if not isinstance(names, list | tuple) or not names:
        raise ConfigError(f"{where}: brokers: expected a list of names, got {names!r}")
    for place, name in enumerate(names):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigError(
                f"{where}: brokers[{place}] = {name!r}; names are lower-case letters, digits and "
                "'-', at most 32, not starting with '-'"
            )
        if name in names[:place]:
            raise ConfigError(f"{where}: brokers[{place}] = {name!r} stands there twice")
    return tuple(names)


def _links(
    links: Any, brokers: tuple[str, ...], where: str
) -> tuple[tuple[BrokerNumber, BrokerNumber], ...]:
    if not isinstance(links, list | tuple):
        raise ConfigError(f"{where}: links: expected a list of pairs, got {links!r}")
    found: list[tuple[int, int]] = []
    for place, link in enumerate(links):
        if not isinstance(link, list | tuple) or len(link) != 2:
            raise ConfigError(f"{where}: links[{place}] = {link!r} is not a pair of brokers")
        for name in link:
            if name not in brokers:
                raise ConfigError(
                    f"{where}: links[{place}]: no broker called {name!r}{nearest(name, brokers)}"
                )
        if link[0] == link[1]:
            raise ConfigError(f"{where}: links[{place}]: {link[0]!r} is linked to itself")
        pair = (brokers.index(link[0]), brokers.index(link[1]))
        pair = (min(pair), max(pair))
        if pair in found:
            raise ConfigError(f"{where}: links[{place}]: {link[0]}-{link[1]} stands there twice")
        found.append(pair)
    return tuple(found)
