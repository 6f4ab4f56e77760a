"""A broker of gryphon as a process: its disk is full, it is killed, and deployed anew."""

import json
import subprocess
from pathlib import Path

import pytest
import trio

from brokerd.client.client import connect
from tests.helpers.patience import PATIENCE_S
from tests.helpers.small_disk import filled, mounted_disk
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
    """Until the broker has noted that."""
    with trio.fail_after(PATIENCE_S):
        while name not in {e["event"] for e in lines(folder / "log" / "events.jsonl")}:
            await trio.sleep(0.02)


def test_what_finds_no_room_is_not_acknowledged_and_comes_when_there_is_some(
    configure: Configure,
    start: Start,
    tmp_path: Path,
) -> None:
    """Then the broker is killed: it finds all again, and nothing of an earlier deployment."""
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
                filler = filled(disk)
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
            """How many publications it has, with which nobody at b1 and b2 is done."""
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
        assert trio.run(found_by, start(folder)) == 0
