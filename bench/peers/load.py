"""The two processes of a load: a publisher and a subscriber on plain sockets.

A board is shared with the measuring process: counts with a single writer. So the publisher has a
window from end to end, independent of acknowledgements, and the processes receive no request during
the measurement.
"""

import socket
import struct
import time
from array import array
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Final, Protocol

from bench.peers.system import Client, PeerFailed, ReceivedContent, ServerRefused, end_with_parent

READ_BYTES: Final = 1 << 18
PROBE_EVERY_S: Final = 0.02
SETTLE_S: Final = 5.0
ATTACH_WITHIN_S: Final = 15.0
_STAMPS: Final = struct.Struct("<qqq")
_POLL_S: Final = 0.1
_PAUSE_S: Final = 100e-6
_FIELDS: Final = (
    "sent", "received", "acknowledged", "subscribed", "probes", "probe_seen", "loading", "stop",
)  # fmt: skip
_TIMEVAL: Final = struct.Struct("@ll")


class Answers(Protocol):
    """A receiver of the final answer of a process."""

    def send(self, answer: Any) -> None:
        """Send the answer."""


class Board:
    """Numbers in memory shared with processes that are forked later; a number has a single writer.

    sent, received and acknowledged count publications of the load; subscribed, loading and stop are
    0 or 1; probes counts publications before the first arrival.
    """

    def __init__(self) -> None:
        self._words = memoryview(mmap(-1, 8 * len(_FIELDS))).cast("q")

    def get(self, field: str) -> int:
        """Return the number with this name."""
        return self._words[_FIELDS.index(field)]

    def set(self, field: str, value: int) -> None:
        """Set the number with this name."""
        self._words[_FIELDS.index(field)] = value


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load of a measurement.

    Attributes:
        size: size of a payload in bytes.
        rate: publications per second; 0 for the highest rate of the window.
        window, batch: publications in flight, and publications per write, without a rate.
    """

    publish_at: int
    subscribe_at: int
    size: int
    rate: int
    window: int
    batch: int


def run_subscriber(client: Client, load: Load, board: Board, answers: Answers) -> None:
    """Count deliveries, and with a rate their latencies, until stopped.

    The answer contains received minus intended, received minus sent, and the intended instants.
    """
    end_with_parent()
    try:
        answers.send(_Subscriber(client, load, board).run())
    except (OSError, ServerRefused, PeerFailed) as error:
        answers.send(f"subscriber: {error}")


def run_publisher(client: Client, load: Load, board: Board, answers: Answers) -> None:
    """Publish probes until the first arrival, then the load until stopped."""
    end_with_parent()
    try:
        _Publisher(client, load, board).run()
        answers.send(None)
    except (OSError, ServerRefused, PeerFailed) as error:
        answers.send(f"publisher: {error}")


class _Connection:
    """A client on a socket. Reads block for a tenth of a second at most."""

    def __init__(self, client: Client, port: int) -> None:
        self.client = client
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ATTACH_WITHIN_S)
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wait_at_most(_POLL_S)
        self.socket.sendall(client.attach())
        until = time.monotonic() + ATTACH_WITHIN_S
        while not client.is_attached:
            if time.monotonic() > until:
                raise PeerFailed(f"not attached within {ATTACH_WITHIN_S:g} s")
            self.receive()

    def wait_at_most(self, seconds: float) -> None:
        """Set the time for which reads block."""
        whole = int(seconds)
        wait = _TIMEVAL.pack(whole, int((seconds - whole) * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)

    def receive(self, flags: int = 0) -> ReceivedContent | None:
        """Read, answer by the protocol, and return the content; None without bytes."""
        try:
            data = self.socket.recv(READ_BYTES, flags)
        except BlockingIOError:
            return None
        if not data:
            raise PeerFailed("the server has closed the connection")
        content = self.client.feed(data)
        if content.answer:
            self.socket.sendall(content.answer)
        return content


class _Subscriber:
    def __init__(self, client: Client, load: Load, board: Board) -> None:
        self._load = load
        self._board = board
        self._connection = _Connection(client, load.subscribe_at)
        self._latencies = (array("q"), array("q"), array("q"))

    def run(self) -> tuple["array[int]", "array[int]", "array[int]"]:
        self._board.set("subscribed", 1)
        received, since = self._wait_for_probes(), time.monotonic()
        while True:
            content = self._connection.receive()
            if content is not None:
                if self._load.rate:
                    self._stamp(content)
                received += content.delivered
                self._board.set("received", received)
                since = time.monotonic()
            elif self._board.get("stop") and (
                received >= self._board.get("sent") or time.monotonic() > since + SETTLE_S
            ):
                return self._latencies

    def _wait_for_probes(self) -> int:
        """Wait for all probes and the begin of the load; return the load received so far."""
        received = 0
        while not received and not self._board.get("stop"):
            content = self._connection.receive()
            for payload in content.payloads() if content is not None else ():
                probe = _STAMPS.unpack_from(payload)[2]
                if probe:
                    self._board.set("probe_seen", probe)
                else:
                    received += 1
        self._board.set("received", received)
        return received

    def _stamp(self, content: ReceivedContent) -> None:
        now_ns = time.monotonic_ns()
        for payload in content.payloads():
            intended_ns, sent_ns, _ = _STAMPS.unpack_from(payload)
            for column, value in zip(
                self._latencies, (intended_ns, now_ns - intended_ns, now_ns - sent_ns), strict=True
            ):
                column.append(value)


class _Publisher:
    def __init__(self, client: Client, load: Load, board: Board) -> None:
        self._client = client
        self._load = load
        self._board = board
        self._connection = _Connection(client, load.publish_at)
        self._filling = bytes(load.size - _STAMPS.size)
        self._acknowledged = 0

    def run(self) -> None:
        self._probe()
        self._board.set("loading", 1)
        if self._load.rate:
            self._publish_at_rate()
        else:
            self._publish_by_window()
        until = time.monotonic() + SETTLE_S
        while self._has_to_wait(self._board.get("sent")) and time.monotonic() < until:
            self._take_acknowledgements(0)

    def _probe(self) -> None:
        """Publish until the subscriber has received a probe, and then all probes."""
        number = 0
        until = time.monotonic() + ATTACH_WITHIN_S
        while not self._board.get("probe_seen") and not self._board.get("stop"):
            if time.monotonic() > until:
                raise PeerFailed(f"nothing arrives after {ATTACH_WITHIN_S:g} s")
            number += 1
            self._send(_STAMPS.pack(0, 0, number) + self._filling, 1)
            time.sleep(PROBE_EVERY_S)
            self._take_acknowledgements(socket.MSG_DONTWAIT)
        while self._board.get("probe_seen") < number and not self._board.get("stop"):
            if time.monotonic() > until:
                raise PeerFailed("a probe arrived after a lost one")
            time.sleep(_PAUSE_S)
        self._acknowledged -= number
        while self._has_to_wait(0) and time.monotonic() < until:
            self._take_acknowledgements(0)

    def _publish_by_window(self) -> None:
        load, board = self._load, self._board
        payload = bytes(_STAMPS.size) + self._filling
        sent = 0
        self._connection.wait_at_most(_PAUSE_S * 10)
        while not board.get("stop"):
            if sent + load.batch - board.get("received") > load.window:
                time.sleep(_PAUSE_S)
            elif self._has_to_wait(sent + load.batch - load.window):
                self._take_acknowledgements(0)
                continue
            else:
                self._send(payload, load.batch)
                sent += load.batch
                board.set("sent", sent)
            self._take_acknowledgements(socket.MSG_DONTWAIT)

    def _publish_at_rate(self) -> None:
        board, interval_ns = self._board, 1_000_000_000 // self._load.rate
        due_ns = time.monotonic_ns()
        sent = 0
        while not board.get("stop"):
            due_ns += interval_ns
            ahead_ns = due_ns - time.monotonic_ns()
            if ahead_ns > 0:
                time.sleep(ahead_ns / 1e9)
            stamps = _STAMPS.pack(due_ns, time.monotonic_ns(), 0)
            self._send(stamps + self._filling, 1)
            sent += 1
            board.set("sent", sent)
            self._take_acknowledgements(socket.MSG_DONTWAIT)

    def _send(self, payload: bytes, count: int) -> None:
        self._connection.socket.sendall(self._client.publish(payload, count))

    def _has_to_wait(self, acknowledged: int) -> bool:
        return self._client.awaits_acknowledgements and self._acknowledged < acknowledged

    def _take_acknowledgements(self, flags: int) -> None:
        """Count waiting acknowledgements; without flags wait a short time for the next."""
        content = self._connection.receive(flags)
        if content is not None:
            self._acknowledged += content.acknowledged
            self._board.set("acknowledged", self._acknowledged)
