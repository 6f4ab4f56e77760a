"""Ctrl-C: the first stops in good order, the second stops waiting."""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from pubsubctl.console.console import Console
from pubsubctl.errors import (
    INTERNAL_ERROR,
    INTERRUPTED,
    TERMINATED,
    HostError,
    Interrupted,
    PreflightFailed,
    Terminated,
    Unreachable,
    combine_statuses,
)

T = TypeVar("T")

_OF_AN_INTERRUPTION = (PreflightFailed.exit_status, HostError.exit_status, Unreachable.exit_status)
"""Statuses of errors that an interruption explains; others, such as remains, must not be missed."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """The received signal, if any, and the blocks that a signal cancels.

    Only the code inside `stoppable` is cancelled. Code around the block, for example connections
    that the clean-up needs, unwinds as after any other error.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._scopes: list[trio.CancelScope] = []

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Cancel this block when a signal arrives, or at once if a signal arrived before.

        Raises:
            Interrupted, Terminated: the block was cancelled, or failed after a signal. Ctrl-C at a
                terminal also reaches the processes that the block starts.
        """
        scope = trio.CancelScope()
        self._scopes.append(scope)
        if self._signal is not None:
            scope.cancel()
        try:
            with scope:
                yield
        except Exception as error:
            if self._signal is None or _status_of(error) not in _OF_AN_INTERRUPTION:
                raise
            raise self.error() from error
        finally:
            self._scopes.remove(scope)
        if scope.cancelled_caught:
            raise self.error()

    def stop(self, number: int) -> None:
        """Cancel all present and future stoppable blocks."""
        self._signal = number
        for scope in self._scopes:
            scope.cancel()

    def errors(self) -> tuple[Interrupted | Terminated, ...]:
        """Return why a command without anything left to cancel ends; empty without a signal."""
        return () if self._signal is None else (self.error(),)

    def error(self) -> Interrupted | Terminated:
        """Return the error that ends the command."""
        if self._signal == signal.SIGINT:
            return Interrupted("interrupted")
        return Terminated(f"terminated by {signal.Signals(self._signal or 0).name}")


def run_interruptibly(
    work: Callable[[Interruption], Awaitable[T]], console: Console, *, when_not_waiting: str
) -> T:
    """Run `work` in trio; the first signal cancels the stoppable blocks of `work`.

    Args:
        when_not_waiting: the state after a second signal, printed when a second signal arrives.

    Raises:
        Interrupted, Terminated: a signal stopped `work`.
    """

    async def main() -> T:
        interruption = Interruption()
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch, interruption, console, when_not_waiting)
            result = await work(interruption)
            nursery.cancel_scope.cancel()
        return result

    return trio.run(main)


@contextmanager
def resumable(console: Console) -> Iterator[None]:
    """Print, if a signal ends the block, that the same command resumes the work."""
    try:
        yield
    except (Interrupted, Terminated):
        console.warn("the same command resumes")
        raise


def _status_of(error: Exception) -> int:
    """Return the exit status of an error, or the status of a group that must not be missed."""
    if isinstance(error, ExceptionGroup):
        return combine_statuses(map(_status_of, error.exceptions))
    return int(getattr(error, "exit_status", INTERNAL_ERROR))


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
                console.warn("stopping in order; a second signal stops at once")
                interruption.stop(number)
                continue
            console.stop_animation()
            console.warn(f"not waiting: {when_not_waiting}")
            sys.stdout.flush()
            # A task that still waits cleans up behind a shield; no other exit is possible.
            os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)


async def until_interrupted(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until `work` ends or Ctrl-C arrives, the normal exit from endless work.

    Raises:
        Terminated: another signal ended `work`.
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
