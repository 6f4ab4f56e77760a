"""Snapshots of a simulated world, for a return to an earlier state without a replay.

A snapshot has one part for the core of each endpoint, and one part for everything else. A part is a
pickle that is read in the same process only. A transition changes few cores: the other cores stay
in place at a return, and their parts are shared by all snapshots.

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

WORLD: Final = "world"
"""The key of the part with everything but the cores."""

Key = Peer | tuple[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a world, in parts."""

    parts: dict[Any, bytes]

    @property
    def size(self) -> int:
        """The bytes of the part that no other snapshot shares."""
        return len(self.parts[_WHOLE])


_WHOLE: Final = (WORLD,)


class Snapshots:
    """The snapshots of one world, which returns to them in place.

    Args:
        state: the world, from which all snapshots are taken.
        shared: further classes of shared objects.
        is_whole: one part has everything, because checks keep objects of cores.

    Attributes:
        written: number of written parts.
    """

    def __init__(
        self, state: WorldState, shared: tuple[type, ...] = (), *, is_whole: bool = False
    ) -> None:
        self._state = state
        self._classes = frozenset((*SHARED_CLASSES, *shared))
        self._objects: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._endpoints = dict(state.acted.network.endpoints)
        self._apart = () if is_whole else _CORES
        self._with_parts = {} if is_whole else self._endpoints
        self._frame: list[Any] = []
        self._variables: list[tuple[Any, tuple[str, ...]]] = []
        self._frame_numbers: dict[int, int] = {}
        self._fixed: list[Any] = []
        self._present: dict[Any, bytes] = {}
        self.written = 0
        self._find_frame()

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
                self._variables.append((item, tuple(names)))

    def _is_fixed(self, name: str, value: Any) -> bool:
        return (
            name in self._apart
            or id(value) in self._frame_numbers
            or isinstance(value, (*_CALLABLES, *self._classes, OverlayGraph))
            or any(value is each for each in self._fixed)
            or (isinstance(value, dict) and bool(value) and all(map(callable, value.values())))
        )

    # ------------------------------------------------------------ snapshots

    def take(self) -> Snapshot:
        """Return a snapshot of the present state."""
        state, present = self._state, self._present
        for key in state.touched:
            present.pop(key, None)
        state.touched.clear()
        for key, endpoint in self._with_parts.items():
            if key not in present:
                present[key] = self._write([getattr(endpoint, each, None) for each in _CORES], {})
        roots = {
            id(core): (key, name)
            for key, endpoint in self._with_parts.items()
            for name in _CORES
            if (core := getattr(endpoint, name, None)) is not None
        }
        variables = [list(map(item.__dict__.__getitem__, names)) for item, names in self._variables]
        present[_WHOLE] = self._write(variables, roots)
        return Snapshot(dict(present))

    def restore(self, snapshot: Snapshot) -> WorldState:
        """Return the world, in the state of a snapshot."""
        state, present = self._state, self._present
        for key in state.touched:
            present.pop(key, None)
        state.touched.clear()
        _reading[:] = [self]
        for key, endpoint in self._with_parts.items():
            content = snapshot.parts[key]
            if present.get(key) is not content:
                for name, core in zip(_CORES, pickle.loads(content), strict=True):
                    if core is not None or hasattr(endpoint, name):
                        setattr(endpoint, name, core)
                present[key] = content
        variables = pickle.loads(snapshot.parts[_WHOLE])
        for (item, names), values in zip(self._variables, variables, strict=True):
            item.__dict__.update(zip(names, values, strict=True))
        return state

    def _write(self, item: Any, roots: dict[int, tuple[Any, str]]) -> bytes:
        self.written += 1
        buffer = BytesIO()
        _Pickler(buffer, self, roots).dump(item)
        return buffer.getvalue()

    # ------------------------------------------------------------ objects in parts

    def reduce(self, item: Any, roots: dict[int, tuple[Any, str]]) -> Any:
        """Return the reduction of an object, as `Pickler.reducer_override`."""
        frame = self._frame_numbers.get(id(item))
        if frame is not None:
            return _find_frame, (frame,)
        if id(item) in roots:
            return _find_core, roots[id(item)]
        kind = type(item)
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
        self._snapshots = snapshots
        self._roots = roots

    def reducer_override(self, item: Any) -> Any:
        """See `Snapshots.reduce`."""
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
