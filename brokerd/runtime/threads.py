"""Calls in threads, by processes that continue while their account may start no further thread.

Other programs of the account can reach the limit at any time. A call in the thread of the event
loop delays the loop; a process that ends loses its sessions.
"""

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import trio
from trio.lowlevel import Abort, current_task, current_trio_token, reschedule

from brokerd.interpreter import has_met_process_limit

Result = TypeVar("Result")


async def run_in_thread(
    call: Callable[[], Result], *, limiter: trio.CapacityLimiter | None = None
) -> Result:
    """Return or raise the result of a call in a thread; without a thread, in this task.

    The call is carried out once, even if it fails for lack of a thread of its own.
    """
    has_begun = False

    def carry_out() -> Result:
        nonlocal has_begun
        has_begun = True
        return call()

    try:
        return await trio.to_thread.run_sync(carry_out, limiter=limiter)
    except RuntimeError as error:
        if has_begun or not has_met_process_limit(error):
            raise
    return call()


class DiskThread:
    """A thread that carries out calls one after the other, in order of arrival.

    The calls are as with `trio.to_thread.run_sync`, but the thread exists already, and is neither
    looked up nor returned to a pool. The thread ends with this object. While the account may start
    no further thread, calls are carried out in the task that waits.
    """

    def __init__(self) -> None:
        self._wanted: SimpleQueue[_PendingCall[Any] | None] = SimpleQueue()
        self._is_started = False

    async def carry_out(self, call: Callable[[], Result]) -> Result:
        """Return or raise the result of `call`; not abandoned on cancellation."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._is_started and not self._start():
            return call()
        wanted = _PendingCall(call)
        self._wanted.put(wanted)
        await trio.lowlevel.wait_task_rescheduled(lambda _: Abort.FAILED)
        return wanted.result()

    def _start(self) -> bool:
        """Start the thread; return False if this account may start no further thread."""
        try:
            Thread(target=_serve, args=(self._wanted,), name="disk", daemon=True).start()
        except RuntimeError as error:
            if not has_met_process_limit(error):
                raise
            return False
        self._is_started = True
        weakref.finalize(self, self._wanted.put, None)
        return True


class _PendingCall(Generic[Result]):
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


def _serve(calls: "SimpleQueue[_PendingCall[Any] | None]") -> None:
    while (wanted := calls.get()) is not None:
        wanted.carry_out()
        del wanted  # frees the call before the next arrives
