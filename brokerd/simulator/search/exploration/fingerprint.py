"""Fingerprints of states: equal fingerprints mean states with the same future.

A fingerprint covers the cores of brokers and clients, their disks, the messages in flight, the
obligations of the oracle and the used bounds. Instants count relative to the clock of their broker.
The fingerprint leaves out counters that no core reads, caches, and numbers that only name objects.
Two states that differ in the order of a mapping are different states, because a core may send in
this order.
"""

import pickle
from collections import deque
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from hashlib import blake2b
from io import BytesIO
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType
from typing import Any, Final

from brokerd.matching.memo import MatchMemo
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import Promises
from brokerd.simulator.checks.invariants import StepChecker
from brokerd.simulator.checks.protocol_checks import CheckedWorld
from brokerd.simulator.checks.violations import Violations
from brokerd.simulator.search.exploration.small_world import CLOCK_NS, WorldState
from brokerd.simulator.search.exploration.snapshots import CHECKS, Key, Snapshots
from brokerd.simulator.world.actions import ActedCluster
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.clock import NEVER_NS, Lane, Schedule
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.disk import SimulatedDisk
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.sessions import Attempt, Endpoint, SessionEnd, Transmission
from brokerd.simulator.world.trace import Trace

SKIPPED: Final = frozenset(
    (
        *("counters", "_counters", "_ignored", "hits", "misses", "now_ns", "duplicates"),
        *("published_count", "deliveries", "announced", "owed", "in_gaps", "redelivered"),
        *("violations", "first_violations", "_matches", "published_ns", "path_ages_ns"),
        *("disk_view", "_decode", "_now_ns", "_handlers"),
        *("_audiences", "_checked_paths", "_deadline_changes", "_next_deadline"),
    )
)
"""Attributes that count, that cache, or that checks without a common clock ignore."""

STATIC: Final = (
    MatchMemo, OverlayGraph, Topology, Random, Schedule, Network, SimulatedCluster, ActedCluster,
    SimulatedBroker, SimulatedClient, SimulatedDisk, SessionEnd, Attempt, CheckedWorld, Lane,
    StepChecker, Trace, Promises, Violations, Transmission, BuiltinFunctionType, type,
)  # fmt: skip
"""Classes of objects that a fingerprint only names: wiring, caches, and parts covered elsewhere."""

_VALUES: Final = (tuple, Enum, MethodType, partial, deque, memoryview, range)

_PLAIN: Final = frozenset((str, bytes, bool, float, type(None), tuple, list, dict))


class Fingerprints:
    """The fingerprints of the states of one world.

    Args:
        static: further classes of objects that no action changes.
        snapshots: the snapshots of the world, whose parts recognise earlier cores and checks.
    """

    def __init__(self, static: tuple[type, ...] = (), snapshots: Snapshots | None = None) -> None:
        self._static = (*STATIC, *static)
        self._readers: dict[type, _Reader] = {}
        self._snapshots = snapshots
        self._known: dict[tuple[bytes, int], bytes] = {}

    def of(self, state: WorldState) -> bytes:
        """Return the fingerprint of a state."""
        acted, digests = state.acted, state.digests
        for broker in acted.brokers:
            if broker.number not in digests:
                core = broker.core if broker.alive else None
                digests[broker.number] = self.digest(_view_disk(broker), CLOCK_NS) + (
                    self._digest_part(broker.number, core, broker.clock_ns)
                )
        for client in acted.clients.values():
            if client.name not in digests:
                digests[client.name] = self.digest(_view_client(client), CLOCK_NS) + (
                    self._digest_part(client.name, client.core, CLOCK_NS)
                )
        parts = [digests[key] for key in acted.network.endpoints]
        parts.append(self._digest_part(CHECKS, _view_checks(state), CLOCK_NS))
        parts.append(self.digest(_view_world(state), CLOCK_NS))
        return blake2b(b"".join(parts), digest_size=16).digest()

    def _digest_part(self, key: Key, view: Any, now_ns: int) -> bytes:
        """Return the digest of a view of one part, if possible of an earlier equal part."""
        if self._snapshots is None or view is None:
            return self.digest(view, now_ns)
        part = self._snapshots.part(key), now_ns
        found = self._known.get(part)
        if found is None:
            found = self._known[part] = self.digest(view, now_ns)
        return found

    def digest(self, view: Any, now_ns: int) -> bytes:
        """Return the digest of a view, with instants relative to a clock."""
        buffer = BytesIO()
        _Writer(buffer, self, now_ns).dump(view)
        return blake2b(buffer.getvalue(), digest_size=16).digest()

    def reader_of(self, kind: type) -> "_Reader":
        """Return the reader of a class, made at its first object."""
        reader = self._readers.get(kind)
        if reader is None:
            reader = self._readers[kind] = _Reader(kind, issubclass(kind, self._static))
        return reader


class _Reader:
    """A reader of the objects of one class.

    Attributes:
        name: stands for the class.
        is_static: objects are only named.
        is_value: objects are equal by their contents, and never change.
    """

    __slots__ = ("_slots", "is_static", "is_value", "kind", "name")

    def __init__(self, kind: type, is_static: bool) -> None:
        self.kind = kind
        self.name = kind.__qualname__
        self.is_static = is_static
        self.is_value = issubclass(kind, _VALUES) or _is_frozen(kind)
        self._slots = [
            name
            for base in reversed(kind.__mro__)
            for name in _slots_of(base)
            if name not in SKIPPED and not name.startswith("__")
        ]

    def read(self, item: Any) -> Any:
        """Return the contents of an object that determine its future."""
        kind = self.kind
        if hasattr(kind, "in_order"):
            return item.in_order()
        if issubclass(kind, tuple | deque):
            return list(item)
        if issubclass(kind, dict):
            return list(item.items())
        if issubclass(kind, set | frozenset):
            return sorted(map(repr, item))
        if kind is memoryview:
            return bytes(item)
        if kind is MethodType:
            return item.__func__.__qualname__, item.__self__
        if kind is MethodWrapperType:
            return item.__name__, item.__self__
        if kind is FunctionType:
            return item.__qualname__, [cell.cell_contents for cell in item.__closure__ or ()]
        if kind is partial:
            return item.func, item.args, item.keywords
        if issubclass(kind, Enum):
            return item.value
        if kind is range:
            return item.start, item.stop, item.step
        if kind is bytearray:
            return bytes(item)
        assert kind.__module__ != "builtins", f"a fingerprint leaves out the contents of {kind}"
        found = [getattr(item, name, None) for name in self._slots]
        more = getattr(item, "__dict__", None)
        if more:
            found += [value for name, value in more.items() if name not in SKIPPED]
        return found


def _is_frozen(kind: type) -> bool:
    """Return True for a frozen class; a `record` is hashed by its contents, and frozen alike."""
    if not is_dataclass(kind):
        return False
    parameters = getattr(kind, "__dataclass_params__")  # noqa: B009
    return bool(parameters.frozen or parameters.unsafe_hash)


def _slots_of(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


class _Writer(pickle.Pickler):
    """Writes values without a memo, so that equal values give equal bytes."""

    def __init__(self, buffer: BytesIO, fingerprints: Fingerprints, now_ns: int) -> None:
        super().__init__(buffer, protocol=5)
        self.fast = True
        self._readers = fingerprints
        self._now_ns = now_ns
        self._seen: dict[int, int] = {}

    def persistent_id(self, item: Any) -> Any:
        """Return a replacement: of an instant, a named object, or an earlier object."""
        kind = type(item)
        if kind is int:
            return item - self._now_ns if abs(item - CLOCK_NS) < NEVER_NS else None
        if kind in _PLAIN:
            is_table = kind is dict and item and isinstance(next(iter(item)), type)
            return "handlers by class" if is_table else None
        if item is _mark:
            return "object"
        reader = self._readers.reader_of(kind)
        if reader.is_static:
            return reader.name
        if reader.is_value:
            return None
        key = id(item)
        if key in self._seen:
            return reader.name, self._seen[key]
        self._seen[key] = len(self._seen)
        return None

    def reducer_override(self, item: Any) -> Any:
        """Return the class and the contents of an object."""
        reader = self._readers.reader_of(type(item))
        return _mark, (reader.name, reader.read(item))


def _mark(name: str, contents: Any) -> None:
    """Stand for the class of an object; a fingerprint is never read."""


def _view_world(state: WorldState) -> list[Any]:
    """Return the network and the used bounds."""
    acted = state.acted
    return [
        state.spent,
        [_view_endpoint(each) for each in acted.network.endpoints.values()],
        [_view_lane(name, lane) for name, lane in sorted(acted.schedule.ready_lanes().items())],
        acted.link_faults.cut_directions(),
    ]


def _view_checks(state: WorldState) -> list[Any]:
    """Return the oracle and the memory of the checks of steps."""
    checker = state.acted.cluster.checker
    return [state.acted.oracle, checker.positions, checker.known(), checker.own]


def _view_endpoint(endpoint: Endpoint) -> list[Any]:
    ends = [
        (end.peer, end.number, end.incarnation, end.up, end.deaf, end.other.number)
        for end in endpoint.connected
    ]
    attempts = [
        (peer, each.again, len(each.timeout.queue)) for peer, each in endpoint.attempts.items()
    ]
    return [endpoint.key, endpoint.alive, endpoint.incarnation, ends, attempts]


def _view_lane(name: str, lane: Lane) -> tuple[str, list[Any]]:
    return name, [(action.__name__, arguments) for action, arguments in lane.queue]


def _view_disk(broker: SimulatedBroker) -> list[Any]:
    tables, logs = broker.disk.contents()
    return [broker.has_ended, sorted(tables.items()), logs, broker.disk.unwritten()]


def _view_client(client: SimulatedClient) -> list[Any]:
    return [
        client.broker,
        client.alive,
        client.detached,
        client.repeated_requests,
        [*client.started_numbers],
        [*client.ended],
    ]
