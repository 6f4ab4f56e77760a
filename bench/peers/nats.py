"""NATS: one server, or a chain of leaf nodes; at most once, or through a JetStream stream."""

import json
from collections.abc import Sequence
from pathlib import Path

from bench.peers import nats_wire
from bench.peers.client import Came, Deliveries, ServerRefused
from bench.peers.nats_wire import Line, Messages
from bench.peers.system import Client, ServerStart, System

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
        self._decoder = nats_wire.Decoder()
        self._encoded: tuple[bytes, int, bytes] = (b"", 0, b"")
        self.is_attached = False

    def attach(self) -> bytes:
        subscription = nats_wire.subscribe(_SUBJECT, _SID) if self._subscribes else b""
        return nats_wire.connect() + subscription + nats_wire.ping()

    def publish(self, payload: bytes, count: int) -> bytes:
        if self._encoded[:2] != (payload, count):
            self._encoded = (payload, count, self._publication(payload) * count)
        return self._encoded[2]

    def feed(self, data: bytes) -> Came:
        buffer, frames = self._decoder.feed(data)
        came = Came(buffer)
        for frame in frames:
            if isinstance(frame, Messages):
                self._on_messages(came, frame)
            else:
                self._on_line(came, frame)
        return came

    def _publication(self, payload: bytes) -> bytes:
        return nats_wire.publish(_SUBJECT, payload)

    def _on_messages(self, came: Came, messages: Messages) -> None:
        came.deliveries.append(Deliveries(*messages[2:]))

    def _on_line(self, came: Came, line: Line) -> None:
        if line.word == b"PING":
            came.answer += nats_wire.pong()
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
        first = nats_wire.connect() + nats_wire.subscribe(answers, _ANSWERS_SID)
        if self._subscribes:
            first += nats_wire.subscribe(_DELIVERED, _SID)
        return first + nats_wire.ping()

    def feed(self, data: bytes) -> Came:
        came = super().feed(data)
        if self._last_reply:
            came.answer += nats_wire.publish(self._last_reply, b"+ACK")
            self._last_reply = b""
        return came

    def _publication(self, payload: bytes) -> bytes:
        return nats_wire.publish(_SUBJECT, payload, _ACKNOWLEDGED)

    def _on_messages(self, came: Came, messages: Messages) -> None:
        if messages.sid == _SID:
            super()._on_messages(came, messages)
            self._last_reply = messages.reply
            return
        for answer in _payloads(came.buffer, messages):
            if b'"error"' in answer:
                raise ServerRefused(answer.decode(errors="replace"))
        if self._subscribes:
            self._ask_next(came)
        else:
            came.acknowledged += messages.number

    def _on_line(self, came: Came, line: Line) -> None:
        if line.word == b"PONG" and self._requests:
            self._ask_next(came)
        else:
            super()._on_line(came, line)

    def _ask_next(self, came: Came) -> None:
        if self._requests:
            came.answer += self._requests.pop(0)
        else:
            self.is_attached = True


def _payloads(buffer: bytes, messages: Messages) -> list[bytes]:
    deliveries = Deliveries(*messages[2:])
    return list(Came(buffer, [deliveries]).payloads())


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
        nats_wire.request(api, _MADE, stream),
        nats_wire.request(durable, _MADE, {"stream_name": _STREAM, "config": consumer}),
    )


def _server(program: str, folder: Path, options: Sequence[str], port: int) -> ServerStart:
    configuration = folder / "nats.conf"
    configuration.write_text("\n".join([f'listen: "127.0.0.1:{port}"', *options]) + "\n")
    return ServerStart((program, "-c", str(configuration)), port)


def _chain(program: str, folders: Sequence[Path], ports: Sequence[int]) -> list[ServerStart]:
    """Return servers with a leaf-node connection from every server to the next."""
    leaf_ports = ports[len(folders) :]
    starts = []
    for place, folder in enumerate(folders):
        leaf_nodes = []
        if place > 0:
            leaf_nodes.append(f'listen: "127.0.0.1:{leaf_ports[place]}"')
        if place + 1 < len(folders):
            leaf_nodes.append(f'remotes: [{{ url: "nats://127.0.0.1:{leaf_ports[place + 1]}" }}]')
        options = [f"leafnodes {{ {', '.join(leaf_nodes)} }}"] if leaf_nodes else []
        starts.append(_server(program, folder, options, ports[place]))
    return starts


def _stream_server(
    program: str, folders: Sequence[Path], ports: Sequence[int]
) -> list[ServerStart]:
    store = json.dumps(str(folders[0] / "store"))
    return [_server(program, folders[0], [f"jetstream {{ store_dir: {store} }}"], ports[0])]


def _core_client(subscribes: bool) -> Client:
    return NatsClient(subscribes)


def _stream_client(subscribes: bool) -> Client:
    return JetStreamClient(subscribes)


SYSTEMS = (
    System(
        name="nats",
        promise="at most once",
        kept="not kept; chain: leaf nodes",
        package="nats-server",
        program="nats-server",
        version_option="--version",
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
        package="nats-server",
        program="nats-server",
        version_option="--version",
        window=4_096,
        batch=64,
        largest_chain=1,
        start=_stream_server,
        client=_stream_client,
    ),
)
