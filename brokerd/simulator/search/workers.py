"""Worker processes that do not outlive whoever started them, however that one ends."""

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")

_COLLECT_AFTER = 20_000
"""So many new objects in place of 700: worlds are large, and have few cycles before they end."""


def map_in_workers(
    function: Callable[..., _T],
    jobs: Sequence[tuple[Any, ...]],
    processes: int,
    *,
    at_once: int = 1,
) -> Iterator[_T]:
    """What `function` gives for each job's arguments, in the order of the jobs.

    Several processes run jobs side by side and are gone when the iterator is closed, or when
    this process is killed; with one, everything is done here.

    Args:
        function: can be pickled, as must be arguments and results.
        at_once: how many jobs are handed to a process together.
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
    """First in a worker of a pool: leave interrupts to the controller, and end when it ends.

    A controller that is killed tells nobody; its workers would wait for work for ever.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_controller()


def end_with_controller() -> None:
    """In a worker, or in a process forked from one: end as soon as the controller is gone."""
    controller = multiprocessing.parent_process()
    assert controller is not None, "not a worker process"

    def wait_and_end() -> None:
        multiprocessing.connection.wait([controller.sentinel])
        os._exit(1)

    threading.Thread(target=wait_and_end, name="end with controller", daemon=True).start()


def _call(job: tuple[Callable[..., _T], tuple[Any, ...]]) -> _T:
    function, arguments = job
    return function(*arguments)
