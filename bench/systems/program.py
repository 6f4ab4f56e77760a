"""A program in place of a process of ours: how agents start servers of systems under test."""

import os
import signal
from typing import Any, NoReturn


def run_program(config: dict[str, Any]) -> NoReturn:
    """Become `command` in `folder` (role "program" of the agent); the agent remains its parent."""
    os.chdir(config["folder"])
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    command = config["command"]
    os.execv(command[0], command)
