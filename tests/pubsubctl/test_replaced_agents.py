"""Stories of an agent that is replaced while its brokers run, on objects in memory."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from pubsubctl.deployment import deployment
from pubsubctl.deployment.deployment import Deployment
from pubsubctl.errors import HostError
from tests.helpers.virtual_time import in_virtual_time


class Replaced:
    """A deployment with one host; its steps are listed in order."""

    def __init__(self, *, lease_ms: int = 0, hangs: bool = False) -> None:
        self.steps: list[str] = []
        found = self.found = Deployment.__new__(Deployment)
        agent = SimpleNamespace(hold=self._hold, hello=self._hello)
        line = SimpleNamespace(begin_replacement=self._begin, end_replacement=self._end)
        connector = SimpleNamespace(stop_agent=self._stop, start_agent=self._start)
        values: dict[str, Any] = {
            "_lines": {"h1": line},
            "lab": SimpleNamespace(connector=lambda _: connector, hold_agent=self._hold_agent),
            "agents": {"h1": agent},
            "lease_ms": lease_ms,
            "identity": "d1",
            "programs": {"h1": "old"},
        }
        for name, value in values.items():
            object.__setattr__(found, name, value)
        self._hangs = hangs

    async def _hold(self, lease_ms: int) -> None:
        self.steps.append(f"hold {lease_ms}")

    async def _begin(self) -> None:
        self.steps.append("begin")

    async def _stop(self) -> None:
        self.steps.append("stop")

    async def _start(self, identity: str) -> None:
        self.steps.append(f"start for {identity}")
        if self._hangs:
            await trio.sleep_forever()

    async def _hold_agent(self, host: str) -> str:
        self.steps.append(f"connect {host}")
        return "connection"

    def _end(self, connection: str | None) -> None:
        self.steps.append(f"end with {connection}")

    async def _hello(self) -> str:
        self.steps.append("hello")
        return "new"


@in_virtual_time
async def test_the_program_of_a_replaced_agent_is_the_new_one() -> None:
    story = Replaced(lease_ms=5_000)
    await story.found.replace_agent("h1")
    assert story.steps == [
        f"hold {5_000 + deployment.REPLACEMENT_LEASE_MS}",
        *("begin", "stop", "start for d1", "connect h1", "end with connection", "hello"),
    ]
    assert story.found.programs == {"h1": "new"}


@in_virtual_time
async def test_an_agent_that_does_not_begin_in_time_is_named_and_its_line_is_free() -> None:
    story = Replaced(hangs=True)
    with pytest.raises(HostError, match="host h1: no new agent within 90 s; its brokers still run"):
        await story.found.replace_agent("h1")
    assert story.steps == ["begin", "stop", "start for d1", "end with None"]
    assert story.found.programs == {"h1": "old"}
