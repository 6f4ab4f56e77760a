"""The entry point of the command, which runs before slow imports."""

import gc
import os
import signal
import stat
import sys
from types import FrameType
from typing import NoReturn

MISUSED = 2
UNWRITABLE = 4
INTERRUPTED = 130


def main() -> NoReturn:
    """Import the command and run it; Ctrl-C during the import prints no traceback."""
    _open_streams()
    _restore_checks()
    protect_files()
    if sys.argv[1:] == ["--version"]:  # the command answers the same, after slow imports
        from importlib.metadata import version

        try:
            sys.stdout.write(f"pubsubctl {version('pubsubctl')}\n")
            sys.stdout.flush()
        except OSError as error:
            cause = (error.strerror or "cannot be written").lower()
            os.write(2, f"error: standard output: {cause}\n".encode())
            os._exit(UNWRITABLE)
        sys.exit(0)
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    # Nothing that is imported is garbage; to look for some takes a fifth of the start.
    gc.disable()
    from pubsubctl.commands.app import main as carry_out

    gc.freeze()
    gc.enable()
    try:
        signal.signal(signal.SIGINT, on_interrupt)
        carry_out()
    except KeyboardInterrupt:  # before the command began, or once more while it ended
        _leave(signal.SIGINT, None)


def _open_streams() -> None:
    """Replace closed standard streams, so that no file takes their numbers.

    A command without an output has no result: it ends before it has done anything.
    """
    has_output = sys.stdout is not None
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115
    if not has_output:
        os.write(2, b"error: standard output is closed; redirect it to a file or to /dev/null\n")
        sys.exit(UNWRITABLE)


def _restore_checks() -> None:
    """Start the command again if PYTHONOPTIMIZE has removed assertions and help texts.

    Without assertions, brokers continue after faults, and simulations find fewer faults.
    """
    if not sys.flags.optimize:
        return
    if os.environ.pop("PYTHONOPTIMIZE", ""):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    os.write(2, b"error: python -O removes checks of this program; start it without -O\n")
    sys.exit(MISUSED)


def protect_files() -> None:
    """Deny write access to the files of this command to users outside the user's group.

    In a folder that is writable for all users, private folders can be replaced by others.
    """
    os.umask(os.umask(0o077) | stat.S_IWOTH)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End at once: nothing that has been begun would have to be ended in order."""
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)
