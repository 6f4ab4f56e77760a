"""Agents that may be replaced while others talk to them."""

from typing import Any

import trio

from brokerd.agent.client import AgentClient, Control
from brokerd.errors import ControlError
from brokerd.runtime.control import Happening
from pubsubctl.held import Held


class AgentLine:
    """A connection to a host's agent that goes on when that agent is replaced by another one.

    A request that the old agent did not answer any more is asked of the new one; so only
    requests that may be asked twice belong into the time of a replacement.

    Attributes:
        client: for everybody who talks to the agent; stays the same.
    """

    def __init__(self, connection: Held[AgentClient]) -> None:
        self.client = AgentClient(self)
        self._connection = connection
        self._replaced: trio.Event | None = None

    async def request(self, command: str, /, **arguments: Any) -> dict[str, Any]:
        """See ControlClient."""
        while True:
            if self._replaced is not None:
                await self._replaced.wait()
            control = self._control
            try:
                return await control.request(command, **arguments)
            except ControlError as error:
                if error.kind != "closed" or (self._replaced is None and control is self._control):
                    raise

    async def listen(self) -> trio.MemoryReceiveChannel[Happening]:
        """See ControlClient; ends when the agent is replaced."""
        return await self._control.listen()

    async def leave(self) -> None:
        """End the connection."""
        await self._connection.leave()

    async def begin_replacement(self) -> None:
        """From now on requests wait for the next agent."""
        self._replaced = trio.Event()
        await self._connection.leave()

    def end_replacement(self, connection: Held[AgentClient] | None) -> None:
        """Here is the next agent; None for there is none, and requests fail."""
        if connection is not None:
            self._connection = connection
        assert self._replaced is not None, "begin_replacement first"
        self._replaced.set()
        self._replaced = None

    @property
    def _control(self) -> Control:
        return self._connection.value.control
