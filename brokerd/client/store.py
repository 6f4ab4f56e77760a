"""The store of a client's state: read at the start, written after changes, one save at a time."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from brokerd.client.core import ClientCore
from brokerd.client.restart import restart, state_of
from brokerd.client.state_encoding import read_kept, write_kept
from brokerd.runtime.threads import run_in_thread

STORE_LIMIT_BYTES: Final = 1 << 30


class Store(Protocol):
    """A store of one value of one client; calls never overlap, and arrive from changing threads."""

    def load(self) -> bytes | None:
        """Return the value that was last saved; None if there is none.

        Raises:
            OSError: the value cannot be read.
        """
        ...

    def save(self, content: bytes) -> None:
        """Replace the value; durable when this returns.

        Raises:
            OSError: the new value may be stored or not; the client must end.
        """
        ...


class FileStore:
    """A store in one file of this user alone, for one client in one process at a time.

    Implements `Store`.

    After a crash the file contains the value last saved or, if a save was in progress, the value
    before, never parts of either. After an error nothing more is saved: the content of the disk is
    unknown then, and only a new process that reads the file can continue.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._failure = ""

    def __str__(self) -> str:
        return str(self._path)

    def load(self) -> bytes | None:
        try:
            with open(self._path, "rb") as file:
                return file.read(STORE_LIMIT_BYTES)
        except FileNotFoundError:
            return None

    def save(self, content: bytes) -> None:
        if self._failure:
            raise OSError(errno.EIO, f"{self._path}: nothing is saved after {self._failure}")
        try:
            self._replace(content)
        except OSError as error:
            self._failure = str(error)
            raise OSError(errno.EIO, f"{self._path}: {error}") from error

    def _replace(self, content: bytes) -> None:
        fresh = self._path.with_name(f".{self._path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(fresh, flags, 0o600)
        try:
            os.fchmod(file, 0o600)  # a file that a crash has left may be readable by others
            view = memoryview(content)
            while view:
                view = view[os.write(file, view) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(fresh, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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
        self._scope.cancel()

    async def _save(self) -> None:
        version = self._core.revision.current
        content = write_kept(state_of(self._core))
        await run_in_thread(partial(self._store.save, content), limiter=self._limiter)
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
        if self._core.revision.is_saved(version):
            return
        self.look()
        with trio.CancelScope(shield=True):  # deliveries must not be lost by a cancellation
            while not self._core.revision.is_saved(version):
                if self._is_over:
                    raise self.failure or OSError(errno.EIO, "nothing is saved any more")
                await self._turn.wait()
