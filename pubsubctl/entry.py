"""The entry point of the command, which runs before slow imports."""

import gc
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Import the command and run it; Ctrl-C during the import prints no traceback."""
    if sys.argv[1:] == ["--version"]:  # the command answers the same, after slow imports
        from importlib.metadata import version

        sys.stdout.write(f"pubsubctl {version('pubsubctl')}\n")
        sys.exit(0)
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    # Nothing that is imported is garbage; to look for some takes a fifth of the start.
    gc.disable()
    from pubsubctl.commands.app import main as carry_out

    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, on_interrupt)
    carry_out()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End at once: nothing has been begun that would have to be ended in order."""
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)
