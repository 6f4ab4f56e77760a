"""Tests of a gryphon broker as a process: full disk, kill and new deployment."""

import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.client.client import connect
from brokerd.protocols.gryphon.state import PUBLISHED, RELEASED, RESERVED
from brokerd.storage.meta_store import decode_value
from tests.helpers.patience import PATIENCE_S
from tests.helpers.small_disk import fill_disk, mounted_disk
from tests.runtime.test_process import (
    Configure,
    Start,
    ask,
    configure,
    lines,
    start,
    wait_until_up,
)

pytestmark = pytest.mark.end_to_end
__all__ = ["configure", "start"]

CELLS = """
schema = "pubsubctl/topology/2"
name = "path"
kind = "cells"
brokers = ["b0", "b1", "b2"]
[cells]
bundles = [["b0", "b1"], ["b1", "b2"]]
[parameters.gryphon]
filters = false  # else a subscription waits for the brokers that do not run here
"""
ROOM_MIB = 4


async def wait_for_event(folder: Path, name: str) -> None:
    """Wait until the broker has logged an event."""
    with trio.fail_after(PATIENCE_S):
        while name not in {e["event"] for e in lines(folder / "log" / "events.jsonl")}:
            await trio.sleep(0.02)


def test_publications_on_a_full_disk_are_acknowledged_once_room_is_available(
    configure: Configure,
    start: Start,
    tmp_path: Path,
) -> None:
    """A kill follows: the broker recovers all publications, and another deployment keeps them."""
    with mounted_disk(tmp_path / "disk", ROOM_MIB) as disk:
        changes = {"protocol": "gryphon", "state_folder": str(disk / "state")}
        folder = configure("b0", **changes)
        (folder.parent / "topology.toml").write_text(CELLS)
        text = (folder / "broker.toml").read_text()
        (address,) = [
            json.loads(line.partition("=")[2])
            for line in text.splitlines()
            if line.startswith("listen")
        ]

        async def publish(process: subprocess.Popen[str]) -> None:
            await wait_until_up(folder)
            async with (
                connect(address, "p", publishes=True) as publisher,
                connect(address, "s") as subscriber,
            ):
                with trio.fail_after(PATIENCE_S):
                    await subscriber.subscribe("true")
                publications = subscriber.publications()
                await publisher.publish({"n": 0}, b"x")
                await publisher.flush()
                assert (await anext(publications)).attributes == {"n": 0}
                filler = fill_disk(disk)
                await publisher.publish({"n": 1}, bytes(200_000))
                await wait_for_event(folder, "disk_full")
                assert publisher.outstanding == 1
                seen = await ask(folder, "statistics")
                assert (seen["publications_received"], seen["publications_delivered"]) == (1, 1)
                filler.unlink()
                with trio.fail_after(PATIENCE_S):
                    await publisher.flush()
                    assert (await anext(publications)).attributes == {"n": 1}
            process.kill()
            process.wait()

        async def found_by(process: subprocess.Popen[str]) -> int:
            """Return the number of publications that no client at b1 and b2 has acknowledged."""
            status = await wait_until_up(folder)
            with trio.fail_after(PATIENCE_S):
                while status["state"] != "running":
                    await trio.sleep(0.02)
                    status = await wait_until_up(folder)
            process.kill()
            process.wait()
            return int(status["queued"])

        trio.run(publish, start(folder))
        assert trio.run(found_by, start(folder)) == 2
        configure("b0", **changes, deployment_id="d2")
        assert start(folder).wait(PATIENCE_S) == 78
        configure("b0", **changes)
        assert trio.run(found_by, start(folder)) == 2


ALONE = """
schema = "pubsubctl/topology/2"
name = "alone"
kind = "cells"
brokers = ["b0"]
[cells]
bundles = []
[parameters.gryphon]
order = "total"
pubends = 2
"""
AN_HOUR_BACK = """
import pathlib
import time

shown_ns = time.time_ns


def an_hour_back_ns():
    pathlib.Path(__file__).with_name("was-read").touch()
    return shown_ns() - 3_600_000_000_000


time.time_ns = an_hour_back_ns
"""


def table(folder: Path, name: str) -> dict[str, Any]:
    """Return a table of a broker's disk."""
    with closing(sqlite3.connect(folder / "state" / "meta.sqlite3")) as store:
        rows = store.execute("SELECT key, value FROM rows WHERE name = ?", (name,)).fetchall()
    return {key: decode_value(value) for key, value in rows}


async def wait_for_table(
    folder: Path, name: str, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until a table on disk meets a condition; return the table."""
    with trio.fail_after(PATIENCE_S):
        while not condition(found := table(folder, name)):
            await trio.sleep(0.02)
    return found


def test_ticks_continue_above_the_lease_if_the_clock_was_set_back(
    configure: Configure, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In total order both pubends must announce silence."""
    folder = configure("b0", protocol="gryphon")
    (folder.parent / "topology.toml").write_text(ALONE)
    text = (folder / "broker.toml").read_text()
    listen = next(line for line in text.splitlines() if line.startswith("listen"))
    address = json.loads(listen.partition("=")[2])

    async def story() -> None:
        process = start(folder)
        await wait_until_up(folder)
        async with (
            connect(address, "s") as subscriber,
            connect(address, "p", publishes=True) as one,
            connect(address, "q", publishes=True) as other,
        ):
            with trio.fail_after(PATIENCE_S):
                await subscriber.subscribe("true")
            publications = subscriber.publications()

            async def publish(*numbers: int) -> None:
                for number in numbers:
                    with trio.fail_after(PATIENCE_S):
                        await (other if number % 2 else one).publish({"n": number}, b"x")
                        assert (await anext(publications)).attributes == {"n": number}

            await publish(0, 1, 2, 3)
            await wait_for_table(folder, RELEASED, lambda rows: len(rows) == 2)
            process.kill()
            process.wait()
            lease = table(folder, RESERVED)["tick"]
            assert max(table(folder, RELEASED).values()) < lease

            (tmp_path / "sitecustomize.py").write_text(AN_HOUR_BACK)
            monkeypatch.setenv("PYTHONPATH", str(tmp_path))
            process = start(folder)
            await wait_until_up(folder)
            await publish(4, 5, 6)
            assert (tmp_path / "was-read").exists()
            await wait_for_table(folder, PUBLISHED, lambda rows: min(rows.values()) == 3)
            assert min(table(folder, RELEASED).values()) > lease

    trio.run(story)
