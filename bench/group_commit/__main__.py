"""`python -m bench.group_commit`: acknowledged publications/s and their latency, by fsync rate.

Publishers hand records to the log of a broker as its protocol does, each the next one when the
last is durable. The disk is that of the folder, made slower by each of some delays.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from brokerd.protocols.interface import Append, Event, LogEnds, Persisted
from brokerd.runtime.log_writer import LogWriter
from brokerd.storage.files import DiskFiles
from brokerd.storage.log_volume import LogVolume

LOG: Final = "events"
PUBLISHERS: Final = (1, 1_000)
DELAYS_MS: Final = (0.0, 1.0, 5.0, 20.0)
RECORD_BYTES: Final = 100
_HEADER: Final = (
    f"{'publishers':>10} {'delay ms':>8} {'fsyncs/s':>8} {'acknowledged/s':>14}"
    f" {'per fsync':>9} {'p50 ms':>8} {'p99 ms':>8}"
)


class SlowDisk(DiskFiles):
    """The files of the operating system, whose syncs take longer and are counted."""

    def __init__(self, delay_ms: float) -> None:
        self._delay_s = delay_ms / 1_000
        self.syncs = 0

    def sync(self, file: int) -> None:
        """See Files."""
        time.sleep(self._delay_s)
        super().sync(file)
        self.syncs += 1


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of the table; times are from the hand-over of a record until it was durable."""

    publishers: int
    delay_ms: float
    syncs_per_s: float
    acknowledged_per_s: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        per_sync = self.acknowledged_per_s / self.syncs_per_s
        return (
            f"{self.publishers:>10,} {self.delay_ms:>8g} {self.syncs_per_s:>8,.0f}"
            f" {self.acknowledged_per_s:>14,.0f} {per_sync:>9,.1f}"
            f" {self.p50_ms:>8.2f} {self.p99_ms:>8.2f}"
        )


async def measure(folder: Path, publishers: int, delay_ms: float, seconds: float) -> Measured:
    """Let so many publishers publish for so long into a new log in `folder`."""
    files = SlowDisk(delay_ms)
    volume = LogVolume(folder, files=files)
    ends = {log: LogEnds(*each) for log, each in volume.begin((LOG,), recovering=False).items()}
    waiting: dict[int, trio.Event] = {}

    def acknowledge(events: list[Event]) -> None:
        for event in events:
            assert isinstance(event, Persisted), event
            waiting.pop(event.token).set()

    writer = LogWriter(volume, ends, acknowledge)
    took_ns: list[int] = []
    record = (bytes(RECORD_BYTES),)

    async def publish(token: int) -> None:
        while time.perf_counter_ns() < end_ns:
            began_ns = time.perf_counter_ns()
            durable = waiting[token] = trio.Event()
            writer.take(Append(LOG, (record,), token))
            await durable.wait()
            took_ns.append(time.perf_counter_ns() - began_ns)

    began_ns = time.perf_counter_ns()
    end_ns = began_ns + int(seconds * 1e9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        async with trio.open_nursery() as publishing:
            for token in range(publishers):
                publishing.start_soon(publish, token)
        nursery.cancel_scope.cancel()
    elapsed_s = (time.perf_counter_ns() - began_ns) / 1e9
    volume.close()
    took_ns.sort()
    return Measured(
        publishers,
        delay_ms,
        files.syncs / elapsed_s,
        len(took_ns) / elapsed_s,
        took_ns[len(took_ns) // 2] / 1e6,
        took_ns[len(took_ns) * 99 // 100] / 1e6,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.group_commit", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk in question")
    chosen = parser.parse_args(arguments)
    if chosen.seconds <= 0:
        parser.error("--seconds is a positive number")
    if not chosen.folder.is_dir():
        parser.error(f"--folder: {chosen.folder} is no folder")
    print(f"records of {RECORD_BYTES} B, {chosen.seconds:g} s each, in {chosen.folder}\n{_HEADER}")
    for publishers in PUBLISHERS:
        for delay_ms in DELAYS_MS:
            with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="group-commit-") as name:
                folder = Path(name) / "log"
                print(trio.run(measure, folder, publishers, delay_ms, chosen.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
