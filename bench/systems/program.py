"""A program in place of a process of ours: how agents start servers of systems under test."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any, NoReturn

from bench.systems.synced_files import keep_synced, lose_unsynced


def run_program(config: dict[str, Any]) -> NoReturn:
    """Become `command` in `folder` (role "program" of the agent); the agent remains its parent.

    Where there is a folder `kept`, all that the last one had not synced is lost.
    """
    folder = Path(config["folder"])
    if "kept" in config:
        kept = Path(config["kept"])
        if kept.exists():
            lose_unsynced(folder, kept)
        else:
            shutil.copytree(folder, kept)
        keep_synced(folder, kept)
    os.chdir(folder)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    command = config["command"]
    os.execv(command[0], command)
