"""What a broker finds of its logs and rows together."""

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest

from brokerd.config import BrokerConfig
from brokerd.errors import DiskFailed, StorageCorrupt
from brokerd.protocols.interface import LogEnds
from brokerd.runtime.stores import Stores
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import LogVolume


def config_of(deployment_id: str, broker: str = "b1") -> BrokerConfig:
    unused = {"topology_file": "", "protocol": "", "listen": "", "addresses": {}}
    paths = {"state_folder": "", "control_socket": "", "log_folder": ""}
    return BrokerConfig(broker=broker, deployment_id=deployment_id, **unused, **paths)


def test_a_start_that_a_crash_ended_leaves_nothing_of_another_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between rows and logs: the rows are of the new one already."""
    with closing(Stores(config_of("d1"), tmp_path, ("a",))) as stores:
        stores.begin()
        assert stores.volume is not None
        stores.volume.write([LogEntry(EntryKind.APPENDED, "a", 1, [b"of d1"])])

    def crash(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(Stores(config_of("d2"), tmp_path, ("a",))) as stores:
        monkeypatch.setattr(LogVolume, "begin", crash)
        with pytest.raises(DiskFailed, match=os.strerror(errno.EIO)):
            stores.begin()
    monkeypatch.undo()
    with closing(Stores(config_of("d2"), tmp_path, ("a",))) as stores:
        stores.begin()
        assert stores.ends == {"a": LogEnds(1, 1)}


def test_what_another_broker_has_written_is_refused(tmp_path: Path) -> None:
    """Its rows would say that subscriptions have what they never got."""
    with closing(Stores(config_of("d1", "b2"), tmp_path, ())) as stores:
        stores.begin()
        stores.meta.commit([("t", "k", 1)])
    with (
        closing(Stores(config_of("d1", "b1"), tmp_path, ())) as stores,
        pytest.raises(StorageCorrupt, match=r"meta\.sqlite3: this is of 'b2', and 'b1' has it"),
    ):
        stores.begin()
    with closing(Stores(config_of("d1", "b2"), tmp_path, ())) as stores:
        assert stores.begin().rows == {"t": {"k": 1}}
