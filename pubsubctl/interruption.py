"""Ctrl-C: the first stops in good order, the second stops waiting."""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from pubsubctl.console import Console
from pubsubctl.errors import INTERRUPTED, TERMINATED, Interrupted, Terminated

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_interruptibly(
    work: Callable[[], Awaitable[T]], console: Console, *, when_not_waiting: str
) -> T:
    """Run `work` in trio; a signal cancels it and waits until it has cleaned up after itself.

    Args:
        when_not_waiting: what becomes of things after a second signal, said then.

    Raises:
        Interrupted, Terminated: `work` was cancelled by a signal.
    """
    received: list[int] = []

    async def main() -> T:
        result: T
        async with trio.open_nursery() as nursery:
            work_scope = trio.CancelScope()
            await nursery.start(_watch, received, work_scope, console, when_not_waiting)
            with work_scope:
                result = await work()
            nursery.cancel_scope.cancel()
        if work_scope.cancelled_caught:
            raise _error(received[0])
        return result

    return trio.run(main)


def _error(number: int) -> Interrupted | Terminated:
    if number == signal.SIGINT:
        return Interrupted("interrupted")
    return Terminated(f"terminated by {signal.Signals(number).name}")


async def _watch(
    received: list[int],
    work_scope: trio.CancelScope,
    console: Console,
    when_not_waiting: str,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        task_status.started()
        async for number in signals:
            received.append(number)
            if len(received) == 1:
                console.warn("stopping in good order; once more stops waiting")
                work_scope.cancel()
            else:
                console.stop_animation()
                console.warn(f"not waiting: {when_not_waiting}")
                sys.stdout.flush()
                # Whatever still waits does so behind a shield; there is no other way out.
                os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)
