"""Damage to the files of a stopped process, as by a faulty disk.

The place of the damage is drawn over all bytes of the matching files, so that a large file is more
likely to be damaged.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import Damage

ALL_FILES: Final = "*"


@dataclass(frozen=True, slots=True)
class Corruption:
    """One damage that was done.

    Attributes:
        file: path below the folder.
        offset_bytes: the place.
        size_bytes: size of the file before.
        before: the byte at the place before.
        after: the same byte now; None if the file ends at the place.
    """

    damage: Damage
    file: str
    offset_bytes: int
    size_bytes: int
    before: int
    after: int | None

    def to_row(self) -> dict[str, Any]:
        """Return the corruption as a JSON-ready row."""
        return asdict(self)

    def is_on_disk(self, folder: Path) -> bool:
        """Return True if the file still has the damage, as read again."""
        try:
            return _byte_at(folder / self.file, self.offset_bytes) == self.after
        except FileNotFoundError:
            return False


def corrupt(folder: Path, damage: Damage, pattern: str, draw: int) -> Corruption:
    """Damage one matching file of a folder, durably.

    Args:
        pattern: shell pattern of paths below the folder, as `log/*`; `*` matches all files.
        draw: determines the place, and the bit; the same draw strikes equal folders alike.

    Raises:
        ControlError: `user`: no matching file has a byte.
    """
    sizes = {name: (folder / name).stat().st_size for name in _files_below(folder, pattern)}
    total_bytes = sum(sizes.values())
    if not total_bytes:
        raise ControlError("user", f"file = {pattern!r}: no file in {folder} that has any bytes")
    bit, place = divmod(draw, total_bytes)
    for name, size_bytes in sizes.items():
        if place < size_bytes:
            return _strike(folder / name, name, damage, place, size_bytes, 1 << bit % 8)
        place -= size_bytes
    raise AssertionError(f"{place} is beyond {total_bytes} bytes")


def _files_below(folder: Path, pattern: str) -> Iterator[str]:
    """Yield the matching regular files, by name; links are not followed."""
    found = []
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            relative = path.relative_to(folder).as_posix()
            if path.is_file() and not path.is_symlink() and fnmatchcase(relative, pattern):
                found.append(relative)
    yield from sorted(found)


def _strike(
    path: Path, name: str, damage: Damage, place: int, size_bytes: int, bit: int
) -> Corruption:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        (before,) = os.pread(descriptor, 1, place)
        if damage == "bit":
            os.pwrite(descriptor, bytes([before ^ bit]), place)
        else:
            os.ftruncate(descriptor, place)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Corruption(damage, name, place, size_bytes, before, _byte_at(path, place))


def _byte_at(path: Path, place: int) -> int | None:
    """Return a byte of a file; None behind its end."""
    with path.open("rb") as file:
        file.seek(place)
        found = file.read(1)
    return found[0] if found else None
