"""Tests of recovery from logs and rows together."""

from contextlib import closing
from pathlib import Path

import pytest

from brokerd.config import BrokerConfig
from brokerd.errors import StorageCorrupt
from brokerd.runtime.stores import Stores


def config_of(deployment_id: str, broker: str = "b1") -> BrokerConfig:
    unused = {"topology_file": "", "protocol": "", "listen": "", "addresses": {}}
    paths = {"state_folder": "", "control_socket": "", "log_folder": ""}
    return BrokerConfig(broker=broker, deployment_id=deployment_id, **unused, **paths)


def test_rows_of_another_broker_are_refused(tmp_path: Path) -> None:
    """The rows would acknowledge deliveries that subscriptions never received."""
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
