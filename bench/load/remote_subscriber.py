"""Subscribers in processes of their own, as controlled by their load generator.

The committed content of the database of the process is the state of its application. All records
and checks of deliveries use only this content, across any number of crashes.
"""

import itertools
import json
import os
import random
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

import trio

from bench.load.load_files import ClientHost
from bench.load.subscriber_process import MOMENTS, read_lines
from bench.load.subscribers import SubscriberSetting
from brokerd.client.events import GapAnnounced
from brokerd.interpreter import module_command
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.publication import Place, PublicationRun

CRASHES: Final = (*MOMENTS, "starting", "any")
"""Moments of a kill: a moment of a transaction, during the start, or any time."""
MOMENT_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05
_LEAVE_TIMEOUT_S: Final = 4.0
_ROWS_AT_ONCE: Final = 2_000
_READ: Final = "SELECT * FROM received WHERE place > ? ORDER BY place LIMIT ?"
_READ_COMMITS: Final = (
    "SELECT * FROM committed WHERE number > ? AND last_place <= ? ORDER BY number"
)


class ProcessGate:
    """The gate of a subscriber's process, also of a process that starts with a shut gate.

    Args:
        order: sends an order to the process.
    """

    def __init__(self, order: Callable[[str], None]) -> None:
        self._order = order
        self.is_shut = False

    def shut(self) -> None:
        self.is_shut = True
        self._order("shut")

    def open(self) -> None:
        self.is_shut = False
        self._order("open")


class ProcessSubscriber:
    """A subscriber in a process of its own, for the time of the load generator.

    Attributes: see LoadClient; and
        crashes: number of kills by moment.
        gate: gate of the connection to the broker.
        absences: see SubscriberClient.
    """

    publishes = False

    def __init__(self, generator: ClientHost, setting: SubscriberSetting, number: int) -> None:
        self.name = setting.name
        self.broker = setting.broker
        self.session = self.attached_ns = self.lost_ns = self.processed = 0
        self.lost_because = self.attach_failure = ""
        self.waiting_bytes = 0
        self.is_known = self.is_started = False
        self.absences = setting.absences
        self.gate = ProcessGate(partial(generator.start_task, self._send_command))
        self.crashes = dict.fromkeys(CRASHES, 0)
        self._generator = generator
        self._setting = setting
        self._number = number
        self._database = generator.setting.log_folder / f"{setting.name}.sqlite"
        self._place = self._commit = 0
        self._recorded: deque[tuple[int, SourceId, int]] = deque()
        self._issued_ns = 0
        self._process: trio.Process | None = None
        self._may_live = trio.Event()
        self._may_live.set()
        self._changed = trio.Event()
        self._is_subscribed = self._is_leaving = self._is_killed = self._has_tried = False
        self._random = random.Random(f"{generator.setting.seed} {setting.name}")

    # ------------------------------------------------------------ the process

    async def run(self) -> None:
        """Run the process, and restart it after a kill, until `leave`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_on)
            while not self._is_leaving:
                await self._may_live.wait()
                if not self._is_leaving:
                    await self._live()
            nursery.cancel_scope.cancel()
        self._read()

    async def _live(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = await trio.lowlevel.open_process(
            module_command("bench.load.subscriber_process"),
            stdin=PIPE, stdout=PIPE, env=environment, cwd=str(Path.cwd()),
        )  # fmt: skip
        try:
            self._process = process
            self._is_killed = False
            await self._send_command(json.dumps(self._config()))
            if self.gate.is_shut:
                await self._send_command("shut")
            if self._issued_ns:
                await self._send_command("subscribe")
            assert process.stdout is not None, "stdout is a pipe"
            async for line in read_lines(process.stdout):
                self._on_line(json.loads(line))
            await process.wait()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            self._on_ended(process.returncode)

    def _on_ended(self, status: int | None) -> None:
        self._process = None
        self._is_subscribed = False
        if self.is_known:
            self._on_lost(f"its process ended with {status}", time.monotonic_ns())
        if not (self._is_killed or self._is_leaving):
            self._generator.note_problem(f"{self.name}: its process ended with {status}")
            self._may_live = trio.Event()
        self._announce()

    def _config(self) -> dict[str, Any]:
        setting, ours = self._setting, self._generator.setting
        tls = None
        if ours.tls is not None:
            tls = {name: str(path) for name, path in asdict(ours.tls).items()}
        return {
            "client": setting.client,
            "address": setting.address,
            "predicate": setting.predicate_with_fence(ours.run_id),
            "acknowledge": setting.acknowledge,
            "deployment_id": ours.deployment_id,
            "session": asdict(ours.session),
            "tls": tls,
            "database": str(self._database),
        }

    async def _send_command(self, order: str) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        try:
            await process.stdin.send_all(f"{order}\n".encode())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the process was killed, and `_live` sends the order to its successor

    def _on_line(self, line: dict[str, Any]) -> None:
        self._on_attempt()
        kind = line["what"]
        if kind == "attached":
            self.session += 1
            self.is_known, self.attached_ns = True, line["t_ns"]
            self._generator.files.write_session(self, self.attached_ns, "up", "")
        elif kind == "lost" and self.is_known:
            self._on_lost(line["reason"], line["t_ns"])
        elif kind in ("lost", "failed"):
            self.attach_failure = line["reason"]
        elif kind == "subscribed":
            self._is_subscribed = True
            self._on_started()
        else:
            self._generator.note_problem(f"{self.name}: {line.get('text', kind)}")
        self._announce()

    def _on_attempt(self) -> None:
        if not self._has_tried:
            self._has_tried = True
            self._generator.beginning.release()

    def _on_lost(self, reason: str, t_ns: int) -> None:
        self.is_known = False
        self.lost_ns, self.lost_because = t_ns, reason
        self._generator.files.write_session(self, t_ns, "down", reason)

    def _on_started(self) -> None:
        if self.is_started:
            return
        self.is_started = True
        self._generator.files.write_subscription(self._setting, self._issued_ns)

    # ------------------------------------------------------------ orders

    def subscribe(self) -> None:
        """Subscribe, at most once."""
        if not self._issued_ns:
            self._issued_ns = time.monotonic_ns()
            self._generator.start_task(self._send_command, "subscribe")

    def leave(self) -> None:
        """End subscription and process; `run` returns after both."""
        self._is_leaving = True
        self._may_live.set()
        self._generator.start_task(self._stop_process)

    async def _stop_process(self) -> None:
        await self._send_command("leave")
        with trio.move_on_after(_LEAVE_TIMEOUT_S):
            while self._process is not None:
                await self._changed.wait()
        if self._process is not None:
            self._process.kill()

    async def crash_again_and_again(self, down_s: float) -> None:
        """Kill and restart the process, at each moment in turn, until cancelled."""
        try:
            for moment in itertools.cycle(CRASHES):
                await self._crash(moment)
                await trio.sleep(down_s)
                self._may_live.set()
        finally:
            self._may_live.set()

    async def _crash(self, moment: str) -> None:
        process = await self._wait_progress(moment == "starting")
        self._may_live = trio.Event()
        self._is_killed = True
        if moment in MOMENTS:
            await self._send_command(f"die {moment}")
            try:
                with trio.move_on_after(MOMENT_TIMEOUT_S):
                    while self._process is process:
                        await self._changed.wait()
            except trio.Cancelled:
                if self._process is process:  # else the kill would follow the end of the fault
                    self._generator.start_task(self._send_command, "die")
                raise
        elif moment == "any":
            await trio.sleep(self._random.uniform(0, 0.3))
        if self._process is process:
            moment = "starting" if moment == "starting" else "any"
            process.kill()
        while self._process is process:
            await self._changed.wait()
        self.crashes[moment] += 1
        line = {"t_ns": time.monotonic_ns(), "client": self.name, "moment": moment}
        self._generator.files.write_line("crashes", line)

    async def _wait_progress(self, is_starting: bool) -> trio.Process:
        """Return the process after its next progress, or at a random time during its start."""
        while self._process is None:
            await self._changed.wait()
        process = self._process
        if is_starting:
            await trio.sleep(self._random.uniform(0, 1.2))
            return process
        taken = self.processed
        while self._process is process and (not self._is_subscribed or self.processed == taken):
            await self._changed.wait()
        return process

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # ------------------------------------------------------------ received publications

    async def _read_on(self) -> None:
        while True:
            await trio.sleep(_POLL_S)
            self._read()

    def _read(self) -> None:
        """Record the new commits of the application."""
        if not self._database.exists():
            return
        database = sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        try:
            rows = database.execute(_READ, (self._place, _ROWS_AT_ONCE)).fetchall()
            place = rows[-1][0] if rows else self._place
            commits = database.execute(_READ_COMMITS, (self._commit, place)).fetchall()
        except sqlite3.OperationalError:
            return  # a new database has no tables yet
        finally:
            database.close()
        self._place = place
        for number, first, last in commits:
            # The judges must see a commit before the deliveries that follow it.
            earlier = [row for row in rows if row[0] <= last]
            rows = rows[len(earlier) :]
            self._record(earlier)
            self._record_commit(first, last)
            self._commit = number
        self._record(rows)
        if rows or commits:
            self._announce()

    def _record_commit(self, first: int, last: int) -> None:
        """Record the commit of the deliveries between two places of the database."""
        now_ns, recorded = time.monotonic_ns(), self._recorded
        ranges: dict[SourceId, tuple[int, int]] = {}
        while recorded and recorded[0][0] <= last:
            place, source, sequence = recorded.popleft()
            if place >= first:
                ranges[source] = ranges.get(source, (sequence, 0))[0], sequence
        for source, (low, high) in ranges.items():
            self._generator.receiver.note_commit(self._number, source, low, high, now_ns)

    def _record(self, rows: list[tuple[Any, ...]]) -> None:
        """Record rows as received now, so that stamps in a file ascend over all subscribers."""
        now_ns = time.monotonic_ns()
        receiver = self._generator.receiver
        if self._setting.acknowledge:
            self._recorded += [
                (row[0], SourceId(*row[2:5]), row[5]) for row in rows if row[11] is None
            ]
        for (*_, is_again), group in groupby(rows, key=_key_of):
            several = list(group)
            if several[0][11] is not None:
                for row in several:
                    gap = GapAnnounced(1, SourceId(*row[2:5]), row[5], row[10], row[11])
                    receiver.note_gap(self._number, gap, now_ns)
                continue
            for run in _runs(several):
                self.processed += 1
                if is_again:
                    receiver.note_redelivered(self._number, run, now_ns)
                else:
                    receiver.receive(self._number, run, now_ns)


def _key_of(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key of rows that may be one run: times, source, stream, gap and mark."""
    return *row[1:5], row[8], row[11], row[12]


def _runs(rows: list[tuple[Any, ...]]) -> Iterator[PublicationRun]:
    """Yield rows of one source as runs with ascending numbers; a descent begins a new run."""
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place][5] <= rows[place - 1][5]:
            yield _run(rows[start:place])
            start = place


def _run(rows: list[tuple[Any, ...]]) -> PublicationRun:
    blobs = tuple(dict.fromkeys(row[6] for row in rows))
    places = {blob: place for place, blob in enumerate(blobs)}
    at = None
    if rows[0][8] is not None:
        at = Place(StreamId(*map(int, rows[0][8].split("/"))), tuple(row[9] for row in rows))
    return PublicationRun(
        SourceId(*rows[0][2:5]),
        tuple(row[5] for row in rows),
        blobs,
        tuple(places[row[6]] for row in rows),
        tuple(len(row[7]) for row in rows),
        tuple(row[7] for row in rows if row[7]),
        place=at,
    )
