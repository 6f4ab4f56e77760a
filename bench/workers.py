"""Worker processes that do not outlive whoever started them, however that one ends."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading


def begin_worker() -> None:
    """First in a worker of a pool: leave interrupts to the controller, and end when it ends.

    A controller that is killed tells nobody; its workers would wait for work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "not a worker process"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
