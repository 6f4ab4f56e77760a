"""Tests of retained reads: many small publications must not exhaust the kernel's maps."""

import json
import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.config import SessionParameters
from brokerd.protocols.interface import Change, Commit, Persisted
from brokerd.runtime.connection import Connection
from brokerd.runtime.disk import Disk
from brokerd.sessions.session import Session, SessionState
from brokerd.storage.sqlite_store import SqliteMetaStore
from brokerd.wire.framing import FrameDecoder
from tests.helpers.memory_links import copy
from tests.helpers.raw_peer import words

ROOT = Path(__file__).parents[2]
PUBLICATIONS = 3_000
LARGE_BYTES = 200_000
ROOM = 1_000
"""The number of maps that the process of the story may still make at its start."""
LARGEST_LIMIT = 200_000
"""The limit above which the story would take too long to use up the maps."""


def maps() -> int:
    """Return the number of maps of this process."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


class Keeper:
    """An owner that keeps every small publication, as a queue does, and passes on large ones."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.came = trio.Event()

    def received(self, connection: Connection, events: list[Any], size_bytes: int) -> None:
        self.kept.extend(event for event in events if size_bytes < LARGE_BYTES)
        self.came.set()

    def refill(self, connection: Connection) -> None:
        pass

    def can_read(self, connection: Connection) -> bool:
        return True

    def on_ended(self, connection: Connection, reason: str) -> None:
        self.came.set()


async def keep_publications(sizes: list[int]) -> Keeper:
    """Receive publications of these sizes, in turn; return their owner."""
    stream, there = (
        trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair()
    )
    session = Session(1, 1, SessionState.ESTABLISHED)
    keeper = Keeper()
    connection = Connection(stream, session, FrameDecoder(), SessionParameters(), keeper)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        for number, size in enumerate(sizes, start=1):
            keeper.came = trio.Event()
            await there.send_all(words(copy(number, size)))
            await keeper.came.wait()
        nursery.cancel_scope.cancel()
    await there.aclose()
    return keeper


def tell(folder: str, sizes: list[int]) -> None:
    """Fill a queue in a process with few maps left, then commit; print the result."""
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    occupied = []
    if limit <= LARGEST_LIMIT:
        # Neighbours that may do different things stay maps of their own.
        ways = (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)
        while maps_left := limit - ROOM - maps():
            if maps_left < 0:
                break
            occupied += [
                mmap.mmap(-1, mmap.PAGESIZE, prot=ways[place % 2]) for place in range(maps_left)
            ]
    before = maps()
    persisted: list[Any] = []

    async def story() -> int:
        keeper = await keep_publications(sizes)
        store = SqliteMetaStore(Path(folder) / "store")
        store.begin("d")
        disk = Disk(store, persisted.extend)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.run)
            disk.commit(Commit((Change("t", "key", 1),), 7))
            await disk.settle()
            nursery.cancel_scope.cancel()
        return len(keeper.kept)

    kept = trio.run(story)
    print(  # noqa: T201
        json.dumps(
            {"kept": kept, "maps": maps() - before, "persisted": persisted == [Persisted(7)]}
        )
    )


@pytest.mark.parametrize("between", [(), (LARGE_BYTES,)], ids=["alone", "between large ones"])
def test_a_queue_of_small_publications_costs_no_maps_and_the_disk_is_still_there(
    tmp_path: Path, between: tuple[int, ...]
) -> None:
    # glibc's default; earlier frees of a process may have raised the threshold.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    call = f"tell({str(tmp_path)!r}, {[*between, 250]} * {PUBLICATIONS})"
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import tell; {call}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kept"] == PUBLICATIONS
    assert told["persisted"]
    assert told["maps"] < 100
