"""Failures of the operating system that pass: a full disk, and a lack of file descriptors."""

import errno
from typing import Final

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
"""This process, or the whole machine, has as many files open as it may have."""


def is_no_room(error: OSError) -> bool:
    """Return whether a write failed for lack of room only, so that it may be tried again."""
    return error.errno in NO_ROOM


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether a file or socket could not be opened for lack of descriptors only."""
    return error.errno in NO_DESCRIPTORS


def is_transient(error: OSError) -> bool:
    """Return whether the same operation may succeed later, because resources may be freed."""
    return is_no_room(error) or is_out_of_descriptors(error)
