"""The files of an agent: below its root, with sockets in a folder with a short path."""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerd.errors import ConfigError

PROCESS_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class AgentPaths:
    """The files of the agent of one root."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "agent"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "agent.log"

    @property
    def lock(self) -> Path:
        """The lock file (flock) of the living agent of this root."""
        return self.folder / "lock"

    @property
    def announcement(self) -> Path:
        """The identity of the agent and the path of its socket, as JSON."""
        return self.folder / "agent.json"

    @property
    def processes(self) -> Path:
        """The folder with one file per started process, locked by the process during its life."""
        return self.folder / "processes"

    @property
    def leases(self) -> Path:
        """The folder with one file per lease that a watchdog reads."""
        return self.folder / "leases"

    def process_file(self, process: str) -> Path:
        return self.processes / f"{process}.json"

    def make(self) -> None:
        """Make the folders, for this user alone.

        Raises:
            ConfigError: the root is not an absolute path, or belongs to another user.
        """
        if not self.root.is_absolute():
            raise ConfigError(f"{self.root}: an agent's root must be an absolute path")
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.lstat(self.root).st_uid != os.geteuid():
            raise ConfigError(f"{self.root}: belongs to another user")
        for folder in (self.folder, self.processes, self.leases):
            folder.mkdir(mode=0o700, exist_ok=True)

    def resolve_inside(self, path: str) -> Path:
        """Return `path` (absolute, or relative to the root), which must be below the root.

        Raises:
            ConfigError: the path is not below the root.
        """
        resolved = (self.root / path).resolve()
        if not resolved.is_relative_to(self.root.resolve()):
            raise ConfigError(f"{path}: not below {self.root}")
        return resolved


def socket_folder(root: Path) -> Path:
    """Return the folder of this root's sockets: a short path, this user's alone."""
    digest = hashlib.blake2b(os.fsencode(root), digest_size=4).hexdigest()
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not os.access(base, os.W_OK | os.X_OK):  # not set, or that of another login
        base = "/tmp"
    return Path(base) / f"pubsubctl-{os.geteuid()}-{digest}"


def read_announcement(root: Path) -> dict[str, Any] | None:
    """Return the announcement of the last agent of this root, with its `socket`.

    None if there is none. The announced socket is used, not a computed path: the folder depends on
    the agent's environment.
    """
    try:
        found = json.loads(AgentPaths(root).announcement.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    assert isinstance(found, dict), found
    return found
