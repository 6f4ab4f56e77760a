"""The only path between two brokers of a tree, and the routes of other overlays."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise


class Tree:
    """A tree of brokers, by name."""

    def __init__(self, links: Iterable[tuple[str, str]]) -> None:
        self._links = {frozenset(link) for link in links}
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}

    def path(self, start: str, end: str) -> tuple[str, ...]:
        """Return the brokers from `start` to `end`, both included; empty without a path."""
        if (start, end) not in self._known:
            self._known[start, end] = self._found((start,), end)
        return self._known[start, end]

    def list_passed(self, start: str, end: str) -> set[str]:
        """Return all brokers and links of the path, with links in either direction."""
        return steps(self.path(start, end))

    def _found(self, so_far: tuple[str, ...], end: str) -> tuple[str, ...]:
        stack = [so_far]
        while stack:
            way = stack.pop()
            if way[-1] == end:
                return way
            stack += [
                (*way, broker)
                for link in self._links
                if way[-1] in link
                for broker in link
                if broker not in way
            ]
        return ()


class Routes:
    """An overlay with several routes between two brokers."""

    def __init__(self, over: Mapping[tuple[str, str], Sequence[str]]) -> None:
        self._through = over

    def list_passed(self, start: str, end: str) -> set[str]:
        """Return all brokers and links of possible routes, with links in either direction."""
        found: set[str] = set()
        for part in self._through.get((start, end), ()):
            ends = part.split("->")
            found |= {part, "-".join(ends), "-".join(ends[::-1])}
        return found


def steps(way: tuple[str, ...]) -> set[str]:
    """Return all brokers and links of a path, with links in either direction."""
    passed = set(way)
    for a, b in pairwise(way):
        passed.update((f"{a}-{b}", f"{b}-{a}", f"{a}->{b}"))
    return passed
