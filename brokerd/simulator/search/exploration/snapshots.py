"""Snapshots of a whole simulated world, for a return to an earlier state without a replay.

A snapshot is a pickle that is read in the same process only. Functions are kept by their code, with
the objects of their closures in the pickle, so that a restored function refers to restored objects.
Immutable objects that all states share stay outside of the pickle.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from random import Random
from types import CellType, CodeType, FunctionType
from typing import Any, Final

from brokerd.config import SessionParameters
from brokerd.overlay.topology import Topology
from brokerd.simulator.world.actions import Scene
from brokerd.simulator.world.sessions import NetworkParameters

SHARED_CLASSES: Final = (Random, Topology, Scene, SessionParameters, NetworkParameters)
"""Classes of objects that no action changes, or whose state no action depends on."""


class Snapshots:
    """The functions and shared objects of all snapshots of one exploration.

    Args:
        shared: further classes of shared objects.
    """

    def __init__(self, shared: tuple[type, ...] = ()) -> None:
        self._classes = frozenset((*SHARED_CLASSES, *shared))
        self._objects: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def take(self, state: Any) -> "Snapshot":
        """Return a snapshot of a state."""
        buffer = BytesIO()
        _Pickler(buffer, self).dump(state)
        return Snapshot(buffer.getvalue(), self._objects)

    def reduce(self, item: Any) -> Any:
        """Return the reduction of an object, as `Pickler.reducer_override`."""
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

    def _number_of(self, key: CodeType | int, item: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._objects)
            self._objects.append(item)
        return self._numbers[key]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a world, which can be restored any number of times."""

    content: bytes
    objects: list[Any]

    def restore(self) -> Any:
        """Return a new copy of the state."""
        _shared[:] = [self.objects]
        return pickle.loads(self.content)


_shared: list[list[Any]] = [[]]
"""The shared objects of the snapshot that is being restored."""


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: BytesIO, snapshots: Snapshots) -> None:
        super().__init__(buffer, protocol=5)
        self._snapshots = snapshots

    def reducer_override(self, item: Any) -> Any:
        """See `Snapshots.reduce`."""
        return self._snapshots.reduce(item)


def _find_shared(number: int) -> Any:
    return _shared[0][number]


def _make_function(number: int, cells: int) -> Callable[..., Any]:
    template = _shared[0][number]
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
