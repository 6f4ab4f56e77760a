"""Topologies: brokers, links and parameters, and the checks of a topology file.

The order of `brokers` in the file determines the numbers of brokers on the wire.

A file names the kind of its overlay, with the parameters of the kind in a section of that name:

    kind = "tree"
    links = [["p1", "b1"], ["b1", "b2"], ["b1", "s1"]]

    [tree]
    delta = 1

`links` are the links of a tree; the sections of other kinds define theirs. A file may carry several
kinds over the same brokers, as in `kind = ["tree", "cells"]`. The first kind is the default; a tree
must be first. A section is read only when its kind is named.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from brokerd.config import SessionParameters
from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay import kinds as of_kind
from brokerd.overlay.kinds import KINDS, Overlay, Section, as_deployed, follows, with_role
from brokerd.overlay.section_checks import nearest as nearest
from brokerd.overlay.section_checks import pairs, table
from brokerd.overlay.tree_section import TreeSection, read_delta
from brokerd.text import NAME as NAME
from brokerd.text import explain_schema
from brokerd.units import MILLISECOND_NS, SECOND_NS, format_duration, parse_duration_ns

SCHEMA = "pubsubctl/topology/2"
FLAT_SCHEMA = "pubsubctl/topology/1"
"""In this schema, one table has `delta` and the parameters of the protocol that runs."""
TREE = "tree"
SHORTEST_SESSION_NS = 10 * MILLISECOND_NS
LONGEST_SESSION_NS = 600 * SECOND_NS
_KEYS = ("schema", "name", "kind", "parameters", "session", "brokers", "links", "joined", "left")
ALL_PROTOCOLS = "all"
"""In place of a protocol's name: for every protocol that has the parameter."""
SESSION_KEYS = ("heartbeat", "suspicion", "connect_timeout", "slow_after")
"""SessionParameters that depend on the load of the machines; the fields end in `_ns`."""


Settings = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""By protocol: keys and values."""


@dataclass(frozen=True, slots=True)
class JoinedBroker:
    """A broker that joined running brokers, as a leaf of a tree, or in a hierarchy.

    Attributes:
        at: the broker that it is linked to; in a hierarchy the first of several.
        address: "host:port" of its listener; "" in a simulation.
        place: in a hierarchy its address there, as `0.1.3`; "" for any free address.
        further: the other brokers that it is linked to.
    """

    name: str
    at: str
    address: str
    place: str = ""
    further: tuple[str, ...] = ()

    @property
    def near(self) -> tuple[str, ...]:
        """All brokers that the broker is linked to."""
        return (self.at, *self.further)

    def to_row(self) -> list[Any]:
        """Return the entry of a topology file."""
        if self.place:
            return [self.name, [*self.near], self.address, self.place]
        return [self.name, self.at, self.address]


@dataclass(frozen=True, slots=True)
class Topology:
    """Brokers, and one or several overlays over the brokers.

    Attributes:
        name: name of the topology, for people.
        section: section of the kind, checked by the kind.
        brokers: names; a broker's number is its place here.
        links: pairs of numbers, each pair (smaller, larger): links of a tree in file order, links
            of another kind as derived.
        settings: the file's `[parameters]`, by protocol, in file order; every protocol checks its
            own parameters and has defaults for the rest.
        session: SessionParameters from the file's `[session]`, in file order.
        joined: brokers that joined at run time: the last entries of `brokers`, with the last
            entries of `links`.
        left: names of brokers that have left for good. Their numbers stay, without links.
        further: the sections of the other kinds that the file carries.
    """

    name: str
    section: Section
    brokers: tuple[str, ...]
    links: tuple[tuple[BrokerNumber, BrokerNumber], ...]
    settings: Settings = field(default=(), hash=False)
    session: tuple[tuple[str, int], ...] = ()
    joined: tuple[JoinedBroker, ...] = ()
    left: tuple[str, ...] = ()
    further: tuple[Section, ...] = ()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """Return the topology in a TOML document's content.

        Raises:
            ConfigError: names `where`, the key, the value and the nearest valid value: unknown key
                or kind, a section of a kind that is not named, unknown or repeated broker, a link
                to itself or repeated, a fault found by a kind (a cycle, a part that is not
                connected, delta < 0).
        """
        is_flat = values.get("schema") == FLAT_SCHEMA
        problem = explain_schema(values.get("schema", SCHEMA), SCHEMA)
        if problem and not is_flat:
            raise ConfigError(f"{where}: {problem}")
        known = _KEYS if is_flat else (*_KEYS, *KINDS)
        for key in values:
            if key not in known:
                raise ConfigError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        for key in ("schema", "name", "kind", "brokers"):
            if key not in values:
                raise ConfigError(f"{where}: key {key!r} is missing")
        if not isinstance(values["name"], str) or not NAME.fullmatch(values["name"]):
            raise ConfigError(f"{where}: name = {values['name']!r} is not of [a-z0-9-]")
        kinds = _kinds(values, where)
        if is_flat:
            if kinds != (TREE,):
                raise ConfigError(
                    f"{where}: schema = {FLAT_SCHEMA!r} is of trees; {SCHEMA!r} is not"
                )
            delta, settings = _flat_parameters(values.get("parameters", {}), where)
            values = {**values, TREE: delta.to_mapping()}
        else:
            settings = _parameters(values.get("parameters", {}), where)
        brokers = _brokers(values["brokers"], where)
        links = pairs(values.get("links", ()), brokers, f"{where}: links")
        session = _session(values.get("session", {}), where)
        section, *further = (
            KINDS[kind].read(values.get(kind, {}), brokers, links, where) for kind in kinds
        )
        links = KINDS[kinds[0]].overlay(section, links).links
        topology = cls(values["name"], section, brokers, links, settings, session)
        topology = replace(topology, further=tuple(further))
        for place, entry in enumerate(values.get("joined", ())):
            topology = topology.with_joined(
                _parse_joined(entry, f"{where}: joined[{place}]"), where
            )
        for part in topology.sections:
            changed = of_kind.with_changes(part, values.get(part.kind, {}), where)
            topology = topology.with_section(changed)
        for name in values.get("left", ()):
            topology = topology.without(name, where)
        return topology

    @property
    def kind(self) -> str:
        """The kind of the overlay; the first kind, if the file carries several."""
        return self.section.kind

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of all overlays that the file carries; the first is the default."""
        return (self.section, *self.further)

    def with_section(self, section: Section) -> Self:
        """Return the topology with another section of a kind that the file carries."""
        assert section.kind in self.kinds, f"{self.name} carries {', '.join(self.kinds)}"
        if section.kind == self.kind:
            return replace(self, section=section)
        others = (section if part.kind == section.kind else part for part in self.further)
        return replace(self, further=tuple(others))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of all overlays that the file carries."""
        return (self.kind, *(section.kind for section in self.further))

    @property
    def delta(self) -> int:
        """The number of simultaneous failures that the tree tolerates.

        Raises:
            ConfigError: the overlay is no tree.
        """
        if not isinstance(self.section, TreeSection):
            raise ConfigError(
                f"topology {self.name}: kind = {self.kind!r} has no delta; this needs a tree"
            )
        return self.section.delta

    def with_delta(self, delta: int) -> Self:
        """Return the tree with another delta."""
        assert self.kind == TREE, f"{self.name} is of kind {self.kind}"
        return replace(self, section=TreeSection(delta))

    def overlay(self, kind: str = "") -> Overlay:
        """Return the default overlay, or that of another kind that the file carries."""
        sections = {section.kind: section for section in self.sections}
        chosen = kind or self.kind
        assert chosen in sections, f"{self.name} carries {', '.join(sections)}, not {chosen}"
        left = [self.brokers.index(name) for name in self.left]
        links = tuple(link for link in self.links if link[0] not in left and link[1] not in left)
        return KINDS[chosen].overlay(sections[chosen], links)

    def restrict_to_kind(self, kind: str) -> Self:
        """Return the topology with only one of its kinds, and with the links of that kind."""
        if self.kinds == (kind,):
            return self
        sections = {section.kind: section for section in self.sections}
        links = self.overlay(kind).links
        return replace(self, section=sections[kind], links=links, further=())

    def with_joined(self, joined: JoinedBroker, where: str) -> Self:
        """Return the topology with one more broker: a leaf of a tree, or a broker in a hierarchy.

        Raises:
            ConfigError: names `where`: the name is taken or invalid, or a link leads to an absent
                broker, or is repeated; or the kind of overlay refuses; or the file is not of a tree
                or a hierarchy alone.
        """
        self._check_growing(joined.name, where)
        if not NAME.fullmatch(joined.name):
            raise ConfigError(f"{where}: {joined.name!r} is not of [a-z0-9-], at most 32")
        if joined.name in self.brokers:
            raise ConfigError(f"{where}: a broker is or was called {joined.name!r} already")
        for place, at in enumerate(joined.near):
            if at not in self.present():
                known = nearest(at, self.present())
                raise ConfigError(f"{where}: no broker called {at!r} to link it to{known}")
            if at in joined.near[:place]:
                raise ConfigError(f"{where}: {joined.name} is to be linked to {at} twice")
        number, near = len(self.brokers), list(map(self.brokers.index, joined.near))
        section = of_kind.with_joined(self.section, joined.name, near, joined.place, where)
        row = replace(joined, place=of_kind.place_of(section, number))
        links = (*self.links, (near[0], number))
        return replace(
            self,
            section=section,
            brokers=(*self.brokers, joined.name),
            links=KINDS[self.kind].overlay(section, links).links,
            joined=(*self.joined, row),
        )

    def without(self, name: str, where: str) -> Self:
        """Return the topology without a broker.

        Raises:
            ConfigError: names `where`: there is no such broker, or the kind of overlay refuses, as
                a tree does for all but leaves; or the file is not of a tree or a hierarchy alone.
        """
        self._check_growing(name, where)
        if name not in self.present():
            raise ConfigError(f"{where}: no broker called {name!r}{nearest(name, self.present())}")
        near = self.neighbours()[self.brokers.index(name)]
        section = of_kind.left(self.section, name, [self.brokers[n] for n in near], where)
        links = KINDS[self.kind].overlay(section, self.links).links
        return replace(self, section=section, links=links, left=(*self.left, name))

    def with_role(self, name: str, role: str, where: str) -> Self:
        """Return the topology with the role of a broker changed in the default overlay.

        Raises:
            ConfigError: the role is impossible; names `where`.
        """
        return replace(self, section=with_role(self.section, name, role, where))

    def follows(self, before: "Topology") -> bool:
        """Return True if only changes that are possible at run time distinguish it from `before`.

        Brokers join and leave, and change their roles in an overlay.
        """
        return (
            self.as_deployed() == before.as_deployed()
            and all(map(follows, self.sections, before.sections))
            and [replace(row, address="") for row in self.joined[: len(before.joined)]]
            == [replace(row, address="") for row in before.joined]
            and self.left[: len(before.left)] == before.left
        )

    def has_other_roles(self, before: "Topology") -> bool:
        """Return True if a broker has changed its role in an overlay since `before`."""
        roles = [[*map(of_kind.roles, each.sections)] for each in (self, before)]
        return roles[0] != roles[1]

    def present(self) -> tuple[str, ...]:
        """Return the brokers that have not left."""
        return tuple(name for name in self.brokers if name not in self.left)

    def to_mapping(self) -> dict[str, Any]:
        """Return the content of the topology's TOML file."""
        first = self.as_deployed()
        several = [*self.kinds]
        sections = {part.kind: part.to_mapping() for part in self.sections}
        links = [[self.brokers[a], self.brokers[b]] for a, b in first.links]
        changes: dict[str, Any] = {}
        if KINDS[self.kind].has_links_of_file:
            changes["links"] = links
        if self.settings:
            changes["parameters"] = {name: dict(values) for name, values in self.settings}
        if self.session:
            changes["session"] = self.session_in_words()
        if self.joined:
            changes["joined"] = [row.to_row() for row in self.joined]
        if self.left:
            changes["left"] = list(self.left)
        return {
            "schema": SCHEMA,
            "name": self.name,
            "kind": several if self.further else self.kind,
            **sections,
            "brokers": list(first.brokers),
            **changes,
        }

    def as_it_is(self) -> dict[str, Any]:
        """Return the content of a file without `joined`, and without brokers that left a tree."""
        pairs = [(self.brokers[a], self.brokers[b]) for a, b in self.links]
        links = [list(pair) for pair in pairs if not {*pair} & {*self.left}]
        sections = {part.kind: of_kind.without_changes(part).to_mapping() for part in self.sections}
        mapping = {**self.to_mapping(), **sections, "brokers": list(self.brokers)}
        if "links" in mapping:
            mapping["links"] = links
        mapping.pop("joined", None)
        return without_departed(mapping)

    def as_deployed(self) -> Self:
        """Return the topology before all changes at run time."""
        joined, section = len(self.joined), as_deployed(self.section)
        links = self.links[: len(self.links) - joined]
        return replace(
            self,
            section=section,
            further=tuple(map(as_deployed, self.further)),
            brokers=self.brokers[: len(self.brokers) - joined],
            links=KINDS[self.kind].overlay(section, links).links,
            joined=(),
            left=(),
        )

    def settings_of(self, protocol: str) -> dict[str, Any]:
        """Return the file's parameters for one protocol, unchecked."""
        return dict(dict(self.settings).get(protocol, ()))

    def session_parameters(self) -> SessionParameters:
        """Return the session parameters that brokers and their clients must agree on."""
        return SessionParameters(**dict(self.session))

    def session_in_words(self) -> dict[str, str]:
        """Return the values of `[session]` in the notation of a file."""
        return {name.removesuffix("_ns"): format_duration(ns) for name, ns in self.session}

    def number_of(self, name: str) -> BrokerNumber:
        """Return a broker's number.

        Raises:
            ConfigError: no broker has this name; names the nearest valid name.
        """
        try:
            return self.brokers.index(name)
        except ValueError:
            raise ConfigError(
                f"topology {self.name}: no broker called {name!r}{nearest(name, self.brokers)}"
            ) from None

    def digest(self, protocol: str, parameters: Mapping[str, Any]) -> str:
        """Return the values that all brokers of a deployment must agree on, as 32 hex digits.

        Joins and departures do not change the digest: brokers receive these changes at different
        times.
        """
        agreed = {
            "topology": self.as_deployed().to_mapping(),
            "protocol": protocol,
            "parameters": dict(sorted(parameters.items())),
        }
        text = json.dumps(agreed, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def content_digest(self) -> str:
        """Return the digest of the whole file, joined and departed brokers included."""
        text = json.dumps(self.to_mapping(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()

    def neighbours(self) -> tuple[tuple[BrokerNumber, ...], ...]:
        """Return the linked brokers per broker, in link order; none for a broker that has left."""
        found: list[list[BrokerNumber]] = [[] for _ in self.brokers]
        left = [self.brokers.index(name) for name in self.left]
        for a, b in self.links:
            if a in left or b in left:
                continue
            found[a].append(b)
            found[b].append(a)
        return tuple(tuple(row) for row in found)

    def check_delta(self, where: str) -> None:
        """Check that a path of the tree, if the overlay is a tree, has room for `delta` failures.

        Raises:
            ConfigError: delta is larger than the longest path has links; names `where`.
        """
        if self.kind != TREE:
            return
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
                f"{longest} links apart; use {max(1, longest)} at most"
            )

    def _check_growing(self, name: str, where: str) -> None:
        if self.further or not KINDS[self.kind].members_may_change:
            raise ConfigError(
                f"{where}: {name!r} cannot join or leave: the topology is of kind "
                f"{', '.join(self.kinds)}; only brokers of a tree or a hierarchy alone can"
            )


def without_departed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a tree's file without departed brokers that have no link any more.

    Runs of earlier programs list such brokers.
    """
    if values.get("kind") != TREE or not values.get("left"):
        return dict(values)
    linked = {name for link in values.get("links", ()) for name in link}
    gone = {name for name in values["left"] if name not in linked}
    left = [name for name in values["left"] if name not in gone]
    rest = {key: value for key, value in values.items() if key != "left"}
    brokers = [name for name in values.get("brokers", ()) if name not in gone]
    return {**rest, "brokers": brokers, **({"left": left} if left else {})}


def _kinds(values: Mapping[str, Any], where: str) -> tuple[str, ...]:
    given = values["kind"]
    kinds = tuple(given) if isinstance(given, list | tuple) else (given,)
    for place, kind in enumerate(kinds):
        if kind not in [*KINDS]:
            choice = ", ".join(KINDS)
            close = nearest(kind, [*KINDS]) if isinstance(kind, str) else ""
            mean = close if "did you mean" in close else ""
            raise ConfigError(f"{where}: kind = {kind!r}; one of {choice}{mean}")
        if kind in kinds[:place]:
            raise ConfigError(f"{where}: kind = {given!r} names {kind!r} twice")
    if not kinds:
        raise ConfigError(f"{where}: kind = {given!r}; at least one of {', '.join(KINDS)}")
    if TREE in kinds[1:]:
        first = [TREE, *(kind for kind in kinds if kind != TREE)]
        raise ConfigError(f"{where}: kind = {given!r}: begin with a tree, as in {first!r}")
    for kind in KINDS:
        if kind in values and kind not in kinds:
            raise ConfigError(
                f"{where}: [{kind}] is a section of another kind: kind = {given!r}; "
                f"{[*kinds, kind] if kind != TREE else [kind, *kinds]!r} carries both"
            )
    if TREE in kinds and "links" not in values:
        raise ConfigError(f"{where}: key 'links' is missing")
    if TREE not in kinds and "links" in values:
        raise ConfigError(
            f"{where}: links are those of a tree, and kind = {given!r}; what others are follows "
            f"from [{kinds[0]}]"
        )
    return kinds


def _flat_parameters(parameters: Any, where: str) -> tuple[TreeSection, Settings]:
    where = f"{where}: parameters"
    parameters = table(parameters, where)
    delta = read_delta({key: parameters[key] for key in parameters if key == "delta"}, where)
    settings = tuple((key, value) for key, value in parameters.items() if key != "delta")
    return delta, ((ALL_PROTOCOLS, settings),) if settings else ()


def _parameters(parameters: Any, where: str) -> Settings:
    where = f"{where}: parameters"
    return tuple(
        (protocol, tuple(table(values, f"{where}.{protocol}").items()))
        for protocol, values in table(parameters, where).items()
    )


def _session(values: Any, where: str) -> tuple[tuple[str, int], ...]:
    where = f"{where}: session"
    found: dict[str, int] = {}
    for key, text in table(values, where, SESSION_KEYS).items():
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


def _parse_joined(entry: Any, where: str) -> JoinedBroker:
    row = list(entry) if isinstance(entry, list | tuple) else []
    near = row[1] if len(row) == 4 else row[1:2]
    others = [*row[:1], *row[2:]]
    plain = isinstance(near, list | tuple) and near and len(row) in (3, 4)
    if not plain or not all(isinstance(item, str) for item in (*near, *others)):
        raise ConfigError(
            f"{where} = {entry!r} is not [name, linked to, address], or in a hierarchy "
            "[name, [linked to, …], address, its address there]"
        )
    return JoinedBroker(row[0], near[0], row[2], row[3] if len(row) == 4 else "", tuple(near[1:]))


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
