"""Connections to agents, kept open across tasks and commands.

A connection may be opened in one task and closed from another. An agent outlives its connections.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

import trio

from brokerd.agent.client import AgentClient, Control
from brokerd.errors import ControlError
from brokerd.runtime.control_socket import Happening
from pubsubctl.errors import Unreachable

T = TypeVar("T")


class HeldContext(Generic[T]):
    """A context manager that a separate task holds open until `leave`.

    Attributes:
        value: the value that the context manager returned.
    """

    def __init__(self) -> None:
        self.value: T
        self._leaving = trio.Event()
        self._closed = trio.Event()
        self._failure: Exception | None = None

    @classmethod
    async def enter(
        cls, nursery: trio.Nursery, manager: AbstractAsyncContextManager[T]
    ) -> "HeldContext[T]":
        """Enter `manager` in a task of `nursery`; raise the exception of the entry, if any."""
        held: HeldContext[T] = cls()
        await nursery.start(held._hold, manager)
        if held._failure is not None:
            raise held._failure
        return held

    async def leave(self) -> None:
        """Leave the context manager and wait for the exit."""
        self._leaving.set()
        await self._closed.wait()

    async def _hold(
        self,
        manager: AbstractAsyncContextManager[T],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        is_entered = False
        try:
            async with manager as self.value:
                is_entered = True
                task_status.started()
                await self._leaving.wait()
        except Exception as error:
            # The users have seen every error after the entry: while leaving, or in use.
            if not is_entered:
                self._failure = error
                task_status.started()
        finally:
            self._closed.set()


Connect = Callable[[], Awaitable[HeldContext[AgentClient]]]

# Repeatable after a lost answer: these requests report a state or are idempotent.
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
    """A connection to a host's agent that survives a lost connection and a replaced agent.

    Implements `ControlClient`.

    During a replacement, requests that the old agent did not answer are sent to the new agent, so
    only repeatable requests are allowed during a replacement. A lost connection is reopened once,
    and repeatable requests are sent again.

    Attributes:
        client: the client for all users of the agent; stays the same object.
    """

    def __init__(self, connect: Connect, connection: HeldContext[AgentClient]) -> None:
        self.client = AgentClient(self)
        self._connect = connect
        self._connection = connection
        self._replaced: trio.Event | None = None
        self._reconnecting = trio.Lock()

    @classmethod
    async def to(cls, connect: Connect) -> "AgentLine":
        """Return an agent line over connections that `connect` opens."""
        return cls(connect, await connect())

    async def request(self, command: str, /, **arguments: Any) -> dict[str, Any]:
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
        """Open a new connection in place of `lost`.

        Raises:
            ControlError: no connection can be opened.
        """
        async with self._reconnecting:
            if self._control is not lost or self._replaced is not None:
                return  # another task has reconnected already
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
        """Return True during a replacement of the agent, when requests wait for the next agent."""
        return self._replaced is not None

    async def leave(self) -> None:
        """End the connection."""
        await self._connection.leave()

    async def begin_replacement(self) -> None:
        """Make requests wait for the next agent from now on."""
        self._replaced = trio.Event()
        await self._connection.leave()

    def end_replacement(self, connection: HeldContext[AgentClient] | None) -> None:
        """Resume requests with the next agent; None for no agent, which makes requests fail."""
        if connection is not None:
            self._connection = connection
        assert self._replaced is not None, "begin_replacement first"
        self._replaced.set()
        self._replaced = None

    @property
    def _control(self) -> Control:
        return self._connection.value.control
