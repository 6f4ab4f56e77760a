"""`python -m bench.group_commit`: acknowledged publications/s and their latency, by fsync rate.

Publishers pass records to the log of a broker as a protocol does, the next record when the last is
durable. The disk is the disk of the folder, slowed by several delays.

With --wait, records gather for several times before the log receives them. Brokers do not do this:
records that arrive during a write form the next group. The claims about waiting were written before
the measurement; the exit status shows whether all claims hold.

Paper: none ([MP22] has no measurements; the parameter is the design's).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

import trio

from brokerd.protocols.interface import Append, Event, LogEnds, Persisted
from brokerd.runtime.disk import LogWriter
from brokerd.storage.files import DiskFiles
from brokerd.storage.log_volume import LogVolume

LOG: Final = "events"
PUBLISHERS: Final = (1, 1_000)
DELAYS_MS: Final = (0.0, 1.0, 5.0, 20.0)
WAITS_MS: Final = (0.0, 1.0, 2.0, 5.0, 10.0)
WAITING_DELAYS_MS: Final = (0.0, 5.0)
"""Delays of the disk for measurements of waits."""
RECORD_BYTES: Final = 100
_HEADER: Final = (
    f"{'publishers':>10} {'delay ms':>8} {'wait ms':>8} {'fsyncs/s':>8} {'acknowledged/s':>14}"
    f" {'per fsync':>9} {'p50 ms':>8} {'p99 ms':>8}"
)


class SlowDisk(DiskFiles):
    """The files of the operating system, with delayed and counted syncs."""

    def __init__(self, delay_ms: float) -> None:
        self._delay_s = delay_ms / 1_000
        self.syncs = 0

    def sync(self, file: int) -> None:
        """Sync a file after a delay, and count the sync."""
        time.sleep(self._delay_s)
        super().sync(file)
        self.syncs += 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row of the table; times are from passing a record to the log until it was durable."""

    publishers: int
    delay_ms: float
    wait_ms: float
    syncs_per_s: float
    acknowledged_per_s: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        per_sync = self.acknowledged_per_s / self.syncs_per_s
        return (
            f"{self.publishers:>10,} {self.delay_ms:>8g} {self.wait_ms:>8g}"
            f" {self.syncs_per_s:>8,.0f}"
            f" {self.acknowledged_per_s:>14,.0f} {per_sync:>9,.1f}"
            f" {self.p50_ms:>8.2f} {self.p99_ms:>8.2f}"
        )


class Gathering:
    """A queue that passes records to a log once the first record has waited; 0: at once."""

    def __init__(self, writer: LogWriter, wait_ms: float) -> None:
        self._writer = writer
        self._wait_s = wait_ms / 1_000
        self._gathered: list[Append] = []
        self._wanted = trio.Event()

    def take(self, effect: Append) -> None:
        """Pass a record to the log, at once or after the wait."""
        if not self._wait_s:
            self._writer.take(effect)
            return
        self._gathered.append(effect)
        self._wanted.set()

    async def run(self) -> None:
        """Pass gathered records to the log, for ever."""
        while True:
            await self._wanted.wait()
            await trio.sleep(self._wait_s)
            self._wanted = trio.Event()
            gathered, self._gathered = self._gathered, []
            for effect in gathered:
                self._writer.take(effect)


async def measure(
    folder: Path, publishers: int, delay_ms: float, seconds: float, wait_ms: float = 0.0
) -> Measurement:
    """Run publishers for `seconds` on a new log in `folder`, and return the measurement."""
    files = SlowDisk(delay_ms)
    volume = LogVolume(folder, files=files)
    ends = {log: LogEnds(*each) for log, each in volume.begin((LOG,), recovering=False).items()}
    waiting: dict[int, trio.Event] = {}

    def acknowledge(events: list[Event]) -> None:
        for event in events:
            assert isinstance(event, Persisted), event
            waiting.pop(event.token).set()

    writer = LogWriter(volume, ends, acknowledge)
    gathering = Gathering(writer, wait_ms)
    took_ns: list[int] = []
    record = (bytes(RECORD_BYTES),)

    async def publish(token: int) -> None:
        while time.perf_counter_ns() < end_ns:
            began_ns = time.perf_counter_ns()
            durable = waiting[token] = trio.Event()
            gathering.take(Append(LOG, (record,), token))
            await durable.wait()
            took_ns.append(time.perf_counter_ns() - began_ns)

    began_ns = time.perf_counter_ns()
    end_ns = began_ns + int(seconds * 1e9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        nursery.start_soon(gathering.run)
        async with trio.open_nursery() as publishing:
            for token in range(publishers):
                publishing.start_soon(publish, token)
        nursery.cancel_scope.cancel()
    elapsed_s = (time.perf_counter_ns() - began_ns) / 1e9
    volume.close()
    took_ns.sort()
    return Measurement(
        publishers,
        delay_ms,
        wait_ms,
        files.syncs / elapsed_s,
        len(took_ns) / elapsed_s,
        took_ns[len(took_ns) // 2] / 1e6,
        took_ns[len(took_ns) * 99 // 100] / 1e6,
    )


def _median(rounds: Sequence[Measurement]) -> Measurement:
    of = {name: median(getattr(each, name) for each in rounds) for name in Measurement.__slots__}
    return Measurement(**of)


def claims(measured: Sequence[Measurement]) -> list[tuple[str, bool]]:
    """Return the claims about waiting, each with True if the medians of the rows fulfil it."""
    rounds: dict[tuple[int, float, float], list[Measurement]] = {}
    for each in measured:
        rounds.setdefault((each.publishers, each.delay_ms, each.wait_ms), []).append(each)
    by_wait = {key: _median(each) for key, each in rounds.items()}
    rows = by_wait.values()
    pairs = [(row, by_wait[row.publishers, row.delay_ms, 0.0]) for row in rows if row.wait_ms]
    alone = [(waits, at_once) for waits, at_once in pairs if waits.publishers == 1]
    longest = max(row.wait_ms for row in rows)
    quick = [pair for pair in alone if pair[0].wait_ms == longest and not pair[0].delay_ms]
    return [
        (
            "no wait makes more than 5 % more publications durable per second than none",
            all(
                waits.acknowledged_per_s <= 1.05 * at_once.acknowledged_per_s
                for waits, at_once in pairs
            ),
        ),
        (
            "a lone publisher waits for at least nine tenths of the wait longer (p50)",
            all(waits.p50_ms >= at_once.p50_ms + 0.9 * waits.wait_ms for waits, at_once in alone),
        ),
        (
            f"a wait of {longest:g} ms saves a lone publisher's disk half of its fsyncs at least",
            all(waits.syncs_per_s <= 0.5 * at_once.syncs_per_s for waits, at_once in quick),
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.group_commit", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk in question")
    parser.add_argument("--wait", action="store_true", help="measure waits before a commit")
    parser.add_argument("--rounds", type=int, default=1, help="of all rows, one after the other")
    chosen = parser.parse_args(arguments)
    if chosen.seconds <= 0:
        parser.error("--seconds is a positive number")
    if chosen.rounds < 1:
        parser.error("--rounds is 1 or more")
    if not chosen.folder.is_dir():
        parser.error(f"--folder: {chosen.folder} is no folder")
    print(f"records of {RECORD_BYTES} B, {chosen.seconds:g} s each, in {chosen.folder}\n{_HEADER}")
    rows = []
    waits_ms, delays_ms = (WAITS_MS, WAITING_DELAYS_MS) if chosen.wait else ((0.0,), DELAYS_MS)
    points = [*product(PUBLISHERS, delays_ms, waits_ms)] * chosen.rounds
    for publishers, delay_ms, wait_ms in points:
        with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="group-commit-") as name:
            folder = Path(name) / "log"
            work = partial(measure, folder, publishers, delay_ms, chosen.seconds, wait_ms)
            rows.append(trio.run(work))
            print(rows[-1], flush=True)
    claimed = claims(rows) if chosen.wait else []
    for claim, holds in claimed:
        print(f"{'holds' if holds else 'does not hold'}: {claim}")
    return 0 if all(holds for _, holds in claimed) else 1


if __name__ == "__main__":
    sys.exit(main())
