"""Tests of recovery from logs and rows together."""

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from brokerd.config import BrokerConfig
from brokerd.errors import DiskFailed, StorageCorrupt
from brokerd.protocols.interface import Commit
from brokerd.runtime import stores as stores_module
from brokerd.runtime.control_socket import open_control
from brokerd.runtime.stores import NO_ROOM_STATE, Stores, WitnessRows, begin_with_room
from brokerd.sessions.messages import StateMark
from brokerd.sessions.state_marks import StateLedger, StateStart, StateWitness
from brokerd.storage.meta_store import VOUCHED, WITNESSED
from tests.helpers.virtual_time import in_virtual_time


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


@pytest.mark.parametrize("logs", [(), ("events",)])
def test_a_store_counts_the_writes_of_rows_and_logs_and_closes_all_files(
    tmp_path: Path, logs: tuple[str, ...]
) -> None:
    before = {*os.listdir("/proc/self/fd")}
    stores = Stores(config_of("d1"), tmp_path, logs)
    stores.begin()
    stores.meta.commit([("t", "k", 1)])
    stores.count_writes()
    groups = stores.volume.groups if stores.volume is not None else 0
    assert (stores.ledger.commits, stores.ledger.groups) == (stores.meta.commits, groups)
    stores.close()
    assert {*os.listdir("/proc/self/fd")} == before


class FailingStores:
    """Stores that fail to begin with these errors, in turn."""

    def __init__(self, *numbers: int) -> None:
        self.errors = [OSError(number, os.strerror(number)) for number in numbers]
        self.attempts = 0

    def begin(self) -> Any:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "begun"


@pytest.mark.parametrize(
    "numbers, last",
    [
        ((), ""),
        ((errno.ENOSPC,), ""),
        ((errno.ENOSPC, errno.EDQUOT, errno.ENOSPC), ""),
        ((errno.EIO,), "Input/output"),
        ((errno.ENOSPC, errno.EIO), "Input/output"),
    ],
)
def test_only_a_lack_of_room_is_waited_for(
    numbers: tuple[int, ...], last: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(stores_module, "ROOM_RETRY_S", 0)
    config = cast("Any", config_of("d1"))
    object.__setattr__(config, "control_socket", str(tmp_path / "c" / "s"))
    stores = FailingStores(*numbers)

    async def story() -> None:
        try:
            ended: Any = await begin_with_room(cast("Any", stores), config, "digest")
        except (OSError, BaseExceptionGroup) as error:
            ended = str(_innermost(error))
        if last:
            assert last in ended
        else:
            assert (ended[0], ended[1] > 0) == ("begun", bool(numbers))

    trio.run(story)
    assert stores.attempts == len(numbers) + (not last)
    said = capsys.readouterr().err
    assert ("waiting for it" in said) == (errno.ENOSPC in numbers)
    assert ("there is room" in said) == (errno.ENOSPC in numbers and not last)


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def test_a_broker_that_waits_for_room_answers_with_that_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_module, "ROOM_RETRY_S", 0.001)
    config = cast("Any", config_of("d1"))
    object.__setattr__(config, "control_socket", str(tmp_path / "c" / "s"))
    stores = FailingStores(errno.ENOSPC)
    has_asked = trio.Event()

    def begin(before: Any = stores.begin) -> Any:
        if stores.attempts and not has_asked.is_set():
            raise OSError(errno.ENOSPC, "still full")
        return before()

    monkeypatch.setattr(stores, "begin", begin)

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin_with_room, stores, config, "digest")
            while not (tmp_path / "c" / "s").exists():
                await trio.lowlevel.checkpoint()
            async with open_control(config.control_socket) as control:
                status = await control.request("status")
                has_asked.set()
            assert (status["state"], status["topology_digest"]) == (NO_ROOM_STATE, "digest")

    trio.run(story)


@pytest.mark.parametrize(
    "number, raised", [(errno.EIO, DiskFailed), (errno.ENOSPC, OSError), (errno.EDQUOT, OSError)]
)
def test_any_failure_to_open_but_a_lack_of_room_is_a_broken_disk(
    tmp_path: Path, number: int, raised: type[Exception]
) -> None:
    def fail() -> Any:
        raise OSError(number, "it fails")

    stores = cast("Any", Stores(config_of("d1"), tmp_path, ()))
    stores._begin = fail
    with pytest.raises(raised, match="it fails") as failed:
        stores.begin()
    assert type(failed.value) is raised


@in_virtual_time
async def test_marks_of_neighbours_are_written_when_changed_and_vouchers_at_once() -> None:
    written: list[dict[str, Any]] = []

    class NotingDisk:
        def commit(self, commit: Commit) -> None:
            written.append({change.key: change.value for change in commit.changes})

    start = StateStart(1, b"s", 0, 0)
    ledger = StateLedger.from_starts(b"k", 0, [start], ())
    witness = StateWitness()
    rows = WitnessRows(witness, ledger, cast("Any", NotingDisk()))
    mark = StateMark(0, 1, b"s", 3, 4, b"seal")

    def change(peer: int) -> None:
        witness.marks[peer] = mark
        witness.changed[peer] = None

    rows.write_changed()
    assert written == []
    change(1)
    rows.write_changed()
    change(2)
    rows.write_changed()
    assert [[*each] for each in written] == [["1"]], "the second is a moment later"
    ledger.vouched[2] = None
    rows.write_changed()
    assert written[1:] == [{"2": [*mark], VOUCHED: [2]}]
    ledger.vouched[1] = None
    rows.write_changed()
    assert written[2:] == [{VOUCHED: [2, 1]}]
    change(1)
    rows.write_all()
    rows.write_all()
    assert written[3:] == [{"1": [*mark]}]


@pytest.mark.parametrize("row, writes", [(True, [{VOUCHED: [2, 1]}]), ([2, 1], [])])
@in_virtual_time
async def test_a_voucher_of_an_earlier_release_is_replaced_by_the_neighbours(
    row: Any, writes: list[dict[str, Any]]
) -> None:
    written: list[dict[str, Any]] = []

    class NotingDisk:
        def commit(self, commit: Commit) -> None:
            written.append({change.key: change.value for change in commit.changes})

    ledger = StateLedger.from_starts(b"k", 0, [StateStart(1, b"s", 0, 0)], (2, 1))
    witness = StateWitness()
    mark = StateMark(0, 1, b"s", 3, 4, b"seal")
    rows = WitnessRows(witness, ledger, cast("Any", NotingDisk()))
    rows.recover({WITNESSED: {"2": [*mark], VOUCHED: row}})
    assert witness.marks == {2: mark}
    rows.write_all()
    assert written == writes
