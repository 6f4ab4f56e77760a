"""Control sockets: local requests to a process, with authentication by the file system.

A Unix socket of mode 0600 in a folder of mode 0700 that belongs to this user: the file system is
the authentication. One connection carries any number of requests, each answered once by its id, and
events for subscribed listeners.
"""

import difflib
import fcntl
import logging
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.errors import ConfigError, ControlError, RemoteProtocolError
from brokerd.runtime.streams import accept_next
from brokerd.wire.control import (
    PREFIX,
    Answer,
    ControlMessage,
    EventNotice,
    Refusal,
    Request,
    decode_control,
    encode_control,
    header_length,
)

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
Happening = tuple[str, dict[str, Any]]

MAXIMUM_PATH_BYTES: Final = 107  # sun_path has 108, the last for a zero
MAXIMUM_CONNECTIONS: Final = 64
MAXIMUM_REQUESTS: Final = 64  # unanswered at once, per connection
REQUESTS_AT_ONCE: Final = MAXIMUM_REQUESTS
"""Largest number of unanswered requests of a client: further requests wait."""
EVENT_BUFFER: Final = 1_000
FRAME_DEADLINE_S: Final = 10.0

logger = logging.getLogger(__name__)


class ControlServer:
    """A server that answers requests by `handlers`, and sends events to listening connections.

    A handler that raises ControlError refuses with that error, ConfigError counts as the user's
    fault; any other exception is answered `internal`, logged with its traceback, and ends nothing
    else. The command `events` is the server's own: from its answer on, that connection receives
    every event.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = dict(handlers)
        self._open: dict[_Connection, None] = {}
        self._listeners: dict[_Connection, None] = {}
        self._progress = trio.lowlevel.ParkingLot()

    def publish_event(self, name: str, details: Mapping[str, Any]) -> None:
        """Send an event to all listeners; never waits.

        A listener that has not read the last EVENT_BUFFER events is disconnected, because otherwise
        it would miss events unnoticed.
        """
        notice = EventNotice(name, dict(details))
        encode_control(notice)  # so that an error of encoding is raised here, at its cause
        for connection in list(self._listeners):
            try:
                connection.announce(notice)
            except trio.WouldBlock:
                del self._listeners[connection]
                connection.scope.cancel()

    async def wait_answered(self) -> None:
        """Wait until all answers and all published events so far have been sent."""
        while not all(connection.is_idle for connection in self._open):
            await self._progress.park()

    async def serve(
        self,
        path: str | Path,
        *,
        task_status: trio.TaskStatus["ControlServer"] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve on `path` until cancelled; reports itself started when clients can connect.

        A missing folder is made; a socket file without a server is replaced, and the own socket
        file is removed at the end.

        Raises:
            ConfigError: the path is too long, or its folder is not this user's alone.
            ControlError: `busy`, if another process answers on this path.
        """
        listener = bind_control_socket(path)
        identity = os.stat(path).st_ino

        def report(error: OSError) -> None:
            logger.error("control socket %s: %s", path, error.strerror)

        try:
            async with trio.open_nursery() as nursery:
                task_status.started(self)
                while True:
                    connection, _ = await accept_next(listener.accept, report)
                    nursery.start_soon(self._serve_connection, connection)
        finally:
            listener.close()
            _remove_own(path, identity)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until its end.

        Commands in progress are completed even if the client disconnects: a command cut off in the
        middle would leave this process in an undefined state.
        """
        connection = _Connection(stream, self._progress)
        self._open[connection] = None
        async with trio.open_nursery() as commands:
            try:
                async with stream, trio.open_nursery() as nursery:
                    connection.scope = nursery.cancel_scope
                    nursery.start_soon(connection.write, connection.to_send)
                    while (request := await connection.receive_request()) is not None:
                        if request.command == "events" and "events" not in self._handlers:
                            if connection not in self._listeners:
                                self._listeners[connection] = None
                                nursery.start_soon(connection.write, connection.pending_events)
                            await connection.answer(Answer(request.id, {}))
                        else:
                            connection.unanswered += 1
                            commands.start_soon(self._serve_request, connection, request)
                    nursery.cancel_scope.cancel()
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client disconnected in the middle of a frame
            except* RemoteProtocolError as group:
                logger.warning("control connection closed: %s", group.exceptions[0])
            finally:
                del self._open[connection]
                self._listeners.pop(connection, None)
                self._progress.unpark_all()

    async def _serve_request(self, connection: "_Connection", request: Request) -> None:
        reply = await self._reply(request)
        try:
            await connection.answer(reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has closed the connection
        finally:
            connection.unanswered -= 1
            self._progress.unpark_all()

    async def _serve_connection(self, connection: trio.socket.SocketType) -> None:
        stream = trio.SocketStream(connection)
        uid = _peer_uid(connection)
        if uid not in (os.geteuid(), 0) or not self._make_room():
            logger.warning("control connection of user %d refused", uid)
            await stream.aclose()
            return
        await self.serve_stream(stream)

    def _make_room(self) -> bool:
        """Return True if there is room for one more connection.

        If there is none, the oldest connection that has not sent a request is closed.
        """
        waiting = [each for each in self._open if not each.scope.cancel_called]
        if len(waiting) < MAXIMUM_CONNECTIONS:
            return True
        for connection in waiting:
            if not connection.has_requested:
                connection.scope.cancel()
                return True
        return False

    async def _reply(self, request: Request) -> ControlMessage:
        handler = self._handlers.get(request.command)
        try:
            if handler is None:
                raise ControlError("user", _unknown(request.command, (*self._handlers, "events")))
            answer = Answer(request.id, await handler(request.arguments))
            encode_control(answer)
            return answer
        except ControlError as error:
            kind = error.kind if error.kind != "closed" else "internal"
            return Refusal(request.id, kind, error.text)
        except ConfigError as error:
            return Refusal(request.id, "user", str(error))
        except Exception as error:
            logger.exception("control command %s failed", request.command)
            return Refusal(request.id, "internal", f"{type(error).__name__}: {str(error)[:1000]}")


async def serve_control(
    path: str | Path,
    handlers: Mapping[str, Handler],
    *,
    task_status: trio.TaskStatus[ControlServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `handlers` on `path` until cancelled; see `ControlServer.serve`.

    `server = await nursery.start(serve_control, path, handlers)` returns the server, for events.
    """
    await ControlServer(handlers).serve(path, task_status=task_status)


class ControlClient:
    """One connection to a control server; made by `open_control`.

    Attributes:
        events: events as (name, details) pairs, after a call of `listen`; ends with the connection.
    """

    def __init__(self, stream: trio.abc.Stream, name: str) -> None:
        self._stream = stream
        self._name = name
        self._send_lock = trio.Lock()
        self._next_id = 0
        self._waiting: dict[int, trio.MemorySendChannel[ControlMessage]] = {}
        self._unanswered: dict[int, None] = {}
        self._answered = trio.lowlevel.ParkingLot()
        self._closed_because: str | None = None
        self.events: trio.MemoryReceiveChannel[Happening]
        self._happened, self.events = trio.open_memory_channel[Happening](EVENT_BUFFER)

    async def request(self, command: str, /, **arguments: Any) -> dict[str, Any]:
        """Return the server's answer to a command.

        Raises:
            ControlError: the server refused, or the connection ended before the answer (`closed`:
                the command may or may not have been carried out).
        """
        while len(self._unanswered) >= REQUESTS_AT_ONCE and self._closed_because is None:
            await self._answered.park()
        if self._closed_because is not None:
            raise ControlError("closed", self._closed_because)
        self._next_id += 1
        request = Request(self._next_id, command, arguments)
        frame = encode_control(request)
        sender, receiver = trio.open_memory_channel[ControlMessage](1)
        self._waiting[request.id] = sender
        self._unanswered[request.id] = None
        is_sent = False
        try:
            # A frame cut in half by a timeout of the caller would make every later one garbage.
            async with self._send_lock:
                is_sent = True
                with trio.CancelScope(shield=True), trio.move_on_after(FRAME_DEADLINE_S) as scope:
                    await self._stream.send_all(frame)
                if scope.cancelled_caught:
                    self._end("the server does not read")
            reply = await receiver.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel) as error:
            reason = self._closed_because or f"{self._name}: connection lost"
            raise ControlError("closed", f"{reason} (during {command})") from error
        finally:
            self._waiting.pop(request.id, None)
            if not is_sent:
                self._forget_request(request.id)
        if isinstance(reply, Refusal):
            raise ControlError(reply.kind, reply.text)
        assert isinstance(reply, Answer), reply
        return reply.result

    async def listen(self) -> trio.MemoryReceiveChannel[Happening]:
        """Return `events`, with every event from now on."""
        await self.request("events")
        return self.events

    async def _read(self) -> None:
        reason = "closed by the server"
        try:
            reader = _Reader(self._stream)
            while (message := await reader.receive()) is not None:
                if isinstance(message, Answer | Refusal):
                    self._forget_request(message.id)
                match message:
                    case EventNotice(name, details):
                        self._happened.send_nowait((name, details))
                    case Answer(id_) | Refusal(id_) if id_ in self._waiting:
                        self._waiting[id_].send_nowait(message)
                    case Request():
                        raise RemoteProtocolError("control", "a server may not send requests")
                    case _:
                        pass  # its request was cancelled meanwhile
        except RemoteProtocolError as error:
            reason = error.reason
        except trio.WouldBlock:
            reason = f"{EVENT_BUFFER} events were not taken"
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            reason = "connection lost"
        finally:
            self._end(reason)

    def _forget_request(self, request: int) -> None:
        self._unanswered.pop(request, None)
        self._answered.unpark()

    def _end(self, reason: str) -> None:
        if self._closed_because is None:
            self._closed_because = f"{self._name}: {reason}"
        self._happened.close()
        self._answered.unpark_all()
        for sender in self._waiting.values():
            sender.close()


@asynccontextmanager
async def open_control(target: str | Path | trio.abc.Stream) -> AsyncIterator[ControlClient]:
    """Open a client of the control server at a socket path or at the other end of a stream.

    An exception raised inside the `async with` propagates as is, not in an exception group.

    Raises:
        ControlError: `closed`, if no server answers on the path.
        ConfigError: the path is too long.
    """
    if isinstance(target, trio.abc.Stream):
        stream, name = target, "control stream"
    else:
        stream, name = await _connect(target), str(target)
    client = ControlClient(stream, name)
    failure: BaseException | None = None
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(client._read)
        try:
            yield client
        except BaseException as error:
            failure = error
        client._end("closed by us")
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def bind_control_socket(path: str | Path) -> trio.socket.SocketType:
    """Return a listening socket at `path`, mode 0600, in place of a socket without a server.

    Raises:
        ConfigError: the path is too long, or its folder is not this user's alone.
        ControlError: `busy`, if another process answers on this path.
    """
    _check_path(path)
    path = Path(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private_folder(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _folder_lock(path.parent):
            if path.is_symlink() or path.exists():
                _remove_stale(path)
            os.fchmod(listener.fileno(), 0o600)  # Linux binds with it: never seen with another
            listener.bind(str(path))
            listener.listen(MAXIMUM_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return trio.socket.from_stdlib_socket(listener)


def check_private_folder(folder: Path) -> None:
    """Check that `folder` is a folder of this user that no other user can enter.

    Raises:
        ConfigError: the folder is not private; the text states the reason.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{folder}: not a folder")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{folder}: belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & 0o077:
        raise ConfigError(f"{folder}: mode {status.st_mode & 0o777:04o}; control needs 0700")


def _check_path(path: str | Path) -> None:
    length = len(os.fsencode(path))
    if length > MAXIMUM_PATH_BYTES:
        raise ConfigError(
            f"{path}: a socket path of {length} bytes; the kernel takes {MAXIMUM_PATH_BYTES}"
        )


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Prevent two starting servers from replacing each other's socket; held for an instant."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigError(f"{path}: in the way of a control socket, and not one")
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.setblocking(False)
    try:
        probe.connect(str(path))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    except BlockingIOError:  # a full backlog: a server exists, and is slow
        raise ControlError("busy", f"{path}: another process serves this socket") from None
    else:
        raise ControlError("busy", f"{path}: another process serves this socket")
    finally:
        probe.close()


def _remove_own(path: str | Path, inode: int) -> None:
    try:
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    except FileNotFoundError:
        pass


def _peer_uid(connection: trio.socket.SocketType) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", credentials)[1])


async def _connect(path: str | Path) -> trio.SocketStream:
    _check_path(path)
    try:
        connection = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:  # no descriptor is free: the caller may ask again later
        raise ControlError("closed", f"{path}: not reached ({error.strerror})") from error
    try:
        await connection.connect(os.fspath(path))
    except OSError as error:
        connection.close()
        raise ControlError(
            "closed", f"{path}: no broker answers ({error.strerror}); check that it runs"
        ) from error
    except BaseException:
        connection.close()
        raise
    return trio.SocketStream(connection)


class _Reader:
    """A reader of messages from a stream."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def receive(self) -> ControlMessage | None:
        """Return the next message, or None if the stream ended between two frames.

        Raises:
            RemoteProtocolError: the bytes are no control message, too large, or took too long.
        """
        if not self._buffer and not await self._receive_some():
            return None
        with trio.move_on_after(FRAME_DEADLINE_S):
            prefix = await self._peek(PREFIX.size)
            end = PREFIX.size + header_length(prefix)
            header = (await self._peek(end))[PREFIX.size :]
            del self._buffer[:end]
            return decode_control(header)
        raise RemoteProtocolError("control", f"a frame took over {FRAME_DEADLINE_S:g} s")

    async def _peek(self, wanted_bytes: int) -> bytes:
        while len(self._buffer) < wanted_bytes:
            if not await self._receive_some():
                raise RemoteProtocolError("control", "the stream ended inside a frame")
        return bytes(self._buffer[:wanted_bytes])

    async def _receive_some(self) -> bool:
        chunk = await self._stream.receive_some(65_536)
        self._buffer += chunk
        return bool(chunk)


class _Connection:
    """The server's side of one connection, with the messages that wait to be sent.

    Attributes:
        unanswered: number of requests in progress.
        unsent: number of answers and events that are not written completely.
    """

    def __init__(self, stream: trio.abc.Stream, progress: trio.lowlevel.ParkingLot) -> None:
        self.unanswered = 0
        self.unsent = 0
        self.has_requested = False
        self.scope = trio.CancelScope()
        self.to_send: trio.MemoryReceiveChannel[ControlMessage]
        self._send, self.to_send = trio.open_memory_channel[ControlMessage](MAXIMUM_REQUESTS)
        self.pending_events: trio.MemoryReceiveChannel[ControlMessage]
        self._events, self.pending_events = trio.open_memory_channel[ControlMessage](EVENT_BUFFER)
        self._stream = stream
        self._reader = _Reader(stream)
        self._send_lock = trio.Lock()
        self._progress = progress

    @property
    def is_idle(self) -> bool:
        """Return True if no request is in progress, and no message waits to be sent."""
        return self.unanswered == 0 and self.unsent == 0

    async def receive_request(self) -> Request | None:
        """Return the next request to serve, or None at the end.

        Excess requests are refused here.
        """
        while (message := await self._reader.receive()) is not None:
            if not isinstance(message, Request):
                raise RemoteProtocolError("control", "a client may only send requests")
            self.has_requested = True
            if self.unanswered < MAXIMUM_REQUESTS:
                return message
            text = f"more than {MAXIMUM_REQUESTS} requests without an answer"
            await self.answer(Refusal(message.id, "busy", text))
        return None

    async def answer(self, message: ControlMessage) -> None:
        # A channel hands a message to a waiting writer at once: its buffer does not count it.
        self.unsent += 1
        await self._send.send(message)

    def announce(self, notice: EventNotice) -> None:
        """Queue an event.

        Raises:
            trio.WouldBlock: EVENT_BUFFER events wait already.
        """
        self._events.send_nowait(notice)
        self.unsent += 1

    async def write(self, messages: trio.MemoryReceiveChannel[ControlMessage]) -> None:
        with messages:
            async for message in messages:
                async with self._send_lock:
                    await self._stream.send_all(encode_control(message))
                self.unsent -= 1
                self._progress.unpark_all()


def _unknown(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
    return f"no command {word[:100]!r}; {hint}"
