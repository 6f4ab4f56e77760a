"""Commands that run modules of this program in another process of this interpreter."""

import resource
import sys
from typing import Final

NO_PROCESS: Final = "this account may start no further process or thread (`ulimit -u`)"
NO_PROCESS_ADVICE: Final = "raise the limit, or end other processes of this account"


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this program.

    The current folder does not become part of the child's search path: a user's `random.py` there
    would replace the library's.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process, and of its children, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:  # a service manager may have seen to it, and forbid the call
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def has_met_process_limit(error: BaseException) -> bool:
    """Return True for the failure of a fork, or of the start of a thread, at a limit.

    To be called for errors of operations that wait for no socket: those fail with EAGAIN, too.
    """
    is_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    return is_thread or (isinstance(error, BlockingIOError) and error.filename is None)
