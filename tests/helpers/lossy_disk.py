"""A disk that loses all unsynced changes when the machine crashes."""

import os
from pathlib import Path
from typing import Any

import pytest


class LossyDisk:
    """A layer between this process and the files below a folder.

    `crash` leaves the guaranteed remains of a power failure: of each file the content at the last
    fsync or fdatasync, and of each folder the entries at the folder's last fsync.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = str(root)
        self._durable: dict[str, bytes] = {}
        self._entries: dict[str, dict[str, bytes | None]] = {}
        self._open, self._unlink, self._mkdir = os.open, os.unlink, os.mkdir
        for name, stand_in in (
            ("open", self.open),
            ("unlink", self.unlink),
            ("mkdir", self.mkdir),
            ("fsync", self.sync),
            ("fdatasync", self.sync),
        ):
            monkeypatch.setattr(os, name, stand_in)

    def open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        name = str(path)
        is_new = name.startswith(self._root) and not os.path.lexists(name)
        descriptor = self._open(path, flags, mode, **more)
        if is_new:
            self._durable[name] = b""
            self._record_change(name, None)
        return descriptor

    def mkdir(self, path: Any, mode: int = 0o777, **more: Any) -> None:
        self._mkdir(path, mode, **more)
        if str(path).startswith(self._root):
            self._record_change(str(path), None)

    def unlink(self, path: Any, **more: Any) -> None:
        name = str(path)
        if name.startswith(self._root):
            before = self._durable[name] if name in self._durable else Path(name).read_bytes()
            self._record_change(name, before)
        self._unlink(path, **more)

    def sync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self._entries.pop(path, None)
        elif path.startswith(self._root):
            self._durable[path] = Path(path).read_bytes()

    def has(self, path: Path, content: bytes) -> None:
        """Record the durable content of a pre-existing file."""
        self._durable[str(path)] = content

    def crash(self) -> None:
        """Reduce the disk to the contents that surely survive a power failure."""
        for path, content in self._durable.items():
            if os.path.lexists(path):
                Path(path).write_bytes(content)
        for entries in self._entries.values():
            for path, content in entries.items():
                if content is not None:
                    Path(path).write_bytes(content)
                elif os.path.isdir(path):
                    for inside in Path(path).iterdir():
                        self._unlink(inside)
                    os.rmdir(path)
                elif os.path.lexists(path):
                    self._unlink(path)
        self._entries.clear()

    def _record_change(self, path: str, before: bytes | None) -> None:
        """Record a change of a folder's entry; `before` is None for a new entry."""
        self._entries.setdefault(os.path.dirname(path), {}).setdefault(path, before)
