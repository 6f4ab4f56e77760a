"""Clients of control sockets: requests of a process, and the events of its server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.errors import ControlError, RemoteProtocolError
from brokerd.runtime.control_socket import (
    EVENT_BUFFER,
    FRAME_DEADLINE_S,
    MAXIMUM_REQUESTS,
    ControlReader,
    connect_control,
)
from brokerd.wire.control import (
    Answer,
    ControlMessage,
    EventNotice,
    Refusal,
    Request,
    encode_control,
)

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
