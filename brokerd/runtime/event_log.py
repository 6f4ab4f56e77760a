"""What a broker writes down about itself: events as they happen, counters once a second."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brokerd.history.writer import LineWriter


class EventLog:
    """`events.jsonl` and `stats.jsonl` in a folder that changes with each run.

    Attributes:
        run_id: of the run it writes for; empty between runs.
    """

    def __init__(self, folder: Path) -> None:
        self.run_id = ""
        self._home = folder
        self._events, self._statistics = _open(folder)

    def record(self, event: str, details: Mapping[str, Any]) -> None:
        """Write one event with the time it is now."""
        self._events.write({"t_ns": time.monotonic_ns(), "event": event, **details})

    def sample(self, counters: Mapping[str, Any]) -> None:
        """Write one row of statistics with the time it is now."""
        self._statistics.write({"t_ns": time.monotonic_ns(), **counters})

    def begin_run(self, run_id: str, folder: Path) -> None:
        """Write into the run's folder from now on.

        Raises:
            OSError: the folder cannot be written; nothing has changed.
        """
        opened = _open(folder)
        self.close()
        self._events, self._statistics = opened
        self.run_id = run_id

    def end_run(self) -> None:
        """Write into the broker's own folder again."""
        self.close()
        self.run_id = ""
        self._events, self._statistics = _open(self._home)

    def close(self) -> None:
        """Close the files."""
        self._events.close()
        self._statistics.close()


def _open(folder: Path) -> tuple[LineWriter, LineWriter]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LineWriter(folder / "events.jsonl"), LineWriter(folder / "stats.jsonl")
