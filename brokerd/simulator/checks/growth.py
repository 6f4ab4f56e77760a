"""How much a broker keeps when all is quiet: in proportion to what is alive, whatever has been.

A table that keeps something of every restart, of every subscription that has ended or of every
notifier is seen by no other check until memory or disk is full. So every container inside a core
is found and counted, known or not: what waits for something must be empty, and everything else
no larger than a few times what is alive.

A white box: this walks through whatever a core holds.

Paper: none; I9 of every protocol that promises reliability (bounded memory).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from brokerd.simulator.checks.oracle import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_PER_THING = 4
"""A subscription has a few constraints, a broker a few messages to handle."""

_ALWAYS = 32


@dataclass(frozen=True, slots=True)
class Kept:
    """How much there may be in a core's containers, by their names, as in `sizes_of`.

    Attributes:
        empty: what waits for something; when all is quiet nothing does.
        paired: what has an entry for each pair of things that are alive, such as subscriptions
            and sources; tables on disk, too.
        streams: the parameter that sets the number of streams that begin at each broker, beside one
            for publications that belong to none; empty if each source is a stream.
    """

    empty: tuple[str, ...] = ()
    paired: tuple[str, ...] = ()
    streams: str = ""


@dataclass(frozen=True, slots=True)
class Alive:
    """What there is in a cluster.

    Attributes:
        brokers: that are, or have been, in the tree.
        subscriptions: that have not ended.
        sources: that have ever been; a number of each is kept for ever.
        clients: that have not left.
        streams: that begin at each broker; 0 if each source is a stream.
    """

    brokers: int
    subscriptions: int
    sources: int
    clients: int
    streams: int = 0

    @property
    def limit(self) -> int:
        """How much there may be of what has an entry for each thing."""
        things = self.brokers + self.subscriptions + self.sources + self.clients
        return max(_PER_THING * things, self.brokers * self.streams) + _ALWAYS

    @property
    def paired_limit(self) -> int:
        """Return the limit of a table with an entry for each pair."""
        sources = max(self.brokers + self.sources, self.brokers * self.streams)
        return (self.brokers + self.subscriptions) * sources + _ALWAYS


def check_growth(broker: BrokerView, alive: Alive, kept: Kept) -> None:
    """Look at everything that a broker keeps, in memory and on disk; all must be quiet.

    Raises:
        InvariantViolated: names what there is too much of.
    """
    counted = sizes_of(broker.core)
    for table, rows in broker.on_disk().items():
        counted[table] = len(rows)
        counted[f"a row of {table}"] = max(map(_values_in, rows.values()), default=0)
    for name, size in counted.items():
        limit = alive.paired_limit if name in kept.paired else alive.limit
        if name in kept.empty:
            limit = 0
        if size > limit:
            raise InvariantViolated("growth", f"{broker.name} keeps {size} in {name}; {alive}")


def sizes_of(core: object) -> dict[str, int]:
    """How many elements there are in all containers of one name, over all objects in a core.

    Names are `Class.attribute`, with `[]` for what is in a container itself.
    """
    sizes: dict[str, int] = {}
    seen: dict[int, object] = {}
    waiting: list[tuple[str, Any]] = [("core", core)]
    while waiting:
        name, item = waiting.pop()
        if id(item) in seen or isinstance(item, str | bytes | int | type):
            continue
        seen[id(item)] = item
        if isinstance(item, dict | list | set | deque):
            sizes[name] = sizes.get(name, 0) + len(item)
            inside = item.values() if isinstance(item, dict) else item
            waiting += [(f"{name}[]", each) for each in inside]
        elif isinstance(item, tuple):
            waiting += [(f"{name}[]", each) for each in item]
        elif type(item).__module__.startswith("brokerd.") and not callable(item):
            waiting += [(f"{type(item).__name__}.{key}", each) for key, each in _attributes(item)]
    return sizes


def objects_in(core: object) -> Iterator[object]:
    """Yield each object of ours that a core holds, and the core itself, once."""
    seen: dict[int, object] = {}
    waiting: list[Any] = [core]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, str | bytes | int | type):
            continue
        seen[id(item)] = item
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | set | deque | tuple):
            waiting += item
        if type(item).__module__.startswith("brokerd.") and not callable(item):
            yield item
            waiting += [each for _, each in _attributes(item)]


def _attributes(item: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(item, "__dict__", {}).items()
    for kind in type(item).__mro__:
        for key in getattr(kind, "__slots__", ()):
            if hasattr(item, key):
                yield key, getattr(item, key)


def _values_in(row: Any) -> int:
    if isinstance(row, list | tuple):
        return sum(map(_values_in, row))
    return 1
