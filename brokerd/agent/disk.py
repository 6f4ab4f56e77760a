"""The disk use of a process."""

import os
from pathlib import Path
from typing import Any, Final

FOLDERS: Final = ("state_folder", "folder")
"""Keys of the configuration that name the data folder of a process, for every role."""
_BLOCK_BYTES: Final = 512


def disk_bytes_of(config: dict[str, Any]) -> int | None:
    """Return the disk use of a process in bytes; None without a folder of its own."""
    folder = next((config[key] for key in FOLDERS if isinstance(config.get(key), str)), "")
    return _disk_bytes(Path(folder)) if folder else None


def _disk_bytes(folder: Path) -> int:
    """Return the size of all files below; a file that is removed meanwhile does not count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                pass  # brokers remove files that are no longer needed
    return total
