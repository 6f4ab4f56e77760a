"""Worker processes that end with their controller, for any end of the controller."""

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")

_COLLECT_AFTER = 20_000
"""Number of new objects per collection instead of 700: worlds are large, with few cycles before
their end."""


@contextmanager
def with_rare_collections() -> Iterator[None]:
    """Let Python search for garbage rarely inside the block."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _COLLECT_AFTER), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def map_in_workers(
    function: Callable[..., _T],
    jobs: Sequence[tuple[Any, ...]],
    processes: int,
    *,
    at_once: int = 1,
) -> Iterator[_T]:
    """Yield the result of `function` for each job's arguments, in the order of the jobs.

    Several processes run jobs in parallel and end when the iterator is closed, or when this process
    is killed; with one process, all jobs run in this process.

    Args:
        function: a picklable function, with picklable arguments and results.
        at_once: number of jobs that a process receives together.
    """
    if processes <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield function(*job)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])  # else each worker imports it
    with context.Pool(processes, initializer=begin_worker) as pool:
        yield from pool.imap(_call, [(function, job) for job in jobs], chunksize=at_once)


def begin_worker() -> None:
    """Prepare a worker of a pool: leave interrupts to the controller, and end with the controller.

    A killed controller sends no notification, and its workers would wait for jobs for ever.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_controller()


def end_with_controller() -> None:
    """End this worker, or a process forked from a worker, as soon as the controller has ended."""
    controller = multiprocessing.parent_process()
    assert controller is not None, "not a worker process"

    def wait_and_end() -> None:
        multiprocessing.connection.wait([controller.sentinel])
        os._exit(1)

    threading.Thread(target=wait_and_end, name="end with controller", daemon=True).start()


def _call(job: tuple[Callable[..., _T], tuple[Any, ...]]) -> _T:
    function, arguments = job
    return function(*arguments)
