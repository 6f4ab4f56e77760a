"""Mosquitto: MQTT 3.1.1 with quality of service 0, 1 or 2 both ways, and persistent sessions.

The client library keeps unacknowledged publications over a lost connection and repeats them, as the
standard requires of a session; its own network thread reconnects. The thread waits while the
application processes a publication, so that the library acknowledges no publication before.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from getpass import getuser
from typing import TYPE_CHECKING, Any, Final

from bench.systems.boundary import (
    ANSWER_S,
    Arrivals,
    Attachment,
    ConnectionLost,
    Delivery,
    NotAcknowledged,
    Server,
    Settings,
    Start,
    System,
    check_one_of,
    number_of,
    settle,
)

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

CONFIGURATION: Final = "mosquitto.conf"
QUALITIES: Final = (0, 1, 2)


def start(
    program: str, servers: Sequence[Server], settings: Settings, version: str
) -> Sequence[Start]:
    """Return brokers with state in their folders; several brokers are bridged to the last."""
    check_one_of(settings, "qos", QUALITIES)
    return [_start(program, server, servers, settings) for server in servers]


def _start(program: str, server: Server, servers: Sequence[Server], settings: Settings) -> Start:
    lines = [
        f"listener {server.port} 127.0.0.1",
        "allow_anonymous true",
        f"user {getuser()}",
        "persistence true",
        f"persistence_location {server.folder}/",
        f"autosave_interval {settings['autosave_interval']}",
        f"autosave_on_changes {str(settings['autosave_on_changes']).lower()}",
        f"max_queued_messages {settings['max_queued_messages']}",
        f"max_inflight_messages {settings['max_inflight_messages']}",
        "set_tcp_nodelay true",
        "log_type error",
        "log_type warning",
    ]
    if server is not servers[-1]:
        centre = servers[-1]
        port = server.through.get(centre.name, centre.port)
        lines += [
            f"connection {server.name}-{centre.name}",
            f"address 127.0.0.1:{port}",
            f"topic # both {settings['qos']}",
            "cleansession false",
            "try_private true",  # otherwise bridges would return messages to their senders
            "notifications_local_only true",
            "restart_timeout 1",
        ]
    path = server.folder / CONFIGURATION
    return Start((program, "-c", str(path)), {CONFIGURATION: "\n".join(lines) + "\n"})


def dials(names: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Return every bridge, from each server to the last."""
    return [(name, names[-1]) for name in names[:-1]]


def is_up(server: Server, settings: Settings) -> bool:
    """Return True if the server answers a connection, and its bridge, if any, is up."""
    hello = bytes([0x10, 0x0C, 0, 4]) + b"MQTT" + bytes([4, 2, 0, 10, 0, 0])
    bridges = b"$SYS/broker/connection/+/state"
    wanted = bytes([0x82, len(bridges) + 5, 0, 1, 0, len(bridges)]) + bridges + b"\0"
    try:
        with socket.create_connection(("127.0.0.1", server.port), ANSWER_S) as connection:
            connection.sendall(hello)
            connection.settimeout(ANSWER_S)
            if connection.recv(4) != bytes([0x20, 2, 0, 0]):
                return False
            if "connection " not in (server.folder / CONFIGURATION).read_text():
                return True
            connection.sendall(wanted)
            reply = b""
            while b"/state" not in reply[:-1]:
                if not (more := connection.recv(256)):
                    return False
                reply += more
            return reply.endswith(b"1")  # the state of a bridge: 1 while connected
    except OSError:
        return False


class MqttClient:
    """A SystemClient; paho's thread passes events to the loop."""

    def __init__(self, attachment: Attachment) -> None:
        from paho.mqtt.client import Client, MQTTv311
        from paho.mqtt.enums import CallbackAPIVersion

        self._about = attachment
        self._qos = number_of(attachment.settings, "qos")
        self._loop = asyncio.get_event_loop()
        self._attached: asyncio.Future[str] = self._loop.create_future()
        self._lost: asyncio.Future[str] = self._loop.create_future()
        self._subscribed: dict[int, asyncio.Future[None]] = {}
        self._open: dict[int, asyncio.Future[None]] = {}
        self._room = asyncio.Semaphore(number_of(attachment.settings, "client_inflight"))
        self._arrivals = Arrivals()
        self._is_started = self._has_session = False
        self._takes_no_answer = False
        self._may_connect = threading.Event()
        self._waiting: set[threading.Event] = set()
        client = self._client = Client(
            CallbackAPIVersion.VERSION2, attachment.name, clean_session=False, protocol=MQTTv311
        )
        client.max_inflight_messages_set(number_of(attachment.settings, "client_inflight"))
        client.max_queued_messages_set(0)
        client.reconnect_delay_set(1, 1)
        client.on_pre_connect = self._on_pre_connect
        client.on_connect = self._call_in_loop(self._on_connect)
        client.on_disconnect = self._call_in_loop(self._on_disconnect)
        client.on_subscribe = self._call_in_loop(self._on_subscribe)
        client.on_publish = self._call_in_loop(self._on_publish)
        client.on_message = self._on_message

    async def attach(self) -> None:
        self._takes_no_answer = False
        self._may_connect.set()
        if not self._is_started:
            self._is_started = True
            host, _, port = self._about.addresses[0].rpartition(":")
            self._client.connect_async(host, int(port), keepalive=10)
            self._client.loop_start()
        if reason := await asyncio.shield(self._attached):
            raise ConnectionLost(reason)

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._lost)

    async def subscribe(self, topics: Sequence[str]) -> None:
        if self._has_session:
            return  # the session has the subscriptions, and may deliver before an answer
        _, number = self._client.subscribe([(topic, self._qos) for topic in topics])
        assert number is not None
        done = self._subscribed.setdefault(number, self._loop.create_future())
        either: set[asyncio.Future[Any]] = {done, self._lost}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise ConnectionLost(self._lost.result())

    async def receive(self) -> Sequence[Delivery]:
        return await self._arrivals.take()

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            delivery.receipt.set()

    async def publish(self, topic: str, message_id: str, body: bytes) -> None:
        if self._qos == 0:
            if failure := self._client.publish(topic, body, 0).rc:
                raise NotAcknowledged(f"paho reported {failure}")
            return
        # On a new connection paho repeats all publications without regard to the limit in
        # flight, and the broker disconnects clients that exceed the limit.
        async with self._room:
            number = self._client.publish(topic, body, self._qos).mid
            try:
                await self._open.setdefault(number, self._loop.create_future())
            finally:
                self._open.pop(number, None)

    async def drop(self) -> None:
        self._may_connect.clear()
        if isinstance(connection := self._client.socket(), socket.socket):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other end closed first
        # Otherwise paho's thread would not notice. Later acknowledgements are not sent.
        self._answer_nothing_more()
        await asyncio.wait({self._lost}, timeout=ANSWER_S)

    async def leave(self) -> None:
        self._may_connect.set()
        self._answer_nothing_more()
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    def _answer_nothing_more(self) -> None:
        self._takes_no_answer = True
        for waiting in self._waiting:
            waiting.set()

    def _call_in_loop(self, handle: Callable[..., None]) -> Callable[..., None]:
        """Return a callback for paho's thread that calls `handle` in the loop's thread."""

        def call(*arguments: Any) -> None:
            self._loop.call_soon_threadsafe(handle, *arguments)

        return call

    def _on_pre_connect(self, client: Any, data: Any) -> None:
        """Wait in paho's thread until a connection is allowed."""
        self._may_connect.wait()

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: Any, *more: Any) -> None:
        refused = str(reason) if reason.is_failure else ""
        if not refused:
            self._has_session = flags.session_present
            self._lost = self._loop.create_future()
        settle(self._attached, refused)
        if refused:
            self._attached = self._loop.create_future()

    def _on_disconnect(self, client: Any, data: Any, flags: Any, reason: Any, *more: Any) -> None:
        if self._attached.done():
            self._attached = self._loop.create_future()
        settle(self._lost, f"disconnected: {reason}")

    def _on_subscribe(self, client: Any, data: Any, number: int, *more: Any) -> None:
        settle(self._subscribed.setdefault(number, self._loop.create_future()), None)

    def _on_publish(self, client: Any, data: Any, number: int, *more: Any) -> None:
        settle(self._open.setdefault(number, self._loop.create_future()), None)

    def _on_message(self, client: Any, data: Any, message: "MQTTMessage") -> None:
        """Pass a message to the application, and wait in paho's thread for its processing."""
        taken = threading.Event()
        delivery = Delivery(message.topic, bytes(message.payload), taken)
        self._loop.call_soon_threadsafe(self._deliver, delivery)
        taken.wait()

    def _deliver(self, delivery: Delivery) -> None:
        self._arrivals.put(delivery)
        if self._takes_no_answer:
            delivery.receipt.set()
        self._waiting = {each for each in self._waiting if not each.is_set()} | {delivery.receipt}


_SETTINGS: Final[Mapping[str, bool | int | str]] = {
    "qos": 1,
    "autosave_interval": 1_800,
    "autosave_on_changes": False,
    "max_queued_messages": 0,
    "max_inflight_messages": 20,
    "client_inflight": 20,
}

SYSTEM = System(
    title="mosquitto",
    program="mosquitto",
    package="mosquitto",
    version_option="-h",
    settings=_SETTINGS,
    largest=5,
    start=start,
    is_up=is_up,
    dials=dials,
    client=MqttClient,
    client_library="paho-mqtt",
    resends=True,
)
