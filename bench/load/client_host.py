"""The host of load clients: the part of a load generator that its clients use."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from bench.load.load_files import LoadFiles, LoadSetting
from bench.load.pacing import Turn
from bench.load.receiving import Receiver


class ClientHost(Protocol):
    """A load generator, as an interface for its clients.

    Attributes:
        setting: settings of the load generator.
        files: record files of all clients.
        receiver: the online checker of all subscribers.
        turn: bounds how long a client runs before others do.
        beginning: bounds how many clients connect at the same time.
        reserve_wanted: set by a publisher that needs more sequence numbers.
    """

    setting: LoadSetting
    files: LoadFiles
    receiver: Receiver
    turn: Turn
    beginning: trio.Semaphore
    reserve_wanted: trio.Event

    def start_task(self, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start a task that ends with the load generator."""

    def note_problem(self, text: str) -> None:
        """Record a problem for the verdict of the run."""
