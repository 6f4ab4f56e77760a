"""Stories of the stream of a remote command, on objects: no byte is lost, doubled or reordered."""

import threading
from random import Random
from typing import Any

import pytest
import trio

from pubsubctl.hosts.ssh.stream import CommandStream, Workers
from tests.helpers.patience import PATIENCE_S


class FakePipe:
    """A buffer that notifies a waiting reader."""

    def __init__(self) -> None:
        self.event: Any = None

    def set_event(self, event: Any) -> None:
        self.event = event


class FakeChannel:
    """The channel of a command with this output.

    Attributes:
        may_take: a call of `recv` waits for this event.
        is_taking, has_taken: set when a call of `recv` has begun, and at its end.
    """

    def __init__(self, output: bytes) -> None:
        self.output = output
        self.closed = self.eof_received = False
        self.exit_status = 0
        self.in_buffer, self.in_stderr_buffer = FakePipe(), FakePipe()
        self.may_take, self.is_taking = threading.Event(), threading.Event()
        self.has_taken = threading.Event()
        self.may_take.set()

    def recv_ready(self) -> bool:
        return bool(self.output)

    def recv(self, nbytes: int, /) -> bytes:
        self.is_taking.set()
        assert self.may_take.wait(PATIENCE_S)
        data, self.output = self.output[:nbytes], self.output[nbytes:]
        self.has_taken.set()
        return data

    def recv_stderr_ready(self) -> bool:
        return False

    def recv_stderr(self, nbytes: int, /) -> bytes:
        raise AssertionError(nbytes)

    def send(self, data: bytes, /) -> int:
        return len(data)

    def shutdown_write(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def end(self) -> None:
        """End the command with status 0."""
        self.closed = self.eof_received = True
        self.in_buffer.event.set()


def stream_of(channel: FakeChannel) -> CommandStream:
    return CommandStream(channel, Workers(), host="h1", name="cat", why_lost=lambda: None)


async def abandon(channel: FakeChannel, stream: CommandStream, size: int) -> None:
    """Begin to receive, and cancel that while a thread takes the data."""
    channel.may_take.clear()
    channel.is_taking.clear()
    channel.has_taken.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.receive_some, size)
        await trio.to_thread.run_sync(channel.is_taking.wait, PATIENCE_S)
        nursery.cancel_scope.cancel()
    channel.may_take.set()
    await trio.to_thread.run_sync(channel.has_taken.wait, PATIENCE_S)


@pytest.mark.parametrize("seed", range(10))
def test_each_byte_arrives_once_whatever_sizes_are_asked_for(seed: int) -> None:
    """Some receives are cancelled in the middle, and the next one asks for less."""
    random = Random(seed)
    output = bytes(range(200))

    async def story() -> bytes:
        channel = FakeChannel(output)
        stream, found = stream_of(channel), b""
        while True:
            nothing_is_kept = len(found) + len(channel.output) == len(output)
            if channel.output and nothing_is_kept and random.random() < 0.5:
                await abandon(channel, stream, random.choice((5, 40)))
            if not channel.output and not channel.closed:
                channel.end()
            size = random.choice((1, 3, 60))
            data = await stream.receive_some(size)
            if not data:
                return found
            assert len(data) <= size
            found += data

    async def bounded() -> None:
        with trio.fail_after(PATIENCE_S):
            assert await story() == output

    trio.run(bounded)
