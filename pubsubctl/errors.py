"""What can go wrong for the person at the command line, and the exit status each kind has.

Any exception whose class has an `exit_status` is reported as one sentence without a traceback,
the packages below included (their errors carry the attribute without importing this module).
"""

from collections.abc import Iterable
from typing import ClassVar

INTERNAL_ERROR = 70
INTERRUPTED = 130
TERMINATED = 143

# What a script must not miss comes first: a dirty lab spoils the next run, a broken file makes
# every verdict worthless, and so on down to what stopped us before anything had happened.
_PRECEDENCE = (INTERNAL_ERROR, 7, 8, TERMINATED, INTERRUPTED, 1, 3, 5, 6, 4, 2, 0)


class PubsubctlError(Exception):
    """Base of what is reported in a sentence or a few.

    Attributes:
        problems: every single thing that is wrong, one line each.
    """

    exit_status: ClassVar[int] = INTERNAL_ERROR

    def __init__(self, *problems: str) -> None:
        assert problems, "an error has to say something"
        self.problems = problems
        super().__init__("\n".join(problems))


class VerdictInvalid(PubsubctlError):
    """A guarantee was violated."""

    exit_status = 1


class ExpectationFailed(PubsubctlError):
    """A run is not as its workload expects, or a threshold was crossed."""

    exit_status = 1


class UserError(PubsubctlError):
    """What was asked for cannot be: names file, key, value and the nearest valid one."""

    exit_status = 2


class VerdictUnknown(PubsubctlError):
    """The run shows neither that the guarantee holds nor that it does not."""

    exit_status = 3


class PreflightFailed(PubsubctlError):
    """Found before anything was started: a port in use, a stale process, a lock held."""

    exit_status = 4


class HostError(PubsubctlError):
    """Something failed on some hosts; the message says where and what was still done."""

    exit_status = 5


class Unreachable(PubsubctlError):
    """No host could be reached."""

    exit_status = 6


class LabDirty(PubsubctlError):
    """Something of ours is still there that should not be, or may be."""

    exit_status = 7


class IntegrityError(PubsubctlError):
    """A file is not what was written: checksum or record layout."""

    exit_status = 8


class Interrupted(PubsubctlError):
    """Ctrl-C; what had to be cleaned up was."""

    exit_status = INTERRUPTED


class Terminated(PubsubctlError):
    """SIGTERM or SIGHUP, handled like Ctrl-C."""

    exit_status = TERMINATED


def combined_status(statuses: Iterable[int]) -> int:
    """The one exit status for several causes: the cause a script must not miss."""
    found = set(statuses)
    return min(found, key=_rank, default=0)


def _rank(status: int) -> int:
    return _PRECEDENCE.index(status) if status in _PRECEDENCE else -1  # never heard of: look at it
