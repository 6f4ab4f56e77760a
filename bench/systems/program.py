"""A program in place of a process of ours: how agents start servers of systems under test."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from bench.systems.disk_faults import DiskFaults
from bench.systems.synced_files import keep_synced, lose_unsynced


def run_program(config: dict[str, Any]) -> NoReturn:
    """Become `command` in `folder` (role "program" of the agent); the agent remains its parent.

    Where there is a folder `kept`, all that the last one had not synced is lost. Where there is a
    `control_socket`, faults of the disk can be asked for there.
    """
    folder = Path(config["folder"])
    kept = Path(config["kept"]) if "kept" in config else None
    disk = DiskFaults(config["control_socket"]) if "control_socket" in config else None
    if kept is not None:
        if kept.exists():
            lose_unsynced(folder, kept)
        else:
            shutil.copytree(folder, kept)
    if kept is not None or disk is not None:
        try:
            keep_synced(folder, kept, disk)
        except OSError as error:
            sys.exit(f"nothing can stand between a program and its disk here: {error}")
    os.chdir(folder)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    command = config["command"]
    os.execv(command[0], command)
