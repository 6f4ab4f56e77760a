"""Commands that run modules of this program in another process of this interpreter."""

import resource
import sys


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
