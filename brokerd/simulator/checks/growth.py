"""Bounds of the memory and disk of a broker, and limits of the code that seeds lower."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_PER_THING = 4
"""Items per object: a subscription has a few constraints, a broker a few messages to handle."""

_ALWAYS = 32

LOWERED: Final = 0.4
"""Share of the seeds in which half of the limits are lower."""


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """The limits of a core's containers by name, as in `sizes_of`.

    Attributes:
        empty: containers of waiting items, which must be empty in a quiet cluster.
        paired: containers and tables on disk with an entry for each pair of live objects, for
            example a subscription and a source.
        positions: rows on disk with a position in each stream.
        bounded: containers with a limit of their own, which a rule of the protocol checks.
        streams: the parameter for the number of streams that begin at each broker, beside one
            stream for publications outside of all streams; empty if each source is a stream.
    """

    empty: tuple[str, ...] = ()
    paired: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()
    streams: str = ""


@dataclass(frozen=True, slots=True)
class LiveState:
    """The live state of a cluster.

    Attributes:
        brokers: number of present and former brokers of the tree.
        subscriptions: number of subscriptions that have not ended.
        sources: number of all sources, present and former; a number per source is kept for ever.
        clients: number of clients that have not left.
        streams: number of streams that begin at each broker; 0 if each source is a stream.
    """

    brokers: int
    subscriptions: int
    sources: int
    clients: int
    streams: int = 0

    @property
    def limit(self) -> int:
        """The limit of a container with an entry for each object."""
        things = self.brokers + self.subscriptions + self.sources + self.clients
        return max(_PER_THING * things, self.brokers * self.streams) + _ALWAYS

    @property
    def paired_limit(self) -> int:
        """The limit of a table with an entry for each pair."""
        return (self.brokers + self.subscriptions) * self._all_streams + _ALWAYS

    @property
    def positions_limit(self) -> int:
        """The limit of a row with a position in each stream: three numbers and the tick."""
        return 4 * self._all_streams + _ALWAYS

    @property
    def _all_streams(self) -> int:
        return max(self.brokers + self.sources, self.brokers * self.streams)


def check_growth(broker: BrokerView, alive: LiveState, kept: ContainerLimits) -> None:
    """Check the size of all containers and tables of a broker in a quiet cluster.

    Raises:
        InvariantViolated: a container is too large; names the container.
    """
    counted = sizes_of(broker.core)
    for table, rows in broker.on_disk().items():
        counted[table] = len(rows)
        counted[f"a row of {table}"] = max(map(_values_in, rows.values()), default=0)
    for name, size in counted.items():
        limit = alive.paired_limit if name in kept.paired else alive.limit
        if name in kept.positions:
            limit = alive.positions_limit
        if name in kept.empty:
            limit = 0
        if size > limit and name not in kept.bounded:
            raise InvariantViolated("growth", f"{broker.name} keeps {size} in {name}; {alive}")


def sizes_of(core: object) -> dict[str, int]:
    """Return the number of elements in all containers of one name, over all objects in a core.

    Names are `Class.attribute`, with `[]` for the elements of a container.
    """
    sizes: dict[str, int] = {}
    seen: dict[int, object] = {}
    waiting: list[tuple[str, Any]] = [("core", core)]
    while waiting:
        name, item = waiting.pop()
        shape = _shape_of(type(item))
        if shape.is_leaf or id(item) in seen:
            continue
        seen[id(item)] = item
        if shape.is_container:
            if not shape.is_tuple:
                sizes[name] = sizes.get(name, 0) + len(item)
            inside = item.values() if shape.is_mapping else item
            element = f"{name}[]"
            waiting += [(element, each) for each in inside]
        elif shape.is_own:
            waiting += [(f"{shape.name}.{key}", each) for key, each in _attributes(item, shape)]
    return sizes


def objects_in(core: object) -> Iterator[object]:
    """Yield the core and each object of this project inside the core, once."""
    seen: dict[int, object] = {}
    waiting: list[Any] = [core]
    while waiting:
        item = waiting.pop()
        shape = _shape_of(type(item))
        if shape.is_leaf or id(item) in seen:
            continue
        seen[id(item)] = item
        if shape.is_mapping:
            waiting += item.keys()
            waiting += item.values()
        elif shape.is_container:
            waiting += item
        if shape.is_own:
            yield item
            waiting += [each for _, each in _attributes(item, shape)]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The contents of the objects of one class.

    Attributes:
        name: the name of the class.
        is_leaf: the objects contain nothing of interest.
        is_own: the class is of this project, and its objects are no functions.
        slots: names of the attributes with a slot.
    """

    name: str
    is_leaf: bool
    is_container: bool
    is_mapping: bool
    is_tuple: bool
    is_own: bool
    slots: tuple[str, ...]


def _shape_of(kind: type) -> _Shape:
    shape = _SHAPES.get(kind)
    if shape is None:
        shape = _SHAPES[kind] = _find_shape(kind)
    return shape


def _find_shape(kind: type) -> _Shape:
    is_own = kind.__module__.startswith("brokerd.") and not any(
        "__call__" in base.__dict__ for base in kind.__mro__
    )
    is_container = issubclass(kind, dict | list | set | deque | tuple)
    return _Shape(
        kind.__name__,
        issubclass(kind, str | bytes | int | type) or not (is_container or is_own),
        is_container,
        issubclass(kind, dict),
        issubclass(kind, tuple),
        is_own,
        tuple(key for base in kind.__mro__ for key in getattr(base, "__slots__", ())),
    )


_SHAPES: Final[dict[type, _Shape]] = {}


def _attributes(item: object, shape: _Shape) -> Iterator[tuple[str, Any]]:
    yield from getattr(item, "__dict__", {}).items()
    for key in shape.slots:
        if hasattr(item, key):
            yield key, getattr(item, key)


def _values_in(row: Any) -> int:
    if isinstance(row, list | tuple):
        return sum(map(_values_in, row))
    return 1


@dataclass(frozen=True, slots=True)
class Limit:
    """A constant of a module.

    Attributes:
        module: of the module that uses the constant, dotted.
        constant: the name in the module.
        values: low values.
        since: the last seed whose history is older than this entry.
    """

    module: str
    constant: str
    values: tuple[int, ...]
    since: int = 0

    @property
    def name(self) -> str:
        """The dotted name of the constant."""
        return f"{self.module}.{self.constant}"


LATE: Final = 200
"""The last seed whose history has only the oldest limits."""

SHARED: Final = (
    Limit("brokerd.matching.memo", "MEMO_LIMIT", (1, 3)),
    Limit("brokerd.matching.memo", "AT_ONCE", (1, 2)),
    Limit("brokerd.protocols.parts.deadlines", "_STALE", (0, 1)),
    Limit("brokerd.protocols.parts.selection", "_SMALL_SHARE", (1, 2)),
    Limit("brokerd.matching.index", "_NAMES_PER_ATTRIBUTE", (0, 1), LATE),
    Limit("brokerd.matching.index", "_FILED_VALUES", (0, 2), LATE),
    Limit("brokerd.model.joined_runs", "MOST_BLOBS", (1, 3), LATE),
    Limit("brokerd.model.joined_runs", "JOINED_PUBLICATIONS", (1, 3), LATE),
    Limit("brokerd.model.joined_runs", "JOINED_BYTES", (1, 60), LATE),
    Limit("brokerd.model.joined_runs", "SHARED_BYTES", (0, 4), LATE),
    Limit("brokerd.client.outgoing", "RUN_LIMIT_PUBLICATIONS", (1, 3), LATE),
    Limit("brokerd.client.outgoing", "RUN_LIMIT_BYTES", (1, 60), LATE),
    Limit("brokerd.client.outgoing", "SHORT_RUN", (1, 2), LATE),
    Limit("brokerd.client.outgoing", "JOINED_RUNS", (1, 2), LATE),
)
"""Limits of the parts that all protocols use."""

Chosen = tuple[tuple[str, int], ...]
"""Limits by name, with their values."""


def draw_limits(seed: int, limits: Sequence[Limit]) -> Chosen:
    """Return the low limits of a seed, the oldest first."""
    found: list[tuple[str, int]] = []
    for since in sorted({each.since for each in limits}):
        random = Random(f"lowered since {since} {seed}" if since else f"lowered {seed}")
        if random.random() >= LOWERED or 0 < since >= seed:
            continue
        chosen = [each for each in limits if each.since == since and random.random() < 0.5]
        found += [(each.name, random.choice(each.values)) for each in chosen]
    return tuple(found)


def check_limit(name: str, limits: Sequence[Limit]) -> str:
    """Return the name of a limit.

    Raises:
        ConfigError: no limit has this name; names the nearest.
    """
    known = [each.name for each in limits]
    if name not in known:
        raise ConfigError(f"no limit {name!r}{nearest(name, known)}")
    return name


@contextmanager
def with_limits(chosen: Iterable[tuple[str, int]]) -> Iterator[None]:
    """Set limits of this process inside the block."""
    before: list[tuple[str, int]] = []
    try:
        for name, value in chosen:
            before.append((name, _set(name, value)))
        yield
    finally:
        for name, value in reversed(before):
            _set(name, value)


def _set(name: str, value: int) -> int:
    """Set a constant; return the old value."""
    module, _, constant = name.rpartition(".")
    names = vars(import_module(module))
    now: int = names[constant]
    names[constant] = value
    return now
