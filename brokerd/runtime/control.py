"""Control servers: local requests to a process.

One connection carries any number of requests, each answered once by its id, and events for
subscribed listeners. `control_socket` has the authentication, and the clients.
"""

import difflib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from brokerd.errors import ConfigError, ControlError, RemoteProtocolError
from brokerd.runtime.control_socket import (
    EVENT_BUFFER,
    MAXIMUM_CONNECTIONS,
    MAXIMUM_REQUESTS,
    ControlReader,
    bind_control_socket,
    peer_uid,
    remove_own_socket,
)
from brokerd.runtime.streams import accept_next
from brokerd.storage.files import is_transient
from brokerd.wire.control import (
    Answer,
    ControlMessage,
    EventNotice,
    Refusal,
    Request,
    encode_control,
)

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

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
            remove_own_socket(path, identity)

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
        uid = peer_uid(connection)
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
            if isinstance(error, OSError) and is_transient(error):
                text = (error.strerror or str(error)).lower()
                return Refusal(request.id, "busy", f"{request.command}: {text}")
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
        self._reader = ControlReader(stream)
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
