"""The possible contents of files after a crash, from the operations before the crash.

Synced changes survive. Of all other changes any part may survive, in any order: each name, each
truncation, each write whole, torn at a byte, or with any subset of its sectors. Missing parts are
zeros, or the file ends there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from pathlib import PurePosixPath
from random import Random

from tests.helpers.memory_storage import Cut, FolderSynced, Named, Removed, Step, Synced, Wrote

SECTOR_BYTES = 512
EVERY_BYTE_BYTES = 64
"""Writes up to this size are torn at every byte, larger writes at some bytes per sector."""
TOGETHER = 4
"""This many unsynced changes are combined in every way; of more changes, the last ones."""

Contents = dict[str, bytes]
_Change = Wrote | Cut
_Piece = tuple[int, bytes]


class CrashStates:
    """A walk along a trail of steps; a crash may occur between any two steps."""

    def __init__(
        self, contents: Mapping[str, bytes] | None = None, folders: Iterable[str] = ()
    ) -> None:
        contents = contents or {}
        self._durable = dict(enumerate(contents.values()))
        self._unsynced: dict[int, list[_Change]] = {}
        self._names = dict.fromkeys((*folders, *map(_folder, contents)), -1)
        self._names |= {path: file for file, path in enumerate(contents)}
        self._changed_names: list[Named | Removed] = []

    def take(self, step: Step) -> None:
        """Apply the next step."""
        if isinstance(step, Named | Removed):
            if isinstance(step, Named):
                self._durable.setdefault(step.file, b"")
            self._changed_names.append(step)
        elif isinstance(step, FolderSynced):
            inside = [each for each in self._changed_names if _folder(each.path) == step.path]
            self._changed_names = [each for each in self._changed_names if each not in inside]
            self._names = _apply_names(self._names, inside)
        elif isinstance(step, Wrote) and self._is_over_a_sector(step):
            self._durable[step.file] = _whole(self._durable[step.file], [step])
        elif isinstance(step, Synced):
            changes = self._unsynced.pop(step.file, [])
            self._durable[step.file] = _whole(self._durable[step.file], changes)
        else:
            self._unsynced.setdefault(step.file, []).append(step)

    def _is_over_a_sector(self, step: Wrote) -> bool:
        """Return whether a write changes bytes within one sector that is on the disk.

        A crash may leave any subset of unsynced writes; this model keeps the last.
        """
        end = step.place + len(step.data)
        is_one = step.place // SECTOR_BYTES == (end - 1) // SECTOR_BYTES
        return is_one and end <= len(self._durable[step.file]) and step.file not in self._unsynced

    def everything(self) -> Contents:
        """Return the contents if a crash loses nothing."""
        names = _apply_names(self._names, self._changed_names)
        return {
            path: _whole(self._durable[file], self._unsynced.get(file, []))
            for path, file in names.items()
            if file >= 0
        }

    def all(self) -> Iterator[Contents]:
        """Yield all contents that a crash at this moment may leave, also repeatedly."""
        names, remains = self._possible()
        for chosen in names:
            for left in product(*remains.values()):
                yield self._state(chosen, dict(zip(remains, left, strict=True)))

    def some(self, random: Random, count: int) -> list[Contents]:
        """Return the contents that surely survive a crash now, and some other possible contents.

        Only these states are built: after a large transaction there are thousands.
        """
        names, remains = self._possible()
        total = len(names) * prod(map(len, remains.values()))
        found = []
        for number in (0, *random.sample(range(1, total), min(total - 1, count))):
            rest, chosen = divmod(number, len(names))
            left = {}
            for file, choices in remains.items():
                rest, place = divmod(rest, len(choices))
                left[file] = choices[place]
            found.append(self._state(names[chosen], left))
        return found

    def _possible(self) -> tuple[list[dict[str, int]], dict[int, list["_Remains"]]]:
        """Return the possible names, and the possible remains of each unsynced file."""
        names = [
            _apply_names(self._names, [self._changed_names[place] for place in chosen])
            for chosen in _subsets(len(self._changed_names))
        ]
        return names, {file: [*_left(changes)] for file, changes in self._unsynced.items()}

    def _state(self, names: Mapping[str, int], left: Mapping[int, "_Remains"]) -> Contents:
        built = {file: each.built(self._durable[file]) for file, each in left.items()}
        found = {**self._durable, **built}
        return {
            path: found[file]
            for path, file in names.items()
            if file >= 0 and _folder(path) in names
        }


@dataclass(frozen=True, slots=True)
class _Remains:
    """The surviving unsynced changes of a file.

    Attributes:
        whole: complete changes.
        pieces: parts of one more change.
        size: minimum size of the file with these pieces.
        after: complete changes on top of the pieces.
    """

    whole: list[_Change]
    pieces: Sequence[_Piece] = ()
    size: int = 0
    after: Sequence[_Change] = ()

    def built(self, content: bytes) -> bytes:
        """Return the content of the file, from the content before these changes."""
        return _whole(_with(_whole(content, self.whole), self.pieces, self.size), self.after)


@cache
def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _subsets(count: int) -> Iterator[list[int]]:
    """Yield all subsets of the last few changes, each with all earlier changes."""
    before = list(range(max(0, count - TOGETHER)))
    rest = range(len(before), count)
    for picked in product((False, True), repeat=len(rest)):
        yield [*before, *(place for place, is_in in zip(rest, picked, strict=True) if is_in)]


def _apply_names(names: Mapping[str, int], changes: Iterable[Named | Removed]) -> dict[str, int]:
    found = dict(names)
    for change in changes:
        if isinstance(change, Named):
            found[change.path] = change.file
        else:
            found.pop(change.path, None)
    return found


def _whole(content: bytes, changes: Iterable[_Change]) -> bytes:
    for change in changes:
        if isinstance(change, Cut):
            content = content[: change.size]
        else:
            content = _with(content, [(change.place, change.data)])
    return content


def _with(content: bytes, pieces: Iterable[_Piece], size: int = 0) -> bytes:
    """Return content with pieces laid over, padded with zeros to the size."""
    for place, data in pieces:
        content = content.ljust(place, b"\0")
        content = content[:place] + data + content[place + len(data) :]
    return content.ljust(size, b"\0")


def _left(changes: list[_Change]) -> Iterator[_Remains]:
    """Yield the possible remains of a file: any of the changes, with one torn change."""
    for chosen in _subsets(len(changes)):
        yield _Remains([changes[place] for place in chosen])
        for torn in chosen:
            change = changes[torn]
            if isinstance(change, Wrote):
                before = [changes[place] for place in chosen if place < torn]
                after = [changes[place] for place in chosen if place > torn]
                for pieces, size in _torn(change):
                    yield _Remains(before, pieces, size, after)


def _torn(write: Wrote) -> Iterator[tuple[Sequence[_Piece], int]]:
    end = write.place + len(write.data)
    for size in _tears(len(write.data)):
        part = [(write.place, write.data[:size])]
        yield part, 0
        yield part, end
    sectors = _sectors(write)
    if 1 < len(sectors) <= TOGETHER:
        for picked in product((False, True), repeat=len(sectors)):
            yield [piece for piece, is_in in zip(sectors, picked, strict=True) if is_in], end


def _tears(size: int) -> Iterable[int]:
    if size <= EVERY_BYTE_BYTES:
        return range(1, size)
    if size > 4 * SECTOR_BYTES:
        return (1, *range(SECTOR_BYTES, size, SECTOR_BYTES), size - 1)
    edges = (1, 4, 27, 28, 35, 36, 37, 43, 51, size // 2, size - 8, size - 1)
    return sorted({each for each in (*edges, *range(7, size, 61)) if 0 < each < size})


def _sectors(write: Wrote) -> list[_Piece]:
    found = []
    place, end = write.place, write.place + len(write.data)
    while place < end:
        upper = min(end, place - place % SECTOR_BYTES + SECTOR_BYTES)
        found.append((place, write.data[place - write.place : upper - write.place]))
        place = upper
    return found
