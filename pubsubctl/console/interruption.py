"""Ctrl-C: the first stops in good order, the second stops waiting."""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from pubsubctl.console.console import Console
from pubsubctl.errors import INTERRUPTED, TERMINATED, Interrupted, Terminated

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Whether a signal has come, and what it is to stop.

    Only what runs inside `stoppable` is cancelled. Everything around it, such as connections
    that cleaning up needs, is left like after any other error.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._scopes: list[trio.CancelScope] = []

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Cancel this block when a signal comes, or has come.

        Raises:
            Interrupted, Terminated: it was.
        """
        scope = trio.CancelScope()
        self._scopes.append(scope)
        if self._signal is not None:
            scope.cancel()
        try:
            with scope:
                yield
        finally:
            self._scopes.remove(scope)
        if scope.cancelled_caught:
            raise self.error()

    def stop(self, number: int) -> None:
        """Cancel what may be, now and from now on."""
        self._signal = number
        for scope in self._scopes:
            scope.cancel()

    def error(self) -> Interrupted | Terminated:
        """What ends the command."""
        if self._signal == signal.SIGINT:
            return Interrupted("interrupted")
        return Terminated(f"terminated by {signal.Signals(self._signal or 0).name}")


def run_interruptibly(
    work: Callable[[Interruption], Awaitable[T]], console: Console, *, when_not_waiting: str
) -> T:
    """Run `work` in trio; the first signal stops it where it says that it can be stopped.

    Args:
        when_not_waiting: what becomes of things after a second signal, said then.

    Raises:
        Interrupted, Terminated: a signal stopped it.
    """

    async def main() -> T:
        interruption = Interruption()
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch, interruption, console, when_not_waiting)
            result = await work(interruption)
            nursery.cancel_scope.cancel()
        return result

    return trio.run(main)


async def _watch(
    interruption: Interruption,
    console: Console,
    when_not_waiting: str,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    is_first = True
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for number in signals:
            if is_first:
                is_first = False
                console.warn("stopping in good order; once more stops waiting")
                interruption.stop(number)
                continue
            console.stop_animation()
            console.warn(f"not waiting: {when_not_waiting}")
            sys.stdout.flush()
            # Whatever still waits cleans up behind a shield; there is no other way out.
            os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)


async def until_interrupted(work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` until it ends, or until Ctrl-C, which is how one leaves what has no end.

    Raises:
        Terminated: another signal ended it.
    """
    ended_by: list[int] = []

    async def listen(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                ended_by.append(number)
                nursery.cancel_scope.cancel()

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        try:
            await work()
        except Exception as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        while isinstance(failure, ExceptionGroup) and len(failure.exceptions) == 1:
            failure = failure.exceptions[0]
        raise failure
    if ended_by and ended_by[0] != signal.SIGINT:
        raise Terminated(f"terminated by {signal.Signals(ended_by[0]).name}")
