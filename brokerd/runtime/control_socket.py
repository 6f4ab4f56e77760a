"""Control sockets: Unix sockets of servers, messages on their streams, and clients.

A socket of mode 0600 in a folder of mode 0700 that belongs to this user: the file system is the
authentication.
"""

import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.errors import ConfigError, ControlError, RemoteProtocolError
from brokerd.files import lock_folder
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

MAXIMUM_PATH_BYTES: Final = 107  # sun_path has 108, the last for a zero
MAXIMUM_CONNECTIONS: Final = 64
MAXIMUM_REQUESTS: Final = 64  # unanswered at once, per connection
EVENT_BUFFER: Final = 1_000
FRAME_DEADLINE_S: Final = 10.0


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
        # Two starting servers must not replace each other's socket.
        with lock_folder(path.parent):
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


def remove_own_socket(path: str | Path, inode: int) -> None:
    try:
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    except FileNotFoundError:
        pass


def peer_uid(connection: trio.socket.SocketType) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", credentials)[1])


async def connect_control(path: str | Path) -> trio.SocketStream:
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


class ControlReader:
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


Happening = tuple[str, dict[str, Any]]
REQUESTS_AT_ONCE: Final = MAXIMUM_REQUESTS
"""Largest number of unanswered requests of a client: further requests wait."""


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
            reader = ControlReader(self._stream)
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
        stream, name = await connect_control(target), str(target)
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
