"""Errors of the command line, with an exit status per kind.

Any exception of a class with an `exit_status` is reported as one sentence without a traceback, the
packages below included (their errors carry the attribute without importing this module).
"""

from collections.abc import Iterable
from typing import ClassVar

INTERNAL_ERROR = 70
INTERRUPTED = 130
TERMINATED = 143

# The status that a script must not miss comes first: a dirty lab spoils the next run, a broken file
# makes every verdict worthless, down to errors before any effect.
_PRECEDENCE = (INTERNAL_ERROR, 7, 8, TERMINATED, INTERRUPTED, 1, 3, 5, 6, 4, 2, 0)


class PubsubctlError(Exception):
    """Base of errors that are reported in a sentence or a few.

    Attributes:
        problems: every problem, one line each.
    """

    exit_status: ClassVar[int] = INTERNAL_ERROR

    def __init__(self, *problems: str) -> None:
        assert problems, "an error needs a text"
        self.problems = problems
        super().__init__("\n".join(problems))


class VerdictInvalid(PubsubctlError):
    """A violated guarantee."""

    exit_status = 1


class ExpectationFailed(PubsubctlError):
    """A run does not meet its workload's expectation, or a threshold was crossed."""

    exit_status = 1


class UserError(PubsubctlError):
    """An invalid request: names file, key, value and the nearest valid value."""

    exit_status = 2


class VerdictUnknown(PubsubctlError):
    """The run proves neither that the guarantee holds nor that it does not."""

    exit_status = 3


class PreflightFailed(PubsubctlError):
    """A problem found before the start: a port in use, a stale process, a held lock."""

    exit_status = 4


class HostError(PubsubctlError):
    """A failure on some hosts; the message names the hosts and the completed work."""

    exit_status = 5


class Unreachable(PubsubctlError):
    """No host could be reached."""

    exit_status = 6


class LabDirty(PubsubctlError):
    """Remains of ours that should not exist, or may exist."""

    exit_status = 7


class IntegrityError(PubsubctlError):
    """A file differs from the written content: checksum or record layout."""

    exit_status = 8


class Interrupted(PubsubctlError):
    """Ctrl-C; the clean-up is complete."""

    exit_status = INTERRUPTED


class Terminated(PubsubctlError):
    """SIGTERM or SIGHUP, handled like Ctrl-C."""

    exit_status = TERMINATED


def combine_statuses(statuses: Iterable[int]) -> int:
    """Return the exit status for several causes: the status that a script must not miss."""
    found = set(statuses)
    return min(found, key=_rank, default=0)


def _rank(status: int) -> int:
    return _PRECEDENCE.index(status) if status in _PRECEDENCE else -1  # unknown: must not be missed
