"""Connections that are opened in one task and closed from another."""

from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Held(Generic[T]):
    """A context manager that a separate task holds open until `leave`.

    Attributes:
        value: the value that the context manager returned.
    """

    def __init__(self) -> None:
        self.value: T
        self._leaving = trio.Event()
        self._left = trio.Event()
        self._failure: Exception | None = None

    @classmethod
    async def enter(
        cls, nursery: trio.Nursery, manager: AbstractAsyncContextManager[T]
    ) -> "Held[T]":
        """Enter `manager` in a task of `nursery`; raise the exception of the entry, if any."""
        held: Held[T] = cls()
        await nursery.start(held._hold, manager)
        if held._failure is not None:
            raise held._failure
        return held

    async def leave(self) -> None:
        """Leave the context manager and wait for the exit."""
        self._leaving.set()
        await self._left.wait()

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
            self._left.set()
