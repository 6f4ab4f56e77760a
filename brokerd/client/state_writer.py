"""The writer of a client's state to its store: one save at a time."""

import errno
from collections.abc import Callable
from functools import partial

import trio

from brokerd.client.core import ClientCore
from brokerd.client.restart import state_of
from brokerd.client.state_encoding import write_kept
from brokerd.client.store import Store

in_thread = trio.to_thread.run_sync


class StateWriter:
    """A writer that saves the state of a client after changes; later changes go with the next save.

    Attributes:
        failure: the error after which nothing is saved any more; None if there was none.
    """

    def __init__(self, store: Store, core: ClientCore, on_saved: Callable[[], None]) -> None:
        self.failure: OSError | None = None
        self._store = store
        self._core = core
        self._on_saved = on_saved
        self._wanted = trio.Event()
        self._turn = trio.Event()
        self._limiter = trio.CapacityLimiter(1)
        self._scope = trio.CancelScope(shield=True)
        self._is_over = False

    def look(self) -> None:
        """Schedule a save if the state has changed."""
        if self._core.revision.needs_saving:
            self._wanted.set()

    async def run(self, on_failure: Callable[[], None]) -> None:
        """Save until `stop`, or until the store fails: then its content is unknown.

        A cancelled client still has state to save, so this task is shielded.
        """
        try:
            with self._scope:
                while True:
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                    await self._save()
        except OSError as error:
            self.failure = error
            on_failure()
        finally:
            self._is_over = True
            self._turn.set()

    def stop(self) -> None:
        """Stop saving."""
        self._scope.cancel()

    async def _save(self) -> None:
        version = self._core.revision.current
        content = write_kept(state_of(self._core))
        await in_thread(partial(self._store.save, content), limiter=self._limiter)
        self._core.revision.on_saved(version)
        self._on_saved()
        self.look()
        turn, self._turn = self._turn, trio.Event()
        turn.set()

    async def wait_saved(self) -> None:
        """Wait until the present state would survive a restart.

        Raises:
            OSError: the store has failed.
        """
        version = self._core.revision.current
        self.look()
        with trio.CancelScope(shield=True):  # deliveries must not be lost by a cancellation
            while not self._core.revision.is_saved(version):
                if self._is_over:
                    raise self.failure or OSError(errno.EIO, "nothing is saved any more")
                await self._turn.wait()
