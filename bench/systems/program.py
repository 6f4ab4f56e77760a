"""External programs in place of the project's processes: the start of servers by agents."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from bench.systems.disk_faults import DiskFaults
from bench.systems.synced_files import keep_synced, lose_unsynced


def run_program(config: dict[str, Any]) -> NoReturn:
    """Become `command` in `folder` (role "program" of the agent); the agent remains the parent.

    With a folder `kept`, all unsynced data of the last process is lost. A `control_socket` accepts
    faults of the disk.
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
