"""Records of a run on an external broker that this machine had no room for.

The records are in the folder of the run's servers (`bench.systems.servers`), on this machine. The
servers and their agent have ended, so files are read without an agent.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

import trio

from bench.run.collection import RecordFolder
from brokerd.files import file_sha256

SERVERS_FOLDER: Final = "pubsubctl-system-"
"""The beginning of the name of a folder with the servers of a run."""
_NOT_RECORDS: Final = ("servers", "kept")
"""State of servers and of their disks."""


def is_servers_folder(name: str) -> bool:
    """Return True for the name of a folder with servers, which is the name of their deployment."""
    return name.startswith(SERVERS_FOLDER) and "/" not in name


@dataclass(frozen=True, slots=True)
class LeftRecords:
    """A folder of servers with the records of a run.

    Attributes:
        root: the folder.
    """

    root: Path

    @classmethod
    def find(cls, deployment: str, folders: list[RecordFolder]) -> "LeftRecords":
        """Return the folder of a deployment that contains the folders of a run.

        Raises:
            FileNotFoundError: there is no such folder of this user any more.
        """
        assert is_servers_folder(deployment), deployment
        named = [Path(each.folder) for each in folders if each.folder is not None]
        found = next(
            (each for path in named for each in path.parents if each.name == deployment),
            Path(gettempdir()) / deployment,
        )
        if found.is_symlink() or not found.is_dir() or found.stat().st_uid != os.geteuid():
            raise FileNotFoundError(f"{found}: no such folder")
        return cls(found)

    async def files(self, process: str, folder: str) -> dict[str, Any]:
        """Return the files of a process, as an agent lists them."""
        where = Path(folder) if folder else self.root / "log" / process
        if not where.is_relative_to(self.root) or ".." in where.parts:
            return {"folder": str(where), "files": []}
        return {"folder": str(where), "files": await trio.to_thread.run_sync(_list, where)}

    def drop_state(self) -> None:
        """Remove everything but the records."""
        for name in _NOT_RECORDS:
            shutil.rmtree(self.root / name, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder after the collection."""
        shutil.rmtree(self.root, ignore_errors=True)


def _list(folder: Path) -> list[dict[str, Any]]:
    """Return the regular files in a folder: name, size_bytes, sha256; links are not followed."""
    if not folder.is_dir():
        return []
    paths = [each for each in sorted(folder.iterdir()) if each.is_file() and not each.is_symlink()]
    return [
        {"name": path.name, "size_bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in paths
    ]
