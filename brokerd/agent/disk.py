"""What a process keeps on its disk."""

import os
from pathlib import Path
from typing import Any, Final

FOLDERS: Final = ("state_folder", "folder")
"""As which a process is told where it keeps what it keeps, whoever it is."""
_BLOCK_BYTES: Final = 512


def disk_bytes_of(config: dict[str, Any]) -> int | None:
    """How much disk the files of a process take; None where it has no folder of its own."""
    folder = next((config[key] for key in FOLDERS if isinstance(config.get(key), str)), "")
    return _disk_bytes(Path(folder)) if folder else None


def _disk_bytes(folder: Path) -> int:
    """Of all files below; what goes while it is looked at does not count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                pass  # brokers remove what they need no more
    return total
