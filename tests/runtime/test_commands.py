"""Tests of control commands at a broker that has not read its state."""

from types import SimpleNamespace
from typing import Any, cast

import trio

from brokerd.protocols.interface import CoreStatus
from brokerd.runtime.commands import Commands


class StoredCore:
    """A core with two publications on disk; before `is_read` its queue is empty."""

    def __init__(self) -> None:
        self.is_read = False

    def status(self) -> CoreStatus[int]:
        return CoreStatus(state="running", queued=2 if self.is_read else 0)


async def settled() -> None:
    """Return at once, as a disk without writes."""


def commands_of(core: StoredCore) -> Commands:
    parts: Any = SimpleNamespace(
        waiting_bytes=lambda: 0,
        session_peers=tuple,
        settle=settled,
        names={},
        name="b0",
        incarnation=2,
        protocol="gryphon",
        deployment_id="d1",
        topology_digest="",
        ledger=None,
        missing=dict,
        faults=(),
        run_id="",
        witness=SimpleNamespace(marks={}),
    )
    commands = Commands(parts, cast("Any", core), parts, parts, parts, parts, parts)
    commands.started.set()
    return commands


def test_drain_waits_for_the_state_of_the_earlier_incarnation() -> None:
    async def story() -> None:
        core = StoredCore()
        commands = commands_of(core)
        drain = commands.handlers()["drain"]
        assert await drain({"timeout_ms": 1}) == {"drained": False, "queued": 0, "outbox_bytes": 0}
        core.is_read = commands.is_started = True
        assert await drain({"timeout_ms": 1}) == {"drained": False, "queued": 2, "outbox_bytes": 0}

    trio.run(story)


def test_status_reports_recovering_until_the_earlier_state_is_read() -> None:
    async def story() -> None:
        core = StoredCore()
        commands = commands_of(core)
        status = commands.handlers()["status"]
        assert (await status({}))["state"] == "recovering"
        core.is_read = commands.is_started = True
        assert [(await status({}))[key] for key in ("state", "queued")] == ["running", 2]

    trio.run(story)
