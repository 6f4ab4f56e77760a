"""Tests of the thread that executes disk requests."""

import gc
import threading

import pytest
import trio

from brokerd.runtime.disk import DiskThread
from tests.helpers.patience import PATIENCE_S


def test_calls_are_carried_out_one_by_one_in_one_other_thread() -> None:
    done: list[tuple[int, threading.Thread]] = []

    async def live() -> None:
        thread = DiskThread()

        async def call(number: int) -> None:
            await thread.carry_out(lambda: done.append((number, threading.current_thread())))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(call, number)

    trio.run(live)
    assert sorted(number for number, _ in done) == [*range(20)]
    (thread,) = {thread for _, thread in done}
    assert thread is not threading.main_thread()
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it outlives whose it was"


def test_the_disk_thread_returns_results_and_raises_errors() -> None:
    async def live() -> None:
        thread = DiskThread()
        with trio.fail_after(PATIENCE_S):
            assert await thread.carry_out(lambda: 7) == 7
            with pytest.raises(OSError, match="broken"):
                await thread.carry_out(fail)
            assert await thread.carry_out(lambda: 8) == 8

    def fail() -> None:
        raise OSError("broken")

    trio.run(live)


def test_a_call_that_runs_is_waited_for_even_when_cancelled() -> None:
    begun, may_end = threading.Event(), threading.Event()
    done: list[str] = []

    def write() -> None:
        begun.set()
        may_end.wait(PATIENCE_S)
        done.append("written")

    async def live() -> None:
        thread = DiskThread()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.carry_out, write)
            await trio.to_thread.run_sync(begun.wait, PATIENCE_S)
            nursery.cancel_scope.cancel()
            may_end.set()
        assert done == ["written"]

    trio.run(live)
