"""NATS JetStream: one file-backed stream on one server or a group of servers, with message ids.

A publisher repeats a publication until the acknowledgement, with the same `Nats-Msg-Id`. A
subscriber has a durable consumer per subject, with push or pull delivery (`consumer`), and
acknowledges each delivery. With `acknowledge = "double"` the subscriber waits for the server's
confirmation, as documented for exactly once. A redelivery after a lost confirmation is acknowledged
again, and not processed twice.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from bench.systems.boundary import (
    Arrivals,
    Attachment,
    ConnectionLost,
    Delivery,
    NotAcknowledged,
    Server,
    Settings,
    Start,
    System,
    WrongSettings,
    check_one_of,
    fetch_json,
    number_of,
    pair_servers,
    settle,
    translate_errors,
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

STREAM: Final = "LOAD"
PREFIX: Final = "load."
CONSUMERS: Final = ("push", "pull")
ACKNOWLEDGEMENTS: Final = ("single", "double")
FETCHED: Final = 256
_LOOK_S: Final = 0.1
_PULL_S: Final = 1.0
_NOBODY: Final = 1
"""A port without a listener."""
_SYNC_SETTABLE: Final = (2, 10)
_DEFAULT_SYNC: Final = "2m"

_Stored = tuple[int, datetime]
"""A message of the stream. Sequence numbers may repeat after a server lost the last messages."""


def start(
    program: str, servers: Sequence[Server], settings: Settings, version: str
) -> Sequence[Start]:
    """Return the servers, which form a cluster if there are several."""
    check_one_of(settings, "consumer", CONSUMERS)
    check_one_of(settings, "acknowledge", ACKNOWLEDGEMENTS)
    if number_of(settings, "replicas") > len(servers):
        text = f"settings.replicas = {settings['replicas']}: more than there are servers"
        raise WrongSettings(f"{text}, {len(servers)}")
    known = re.search(r"v(\d+)\.(\d+)", version)
    release = (int(known[1]), int(known[2])) if known else _SYNC_SETTABLE
    if settings["sync_interval"] != _DEFAULT_SYNC and release < _SYNC_SETTABLE:
        raise WrongSettings(
            f"settings.sync_interval = {settings['sync_interval']!r}: {version} always syncs every "
            "2 minutes; use 2.10 or later to set it"
        )
    starts = []
    for server in servers:
        monitor, cluster = server.further_ports
        jetstream = [f"store_dir: {json.dumps(str(server.folder / 'store'))}"]
        if settings["sync_interval"] != _DEFAULT_SYNC:
            jetstream.append(f"sync_interval: {settings['sync_interval']}")
        lines = [
            f'listen: "127.0.0.1:{server.port}"',
            f'http: "127.0.0.1:{monitor}"',
            f"server_name: {server.name}",
            f"jetstream {{ {', '.join(jetstream)} }}",
        ]
        if len(servers) > 1:
            where = f'listen: "127.0.0.1:{cluster}"'
            routes = _routes(server, servers)
            if server.through:
                # Servers advertise addresses to each other, and would bypass the relay.
                where += f', advertise: "127.0.0.1:{_NOBODY}"'
            lines.append(f"cluster {{ name: load, {where}, routes: [{routes}] }}")
        path = server.folder / "nats.conf"
        starts.append(Start((program, "-c", str(path)), {"nats.conf": "\n".join(lines) + "\n"}))
    return starts


def _routes(server: Server, servers: Sequence[Server]) -> str:
    ports = [server.through.get(each.name, each.further_ports[1]) for each in servers]
    return ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)


def is_up(server: Server, settings: Settings) -> bool:
    """Return True if the server's own health check succeeds."""
    found = fetch_json(server.further_ports[0], "/healthz")
    return isinstance(found, dict) and found.get("status") == "ok"


def leader(servers: Sequence[Server], settings: Settings) -> str:
    """Return the leader of the stream; "" if unknown."""
    for server in servers:
        found = fetch_json(server.further_ports[0], "/jsz?streams=true") or {}
        for account in found.get("account_details", ()):
            for stream in account.get("stream_detail", ()):
                if stream["name"] == STREAM:
                    return str(stream.get("cluster", {}).get("leader", ""))
    return ""


class JetStreamClient:
    """A SystemClient."""

    def __init__(self, attachment: Attachment) -> None:
        self._about = attachment
        self._settings = attachment.settings
        self._connection: Client | None = None
        self._stream: JetStreamContext
        self._lost: asyncio.Future[str] = asyncio.Future()
        self._arrivals = Arrivals()
        self._unconfirmed: set[_Stored] = set()
        self._pulls: set[asyncio.Task[None]] = set()

    async def attach(self) -> None:
        import nats
        import nats.errors
        import nats.js.errors
        from nats.js.api import StorageType

        await self._close()
        lost = self._lost = asyncio.get_running_loop().create_future()

        async def closed() -> None:
            settle(lost, "the connection was closed")

        async def ignored(error: Exception) -> None:
            pass  # the callers that wait for an answer receive the error

        with translate_errors(ConnectionLost, nats.errors.Error, nats.js.errors.Error):
            self._connection = await nats.connect(
                [f"nats://{address}" for address in self._about.addresses],
                name=self._about.name, allow_reconnect=False, dont_randomize=True,
                connect_timeout=2, closed_cb=closed, error_cb=ignored,
            )  # fmt: skip
            self._stream = self._connection.jetstream(
                timeout=float(number_of(self._settings, "ack_within_ms")) / 1e3
            )
            await self._stream.add_stream(
                name=STREAM, subjects=[f"{PREFIX}>"], storage=StorageType.FILE,
                num_replicas=number_of(self._settings, "replicas"),
                duplicate_window=number_of(self._settings, "duplicate_window_s"),
            )  # fmt: skip

    async def wait_lost(self) -> str:
        connection = self._connection
        while connection is not None and connection.is_connected:
            # The library does not always call back.
            done, _ = await asyncio.wait({self._lost}, timeout=_LOOK_S)
            if done:
                break
        return self._lost.result() if self._lost.done() else "not connected any more"

    async def subscribe(self, topics: Sequence[str]) -> None:
        import nats.errors
        import nats.js.errors
        from nats.js.api import AckPolicy, ConsumerConfig

        self._arrivals = Arrivals()
        everything = set(topics) == set(self._about.topics)
        subjects = [">"] if everything else topics
        with translate_errors(ConnectionLost, nats.errors.Error, nats.js.errors.Error):
            for place, subject in enumerate(subjects):
                # The name of a consumer contains the client's name, but no dots.
                durable = f"{self._about.name.replace('.', '-')}-{place}"
                config = ConsumerConfig(
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=number_of(self._settings, "ack_wait_ms") / 1e3,
                    max_ack_pending=number_of(self._settings, "max_ack_pending"),
                )
                if self._settings["consumer"] == "pull":
                    pulled = await self._stream.pull_subscribe(
                        f"{PREFIX}{subject}", durable, stream=STREAM, config=config
                    )
                    self._pulls.add(asyncio.create_task(self._pull(pulled)))
                    continue
                await self._stream.subscribe(
                    f"{PREFIX}{subject}", durable=durable, stream=STREAM, config=config,
                    manual_ack=True, cb=self._on_message,
                )  # fmt: skip

    async def receive(self) -> Sequence[Delivery]:
        while True:
            found = await self._arrivals.take()
            again = [each for each in found if _parse_stored(each.receipt) in self._unconfirmed]
            await self.acknowledge(again)
            if fresh := [each for each in found if each not in again]:
                return fresh

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        import nats.errors

        with translate_errors(ConnectionLost, nats.errors.Error):
            if self._settings["acknowledge"] == "single":
                for delivery in deliveries:
                    await delivery.receipt.ack()
                return
            self._unconfirmed |= {_parse_stored(delivery.receipt) for delivery in deliveries}
            within_s = number_of(self._settings, "ack_within_ms") / 1e3
            await asyncio.gather(*(each.receipt.ack_sync(within_s) for each in deliveries))
            self._unconfirmed -= {_parse_stored(delivery.receipt) for delivery in deliveries}

    async def publish(self, topic: str, message_id: str, body: bytes) -> None:
        import nats.errors
        import nats.js.errors

        headers = {"Nats-Msg-Id": message_id}
        with translate_errors(NotAcknowledged, nats.errors.Error, nats.js.errors.Error):
            await self._stream.publish(f"{PREFIX}{topic}", body, headers=headers)

    async def drop(self) -> None:
        await self._close()

    async def leave(self) -> None:
        await self._close()

    async def _on_message(self, message: "Msg") -> None:
        self._arrivals.put(Delivery(message.subject.removeprefix(PREFIX), message.data, message))

    async def _pull(self, pulled: "JetStreamContext.PullSubscription") -> None:
        """Fetch messages repeatedly until the connection is lost; `wait_lost` reports the loss."""
        import nats.errors
        import nats.js.errors

        while self._connection is not None and self._connection.is_connected:
            try:
                for message in await pulled.fetch(FETCHED, timeout=_PULL_S):
                    await self._on_message(message)
            except nats.errors.TimeoutError:
                continue  # no message arrived
            except (nats.errors.Error, nats.js.errors.Error):
                await asyncio.sleep(_LOOK_S)

    async def _close(self) -> None:
        import nats.errors

        for task in self._pulls:
            task.cancel()
        await asyncio.gather(*self._pulls, return_exceptions=True)
        self._pulls.clear()
        if self._connection is not None and not self._connection.is_closed:
            try:
                await self._connection.close()
            except (nats.errors.Error, OSError):
                pass  # the connection is closed either way


def _parse_stored(message: "Msg") -> _Stored:
    return message.metadata.sequence.stream, message.metadata.timestamp


_SETTINGS: Final[Mapping[str, bool | int | str]] = {
    "sync_interval": _DEFAULT_SYNC,
    "replicas": 1,
    "duplicate_window_s": 120,
    "consumer": "push",
    "acknowledge": "double",
    "ack_within_ms": 2_000,
    "ack_wait_ms": 5_000,
    "max_ack_pending": 1_000,
}

SYSTEM = System(
    title="NATS JetStream",
    program="nats-server",
    package="nats-server",
    version_option="--version",
    settings=_SETTINGS,
    ports=3,
    largest=5,
    start=start,
    is_up=is_up,
    dials=pair_servers,
    dialled=2,
    leader=leader,
    client=JetStreamClient,
    client_library="nats-py",
)
