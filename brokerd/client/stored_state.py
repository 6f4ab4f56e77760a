"""The stored state of a client: read at the start, written after changes, one save at a time."""

import errno
from functools import partial
from typing import Protocol

import trio

from brokerd.client.core import ClientCore
from brokerd.client.restart import restart, state_of
from brokerd.client.state_encoding import read_kept, write_kept
from brokerd.client.store import Store

in_thread = trio.to_thread.run_sync


def core_of(
    name: str,
    publishes: bool,
    incarnation: int | None,
    instance: bytes,
    deployment_id: str,
    store: Store | None,
    automatic_commit: bool,
) -> ClientCore:
    """Return the client that the store holds, or a new one."""
    content = store.load() if store is not None else None
    if content is None:
        return ClientCore(
            name,
            publishes=publishes,
            incarnation=1 if incarnation is None else incarnation,
            exact_incarnation=incarnation is not None,
            instance=instance,
            keeps_state=store is not None,
            mode="automatic" if automatic_commit else "explicit",
        )
    state = read_kept(content, str(store), name, deployment_id, publishes=publishes)
    return restart(state, instance=instance, mode="automatic" if automatic_commit else "explicit")


class SaveListener(Protocol):
    """The receiver of the events of a state writer."""

    def on_saved(self) -> None:
        """Handle a save, after which messages may be sent."""

    def on_save_failed(self) -> None:
        """Handle the failure of the store, after which nothing is saved."""


class StateWriter:
    """A writer that saves the state of a client after changes; later changes go with the next save.

    Attributes:
        failure: the error after which nothing is saved any more; None if there was none.
    """

    def __init__(self, store: Store, core: ClientCore, listener: SaveListener) -> None:
        self.failure: OSError | None = None
        self._store = store
        self._core = core
        self._listener = listener
        self._wanted = trio.Event()
        self._turn = trio.Event()
        self._limiter = trio.CapacityLimiter(1)
        self._scope = trio.CancelScope(shield=True)
        self._is_over = False

    def look(self) -> None:
        """Schedule a save if the state has changed."""
        if self._core.revision.needs_saving:
            self._wanted.set()

    async def run(self) -> None:
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
            self._listener.on_save_failed()
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
        self._listener.on_saved()
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
