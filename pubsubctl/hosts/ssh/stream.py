"""Standard input and output of a command on another machine, as a trio stream.

A thread feeds the channel below and wakes us without blocking. Operations that may block run in
worker threads, which a cancelled task leaves behind: taking data frees room for the other side,
which sends a message, and sending waits for room. The worker threads end when the channel is
closed. Data that such a thread took is not lost: the next receive returns the data.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import trio

from pubsubctl.errors import HostError, PubsubctlError
from pubsubctl.hosts.ssh.errors import ConnectionLost

T = TypeVar("T")

RECEIVE_BYTES: Final = 1 << 20
SEND_BYTES: Final = 32_000  # fits into one packet
STDERR_TAIL_BYTES: Final = 4096
STATUS_DEADLINE_S: Final = 2.0  # from the end of the output to the exit status
CLOSE_DEADLINE_S: Final = 1.0

# EOFError: the connection broke while a message was being written.
_SEND_FAILURES: Final = (OSError, EOFError)

# Commands of 16 hosts may all wait at once. A task that waits for a thread would wait for others.
_THREADS = 4096


class Pipe(Protocol):
    """Data that a channel has received and that was not taken yet."""

    def set_event(self, event: "Wakeup") -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


class Channel(Closable, Protocol):
    """The part of paramiko's Channel that is used here."""

    closed: bool
    eof_received: bool
    exit_status: int

    @property
    def in_buffer(self) -> Pipe: ...
    @property
    def in_stderr_buffer(self) -> Pipe: ...
    def recv_ready(self) -> bool: ...
    def recv(self, nbytes: int, /) -> bytes: ...
    def recv_stderr_ready(self) -> bool: ...
    def recv_stderr(self, nbytes: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def shutdown_write(self) -> None: ...


class Wakeup:
    """Stands in for a threading.Event, and wakes a task instead."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._arrival = trio.Event()

    def set(self) -> None:
        """Report data or the end; called by the channel's thread."""
        try:
            self._token.run_sync_soon(self.wake, idempotent=True)
        except trio.RunFinishedError:
            pass

    def clear(self) -> None:
        """Ignore the report of an empty buffer; the stream inspects the channel itself."""

    def wake(self) -> None:
        """Wake the waiting task."""
        self._arrival.set()

    def arm(self) -> None:
        """Make `wait` wait for the next event from now on."""
        if self._arrival.is_set():
            self._arrival = trio.Event()

    async def wait(self) -> None:
        """Wait for news since `arm`."""
        await self._arrival.wait()


class Workers:
    """Threads for calls that may block; a cancelled task does not wait for its thread."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def run(
        self,
        function: Callable[..., T],
        *arguments: object,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        """Run the function in a thread and return the result, or raise the exception.

        Args:
            discard: receives, in a thread, a result that arrives after a cancellation.
        """
        errand = _Errand(function, arguments, discard)
        try:
            return await trio.to_thread.run_sync(
                errand.run, abandon_on_cancel=True, limiter=self._limiter
            )
        except trio.Cancelled:
            errand.abandon()
            raise


class _Errand(Generic[T]):
    """A call in a thread; records if the result is abandoned."""

    def __init__(
        self,
        function: Callable[..., T],
        arguments: tuple[object, ...],
        discard: Callable[[T], None] | None,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._discard = discard
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._results: list[T] = []

    def run(self) -> T:
        result = self._function(*self._arguments)
        with self._lock:
            self._results.append(result)
            is_wanted = not self._is_abandoned
        if not is_wanted:
            self._throw_away()
        return result

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            is_there = bool(self._results)
        if is_there and self._discard:
            threading.Thread(target=self._throw_away, daemon=True).start()

    def _throw_away(self) -> None:
        if self._discard:
            self._discard(self._results[0])


class CommandStream(trio.abc.HalfCloseableStream):
    """A byte stream to and from a command.

    `send_eof` ends the command's standard input. Closing the stream ends the command's input and
    output, which ends most commands. The stream ends when the command ends with status 0, or closes
    its output. After another end of the command, or of the connection, receiving and sending raise
    trio.BrokenResourceError and `failure` has the reason.

    Attributes:
        failure: the reason for the broken stream; None while the stream is intact.
    """

    def __init__(
        self,
        channel: Channel,
        workers: Workers,
        *,
        host: str,
        name: str,
        why_lost: Callable[[], str | None],
        take_stderr: Callable[[bytes], None] | None = None,
        status_matters: bool = True,
    ) -> None:
        """Open the stream.

        Args:
            host, name: names of machine and command, for messages.
            why_lost: called, in a thread, if the channel has ended without an exit status;
                returns None while the connection is alive.
            take_stderr: receives the command's standard error; otherwise the last 4 KiB are
                kept for the message.
            status_matters: True if a status other than 0 breaks the stream.
        """
        self.failure: PubsubctlError | None = None
        self._channel = channel
        self._workers = workers
        self._host = host
        self._name = name
        self._why_lost = why_lost
        self._take_stderr = take_stderr or self._keep_tail
        self._status_matters = status_matters
        self._is_closed = False
        self._has_ended = False
        self._reason: str | None = None
        self._tail = b""
        self._received: deque[bytes] = deque()
        self._taking = threading.Lock()
        self._receiving = trio.Lock()
        self._sending = trio.Lock()
        self._wakeup = Wakeup()
        channel.in_buffer.set_event(self._wakeup)
        channel.in_stderr_buffer.set_event(self._wakeup)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return output of the command; b"" at a regular end.

        Raises:
            trio.BrokenResourceError: the command failed, or the connection was lost.
            trio.ClosedResourceError: this stream was closed.
        """
        with _exclusive(self._receiving, "received from"):
            await trio.lowlevel.checkpoint()
            wanted = RECEIVE_BYTES if max_bytes is None else max(max_bytes, 1)
            while True:
                if self._is_closed:
                    raise trio.ClosedResourceError
                self._wakeup.arm()
                if self._channel.recv_stderr_ready():
                    self._take_stderr(
                        await self._workers.run(self._channel.recv_stderr, RECEIVE_BYTES)
                    )
                elif self._received:
                    return self._take_channel(wanted)
                elif self._channel.recv_ready():
                    await self._workers.run(self._take, wanted, discard=self._wake_up)
                elif self._has_ended:
                    return self._end()
                elif self._channel.eof_received or self._channel.closed:
                    await self._wait_ended()
                    # Queue behind the data that a cancelled receive still takes.
                    await self._workers.run(self._take, wanted, discard=self._wake_up)
                    await self._check_loss()
                    self._has_ended = True
                else:
                    await self._wakeup.wait()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write to the command's standard input.

        Raises:
            trio.BrokenResourceError: the command reads no more, or the connection was lost.
            trio.ClosedResourceError: this stream, or the sending half, was closed.
        """
        with _exclusive(self._sending, "sent to"):
            await trio.lowlevel.checkpoint()
            if self._is_closed:
                raise trio.ClosedResourceError
            if not await self._workers.run(self._send, bytes(data)):
                if self._is_closed:
                    raise trio.ClosedResourceError
                await self._check_loss()
                raise self._make_broken()

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: `send_all` waits for room."""
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """End the command's standard input."""
        with _exclusive(self._sending, "sent to"):
            await trio.lowlevel.checkpoint()
            if self._is_closed:
                raise trio.ClosedResourceError
            try:
                await self._workers.run(self._channel.shutdown_write)
            except _SEND_FAILURES:
                await self._check_loss()
                raise self._make_broken() from None

    async def aclose(self) -> None:
        """Close both directions; never waits long, and not at all when cancelled."""
        if not self._is_closed:
            self._is_closed = True
            self._wakeup.wake()
            with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_DEADLINE_S):
                await self._workers.run(close_quietly, self._channel)
        await trio.lowlevel.checkpoint()

    @property
    def status(self) -> int:
        """Return the exit status; -1 after a signal, or if the status is unknown."""
        return self._channel.exit_status

    def _take(self, wanted: int) -> None:
        with self._taking:
            if not self._received and self._channel.recv_ready():
                self._received.append(self._channel.recv(wanted))  # b"" never: there is something

    def _wake_up(self, nothing: None) -> None:
        """Wake the stream, because a cancelled receive took data after all."""
        self._wakeup.set()

    def _take_channel(self, wanted: int) -> bytes:
        data = self._received.popleft()
        if len(data) > wanted:
            self._received.appendleft(data[wanted:])
            data = data[:wanted]
        return data

    def _send(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                sent = self._channel.send(bytes(view[:SEND_BYTES]))
                if sent == 0:
                    return False
                view = view[sent:]
        except _SEND_FAILURES:
            return False
        return True

    async def _wait_ended(self) -> None:
        """Wait for the exit status after the end of the output, at most STATUS_DEADLINE_S."""
        with trio.move_on_after(STATUS_DEADLINE_S):
            while True:
                self._wakeup.arm()
                if self._channel.closed:
                    return
                await self._wakeup.wait()

    async def _check_loss(self) -> None:
        """Find out if the connection is lost, unless the exit status has arrived."""
        if self._channel.closed and self.status == -1 and self._reason is None:
            self._reason = await self._workers.run(self._why_lost)

    def _end(self) -> bytes:
        if not self._channel.closed:
            return b""  # the command closed its output and runs on
        is_good = self.status == 0 or not self._status_matters
        if self._reason is None and is_good:
            return b""
        raise self._make_broken()

    def _make_broken(self) -> trio.BrokenResourceError:
        if self.failure is None:
            if self._reason is not None:
                self.failure = ConnectionLost(
                    self._host, f"connection lost during `{self._name}`: {self._reason}"
                )
            else:
                self.failure = HostError(self._describe_end())
        error = trio.BrokenResourceError(str(self.failure))
        error.__cause__ = self.failure
        return error

    def _describe_end(self) -> str:
        if not self._channel.closed:
            how = "does not read any more"
        elif self.status == -1:
            how = "was ended by a signal"
        else:
            how = f"ended with status {self.status}"
        output = printable(self._tail)
        return f"{self._host}: `{self._name}` {how}" + (f": {output}" if output else "")

    def _keep_tail(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-STDERR_TAIL_BYTES:]


def printable(output: bytes) -> str:
    """Return a command's output for a message, without control characters."""
    text = output.decode("utf-8", errors="replace").strip()
    return "".join(char if char.isprintable() or char == "\n" else "�" for char in text)


class _exclusive:
    """Refuses a second task where trio's streams do."""

    def __init__(self, lock: trio.Lock, use: str) -> None:
        self._lock = lock
        self._what = use

    def __enter__(self) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            raise trio.BusyResourceError(f"this stream is being {self._what} already") from None

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def close_quietly(thing: Closable) -> None:
    """Close a resource that may be closed already, or broken."""
    try:
        thing.close()
    except Exception:  # the connection closes as well, and the resource with the connection
        pass
