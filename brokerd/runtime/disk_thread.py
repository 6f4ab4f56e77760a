"""A dedicated thread for a disk: waiting for a call costs little beside the disk's own time."""

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import trio
from trio.lowlevel import Abort, current_task, current_trio_token, reschedule

Result = TypeVar("Result")


class DiskThread:
    """A thread that carries out calls one after the other, in order of arrival.

    The calls are as with `trio.to_thread.run_sync`, but the thread exists already, and is neither
    looked up nor returned to a pool. The thread ends with this object.
    """

    def __init__(self) -> None:
        self._wanted: SimpleQueue[_Wanted[Any] | None] = SimpleQueue()
        self._is_started = False

    async def carry_out(self, call: Callable[[], Result]) -> Result:
        """Return or raise the result of `call`; not abandoned on cancellation."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._is_started:
            self._is_started = True
            Thread(target=_serve, args=(self._wanted,), name="disk", daemon=True).start()
            weakref.finalize(self, self._wanted.put, None)
        wanted = _Wanted(call)
        self._wanted.put(wanted)
        await trio.lowlevel.wait_task_rescheduled(lambda _: Abort.FAILED)
        return wanted.result()


class _Wanted(Generic[Result]):
    """A call with a task that waits for its result."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call
        self._task, self._token = current_task(), current_trio_token()
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def carry_out(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # raised in the task that waits
            self._error = error
        self._token.run_sync_soon(reschedule, self._task)

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._results[0]


def _serve(calls: "SimpleQueue[_Wanted[Any] | None]") -> None:
    while (wanted := calls.get()) is not None:
        wanted.carry_out()
        del wanted  # frees the call before the next arrives
