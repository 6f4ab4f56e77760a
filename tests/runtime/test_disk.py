"""Tests of group commit: one in flight, the next gathers, and replies follow the commit."""

import threading
from collections.abc import Iterable

import pytest
import trio
import trio.testing

from brokerd.protocols.interface import Change, Commit, Event, Persisted
from brokerd.runtime.disk import LAZY_ROWS_NS, Disk
from brokerd.storage.meta_store import RowChange
from tests.helpers.memory_storage import MemoryMetaStore


class SlowStore(MemoryMetaStore):
    """A store that commits on demand and records the rows of transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[list[RowChange]] = []
        self.may_go_on = threading.Semaphore(0)

    def commit(self, changes: Iterable[RowChange]) -> None:
        changes = list(changes)
        self.may_go_on.acquire()
        super().commit(changes)
        self.transactions.append(changes)


def commit(token: int | None, *rows: tuple[str, int | None]) -> Commit:
    return Commit(tuple(Change("t", key, value) for key, value in rows), token)


def test_commits_during_a_commit_in_flight_share_the_next_transaction() -> None:
    async def story() -> None:
        store = SlowStore()
        events: list[Event] = []
        disk = Disk(store, events.extend)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.run)
            disk.commit(commit(1, ("a", 1)))
            await trio.testing.wait_all_tasks_blocked()
            disk.commit(commit(2, ("b", 1)))
            disk.commit(commit(None, ("c", 1)))
            disk.commit(commit(3, ("b", 2), ("a", None)))
            await trio.testing.wait_all_tasks_blocked()
            assert events == []
            store.may_go_on.release(2)
            await disk.settle()
            nursery.cancel_scope.cancel()
        assert events == [Persisted(1), Persisted(2), Persisted(3)]
        assert store.transactions == [
            [("t", "a", 1)],
            [("t", "b", 2), ("t", "c", 1), ("t", "a", None)],
        ]
        assert store.begin("").rows == {"t": {"b": 2, "c": 1}}

    trio.run(story)


@pytest.mark.parametrize("token", [1, None])
def test_a_disk_is_settled_only_when_the_write_in_flight_is_durable(token: int | None) -> None:
    """Twice: a disk that has been idle is not settled for ever."""

    async def story() -> None:
        store = SlowStore()
        disk = Disk(store, lambda _: None)
        settled: list[int] = []

        async def settle(turn: int) -> None:
            await disk.settle()
            settled.append(turn)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.run)
            await disk.settle()
            for turn in (1, 2):
                disk.commit(commit(token, ("a", turn)))
                nursery.start_soon(settle, turn)
                await trio.testing.wait_all_tasks_blocked()
                assert len(settled) == turn - 1, "the write is in flight"
                store.may_go_on.release()
                await disk.settle()
                await trio.testing.wait_all_tasks_blocked()
                assert len(store.transactions) == len(settled) == turn
            nursery.cancel_scope.cancel()

    trio.run(story)


def test_a_lazy_commit_is_delayed_for_a_bounded_time() -> None:
    async def story() -> None:
        store = SlowStore()
        store.may_go_on.release(10)
        disk = Disk(store, lambda _: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.run)
            for number in range(5):
                disk.commit(commit(None, ("a", number)))
                await trio.sleep(LAZY_ROWS_NS / 1e9 / 10)
            assert store.transactions == []
            await trio.sleep(LAZY_ROWS_NS / 1e9)
            while not store.transactions:
                await trio.lowlevel.checkpoint()  # until the worker thread is through
            assert store.transactions == [[("t", "a", 4)]]
            nursery.cancel_scope.cancel()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_a_failing_disk_ends_the_broker_and_nothing_is_called_persisted() -> None:
    class BrokenStore(MemoryMetaStore):
        def commit(self, changes: Iterable[RowChange]) -> None:
            raise OSError(5, "Input/output error")

    events: list[Event] = []

    async def story() -> None:
        disk = Disk(BrokenStore(), events.extend)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.run)
            disk.commit(commit(1, ("a", 1)))

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(story)
    assert caught.group_contains(OSError, match="Input/output")
    assert events == []
