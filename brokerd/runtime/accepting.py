"""Accepting connections on a listener that outlives every failure of a single connection.

Linux reports the pending network errors of a new connection as errors of `accept`. A process that
has no free file descriptor cannot accept either. Neither is a fault of the listener.
"""

import errno
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

ACCEPT_PAUSE_S: Final = 0.1
"""Pause after a failed `accept`: a connection that waits keeps the listener readable."""
_OF_LISTENER: Final = (errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTSOCK)

Accepted = TypeVar("Accepted")


async def accept_next(
    accept: Callable[[], Awaitable[Accepted]], report: Callable[[OSError], None]
) -> Accepted:
    """Return the next connection.

    Args:
        accept: accepts one connection.
        report: called with the first of consecutive failures; the others follow from the first.

    Raises:
        OSError: the listener itself cannot be used.
    """
    is_reported = False
    while True:
        try:
            return await accept()
        except OSError as error:
            if error.errno in _OF_LISTENER:
                raise
            if not is_reported:
                report(error)
            is_reported = True
            await trio.sleep(ACCEPT_PAUSE_S)
