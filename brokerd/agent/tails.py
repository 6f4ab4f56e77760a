"""The ends of log files, for remote readers that follow the files."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from brokerd.errors import ControlError

SUFFIXES: Final = (".log", ".jsonl")
MOST_BYTES: Final = 512 * 1024  # of one answer, which is one frame


def read_tails(folder: Path, after: Mapping[str, Any], last_bytes: int) -> list[dict[str, Any]]:
    """Return the content of the log files in `folder` behind the given places.

    Args:
        after: by name, the number of bytes received already; of a file not named, the end is
            returned.
        last_bytes: length of that end.

    Returns:
        per regular file with new content: name, offset of `data` in the file, data, size_bytes. A
            file that has become shorter is read from the start. If not all content fits, a further
            call returns the rest.

    Raises:
        ControlError: `user`: an argument of another kind.
    """
    if not all(type(place) is int and place >= 0 for place in after.values()) or last_bytes < 0:
        raise ControlError("user", "places in files are whole numbers from 0")
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = []
    room = MOST_BYTES
    for entry in entries:
        if not entry.name.endswith(SUFFIXES) or not entry.is_file(follow_symlinks=False):
            continue
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone, or become a link, since it was listed
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                continue
            size = status.st_size
            offset = after.get(entry.name, max(0, size - last_bytes))
            offset = 0 if offset > size else offset
            data = os.pread(descriptor, min(room, size - offset), offset)
        finally:
            os.close(descriptor)
        if data:
            room -= len(data)
            found.append({"name": entry.name, "offset": offset, "data": data, "size_bytes": size})
    return found
