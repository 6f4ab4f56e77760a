"""Snapshots of a simulated world, for a return to an earlier state without a replay.

A snapshot has one part for the core of each endpoint, one part for the oracle and the checks, and
one part for everything else. A part is a pickle that is read in the same process only. A transition
changes few cores: the other cores stay in place at a return, and their parts are shared by all
snapshots. Equal parts are the same object, so that a core that returns to an earlier state is
recognised by its part.

A return changes the world in place. The objects of the simulator that live as long as the world
(brokers, disks, the network, the oracle, and so on) are its frame: they stay, with their references
to each other, and only their variable attributes are in a part. Functions are kept by their code,
with the objects of their closures. Immutable objects that all states share stay outside.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from random import Random
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any, Final

from brokerd.config import SessionParameters
from brokerd.model.identity import Peer
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import Promises
from brokerd.simulator.search.exploration.small_world import SmallWorld, WorldState
from brokerd.simulator.world.actions import Scene
from brokerd.simulator.world.sessions import NetworkParameters

SHARED_CLASSES: Final = (
    *(Random, Topology, Scene, SessionParameters, NetworkParameters, Promises, SmallWorld),
)
"""Classes of objects that no action changes, or whose state no action depends on."""

_FRAMES: Final = ("brokerd.simulator.world.", "brokerd.simulator.checks.")
"""The modules of the classes of frames."""

_CORES: Final = ("core", "protocol", "_wrapper")
"""Attributes of endpoints with a core."""

_CALLABLES: Final = (FunctionType, MethodType, BuiltinFunctionType, partial, type)

WORLD: Final = ("world",)
"""The key of the part with everything but the cores and the checks."""

CHECKS: Final = ("checks",)
"""The key of the part with the oracle and the checks."""

Key = Peer | tuple[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a world, in parts."""

    parts: dict[Any, bytes]

    @property
    def size(self) -> int:
        """The bytes of the part that no other snapshot shares."""
        return len(self.parts[WORLD])


class Snapshots:
    """The snapshots of one world, which returns to them in place.

    Args:
        state: the world, from which all snapshots are taken.
        shared: further classes of shared objects.

    Attributes:
        written: number of written parts.
        plain: the classes of objects that need no reduction of their own.
    """

    def __init__(self, state: WorldState, shared: tuple[type, ...] = ()) -> None:
        self._state = state
        self._classes = frozenset((*SHARED_CLASSES, *shared))
        self._objects: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._endpoints = dict(state.acted.network.endpoints)
        self._frame: list[Any] = []
        self._variables: dict[Key, list[tuple[Any, tuple[str, ...]]]] = {WORLD: [], CHECKS: []}
        self._interned: dict[bytes, bytes] = {}
        self._frame_numbers: dict[int, int] = {}
        self._fixed: list[Any] = []
        self._present: dict[Any, bytes] = {}
        self.written = 0
        self.plain: dict[type, None] = {}
        self._find_frame()
        self._special = frozenset(
            (
                *(FunctionType, memoryview, *self._classes, *map(type, self._frame)),
                *(
                    type(getattr(endpoint, name, None))
                    for endpoint in self._endpoints.values()
                    for name in _CORES
                ),
            )
        )

    # ------------------------------------------------------------ frame

    def _find_frame(self) -> None:
        """Find the objects that live as long as the world, and their fixed attributes."""
        cluster = self._state.acted.cluster
        self._fixed = [cluster.brokers, cluster.clients, cluster.removed, cluster.network.endpoints]
        found: dict[int, Any] = {}
        ahead = [self._state, cluster.checker.own, cluster.checker.marks, *self._endpoints.values()]
        while ahead:
            item = ahead.pop()
            if item is None or id(item) in found:
                continue
            found[id(item)] = item
            ahead += [
                value
                for name, value in _attributes_of(item)
                if _is_frame(value) and name not in _CORES
            ]
        self._frame_numbers = {key: place for place, key in enumerate(found)}
        self._frame = list(found.values())
        for item in self._frame:
            names = [
                name for name, value in _attributes_of(item) if not self._is_fixed(name, value)
            ]
            if names and hasattr(item, "__dict__"):
                self._variables[self._part_of(item)].append((item, tuple(names)))

    def _part_of(self, item: Any) -> Key:
        is_mark = item is self._state.acted.cluster.checker.marks
        is_check = ".checks" in type(item).__module__ and not is_mark
        return CHECKS if is_check else WORLD

    def _is_fixed(self, name: str, value: Any) -> bool:
        return (
            name in _CORES
            or id(value) in self._frame_numbers
            or isinstance(value, (*_CALLABLES, *self._classes, OverlayGraph))
            or any(value is each for each in self._fixed)
            or (isinstance(value, dict) and bool(value) and all(map(callable, value.values())))
        )

    # ------------------------------------------------------------ snapshots

    def take(self) -> Snapshot:
        """Return a snapshot of the present state."""
        for key in (*self._endpoints, CHECKS, WORLD):
            self.part(key)
        return Snapshot(dict(self._present))

    def part(self, key: Key) -> bytes:
        """Return a part of the present state."""
        self._drop_touched()
        found = self._present.get(key)
        if found is None:
            found = self._write_part(key)
            if key != WORLD:
                found = self._interned.setdefault(found, found)
            self._present[key] = found
        return found

    def _write_part(self, key: Key) -> bytes:
        if key not in self._variables:
            endpoint = self._endpoints[key]  # type: ignore[index]
            return self._write([getattr(endpoint, each, None) for each in _CORES], {})
        roots = {
            id(core): (owner, name)
            for owner, endpoint in self._endpoints.items()
            for name in _CORES
            if (core := getattr(endpoint, name, None)) is not None
        }
        variables = self._variables[key]
        return self._write(
            [list(map(item.__dict__.__getitem__, names)) for item, names in variables], roots
        )

    def _drop_touched(self) -> None:
        touched, present = self._state.touched, self._present
        if touched:
            for key in (*touched, CHECKS, WORLD):
                present.pop(key, None)
            touched.clear()

    def restore(self, snapshot: Snapshot) -> WorldState:
        """Return the world, in the state of a snapshot."""
        state, present = self._state, self._present
        self._drop_touched()
        _reading[:] = [self]
        for key, endpoint in self._endpoints.items():
            content = snapshot.parts[key]
            if present.get(key) is not content:
                for name, core in zip(_CORES, pickle.loads(content), strict=True):
                    if core is not None or hasattr(endpoint, name):
                        setattr(endpoint, name, core)
        for part, variables in self._variables.items():
            content = snapshot.parts[part]
            if present.get(part) is not content:
                for (item, names), values in zip(variables, pickle.loads(content), strict=True):
                    item.__dict__.update(zip(names, values, strict=True))
        present.update(snapshot.parts)
        return state

    def _write(self, item: Any, roots: dict[int, tuple[Any, str]]) -> bytes:
        self.written += 1
        buffer = BytesIO()
        _Pickler(buffer, self, roots).dump(item)
        return buffer.getvalue()

    # ------------------------------------------------------------ objects in parts

    def reduce(self, item: Any, roots: dict[int, tuple[Any, str]]) -> Any:
        """Return the reduction of an object, as `Pickler.reducer_override`."""
        kind = type(item)
        if kind not in self._special and not isinstance(item, type):
            self.plain[kind] = None
            return NotImplemented
        frame = self._frame_numbers.get(id(item))
        if frame is not None:
            return _find_frame, (frame,)
        if id(item) in roots:
            return _find_core, roots[id(item)]
        if kind is FunctionType:
            cells = item.__closure__ or ()
            if not cells and "<" not in item.__qualname__:
                return NotImplemented
            number = self._number_of(item.__code__, item)
            contents = tuple(cell.cell_contents for cell in cells)
            return _make_function, (number, len(cells)), contents, None, None, _fill_closure
        if kind is memoryview:
            return memoryview, (bytes(item),)
        if kind in self._classes or isinstance(item, type):
            return _find_shared, (self._number_of(id(item), item),)
        return NotImplemented

    def frame(self, number: int) -> Any:
        """Return an object of the frame."""
        return self._frame[number]

    def endpoint(self, key: Peer) -> Any:
        """Return an endpoint."""
        return self._endpoints[key]

    def shared(self, number: int) -> Any:
        """Return a shared object."""
        return self._objects[number]

    def _number_of(self, key: CodeType | int, item: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._objects)
            self._objects.append(item)
        return self._numbers[key]


def _is_frame(value: Any) -> bool:
    """Return True for an object of the simulator that lives as long as its world."""
    kind = type(value)
    if not kind.__module__.startswith(_FRAMES) or isinstance(value, tuple):
        return False
    return hasattr(value, "__dict__") or kind.__name__ in ("ClusterState", "CheckedWorld")


def _attributes_of(item: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(item, "__dict__"):
        yield from item.__dict__.items()
        return
    for name in type(item).__slots__:
        yield name, getattr(item, name)


_reading: list[Snapshots] = []
"""The snapshots of the part that is being read."""


class _Pickler(pickle.Pickler):
    def __init__(
        self, buffer: BytesIO, snapshots: Snapshots, roots: dict[int, tuple[Any, str]]
    ) -> None:
        super().__init__(buffer, protocol=5)
        self._plain = snapshots.plain
        self._snapshots = snapshots
        self._roots = roots

    def reducer_override(self, item: Any) -> Any:
        """See `Snapshots.reduce`."""
        if type(item) in self._plain:
            return NotImplemented
        return self._snapshots.reduce(item, self._roots)


def _find_frame(number: int) -> Any:
    return _reading[0].frame(number)


def _find_core(key: Peer, name: str) -> Any:
    return getattr(_reading[0].endpoint(key), name)


def _find_shared(number: int) -> Any:
    return _reading[0].shared(number)


def _make_function(number: int, cells: int) -> Callable[..., Any]:
    template = _reading[0].shared(number)
    closure = tuple(CellType() for _ in range(cells))
    made = FunctionType(
        template.__code__,
        template.__globals__,
        template.__name__,
        template.__defaults__,
        closure,
    )
    made.__kwdefaults__ = template.__kwdefaults__
    made.__qualname__ = template.__qualname__
    return made


def _fill_closure(function: Callable[..., Any], contents: tuple[Any, ...]) -> None:
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        cell.cell_contents = content
