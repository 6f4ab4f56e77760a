"""Tests of records on the way into the logs of a broker, and back."""

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from brokerd.protocols.interface import (
    Append,
    Chop,
    Event,
    LogEnds,
    LogRecord,
    Persisted,
    Read,
    RecordsRead,
    Truncate,
)
from brokerd.runtime import disk
from brokerd.runtime.disk import LogWriter
from brokerd.storage.log_volume import LogVolume
from tests.helpers.patience import PATIENCE_S

LOGS = ("a", "b")


def record(content: bytes) -> LogRecord:
    return (content[:1], content[1:])


class Story:
    """A writer with the reports to its core and the number of disk waits."""

    def __init__(self, folder: Path) -> None:
        self.volume = LogVolume(folder)
        self.ends = {
            log: LogEnds(*ends) for log, ends in self.volume.begin(LOGS, recovering=True).items()
        }
        self.events: list[Event] = []
        self.writer = LogWriter(self.volume, self.ends, self.events.extend)

    def append(self, log: str, token: int | None, *contents: bytes) -> None:
        self.writer.take(Append(log, tuple(record(each) for each in contents), token))

    async def told(self, event: Event) -> None:
        while event not in self.events:
            await trio.sleep(0.001)


def tell(folder: Path, story: Callable[[Story], Awaitable[None]]) -> None:
    async def live() -> None:
        told = Story(folder)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(told.writer.run)
                await story(told)
                await told.writer.settle()
                nursery.cancel_scope.cancel()
        told.volume.close()

    trio.run(live)


def test_appended_records_are_recovered_without_the_chopped_ones(tmp_path):
    async def first(story: Story) -> None:
        story.append("a", 1, b"one", b"two")
        story.append("b", 2, b"first")
        await story.writer.settle()
        assert story.events == [Persisted(1), Persisted(2)]
        story.writer.take(Chop("a", 2))
        story.append("a", 3, b"three")

    async def second(story: Story) -> None:
        assert story.ends == {"a": LogEnds(2, 4), "b": LogEnds(1, 2)}
        story.writer.take(Read("a", 2, 4))
        await story.told(RecordsRead("a", 2, (b"two", b"three")))

    tell(tmp_path / "log", first)
    tell(tmp_path / "log", second)


def test_a_chop_alone_writes_nothing(tmp_path):
    async def first(story: Story) -> None:
        story.append("a", 1, b"one")
        await story.told(Persisted(1))
        size = (tmp_path / "log" / "00000001.log").stat().st_size
        story.writer.take(Chop("a", 2))
        await story.writer.settle()
        assert (tmp_path / "log" / "00000001.log").stat().st_size == size

    tell(tmp_path / "log", first)
    assert Story(tmp_path / "log").ends["a"] == LogEnds(1, 2)


def test_a_lazy_append_is_written_with_the_next_awaited_append(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "LAZY_RECORDS_NS", 10**15)

    async def first(story: Story) -> None:
        story.append("a", None, b"one")
        story.append("b", None, b"first")
        await trio.testing.wait_all_tasks_blocked()
        assert not (tmp_path / "log" / "00000001.log").exists()
        story.append("a", 7)
        await story.told(Persisted(7))
        assert story.events == [Persisted(7)]

    tell(tmp_path / "log", first)
    assert Story(tmp_path / "log").ends == {"a": LogEnds(1, 2), "b": LogEnds(1, 2)}


def test_a_lazy_append_is_written_without_an_awaited_append(tmp_path):
    async def first(story: Story) -> None:
        story.append("a", None, b"one")
        while not list((tmp_path / "log").glob("*.log")):
            await trio.sleep(0.001)

    tell(tmp_path / "log", first)
    assert Story(tmp_path / "log").ends["a"] == LogEnds(1, 2)


def test_reads_and_changes_are_carried_out_in_order(tmp_path):
    async def first(story: Story) -> None:
        story.append("a", None, b"one", b"two", b"three")
        story.writer.take(Read("a", 1, 4))
        story.writer.take(Chop("a", 3))
        story.writer.take(Truncate("a", 3))
        story.append("a", None, b"new")
        story.writer.take(Read("a", 3, 4))
        await story.told(RecordsRead("a", 3, (b"new",)))
        assert story.events[0] == RecordsRead("a", 1, (b"one", b"two", b"three"))

    tell(tmp_path / "log", first)
    assert Story(tmp_path / "log").ends["a"] == LogEnds(3, 4)


def test_a_chop_is_written_after_its_records(tmp_path, monkeypatch):
    """Records arrive and are chopped while the disk is busy with earlier records."""
    busy, go_on = threading.Event(), threading.Event()
    write = LogVolume.write

    def slowly(volume: LogVolume, entries: list) -> None:
        busy.set()
        assert go_on.wait(PATIENCE_S)
        write(volume, entries)

    monkeypatch.setattr(LogVolume, "write", slowly)

    async def first(story: Story) -> None:
        story.append("a", 1, b"one")
        story.writer.take(Read("a", 1, 2))
        story.append("b", 2, b"first")
        while not busy.is_set():
            await trio.sleep(0.001)
        story.append("a", 3, b"two")
        story.writer.take(Chop("a", 3))
        go_on.set()
        await story.told(Persisted(3))
        story.append("a", 4, b"three")

    tell(tmp_path / "log", first)
    assert Story(tmp_path / "log").ends["a"] == LogEnds(3, 4)


def test_pages_are_no_larger_than_they_should_be(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "PAGE_BYTES", 10)

    async def first(story: Story) -> None:
        story.append("a", 1, *(bytes([n]) * 4 for n in range(6)))
        story.writer.take(Read("a", 2, 7))
        await story.told(RecordsRead("a", 2, tuple(bytes([n]) * 4 for n in (1, 2, 3))))

    tell(tmp_path / "log", first)


@pytest.mark.parametrize(
    "effect, said",
    [
        (Append("c", (), 1), "no log 'c' among ['a', 'b']"),
        (Read("a", 0, 1), "Read(log='a', first=0, end=1) in LogEnds(first=2, next=4)"),
        (Read("a", 1, 3), "Read(log='a', first=1, end=3) in LogEnds(first=2, next=4)"),
        (Read("a", 3, 5), "Read(log='a', first=3, end=5) in LogEnds(first=2, next=4)"),
        (Read("a", 3, 3), "Read(log='a', first=3, end=3) in LogEnds(first=2, next=4)"),
        (Chop("a", 5), "Chop(log='a', first=5) in LogEnds(first=2, next=4)"),
        (Truncate("a", 1), "Truncate(log='a', next=1) in LogEnds(first=2, next=4)"),
        (Truncate("a", 5), "Truncate(log='a', next=5) in LogEnds(first=2, next=4)"),
    ],
)
def test_an_access_beyond_the_ends_of_a_log_is_a_core_error(tmp_path, effect, said):
    story = Story(tmp_path / "log")
    story.append("a", None, b"one", b"two", b"three")
    story.writer.take(Chop("a", 2))
    story.writer.take(Chop("a", 1))
    with pytest.raises(AssertionError) as caught:
        story.writer.take(effect)
    assert said in str(caught.value)
