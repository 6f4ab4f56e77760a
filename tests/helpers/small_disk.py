"""A small disk for tests that fill it; only root can mount a disk."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a disk of this size at a new folder; skip the test if the machine permits none."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def limit_writes(monkeypatch: pytest.MonkeyPatch, room_bytes: int) -> None:
    """Let `os.write` fail for lack of room after so many bytes, until the patches are undone."""
    write, left = os.write, room_bytes

    def write_until_full(file: int, data: memoryview) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(file, data[:left])
        left -= written
        return written

    monkeypatch.setattr(os, "write", write_until_full)


def fill_disk(disk: Path) -> Path:
    """Fill the disk with a file; return the path."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(disk).f_bavail == 0
    return filler
