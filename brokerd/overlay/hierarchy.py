"""A hierarchy: brokers with addresses, in units of units, with gateways between sibling units.

    [hierarchy]
    links = [["n1", "n2"], ["n2", "n3"]]

    [hierarchy.addresses]
    n1 = "0.1.3"     # the third part: its number in the cluster 0.1 of super-cluster 0

    [hierarchy.storages]
    n1 = 1           # stores for its unit of this level; absent: there are none

The file may bound the links of a broker, those of level 0 first, then of level 1, and so on:

    max_links = [8, 3]

Changes at run time are a key of `[hierarchy]`, too:

    changes = [["n5", 0], ["n5", "retired"]]    # a storage for its unit of level 0, then retired

Brokers that joined at run time have their links and addresses from the file's `joined`, and
departed brokers are in its `left`. The address of a departed broker is never reused: other brokers
may still have state of it.

A node is a unit of level 0, a cluster of level 1, a super-cluster of level 2, and so on; the system
is one level above the units that an address begins with. With storages there is one root storage in
each unit below the system.

Paper: [GES] §2 (contexts, gatekeepers), §3 (links of levels), §4 (replication granularity).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link, Route, Unit
from brokerd.overlay.section_checks import broker_number, find_unconnected, linked, pairs, table
from brokerd.overlay.small_world import small_world

BLOCK_LIMIT = 64
"""The largest number of sub-units of a unit."""
MAXIMUM_PARTS = 5

_KEYS = ("links", "addresses", "storages", "changes", "max_links")
RETIRED = "retired"
_PART = re.compile(r"0|[1-9]\d?")

Address = tuple[int, ...]
"""The outermost unit first; a unit's address is the common prefix of the addresses in the unit."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Brokers in units of units.

    Attributes:
        brokers: names.
        addresses: per broker, all of the same length.
        links: in file order.
        storages: brokers with a storage and the levels of their units, in file order, as deployed.
        changes: later storages, with their levels, and retired storages, with None; in order of
            time.
        left: brokers that have left; their numbers and addresses stay, without links.
        links_of_left: links that departed brokers had.
        deployed: the hierarchy before any broker joined or left; None if none has.
        max_links: largest number of links of level 0, 1, … of a broker; further levels are
            unbounded.
    """

    brokers: tuple[str, ...]
    addresses: tuple[Address, ...]
    links: tuple[Link, ...]
    storages: tuple[tuple[BrokerNumber, int], ...] = ()
    changes: tuple[tuple[BrokerNumber, int | None], ...] = ()
    left: tuple[BrokerNumber, ...] = ()
    links_of_left: tuple[Link, ...] = ()
    deployed: "Hierarchy | None" = None
    max_links: tuple[int, ...] = ()

    @property
    def present(self) -> tuple[BrokerNumber, ...]:
        """The brokers that have not left."""
        return tuple(number for number in range(len(self.brokers)) if number not in self.left)

    @property
    def all_storages(self) -> tuple[tuple[BrokerNumber, int], ...]:
        """Present and past storages, with the levels of their units, in order of time."""
        added = ((broker, level) for broker, level in self.changes if level is not None)
        return (*self.storages, *added)

    @property
    def retired(self) -> frozenset[BrokerNumber]:
        """Storages that accept nothing new."""
        return frozenset(broker for broker, level in self.changes if level is None)

    def as_deployed(self) -> "Hierarchy":
        """Return the hierarchy before all changes."""
        return replace(self.deployed or self, changes=())

    def without_changes(self) -> "Hierarchy":
        """Return the hierarchy as if all joined brokers had been deployed, and none had left."""
        return replace(
            self, links=(*self.links, *self.links_of_left), left=(), links_of_left=(), deployed=None
        )

    def before(self, storage: BrokerNumber) -> "Hierarchy":
        """Return the hierarchy before a storage was added, or as deployed with the storage."""
        places = [place for place, change in enumerate(self.changes) if change[0] == storage]
        first = places[0] if places and self.changes[places[0]][1] is not None else 0
        return replace(self, changes=self.changes[:first])

    def follows(self, before: "Hierarchy") -> bool:
        """Return True if the hierarchy may result from `before` by changes at run time."""
        return (
            self.as_deployed() == before.as_deployed()
            and self.changes[: len(before.changes)] == before.changes
            and self.addresses[: len(before.addresses)] == before.addresses
            and self.left[: len(before.left)] == before.left
        )

    @property
    def kind(self) -> str:
        return "hierarchy"

    @property
    def top(self) -> int:
        """The level of the units below the system."""
        return len(self.addresses[0]) - 1

    @property
    def description(self) -> str:
        """A description for people, as `3 levels`."""
        return f"{self.top + 1} level{'s' * (self.top > 0)}"

    def to_mapping(self) -> dict[str, Any]:
        """Return the content of the file's `[hierarchy]`."""
        first = self.as_deployed()
        found: dict[str, Any] = {
            "links": [[self.brokers[a], self.brokers[b]] for a, b in first.links],
            "addresses": {
                name: format_address(address)
                for name, address in zip(first.brokers, first.addresses, strict=True)
            },
        }
        if self.max_links:
            found["max_links"] = [*self.max_links]
        if self.storages:
            found["storages"] = {self.brokers[number]: level for number, level in self.storages}
        if self.changes:
            found["changes"] = [
                [self.brokers[number], RETIRED if level is None else level]
                for number, level in self.changes
            ]
        return found

    def role(self, broker: BrokerNumber) -> str:
        """Return a broker's address, its levels as a gatekeeper, and its storage, for people."""
        levels = self.gatekeeper_levels(broker)
        words = [format_address(self.addresses[broker])]
        words += [f"gatekeeper at level {', '.join(map(str, levels))}"] if levels else []
        words += [
            f"{'retired ' if n in self.retired else ''}storage of level {level}"
            for n, level in self.all_storages
            if n == broker
        ]
        words += ["has left"] if broker in self.left else []
        return ", ".join(words)

    def gatekeeper_levels(self, broker: BrokerNumber) -> tuple[int, ...]:
        """Return the levels at which a broker has links out of its unit, in ascending order.

        Paper: [GES] §2.
        """
        near = {self.link_level(broker, other) for other in linked(self.links, broker)}
        return tuple(sorted(level for level in near if level > 0))

    def link_level(self, a: BrokerNumber, b: BrokerNumber) -> int:
        """Return the highest level at which two brokers are in different units.

        Paper: [GES] §2.
        """
        return len(self.addresses[a]) - 1 - len(_common(self.addresses[a], self.addresses[b]))

    def surroundings(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the other brokers of a broker's cluster, and its link ends in other clusters.

        The rest of the system is visible to a broker as units only, as in the paper's abbreviated
        view.
        """
        cluster = self.addresses[broker][:-1]
        near = linked(self.links, broker)
        return tuple(
            other
            for other in self.present
            if other != broker and (self.addresses[other][:-1] == cluster or other in near)
        )

    def facts(self) -> dict[str, int | float]:
        """Return figures of the overlay for review before a deployment."""
        levels = [self.link_level(*link) for link in self.links]
        gatekeepers = {end for link in self.links if self.link_level(*link) for end in link}
        places = {number: place for place, number in enumerate(self.present)}
        shape = small_world(len(places), [(places[a], places[b]) for a, b in self.links])
        return {
            "levels": len(self.addresses[0]),
            "storages": len(self.all_storages) - len(self.retired),
            **{f"links_of_level_{n}": levels.count(n) for n in range(self.top + 1)},
            "gatekeepers": len(gatekeepers),
            "critical_links": len(self.critical_links()),
            "mean_degree": round(shape.mean_degree, 3),
            "clustering": round(shape.clustering, 3),
            "mean_path_links": round(shape.mean_path_links, 3),
            "longest_path_links": shape.longest_path_links,
        }

    def critical_links(self) -> tuple[Link, ...]:
        """Return the links that each, if lost alone, disconnect some unit inside, in order.

        Only the smallest unit around a link can depend on the link: larger units contain that unit
        as one node.
        """
        between: dict[Address, list[tuple[Address, Address, Link]]] = {}
        for a, b in self.links:
            own = len(_common(self.addresses[a], self.addresses[b]))
            ends = self.addresses[a][: own + 1], self.addresses[b][: own + 1]
            between.setdefault(ends[0][:own], []).append((*ends, (a, b)))
        found = {link for edges in between.values() for link in _bridges(edges)}
        return tuple(link for link in self.links if link in found)

    def route(self, origin: BrokerNumber, home: BrokerNumber) -> Route:
        """Return the route inside the smallest unit that contains both brokers.

        The route passes each sub-unit at most once.
        """
        if origin == home:
            return Route((origin,))
        common = _common(self.addresses[origin], self.addresses[home])
        return Route((origin, self.unit(common), home))

    def unit(self, address: Address) -> Unit:
        """Return a unit with its sub-units; the system's address is ()."""
        own = len(address)
        inside = tuple(n for n in self.present if self.addresses[n][:own] == address)
        members = frozenset(inside)
        links = [link for link in self.links if members.issuperset(link)]
        if own >= self.top:
            return Unit(inside, tuple(links))
        parts = dict.fromkeys(self.addresses[number][: own + 1] for number in inside)
        between = (
            (a, b) for a, b in links if self.addresses[a][: own + 1] != self.addresses[b][: own + 1]
        )
        return Unit(inside, tuple(between), tuple(map(self.unit, parts)))


def read_hierarchy(
    section: Any, brokers: Sequence[str], links: Sequence[Link], where: str
) -> Hierarchy:
    """Return the hierarchy in a topology file's `[hierarchy]`.

    Later changes are read by `read_changes`.

    Args:
        links: links of the tree, which do not concern a hierarchy.

    Raises:
        ConfigError: an unknown key or broker, a broker without an address, an invalid or taken
            address, a unit that its own links do not connect, a unit without its root storage or
            with two storages, a broker with too many links; names `where`.
    """
    where = f"{where}: hierarchy"
    values = table(section, where, _KEYS)
    addresses = _addresses(values.get("addresses", {}), brokers, f"{where}.addresses")
    own_links = pairs(values.get("links", ()), brokers, f"{where}: links")
    found = Hierarchy(tuple(brokers), addresses, own_links)
    check_connected(found, f"{where}: links")
    found = replace(found, max_links=_max_links(values.get("max_links", ()), found, where))
    check_max_links(found, f"{where}: links")
    storages = _storages(values.get("storages", {}), found, f"{where}.storages")
    return replace(found, storages=storages)


def _common(a: Address, b: Address) -> Address:
    length = 0
    while length < len(a) - 1 and a[length] == b[length]:
        length += 1
    return a[:length]


def _bridges(edges: Sequence[tuple[Address, Address, Link]]) -> list[Link]:
    """Return the links that alone join two parts of a connected graph of units."""
    trunk = _find_joining_edges(edges)
    return [
        edge[2]
        for edge in trunk
        if len(_find_joining_edges([e for e in edges if e != edge])) < len(trunk)
    ]


def _find_joining_edges(
    edges: Sequence[tuple[Address, Address, Link]],
) -> list[tuple[Address, Address, Link]]:
    """Return the edges, in order, that join parts that no earlier edge has joined."""
    leader: dict[Address, Address] = {}

    def lead(unit: Address) -> Address:
        while leader.setdefault(unit, unit) != unit:
            leader[unit] = unit = leader[leader[unit]]
        return unit

    found = []
    for edge in edges:
        a, b = lead(edge[0]), lead(edge[1])
        if a != b:
            leader[a] = b
            found.append(edge)
    return found


def format_address(address: Address) -> str:
    """Return an address as the topology file writes it."""
    return ".".join(map(str, address))


def name_group(unit: Address) -> str:
    """Return the pattern of all addresses in a unit."""
    return ".".join((*map(str, unit), "*"))


def _addresses(values: Any, brokers: Sequence[str], where: str) -> tuple[Address, ...]:
    found: dict[BrokerNumber, Address] = {}
    for name, text in table(values, where).items():
        number = broker_number(name, brokers, where)
        found[number] = parse_address(text, f"{where}: {name} = {text!r}")
    for number, name in enumerate(brokers):
        if number not in found:
            raise ConfigError(f"{where}: {name!r} has no address")
    ordered = [found[number] for number in range(len(brokers))]
    taken: dict[Address, str] = {}
    for number, address in enumerate(ordered):
        if len(address) != len(ordered[0]):
            raise ConfigError(
                f"{where}: {brokers[number]} has {len(address)} parts, {brokers[0]} has "
                f"{len(ordered[0])}; all addresses have as many"
            )
        if address in taken:
            both = f"{brokers[number]} and {taken[address]}"
            raise ConfigError(f"{where}: {both} both have {format_address(address)!r}")
        taken[address] = brokers[number]
    return tuple(ordered)


def parse_address(text: Any, where: str) -> Address:
    """Return an address.

    Raises:
        ConfigError: invalid text; names `where`.
    """
    parts = text.split(".") if isinstance(text, str) else []
    if not 1 <= len(parts) <= MAXIMUM_PARTS or not all(map(_PART.fullmatch, parts)):
        raise ConfigError(
            f"{where}: an address is 1 to {MAXIMUM_PARTS} whole numbers with dots, as in '0.1.3'"
        )
    address = tuple(map(int, parts))
    if max(address) >= BLOCK_LIMIT:
        raise ConfigError(f"{where}: each part is from 0 to {BLOCK_LIMIT - 1}")
    return address


def group_by_unit(hierarchy: Hierarchy, parts: int) -> Mapping[Address, list[BrokerNumber]]:
    """Return the present brokers by the first parts of their addresses."""
    found: dict[Address, list[BrokerNumber]] = {}
    for number in hierarchy.present:
        found.setdefault(hierarchy.addresses[number][:parts], []).append(number)
    return found


def check_connected(hierarchy: Hierarchy, where: str) -> None:
    """Check that the links inside each unit connect its brokers.

    Raises:
        ConfigError: an unconnected unit; names `where`.
    """
    for parts in reversed(range(hierarchy.top + 1)):
        for unit, members in group_by_unit(hierarchy, parts).items():
            apart = find_unconnected(hierarchy.links, members)
            if apart:
                names = ", ".join(hierarchy.brokers[number] for number in apart[:8])
                first = hierarchy.brokers[members[0]]
                within = f"links inside {name_group(unit)}" if unit else "any link"
                raise ConfigError(f"{where}: {names} not connected to {first} by {within}")


def _max_links(values: Any, hierarchy: Hierarchy, where: str) -> tuple[int, ...]:
    where = f"{where}.max_links"
    if not isinstance(values, list | tuple) or len(values) > hierarchy.top + 1:
        raise ConfigError(
            f"{where}: {values!r} is no list of at most {hierarchy.top + 1} numbers, one per level"
        )
    for level, most in enumerate(values):
        if type(most) is not int or most < 1:
            raise ConfigError(f"{where}[{level}] = {most!r}; at least 1")
    return tuple(values)


def check_max_links(hierarchy: Hierarchy, where: str) -> None:
    """Check the number of links of each broker and level.

    Paper: [GES] §2, which bounds units; the bound of links is from its program.
    """
    for level, most in enumerate(hierarchy.max_links):
        ends = [
            end for link in hierarchy.links if hierarchy.link_level(*link) == level for end in link
        ]
        for broker in hierarchy.present:
            if (count := ends.count(broker)) > most:
                raise ConfigError(
                    f"{where}: {hierarchy.brokers[broker]} has {count} links of level {level}; "
                    f"max_links allows {most}"
                )


def _storages(
    values: Any, hierarchy: Hierarchy, where: str
) -> tuple[tuple[BrokerNumber, int], ...]:
    found: dict[BrokerNumber, int] = {}
    taken: dict[tuple[int, Address], str] = {}
    for name, level in table(values, where).items():
        number = broker_number(name, hierarchy.brokers, where)
        if type(level) is not int or not 0 <= level <= hierarchy.top:
            raise ConfigError(
                f"{where}: {name} = {level!r}; a level, from 0 to {hierarchy.top} with addresses "
                f"of {hierarchy.top + 1} parts"
            )
        unit = hierarchy.addresses[number][: hierarchy.top + 1 - level]
        if (level, unit) in taken:
            raise ConfigError(
                f"{where}: {name} and {taken[level, unit]} both store for {name_unit(unit, level)}"
            )
        taken[level, unit] = name
        found[number] = level
    for unit, members in group_by_unit(hierarchy, 1).items():
        if found and (hierarchy.top, unit) not in taken:
            some = hierarchy.brokers[members[0]]
            raise ConfigError(
                f"{where}: {name_unit(unit, hierarchy.top)} has no root storage; give a broker "
                f"in it level {hierarchy.top}, as in {some} = {hierarchy.top}"
            )
    return tuple(found.items())


def name_unit(unit: Address, level: int) -> str:
    """Return the name of a unit for errors: its pattern, or the address of a node."""
    return name_group(unit) if level else format_address(unit)
