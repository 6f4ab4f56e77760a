"""Tests of crashes while saving: the last saved state or the new one remains."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from brokerd.client import store
from brokerd.client.store import FileStore
from tests.helpers.crash_states import CrashStates
from tests.helpers.memory_storage import Cut, FolderSynced, Named, Removed, Step, Synced, Wrote

SIZES = (40, 700, 0, 25)
"""The sizes of the saved states, in turn; sectors have 512 bytes."""
OF_A_MOMENT = 40
"""The number of possible states after a crash that are examined between two calls."""


class RecordedCalls:
    """The executed and recorded `os` calls of a store.

    Attributes:
        trail: see `tests.helpers.memory_storage`.
    """

    def __init__(self) -> None:
        self.trail: list[Step] = []
        self._files: dict[str, int] = {}
        self._written: dict[int, int] = {}

    def module(self) -> Any:
        own = {name: getattr(self, name) for name in ("open", "write", "fsync", "replace")}
        rest = {name: getattr(os, name) for name in ("fchmod", "close")}
        flags = {name: getattr(os, name) for name in dir(os) if name.startswith("O_")}
        return SimpleNamespace(**own, **rest, **flags)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        name = str(path)
        if flags & os.O_CREAT:
            if name not in self._files:
                self._files[name] = len(self._written)
                self.trail.append(Named(name, self._files[name]))
            else:
                self.trail.append(Cut(self._files[name], 0))
            self._written[self._files[name]] = 0
        return os.open(path, flags, mode)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write half of the data, as a disk may."""
        file = self._file(descriptor)
        part = bytes(data[: max(1, len(data) // 2)])
        self.trail.append(Wrote(file, self._written[file], part))
        self._written[file] += len(part)
        return os.write(descriptor, part)

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        is_folder = os.path.isdir(path)
        self.trail.append(FolderSynced(path) if is_folder else Synced(self._file(descriptor)))
        os.fsync(descriptor)

    def replace(self, fresh: Path, path: Path) -> None:
        file = self._files.pop(str(fresh))
        self._files[str(path)] = file
        self.trail += [Named(str(path), file), Removed(str(fresh))]
        os.replace(fresh, path)

    def _file(self, descriptor: int) -> int:
        return self._files[os.readlink(f"/proc/self/fd/{descriptor}")]


@contextmanager
def recorded() -> Iterator[RecordedCalls]:
    calls, before = RecordedCalls(), store.os
    store.os = calls.module()
    try:
        yield calls
    finally:
        store.os = before


def crash_everywhere(tmp_path: Path) -> int:
    """Crash between any two calls, check the stored state, and save again."""
    saved: list[bytes | None] = [None]
    lengths = [0]
    (tmp_path / "first").mkdir()
    (tmp_path / "again").mkdir()
    kept = FileStore(tmp_path / "first" / "client")
    random = Random(3)
    with recorded() as calls:
        for size in SIZES:
            saved.append(random.randbytes(size))
            kept.save(saved[-1] or b"")
            lengths.append(len(calls.trail))
    states = CrashStates(folders=[str(tmp_path / "first")])
    seen = 0
    for moment, step in enumerate(calls.trail, 1):
        states.take(step)
        done = max(n for n, length in enumerate(lengths) if length <= moment)
        found = list({tuple(each.items()): each for each in states.all()}.values())
        for state in (found[0], *random.sample(found[1:], min(len(found) - 1, OF_A_MOMENT))):
            seen += 1
            kept_now = load(tmp_path / "again", state, goes_on=seen % 64 == 0)
            assert kept_now in saved[done : done + 2], f"step {moment} of {len(calls.trail)}"
    return seen


def load(folder: Path, state: dict[str, bytes], *, goes_on: bool) -> bytes | None:
    for path in folder.iterdir():
        path.unlink()
    for name, content in state.items():
        (folder / Path(name).name).write_bytes(content)
    kept = FileStore(folder / "client")
    found = kept.load()
    if goes_on:
        kept.save(b"goes on")
        assert kept.load() == b"goes on"
    return found


def test_no_crash_loses_the_saved_state_of_a_client(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seen = crash_everywhere(tmp_path)
    record_property("measured", f"crash states of a client's store: {seen:,}, 0 saved lost")
    assert seen >= 500
