"""Tests of the threads of processes, of disks above all."""

import gc
import re
import threading

import pytest
import trio

from brokerd.interpreter import NO_PROCESS
from brokerd.runtime.streams import dial_tcp
from brokerd.runtime.threads import DiskThread, run_in_thread
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


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(trio.to_thread, "run_sync", refuse)
    monkeypatch.setattr(trio.socket, "getaddrinfo", refuse)


def test_calls_are_carried_out_at_once_while_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_threads(monkeypatch)
    done: list[threading.Thread] = []

    async def live() -> None:
        thread = DiskThread()
        for _ in range(2):
            await thread.carry_out(lambda: done.append(threading.current_thread()))
            await run_in_thread(lambda: done.append(threading.current_thread()))
        monkeypatch.undo()
        await thread.carry_out(lambda: done.append(threading.current_thread()))

    trio.run(live)
    assert [each is threading.main_thread() for each in done] == [True] * 4 + [False]


def test_a_call_that_can_start_no_thread_of_its_own_is_carried_out_once() -> None:
    """The store of an application may work in threads."""
    done: list[int] = []

    def save() -> None:
        done.append(1)
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="start new thread"):
        trio.run(run_in_thread, save)
    assert done == [1]


def test_a_name_that_no_thread_can_resolve_is_a_failed_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_threads(monkeypatch)
    with pytest.raises(OSError, match=re.escape(NO_PROCESS)):
        trio.run(dial_tcp, "localhost:1")
