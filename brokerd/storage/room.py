"""What a full disk looks like."""

import errno
from typing import Final

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


def is_no_room(error: OSError) -> bool:
    """Whether a write failed for lack of room only, so that it may be tried again."""
    return error.errno in NO_ROOM
