"""Connections to agents that outlive the connection, and the agent."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from brokerd.agent.client import AgentClient, Control
from brokerd.errors import ControlError
from brokerd.runtime.control import Happening
from pubsubctl.errors import Unreachable
from pubsubctl.hosts.held import Held

Connect = Callable[[], Awaitable[Held[AgentClient]]]

# To be asked a second time where the first answer was lost: they say how it is, or make it so.
REPEATABLE: Final = (
    *("hello", "status", "facts", "files", "hold", "stop", "fault_heal", "fault_renew"),
)
REPEATABLE_OF_PROCESSES: Final = (
    "status",
    "statistics",
    "latency_samples",
    "publishers",
    "begin",
    "begin_run",
)


class AgentLine:
    """A connection to a host's agent that goes on when it is lost, or the agent is replaced.

    While an agent is replaced, what the old one did not answer any more is asked of the new
    one; so only requests that may be asked twice belong into that time. When a connection is
    lost, it is made anew once, and what only asks is asked again.

    Attributes:
        client: for everybody who talks to the agent; stays the same.
    """

    def __init__(self, connect: Connect, connection: Held[AgentClient]) -> None:
        self.client = AgentClient(self)
        self._connect = connect
        self._connection = connection
        self._replaced: trio.Event | None = None
        self._reconnecting = trio.Lock()

    @classmethod
    async def to(cls, connect: Connect) -> "AgentLine":
        """A line whose connections `connect` makes."""
        return cls(connect, await connect())

    async def request(self, command: str, /, **arguments: Any) -> dict[str, Any]:
        """See ControlClient."""
        repeatable = command in REPEATABLE or (
            command == "broker" and arguments.get("command") in REPEATABLE_OF_PROCESSES
        )
        is_new = False
        while True:
            if self._replaced is not None:
                await self._replaced.wait()
            control = self._control
            try:
                return await control.request(command, **arguments)
            except ControlError as error:
                if error.kind != "closed":
                    raise
                if self._replaced is None and control is self._control:
                    if is_new or not repeatable:
                        raise
                    is_new = True
                    await self._reconnect(control)

    async def _reconnect(self, lost: Control) -> None:
        """A new connection in place of `lost`; ControlError when there is none to be had."""
        async with self._reconnecting:
            if self._control is not lost or self._replaced is not None:
                return  # somebody else was quicker
            before = self._connection
            try:
                self._connection = await self._connect()
            except Unreachable as error:
                raise ControlError("closed", str(error)) from error
            await before.leave()

    async def listen(self) -> trio.MemoryReceiveChannel[Happening]:
        """See ControlClient; ends when the agent is replaced."""
        return await self._control.listen()

    @property
    def is_replaced(self) -> bool:
        """Whether there is no agent just now, and requests wait for the next one."""
        return self._replaced is not None

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
