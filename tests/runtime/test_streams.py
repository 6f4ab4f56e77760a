"""Tables of connections before a session: dialled, accepted, begun with a message, and cut off."""

import errno
import os
import socket
from typing import Any

import pytest
import trio
import trio.testing

from brokerd.errors import RemoteProtocolError
from brokerd.runtime import streams
from brokerd.runtime.streams import (
    ACCEPT_PAUSE_S,
    Gate,
    PlaintextRefused,
    accept_next,
    dial_tcp,
    first_message,
)
from brokerd.sessions.messages import Farewell, Heartbeat
from brokerd.wire.framing import FrameDecoder
from tests.helpers.raw_peer import broker_hello, words
from tests.helpers.virtual_time import in_virtual_time


@pytest.mark.parametrize(
    "address, is_dialled",
    [("127.0.0.1:7", True), ("[::1]:7", True), ("192.0.2.1:7", False), ("[2001:db8::1]:7", False)],
)
def test_no_other_machine_is_dialled_without_certificates(
    address: str, is_dialled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[Any] = []

    async def open_tcp_stream(host: str, port: int) -> Any:
        dialled.append((host, port))

    monkeypatch.setattr(streams.trio, "open_tcp_stream", open_tcp_stream)
    if is_dialled:
        trio.run(dial_tcp, address)
    else:
        with pytest.raises(PlaintextRefused, match="takes certificates"):
            trio.run(dial_tcp, address)
    assert dialled == [(address.rpartition(":")[0].strip("[]"), 7)] * is_dialled


HELLO, FAREWELL = broker_hello(), Farewell("refused", "")


@pytest.mark.parametrize(
    "said, found",
    [
        (words(HELLO), HELLO),
        (words(FAREWELL), FAREWELL),
        (words(HELLO, Heartbeat()), HELLO),
        (words(Heartbeat(), HELLO), "Heartbeat before Hello"),
        (words(HELLO)[:-1], "closed before its Hello"),
        (b"", "closed before its Hello"),
    ],
    ids=("hello", "farewell", "more than a hello", "no hello", "part of a hello", "nothing"),
)
@pytest.mark.parametrize("size", [1, 1_000])
@in_virtual_time
async def test_a_connection_begins_with_a_hello_or_a_farewell(
    said: bytes, found: Any, size: int
) -> None:
    near, far = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def say() -> None:
            for start in range(0, len(said), size):
                await far.send_all(said[start : start + size])
                await trio.testing.wait_all_tasks_blocked()
            await far.aclose()

        nursery.start_soon(say)
        try:
            message: Any = await first_message(near, FrameDecoder())
        except RemoteProtocolError as error:
            message = error.reason
    assert message == found


class Listener:
    """A listener that fails with these errors, in turn, before it accepts."""

    def __init__(self, *numbers: int) -> None:
        self.errors = [*numbers]
        self.reported: list[int | None] = []

    async def accept(self) -> str:
        if not self.errors:
            return "accepted"
        number = self.errors.pop(0)
        raise OSError(number, os.strerror(number))

    def report(self, error: OSError) -> None:
        self.reported.append(error.errno)


@pytest.mark.parametrize(
    "numbers, reported, is_ended",
    [
        ((), [], False),
        ((errno.EMFILE,), [errno.EMFILE], False),
        ((errno.ECONNABORTED, errno.EMFILE, errno.EMFILE), [errno.ECONNABORTED], False),
        ((errno.EBADF,), [], True),
        ((errno.EMFILE, errno.EINVAL), [errno.EMFILE], True),
        ((errno.ENOTSOCK,), [], True),
    ],
)
@in_virtual_time
async def test_only_an_unusable_listener_ends_the_accepts(
    numbers: tuple[int, ...], reported: list[int], is_ended: bool
) -> None:
    """A second row of failures is reported like the first."""
    for _ in range(2):
        listener, began_s = Listener(*numbers), trio.current_time()
        try:
            found = await accept_next(listener.accept, listener.report)
        except OSError as error:
            found = str(error.errno)
        assert found == (str(numbers[-1]) if is_ended else "accepted")
        assert (listener.reported, listener.errors) == (reported, [])
        pauses = len(numbers) - is_ended
        assert trio.current_time() - began_s == pytest.approx(pauses * ACCEPT_PAUSE_S)


def end_of(stream: socket.socket) -> str:
    """Return whether the other end is open, or was cut off."""
    try:
        return "data" if stream.recv(1) else "cut off"
    except BlockingIOError:
        return "open"


def test_a_shut_gate_cuts_open_connections_off_and_no_others() -> None:
    """The far end of a cut connection reads the end; the socket itself stays to its user."""

    async def story() -> None:
        gate = Gate()
        pairs = [socket.socketpair() for _ in range(4)]
        far = [pair[1] for pair in pairs]
        near = [trio.SocketStream(trio.socket.from_stdlib_socket(pair[0])) for pair in pairs]
        for each in far:
            each.setblocking(False)
        dialled = iter(near)

        async def dial(_: str) -> trio.abc.Stream:
            return next(dialled)

        try:
            for _ in range(3):
                await gate.before(dial)("b1")
            await near[0].aclose()
            gate.shut()
            assert [stream.socket.fileno() >= 0 for stream in near] == [False, True, True, True]
            assert [end_of(each) for each in far] == ["cut off"] * 3 + ["open"]
            gate.open()
            await gate.before(dial)("b1")
            assert end_of(far[3]) == "open", "the gate is open again"
            gate.shut()
            assert end_of(far[3]) == "cut off", "the second time"
        finally:
            for stream in near:
                await stream.aclose()
            for each in far:
                each.close()

    trio.run(story)


def test_connections_that_have_ended_are_not_kept() -> None:
    """A client that reconnects for months would fill the memory of its gate."""

    async def story() -> None:
        gate, made = Gate(), []

        async def dial(_: str) -> trio.abc.Stream:
            near, far = trio.socket.socketpair()
            far.close()
            made.append(trio.SocketStream(near))
            return made[-1]

        for _ in range(5):
            await (await gate.before(dial)("b1")).aclose()
        assert len(gate._streams) == 1

    trio.run(story)
