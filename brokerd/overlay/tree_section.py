"""A tree's section of a topology file, and its routes; `tree` has the neighbourhoods.

    links = [["p1", "b1"], ["b1", "s1"]]

    [tree]
    delta = 1

Paper: [DFT11] §II (primary tree).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link, Route, Step
from brokerd.overlay.section_checks import check_no_cycle, linked, table

MAXIMUM_DELTA = 16


@dataclass(frozen=True, slots=True)
class TreeSection:
    """The fault tolerance of a tree.

    Attributes:
        delta: number of simultaneous failures.
    """

    delta: int = 1

    @property
    def kind(self) -> str:
        return "tree"

    @property
    def description(self) -> str:
        """A description for people, as `delta 2`."""
        return f"delta {self.delta}"

    def to_mapping(self) -> dict[str, Any]:
        """Return the content of the file's `[tree]`."""
        return {"delta": self.delta}


def read_tree(
    section: Any, brokers: Sequence[str], links: Sequence[Link], where: str
) -> TreeSection:
    """Return a tree's section.

    Raises:
        ConfigError: an unknown key, an invalid delta, or links that are no tree; names `where`.
    """
    found = read_delta(section, f"{where}: tree")
    check_no_cycle(links, brokers, f"{where}: links", "the primary tree")
    return found


def read_delta(section: Any, where: str) -> TreeSection:
    """Return a tree's section without a check of its links.

    Raises:
        ConfigError: an unknown key, or an invalid delta; names `where`.
    """
    delta = table(section, where, ("delta",)).get("delta", 1)
    if type(delta) is not int or not 0 <= delta <= MAXIMUM_DELTA:
        raise ConfigError(f"{where}: delta = {delta!r}; a whole number from 0 to {MAXIMUM_DELTA}")
    return TreeSection(delta)


@dataclass(frozen=True)
class TreeOverlay:
    """A tree of brokers, with a single path between any two."""

    links: tuple[Link, ...]
    delta: int

    @cached_property
    def _near(self) -> Mapping[BrokerNumber, Sequence[BrokerNumber]]:
        near: dict[BrokerNumber, list[BrokerNumber]] = {}
        for a, b in self.links:
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
        return near

    def role(self, broker: BrokerNumber) -> str:
        """Return the role of a broker in the tree, for people."""
        return "leaf" if len(linked(self.links, broker)) < 2 else "inner"

    def surroundings(self, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the other brokers within δ + 1 links, in ascending order."""
        found = self._paths(broker, self.delta + 1)
        return tuple(sorted(other for other in found if other != broker))

    def facts(self) -> dict[str, int]:
        """Return figures of the overlay for review before a deployment."""
        start = self.links[0][0] if self.links else 0
        far = list(self._paths(start))[-1]
        longest = max(map(len, self._paths(far).values())) - 1
        return {
            "delta": self.delta,
            "longest_path_links": longest,
            "known_within_links": self.delta + 1,
        }

    def route(self, origin: BrokerNumber, home: BrokerNumber) -> Route:
        """Return the path between two brokers, including brokers that may be bypassed."""
        steps: list[Step] = []
        for broker in self._paths(home)[origin][::-1]:
            if steps:
                before = steps[-1]
                assert isinstance(before, int)
                steps.append((min(before, broker), max(before, broker)))
            steps.append(broker)
        return Route(tuple(steps))

    def _paths(
        self, start: BrokerNumber, radius: int | None = None
    ) -> Mapping[BrokerNumber, tuple[BrokerNumber, ...]]:
        """Return the brokers within `radius` links, with the path from `start`."""
        near = self._near
        found: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {start: (start,)}
        frontier = [start]
        for broker in frontier:
            if len(found[broker]) - 1 == radius:
                break  # all that follow are as far away
            for other in near.get(broker, ()):
                if other not in found:
                    found[other] = (*found[broker], other)
                    frontier.append(other)
        return found
