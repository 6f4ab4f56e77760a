"""Transient failures of the operating system: a full disk, and a lack of file descriptors."""

import errno
from typing import Final

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
"""The process, or the whole machine, has reached its limit of open files."""


def is_no_room(error: OSError) -> bool:
    """Return True if a write failed for lack of room only, and may be repeated."""
    return error.errno in NO_ROOM


def is_out_of_descriptors(error: OSError) -> bool:
    """Return True if a file or socket could not be opened for lack of descriptors only."""
    return error.errno in NO_DESCRIPTORS


def is_transient(error: OSError) -> bool:
    """Return True if the same operation may succeed later, after resources are freed."""
    return is_no_room(error) or is_out_of_descriptors(error)
