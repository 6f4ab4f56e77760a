"""NATS under comparison, and its text protocol.

A comparison uses one server, or a chain of leaf nodes; at most once, or through a JetStream stream.
The protocol covers what a load client needs. Lines end with CR LF; a payload and another CR LF
follow the line of a MSG.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.peers.system import Client, Deliveries, ReceivedContent, ServerRefused, System
from bench.systems.boundary import Server, Start
from bench.systems.jetstream import driver

LONGEST_LINE_BYTES = 1 << 16
_END = b"\r\n"


class Line(NamedTuple):
    """A line without a payload: INFO, PING, PONG, +OK, -ERR."""

    word: bytes
    rest: bytes


class Messages(NamedTuple):
    """MSG frames with equal lines, one behind the other, `step` bytes each."""

    sid: bytes
    reply: bytes
    start: int
    size: int
    step: int
    number: int


def connect() -> bytes:
    """Return the first line of a client."""
    return b"CONNECT " + _json({"verbose": False, "pedantic": False, "echo": False}) + _END


def ping() -> bytes:
    """Return a request for a PONG, which follows all earlier requests."""
    return b"PING\r\n"


def pong() -> bytes:
    """Return the answer to a PING."""
    return b"PONG\r\n"


def subscribe(subject: bytes, sid: bytes) -> bytes:
    return b"SUB %b %b\r\n" % (subject, sid)


def publish(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    words = (b"PUB", subject, reply, b"%d" % len(payload))
    return b" ".join(filter(None, words)) + _END + payload + _END


def request(subject: bytes, reply: bytes, body: Mapping[str, Any]) -> bytes:
    """Return a request with an answer on the subject `reply`."""
    return publish(subject, _json(body), reply)


class Decoder:
    """A decoder from received bytes to lines and messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[bytes, list[Line | Messages]]:
        """Return the buffer and its complete lines and messages.

        Raises:
            ServerRefused: no line ends within 64 KiB, or a message has another length than
                announced; the server's fault.
        """
        buffer = self._rest + data if self._rest else data
        found: list[Line | Messages] = []
        place = 0
        while (end := buffer.find(_END, place)) >= 0:
            if not buffer.startswith(b"MSG ", place):
                word, _, rest = buffer[place:end].partition(b" ")
                found.append(Line(word, rest))
                place = end + 2
                continue
            messages = _messages(buffer, place, end)
            if messages is None:
                break
            found.append(messages)
            place += messages.step * messages.number
        self._rest = buffer[place:]
        if end < 0 and len(self._rest) > LONGEST_LINE_BYTES:
            raise ServerRefused(f"{len(self._rest)} bytes without the end of a line")
        return buffer, found


def _messages(buffer: bytes, place: int, line_end: int) -> Messages | None:
    """Return the message at a line, with equal messages behind; None if it is incomplete."""
    words = buffer[place + 4 : line_end].split()
    if len(words) not in (3, 4) or not words[-1].isdigit():
        raise ServerRefused(f"not a line of a message: {buffer[place:line_end][:80]!r}")
    start, size = line_end + 2, int(words[-1])
    step = start + size + 2 - place
    if place + step > len(buffer):
        return None
    if buffer[start + size : start + size + 2] != _END:
        raise ServerRefused(f"a message differs in length from its header line: {words!r}")
    reply = words[2] if len(words) == 4 else b""
    return Messages(words[1], reply, start, size, step, _alike(buffer, place, start - place, step))


def _alike(buffer: bytes, place: int, line_bytes: int, step: int) -> int:
    """Return the number of complete messages with the same line and length, or 1.

    The comparison is by column: a few slices for any number of messages.
    """
    count = (len(buffer) - place) // step
    if count < 2 or not buffer.startswith(buffer[place : place + line_bytes], place + step):
        return 1
    end = place + count * step
    for column in (*range(place, place + line_bytes), place + step - 2, place + step - 1):
        if buffer[column:end:step] != buffer[column : column + 1] * count:
            return 1
    return count


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


_SUBJECT = b"load"
_DELIVERED = b"load.delivered"
_MADE = b"load.made"
_ACKNOWLEDGED = b"load.acknowledged"
_STREAM = "LOAD"
_SID, _ANSWERS_SID = b"1", b"9"


class NatsClient:
    """A client of the core protocol, without acknowledgements."""

    awaits_acknowledgements = False

    def __init__(self, subscribes: bool) -> None:
        self._subscribes = subscribes
        self._decoder = Decoder()
        self._encoded: tuple[bytes, int, bytes] = (b"", 0, b"")
        self.is_attached = False

    def attach(self) -> bytes:
        subscription = subscribe(_SUBJECT, _SID) if self._subscribes else b""
        return connect() + subscription + ping()

    def publish(self, payload: bytes, count: int) -> bytes:
        if self._encoded[:2] != (payload, count):
            self._encoded = (payload, count, self._publication(payload) * count)
        return self._encoded[2]

    def feed(self, data: bytes) -> ReceivedContent:
        buffer, frames = self._decoder.feed(data)
        content = ReceivedContent(buffer)
        for frame in frames:
            if isinstance(frame, Messages):
                self._on_messages(content, frame)
            else:
                self._on_line(content, frame)
        return content

    def _publication(self, payload: bytes) -> bytes:
        return publish(_SUBJECT, payload)

    def _on_messages(self, content: ReceivedContent, messages: Messages) -> None:
        content.deliveries.append(Deliveries(*messages[2:]))

    def _on_line(self, content: ReceivedContent, line: Line) -> None:
        if line.word == b"PING":
            content.answer += pong()
        elif line.word == b"PONG":
            self.is_attached = True
        elif line.word not in (b"INFO", b"+OK"):
            raise ServerRefused(b" ".join(line).decode(errors="replace"))


class JetStreamClient(NatsClient):
    """A client of a stream, with acknowledgements of publications and deliveries.

    The subscriber creates the stream and its consumer. The acknowledgement of the last delivery of
    a read covers all deliveries so far.
    """

    def __init__(self, subscribes: bool) -> None:
        super().__init__(subscribes)
        self.awaits_acknowledgements = not subscribes
        self._requests = list(_stream_requests()) if subscribes else []
        self._last_reply = b""

    def attach(self) -> bytes:
        answers = _MADE if self._subscribes else _ACKNOWLEDGED
        first = connect() + subscribe(answers, _ANSWERS_SID)
        if self._subscribes:
            first += subscribe(_DELIVERED, _SID)
        return first + ping()

    def feed(self, data: bytes) -> ReceivedContent:
        content = super().feed(data)
        if self._last_reply:
            content.answer += publish(self._last_reply, b"+ACK")
            self._last_reply = b""
        return content

    def _publication(self, payload: bytes) -> bytes:
        return publish(_SUBJECT, payload, _ACKNOWLEDGED)

    def _on_messages(self, content: ReceivedContent, messages: Messages) -> None:
        if messages.sid == _SID:
            super()._on_messages(content, messages)
            self._last_reply = messages.reply
            return
        for answer in _payloads(content.buffer, messages):
            if b'"error"' in answer:
                raise ServerRefused(answer.decode(errors="replace"))
        if self._subscribes:
            self._request_next(content)
        else:
            content.acknowledged += messages.number

    def _on_line(self, content: ReceivedContent, line: Line) -> None:
        if line.word == b"PONG" and self._requests:
            self._request_next(content)
        else:
            super()._on_line(content, line)

    def _request_next(self, content: ReceivedContent) -> None:
        if self._requests:
            content.answer += self._requests.pop(0)
        else:
            self.is_attached = True


def _payloads(buffer: bytes, messages: Messages) -> list[bytes]:
    deliveries = Deliveries(*messages[2:])
    return list(ReceivedContent(buffer, [deliveries]).payloads())


def _stream_requests() -> Sequence[bytes]:
    api = f"$JS.API.STREAM.CREATE.{_STREAM}".encode()
    stream = {"name": _STREAM, "subjects": [_SUBJECT.decode()], "storage": "file"}
    durable = f"$JS.API.CONSUMER.DURABLE.CREATE.{_STREAM}.C".encode()
    consumer = {
        "durable_name": "C",
        "deliver_subject": _DELIVERED.decode(),
        "deliver_policy": "all",
        "ack_policy": "all",
        "max_ack_pending": 1 << 16,
    }
    return (
        request(api, _MADE, stream),
        request(durable, _MADE, {"stream_name": _STREAM, "config": consumer}),
    )


def _chain(program: str, servers: Sequence[Server]) -> list[Start]:
    """Return servers with a leaf-node connection from every server to the next."""
    starts = []
    for server, following in zip(servers, [*servers[1:], None], strict=True):
        leaf_nodes = []
        if server is not servers[0]:
            leaf_nodes.append(f'listen: "127.0.0.1:{server.further_ports[0]}"')
        if following is not None:
            url = f"nats://127.0.0.1:{following.further_ports[0]}"
            leaf_nodes.append(f'remotes: [{{ url: "{url}" }}]')
        options = [f"leafnodes {{ {', '.join(leaf_nodes)} }}"] if leaf_nodes else []
        starts.append(driver.start_with(program, server, options))
    return starts


def _stream_server(program: str, servers: Sequence[Server]) -> list[Start]:
    store = json.dumps(str(servers[0].folder / "store"))
    lines = [f"jetstream {{ store_dir: {store} }}"]
    return [driver.start_with(program, servers[0], lines)]


def _core_client(subscribes: bool) -> Client:
    return NatsClient(subscribes)


def _stream_client(subscribes: bool) -> Client:
    return JetStreamClient(subscribes)


SYSTEMS = (
    System(
        name="nats",
        promise="at most once",
        kept="not kept; chain: leaf nodes",
        product=driver.SYSTEM,
        window=32_768,
        batch=256,
        largest_chain=3,
        start=_chain,
        client=_core_client,
    ),
    System(
        name="nats-jetstream",
        promise="at least once",
        kept="file, fsync every 2 min",
        product=driver.SYSTEM,
        window=4_096,
        batch=64,
        largest_chain=1,
        start=_stream_server,
        client=_stream_client,
    ),
)
