"""Tests of state folders with less than the durable state, or without a folder."""

import os
import re
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from brokerd.config import BrokerConfig, LossAcceptance
from brokerd.errors import BrokerMustEnd, StateLost, StorageCorrupt
from brokerd.runtime import stores as stores_module
from brokerd.runtime.state_folder import PreflightError, StateFolder, held, record_loss
from brokerd.runtime.stores import Stores
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import LogVolume
from tests.helpers.state_stories import OPERATOR_KEY, acceptance

LOG = "a"


def config_of(folder: Path, **changes: object) -> BrokerConfig:
    config = BrokerConfig(
        broker="b1", deployment_id="d1", topology_file="", protocol="p", listen="", addresses={},
        state_folder=str(folder), control_socket="", log_folder="", operator_key=OPERATOR_KEY,
    )  # fmt: skip
    return replace(config, **changes)  # type: ignore[arg-type]


def accepted(folder: Path, **changes: object) -> LossAcceptance:
    return LossAcceptance(**acceptance(folder, "b1", **changes))


def begun(config: BrokerConfig, keeps_loss: str = "", *, restores: bool = False) -> Stores:
    stores = Stores(config, Path(config.state_folder), (LOG,), keeps_loss, restores=restores)
    try:
        stores.begin()
    except BaseException:
        stores.close()
        raise
    return stores


def write(stores: Stores, first: int, count: int) -> None:
    assert stores.volume is not None
    for index in range(first, first + count):
        stores.volume.write([LogEntry(EntryKind.APPENDED, LOG, index, [b"x" * 100])])


def make_segments_small(monkeypatch: pytest.MonkeyPatch) -> None:
    initialise = LogVolume.__init__

    def small(self: LogVolume, folder: Path, **others: object) -> None:
        initialise(self, folder, 500, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(LogVolume, "__init__", small)


def test_a_folder_without_its_last_segment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_segments_small(monkeypatch)
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 1, 10)
        groups = stores.volume.groups if stores.volume is not None else 0
    last = max((tmp_path / "logs").glob("*.log"))
    last.unlink()
    with pytest.raises(StateLost, match=r"at the end of its log were durable.*--accept-loss"):
        begun(config_of(tmp_path))
    with closing(begun(config_of(tmp_path, accept_loss=accepted(tmp_path)))) as stores:
        assert stores.volume is not None
        assert stores.volume.groups < groups
        lineage, incarnation = stores.ledger.lineage, stores.ledger.present.incarnation
        assert lineage > 1_000_000
        assert 4_096 < incarnation < 8_192
    with closing(begun(config_of(tmp_path))) as stores:
        assert stores.ledger.lineage == lineage
        assert stores.ledger.present.incarnation == incarnation + 1


def test_a_lost_state_is_restored_at_each_start_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the machine goes back between the starts."""
    times = iter((3_000_000, *[2_000_000] * 9))
    monkeypatch.setattr(stores_module.time, "time", lambda: next(times))
    with closing(begun(config_of(tmp_path))) as stores:
        record_loss(tmp_path, stores.ledger.present.start, "the disk is lost", 7)
    for number in range(3):
        with closing(begun(config_of(tmp_path), "never accepted", restores=True)) as stores:
            assert stores.lost == "the disk is lost"
            assert stores.ledger.lineage == 3_000_000 + number
            assert stores.ledger.present.incarnation > 4_096
            assert stores.accepted_loss is None
    with closing(begun(config_of(tmp_path), restores=True)) as stores:
        stores.end_restoration()
    with closing(begun(config_of(tmp_path), restores=True)) as stores:
        assert stores.lost == ""


def test_a_log_that_ends_before_the_last_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has the old log beside new rows; the mark is as old as the log."""
    make_segments_small(monkeypatch)
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 1, 2)
    shutil.copytree(tmp_path / "logs", tmp_path / "older")
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 3, 10)
    begun(config_of(tmp_path)).close()
    shutil.rmtree(tmp_path / "logs")
    (tmp_path / "older").rename(tmp_path / "logs")
    with pytest.raises(StateLost, match="10 groups at the end of its log were durable"):
        begun(config_of(tmp_path))


def test_a_folder_with_a_segment_of_the_future_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_segments_small(monkeypatch)
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 1, 2)
    shutil.copytree(tmp_path, tmp_path.with_name("older"))
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 3, 20)
    last = max((tmp_path / "logs").glob("*.log"))
    older = tmp_path.with_name("older")
    shutil.copy(last, older / "logs" / last.name)
    with pytest.raises(StorageCorrupt, match="in place of"):
        begun(config_of(older))


def test_a_recorded_loss_ends_each_start_until_it_is_accepted(tmp_path: Path) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        record_loss(tmp_path, stores.ledger.present.start, "b2 proves it", incarnation=700)
    for _ in range(2):
        with pytest.raises(StateLost, match="b2 proves it"):
            begun(config_of(tmp_path))
    with closing(begun(config_of(tmp_path, accept_loss=accepted(tmp_path)))) as stores:
        assert stores.accepted_loss is not None
        assert stores.accepted_loss["cause"] == "b2 proves it"
        assert stores.ledger.present.incarnation == 700 + 4_096
    begun(config_of(tmp_path)).close()


def test_a_copy_of_before_an_accepted_loss_is_an_older_one(tmp_path: Path) -> None:
    folder, older = tmp_path / "state", tmp_path / "older"
    folder.mkdir()
    with closing(begun(config_of(folder))) as stores:
        write(stores, 1, 3)
        record_loss(folder, stores.ledger.present.start, "b2 proves it")
    shutil.copytree(folder, older)
    with closing(begun(config_of(folder, accept_loss=accepted(folder)))) as stores:
        mark = stores.ledger.mark()
    (older / "loss.json").unlink()
    with closing(begun(config_of(older))) as stores:
        assert "older than the loss that was accepted" in (stores.ledger.loss(1, mark) or "")


@pytest.mark.parametrize("must_end", [True, False])
def test_a_recorded_loss_of_a_folder_that_was_replaced_counts_for_nothing(
    tmp_path: Path, must_end: bool
) -> None:
    with closing(begun(config_of(tmp_path))):
        record_loss(tmp_path, b"of another start", "b2 proves it", must_end=must_end)
    with closing(begun(config_of(tmp_path))) as stores:
        assert not stores.proved_loss


def test_a_loss_that_only_a_client_proved_ends_no_start_and_may_be_accepted(tmp_path: Path) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        record_loss(tmp_path, stores.ledger.present.start, "shop proves it", must_end=False)
    for _ in range(2):
        with closing(begun(config_of(tmp_path))) as stores:
            assert stores.proved_loss == "shop proves it"  # `status` shows it after each start
    with closing(begun(config_of(tmp_path, accept_loss=accepted(tmp_path)))) as stores:
        assert stores.accepted_loss is not None
        assert stores.accepted_loss["cause"] == "shop proves it"
        assert not stores.proved_loss


def test_a_loss_that_a_client_proved_hides_no_later_one(tmp_path: Path) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 1, 3)
        record_loss(tmp_path, stores.ledger.present.start, "shop proves it", must_end=False)
    begun(config_of(tmp_path)).close()
    shutil.rmtree(tmp_path / "logs")
    with pytest.raises(StateLost, match="at the end of its log were durable"):
        begun(config_of(tmp_path))


def test_a_loss_is_not_accepted_without_a_detected_one(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(StateLost, match="no loss of its state is known"):
            begun(config_of(tmp_path, accept_loss=accepted(tmp_path)))
        begun(config_of(tmp_path)).close()


def test_a_loss_is_not_accepted_where_it_cannot_be_announced(tmp_path: Path) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        record_loss(tmp_path, stores.ledger.present.start, "b2 proves it")
    with pytest.raises(StateLost, match="cannot be accepted, because it is a storage"):
        begun(config_of(tmp_path, accept_loss=accepted(tmp_path)), "it is a storage")


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"version": 4711}, "the act is for loss 4711, and this one is"),
        ({"target": "b2"}, "not of the authority of this deployment"),
        ({"deployment_id": "d2"}, "not of the authority of this deployment"),
        ({"act": "decommission"}, "not of the authority of this deployment"),
        ({"secret": b"x" * 32}, "not of the authority of this deployment"),
    ],
)
def test_an_act_that_the_authority_has_not_signed_for_this_loss_is_refused(
    changes: dict[str, object], why: str, tmp_path: Path
) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        record_loss(tmp_path, stores.ledger.present.start, "b2 proves it")
    before = content_of(tmp_path)
    with pytest.raises(StateLost, match=f"is not accepted: .*{why}"):
        begun(config_of(tmp_path, accept_loss=accepted(tmp_path, **changes)))
    assert content_of(tmp_path) == before


def test_an_unsigned_act_is_refused_and_one_without_a_key_too(tmp_path: Path) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        record_loss(tmp_path, stores.ledger.present.start, "b2 proves it")
    act = accepted(tmp_path)
    with pytest.raises(StateLost, match="the act is not signed"):
        begun(config_of(tmp_path, accept_loss=replace(act, signature="")))
    with pytest.raises(StateLost, match="without the authority's key"):
        begun(config_of(tmp_path, accept_loss=act, operator_key=""))
    begun(config_of(tmp_path, accept_loss=act)).close()


def test_no_loss_is_accepted_at_a_time_that_leaves_no_positions_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(config_of(tmp_path)).close()
    record_loss(tmp_path, b"", "a neighbour has more")
    config = config_of(tmp_path, accept_loss=accepted(tmp_path))
    monkeypatch.setattr(stores_module.time, "time", lambda: 2.0**32)
    with pytest.raises(StateLost, match="Set the clock right"):
        begun(config)
    monkeypatch.setattr(stores_module.time, "time", lambda: 2.0**32 - 1)
    begun(config).close()


def test_an_act_accepts_one_loss_and_not_the_next_one(tmp_path: Path) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        record_loss(tmp_path, stores.ledger.present.start, "b2 proves it")
    first = accepted(tmp_path)
    with closing(begun(config_of(tmp_path, accept_loss=first))) as stores:
        record_loss(tmp_path, stores.ledger.present.start, "b2 proves it")
    with pytest.raises(StateLost, match="the act is for loss"):
        begun(config_of(tmp_path, accept_loss=first))
    begun(config_of(tmp_path, accept_loss=accepted(tmp_path))).close()


@pytest.mark.parametrize(
    "changes", [{"deployment_id": "d2"}, {"broker": "b2"}, {"protocol": "q"}], ids=str
)
def test_a_folder_that_is_not_the_brokers_own_is_refused_and_stays_as_it_is(
    changes: dict[str, str], tmp_path: Path
) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 1, 3)
    before = content_of(tmp_path)
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match="this is of"):
            begun(config_of(tmp_path, **changes))
        assert content_of(tmp_path) == before
    begun(config_of(tmp_path)).close()


@pytest.mark.parametrize("is_loop", [False, True], ids=["another kind", "a loop of links"])
@pytest.mark.parametrize(
    "name",
    ["logs", "logs/synced", "logs/00000001.log", "meta.sqlite3", "meta.sqlite3-wal",
     "meta.sqlite3.synced"],
)  # fmt: skip
def test_a_file_of_another_kind_in_a_state_folder_is_refused_by_name(
    tmp_path: Path, name: str, is_loop: bool
) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 1, 2)
    path = tmp_path / name
    is_folder = path.is_dir()
    if is_folder:
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if is_loop:
        path.symlink_to(path.name)
    elif is_folder:
        path.write_text("x")
    else:
        path.mkdir()
    kind = "folder" if is_folder else "file"
    with pytest.raises(StorageCorrupt, match=f"{re.escape(str(path))}: is no {kind}"):
        begun(config_of(tmp_path))


def test_logs_without_rows_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    with closing(begun(config_of(tmp_path))) as stores:
        write(stores, 1, 3)
    for path in tmp_path.glob("meta.sqlite3*"):
        path.unlink()
    before = content_of(tmp_path / "logs")
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match="the rest of a state folder"):
            begun(config_of(tmp_path))
        assert content_of(tmp_path / "logs") == before


def test_transactions_that_a_damaged_journal_drops_are_a_loss(tmp_path: Path) -> None:
    """A killed broker leaves its last transactions in the journal of SQLite."""
    running, left = tmp_path / "running", tmp_path / "left"
    running.mkdir()
    with closing(begun(config_of(running))) as stores:
        stores.meta.commit([("t", "k", 1)])
        stores.meta.commit([("t", "k", 2)])
        shutil.copytree(running, left)
    journal = left / "meta.sqlite3-wal"
    content = bytearray(journal.read_bytes())
    content[-1] ^= 1
    journal.write_bytes(content)
    for _ in range(2):
        with pytest.raises(StateLost, match=r"is missing \(1 transaction\).*--accept-loss"):
            begun(config_of(left))
    with closing(begun(config_of(left, accept_loss=accepted(left)))) as stores:
        incarnation = stores.ledger.present.incarnation
        assert 4_096 < incarnation < 8_192
    with closing(begun(config_of(left))) as stores:
        assert stores.ledger.present.incarnation == incarnation + 1


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the content of a state folder, except the side files of SQLite."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def test_the_folder_of_another_protocol_is_refused(tmp_path: Path) -> None:
    begun(config_of(tmp_path)).close()
    with pytest.raises(StorageCorrupt, match="this is of 'p', and the broker runs 'q'"):
        begun(config_of(tmp_path, protocol="q"))


@pytest.mark.parametrize(
    "name", ["", "lock", "meta.sqlite3", "meta.sqlite3-wal", "meta.sqlite3.synced", "logs"]
)
@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
def test_a_removed_or_replaced_state_folder_is_detected(
    name: str, is_replaced: bool, tmp_path: Path
) -> None:
    path = tmp_path / "state"
    with held(config_of(path)) as folder, closing(begun(config_of(path))):
        assert isinstance(folder, StateFolder)
        folder.remember()
        folder.check()
        (path / name).rename(tmp_path / "away")
        if is_replaced:
            whole = tmp_path / "away"
            if whole.is_dir():
                shutil.copytree(whole, path / name)
            else:
                shutil.copy(whole, path / name)
        with pytest.raises(BrokerMustEnd, match="was deleted or replaced"):
            folder.check()


def test_a_state_folder_that_cannot_be_used_is_an_obstacle_and_no_bug(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "state"
    (folder / "lock").mkdir(parents=True)  # as unusable as a read-only one, for root too
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    for path, named in (
        (tmp_path / "file" / "state", "file/state"),
        (folder, "state/lock"),
        (tmp_path / "link", "link"),
    ):
        with (
            pytest.raises(PreflightError, match=f"{named}: cannot be used: ") as caught,
            held(config_of(path)),
        ):
            pass
    assert "a link to a folder that does not exist" in str(caught.value)


def test_a_refused_folder_leaves_no_descriptor_and_names_its_holder(tmp_path: Path) -> None:
    config = config_of(tmp_path / "state")

    def used() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = used()
    with held(config):
        during = used()
        for _ in range(3):
            with pytest.raises(PreflightError, match=f"in use by the process {os.getpid()}$"):
                held(config).__enter__()
        assert used() == during
    assert used() == before
