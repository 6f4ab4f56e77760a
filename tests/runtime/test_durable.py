"""Stories about full, slow and broken disks: waits, delays, and ends of brokers."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from brokerd.errors import BrokerMustEnd
from brokerd.runtime import disk
from brokerd.runtime.disk import ROW_BYTES, Disk, DurableWrites
from brokerd.runtime.threads import DiskThread
from brokerd.sessions.link_faults import LinkFaults, read_fault
from brokerd.storage.sqlite_store import SqliteMetaStore
from tests.helpers.memory_storage import MemoryMetaStore
from tests.helpers.patience import PATIENCE_S
from tests.storage.test_log_volume import A, entry, opened, reopened


class Story:
    """Writes in turn, with the records about them."""

    def __init__(self) -> None:
        self.faults = LinkFaults()
        self.recorded: list[str] = []
        self.written: list[str] = []
        self.writes = DurableWrites(self.faults, lambda event, _: self.recorded.append(event))
        self.thread = DiskThread()

    def fault(self, verb: str, **parameters: int) -> None:
        self.faults.apply(read_fault(verb, verb, None, "both", parameters, None))

    def counter(self, verb: str, name: str) -> int:
        (fault,) = [fault for fault in self.faults if fault.fault_id == verb]
        return fault.counters[name]

    async def write(self, what: str, size_bytes: int = 10) -> None:
        await self.writes.perform(lambda: self.written.append(what), size_bytes, self.thread)


def tell(story: Callable[[Story], Any]) -> None:
    async def live() -> None:
        with trio.fail_after(PATIENCE_S):
            await story(Story())

    trio.run(live)


def test_a_full_disk_is_waited_for_and_nothing_is_written_meanwhile() -> None:
    async def live(story: Story) -> None:
        story.fault("disk-full")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(story.write, "one")
            while story.counter("disk-full", "refused_writes") < 2:
                await trio.sleep(0.01)
            assert story.written == []
            assert story.recorded == ["disk_full"], "once, not at every attempt"
            (obstacle,) = story.writes.obstacles()  # `status` shows it
            assert "its disk has no room" in obstacle
            story.faults.heal("disk-full")
        assert story.writes.obstacles() == []
        assert story.written == ["one"]
        assert story.recorded == ["disk_full", "disk_has_room"]

    tell(live)


def test_a_quota_admits_and_counts_the_bytes_within_it() -> None:
    async def live(story: Story) -> None:
        story.fault("disk-full", free_bytes=25)
        await story.write("one")
        await story.write("two")
        assert story.counter("disk-full", "written_bytes") == 20
        with trio.move_on_after(0.05):
            await story.write("three")
        assert story.written == ["one", "two"]
        await story.write("small", 5)
        assert story.counter("disk-full", "written_bytes") == 25

    tell(live)


def test_a_real_lack_of_room_is_waited_for_as_well() -> None:
    async def live(story: Story) -> None:
        attempts = []

        def write() -> None:
            attempts.append(1)
            if len(attempts) < 3:
                raise OSError(errno.ENOSPC, "No space left on device")

        await story.writes.perform(write, 1, story.thread)
        assert len(attempts) == 3
        assert story.recorded == ["disk_full", "disk_has_room"]

    tell(live)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EFBIG])
def test_any_other_failure_is_not_tried_again(number: int) -> None:
    async def live(story: Story) -> None:
        attempts = []

        def write() -> None:
            attempts.append(1)
            raise OSError(number, os.strerror(number))

        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            await story.writes.perform(write, 1, story.thread)
        assert attempts == [1]
        assert ("`ulimit -f`" in str(caught.value)) == (number == errno.EFBIG)

    tell(live)


@pytest.mark.parametrize("number", [0, errno.EIO], ids=["ends", "fails"])
def test_an_operation_that_the_disk_does_not_end_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A disk that fails after a while does not resume."""
    monkeypatch.setattr(disk, "STALLED_AFTER_NS", 1)

    async def live(story: Story) -> None:
        has_begun, may_end = threading.Event(), threading.Event()

        def read() -> bool:
            has_begun.set()
            may_end.wait(PATIENCE_S)
            if number:
                raise OSError(number, os.strerror(number))
            return True

        async def wait_read() -> None:
            with contextlib.suppress(OSError):
                await story.writes.read(read, story.thread)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_read)
            while not has_begun.is_set():
                await trio.lowlevel.checkpoint()
            found = story.writes.obstacles()  # `status` shows them
            for _ in range(2):
                story.writes.record_stalls()
            may_end.set()
        assert len(found) == 1, found
        assert "its disk has not ended an operation for 0 s" in found[0]
        assert story.recorded == ["disk_stalled"] + ["disk_resumed"] * (not number)
        assert story.writes.obstacles() == []

    tell(live)


def test_the_oldest_of_several_operations_says_how_long_the_disk_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0
    monkeypatch.setattr(disk, "clock_ns", lambda: now_ns)

    async def live(story: Story) -> None:
        nonlocal now_ns
        may_end = trio.Event()

        class Never:
            async def carry_out(self, operation: Any) -> Any:
                await may_end.wait()

        async with trio.open_nursery() as nursery:
            for began_ns in (0, disk.STALLED_AFTER_NS // 2):
                now_ns = began_ns
                nursery.start_soon(story.writes.read, lambda: None, cast("Any", Never()))
                await trio.testing.wait_all_tasks_blocked()
            for passed_ns, stalled in ((-1, 0), (0, 1), (disk.STALLED_AFTER_NS // 2, 2)):
                now_ns = disk.STALLED_AFTER_NS + passed_ns
                story.writes.record_stalls()
                assert story.recorded == stalled * ["disk_stalled"]
                found = story.writes.obstacles()
                words = [f"an operation for {now_ns // 10**9} s"] if stalled else []
                assert len(found) == len(words)
                assert all(word in text for word, text in zip(words, found, strict=True))
            may_end.set()
        assert story.recorded == 2 * ["disk_stalled"] + 2 * ["disk_resumed"]

    tell(live)


def test_a_slow_disk_delays_the_report_and_not_the_write() -> None:
    async def live(story: Story) -> None:
        story.fault("slow-fsync", delay_ms=60_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(story.write, "one")
            while story.written != ["one"]:
                await trio.sleep(0.01)
            await trio.sleep(0)
            assert len(nursery.child_tasks) == 1, "written, and not yet called so"
            story.faults.heal("slow-fsync")
        assert story.written == ["one"]

    tell(live)


def test_a_probe_reports_free_room_and_leaves_no_file(tmp_path: Path) -> None:
    async def live(story: Story) -> None:
        disk = Disk(MemoryMetaStore(), lambda _: None, story.writes)
        assert await disk.probe(tmp_path / "probe") is True
        story.fault("disk-full")
        assert await disk.probe(tmp_path / "probe") is False
        assert list(tmp_path.iterdir()) == []

    tell(live)


def test_a_probe_makes_a_whole_page_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that writes less would call a full disk roomy."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda number: synced.append(os.fstat(number).st_size))

    async def live(story: Story) -> None:
        assert await Disk(MemoryMetaStore(), lambda _: None, story.writes).probe(tmp_path / "probe")

    tell(live)
    assert synced == [ROW_BYTES]


def test_a_write_into_a_replaced_folder_is_never_reported() -> None:
    async def live(story: Story) -> None:
        def check() -> None:
            assert story.written == ["lost"], "after the write"
            raise BrokerMustEnd("the folder was replaced")

        writes = DurableWrites(story.faults, check=check)
        with pytest.raises(BrokerMustEnd, match="replaced"):
            await writes.perform(lambda: story.written.append("lost"), 10, story.thread)

    tell(live)


# ---------------------------------------------------------------- the files themselves


def test_a_group_that_did_not_fit_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path / "log")
    files.write([entry(A, 1, b"one")])
    real = os.write
    left = [7]

    def write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(descriptor, data[: left[0]])
        left[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        files.write([entry(A, 2, b"two")])
    monkeypatch.undo()
    files.write([entry(A, 2, b"two")])
    files.close()
    found, again = reopened(tmp_path / "log")
    assert found == [(A, 1, b"one"), (A, 2, b"two")]
    assert again.torn_bytes == 0
    again.close()


def test_a_next_segment_without_room_is_put_off_and_nothing_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path / "log", segment_bytes=1)
    files.write([entry(A, 1, b"one")])
    real = os.open

    def refuse(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_EXCL:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    files.write([entry(A, 2, b"two")])
    monkeypatch.undo()
    files.write([entry(A, 3, b"three")])
    files.close()
    found, again = reopened(tmp_path / "log")
    assert found == [(A, 1, b"one"), (A, 2, b"two"), (A, 3, b"three")]
    again.close()


def test_a_full_store_raises_an_error_and_accepts_the_rows_later(tmp_path: Path) -> None:
    store = SqliteMetaStore(tmp_path / "meta.sqlite3")
    store.begin("d")
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    big = "x" * 100_000
    with pytest.raises(OSError, match="full") as caught:
        store.commit([("t", "a", big)])
    assert caught.value.errno == errno.ENOSPC
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.commit([("t", "a", big)])
    store.close()
    again = SqliteMetaStore(tmp_path / "meta.sqlite3")
    assert again.begin("d").rows["t"]["a"] == big
    again.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_file_is_opened_once_a_descriptor_is_free(number: int) -> None:
    async def live(story: Story) -> None:
        refusals = [OSError(number, os.strerror(number)) for _ in range(2)]

        def write() -> None:
            if refusals:
                raise refusals.pop()
            story.written.append("one")

        await story.writes.perform(write, 10, story.thread)
        assert story.written == ["one"]
        assert story.recorded == ["descriptors_exhausted", "descriptors_free"]
        refusals.append(OSError(number, os.strerror(number)))
        await story.writes.read(write, story.thread)
        assert story.written == ["one", "one"]

    tell(live)
