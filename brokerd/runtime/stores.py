"""What a broker finds on its disk when it starts, also on one that is full just then."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.config import BrokerConfig
from brokerd.errors import DiskFailed, StorageCorrupt
from brokerd.protocols.interface import CoreStatus, LogEnds
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.control import ControlServer
from brokerd.runtime.durable import ROOM_RETRY_S
from brokerd.runtime.program import own_program
from brokerd.storage.log_volume import LogVolume
from brokerd.storage.meta_store import Beginning, MetaStore, SqliteMetaStore
from brokerd.storage.room import is_no_room

NO_ROOM_STATE: Final = "no room on its disk"
"""The state of a broker that has not begun yet, because its disk is full."""
_OLD_LOG: Final = "publications"


class Stores:
    """The durable files of one broker, in its state folder.

    Args:
        logs: the names of its logs.

    Attributes:
        volume: of its logs, once begun; None without any.
        ends: of its logs, as it found them.
    """

    def __init__(self, config: BrokerConfig, folder: Path, logs: tuple[str, ...]) -> None:
        self._config = config
        self._logs = logs
        self._folder = folder
        self._meta: MetaStore | None = None
        self.volume: LogVolume | None = None
        self.ends: Mapping[str, LogEnds] = {}

    @property
    def meta(self) -> MetaStore:
        """The meta store, once begun."""
        assert self._meta is not None, "not begun"
        return self._meta

    def begin(self) -> Beginning:
        """Open everything, for a new incarnation.

        Raises:
            OSError: where there was no room on the disk, there is no new incarnation, and this
                may be called again.
            DiskFailed: it could not be read or written otherwise.
            StorageCorrupt: what is there cannot be what a broker wrote.
        """
        try:
            return self._begin()
        except OSError as error:
            if is_no_room(error):
                raise
            raise DiskFailed(str(error)) from error

    def _begin(self) -> Beginning:
        config, folder = self._config, self._folder
        if self._logs and self.volume is None:
            self.volume = LogVolume(folder / "logs", fsync=config.fsync)
        if self._meta is None:
            path = folder / "meta.sqlite3"
            self._meta = SqliteMetaStore(path, fsync=config.fsync, owner=config.broker)
        if self.volume is not None and not self._meta.knows(config.deployment_id):
            self.volume.clear()  # first: else, after a crash, it would be taken for this one's
        beginning = self._meta.begin(config.deployment_id)
        if self.volume is not None:
            found = self.volume.begin(self._logs, recovering=beginning.recovering)
            self.ends = {log: LogEnds(*ends) for log, ends in found.items()}
        if beginning.recovering and (folder / _OLD_LOG).is_dir():
            raise StorageCorrupt(f"{folder / _OLD_LOG}: written by an earlier version of brokerd")
        return beginning

    def close(self) -> None:
        """Let go of what is open."""
        if self._meta is not None:
            self._meta.close()
        if self.volume is not None:
            self.volume.close()


async def begin_with_room(
    stores: Stores, config: BrokerConfig, digest: str
) -> tuple[Beginning, int]:
    """`stores.begin()`, again and again while their disk is full; and how many ns it was.

    Meanwhile the broker answers on its control socket that this is its state, and nothing else.
    A signal that is to end it ends it as such.
    """
    try:
        return await trio.to_thread.run_sync(stores.begin), 0
    except OSError as error:
        if not is_no_room(error):
            raise
        say(config, f"no room in {config.state_folder} ({error.strerror}); waiting for it")
    full_ns = clock_ns()
    status = _waiting_status(config, digest)

    async def answer(_: Mapping[str, Any]) -> dict[str, Any]:
        return status

    async with trio.open_nursery() as nursery:
        await nursery.start(ControlServer({"status": answer}).serve, config.control_socket)
        while True:
            await trio.sleep(ROOM_RETRY_S)
            try:
                beginning = await trio.to_thread.run_sync(stores.begin)
                break
            except OSError as error:
                if not is_no_room(error):
                    raise
        nursery.cancel_scope.cancel()
    say(config, "there is room")
    return beginning, clock_ns() - full_ns


def say(config: BrokerConfig, text: str) -> None:
    """Tell whoever reads this process's standard error."""
    print(f"broker {config.broker}: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _waiting_status(config: BrokerConfig, digest: str) -> dict[str, Any]:
    """What `status` answers of a broker that has nothing to tell of but its disk."""
    core: CoreStatus[str] = CoreStatus(state=NO_ROOM_STATE)
    return {
        **core.to_mapping({}),
        "name": config.broker,
        "pid": os.getpid(),
        "incarnation": 0,
        "program": own_program().to_mapping(),
        "protocol": config.protocol,
        "deployment_id": config.deployment_id,
        "topology_digest": digest,
        "sessions": [],
        "faults": [],
        "clients": 0,
        "probed": False,
        "unprobed": {},
        "run_id": "",
    }
