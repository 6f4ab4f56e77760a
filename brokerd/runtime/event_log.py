"""The event log of a broker: events as they occur, counters once a second."""

import hashlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from brokerd.history.writer import LineWriter


class EventLog:
    """`events.jsonl` and `stats.jsonl` in a folder that changes with each run.

    The files of the broker's own folder stay open, so that the end of a run opens none. A line that
    cannot be written, as on a full disk, is left out. The next event that can be written is then
    preceded by one `lines_left_out` with their number.

    Attributes:
        run_id: id of the present run; empty between runs.
    """

    def __init__(self, folder: Path) -> None:
        self.run_id = ""
        self._own = _open(folder)
        self._events, self._statistics = self._own
        self._lines_left_out = 0

    def record(self, event: str, details: Mapping[str, Any]) -> None:
        """Write one event with the present time."""
        if self._lines_left_out:
            lines = self._lines_left_out
            if self._write(self._events, {"event": "lines_left_out", "lines": lines}):
                self._lines_left_out -= lines
        self._write(self._events, {"event": event, **details})

    def sample(self, counters: Mapping[str, Any]) -> None:
        """Write one row of statistics with the present time."""
        self._write(self._statistics, counters)

    def begin_run(self, run_id: str, folder: Path) -> None:
        """Write into the run's folder from now on.

        Raises:
            OSError: the folder cannot be written; nothing has changed.
        """
        opened = _open(folder)
        self.end_run()
        self._events, self._statistics = opened
        self.run_id = run_id

    def end_run(self) -> tuple[Path, ...]:
        """Write into the broker's own folder again, and return the closed files of the run."""
        ended: tuple[Path, ...] = ()
        if self._events is not self._own[0]:
            _close(self._events, self._statistics)
            ended = self._events.path, self._statistics.path
        self._events, self._statistics = self._own
        self.run_id = ""
        return ended

    def close(self) -> None:
        self.end_run()
        _close(*self._own)

    def _write(self, file: LineWriter, values: Mapping[str, Any]) -> bool:
        try:
            file.write({"t_ns": time.monotonic_ns(), **values})
        except OSError:
            self._lines_left_out += 1
            return False
        return True


def digests_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each closed file, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _open(folder: Path) -> tuple[LineWriter, LineWriter]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    events = LineWriter(folder / "events.jsonl")
    try:
        return events, LineWriter(folder / "stats.jsonl")
    except OSError:
        events.close()
        raise


def _close(*files: LineWriter) -> None:
    for file in files:
        file.close()
