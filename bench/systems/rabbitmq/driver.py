"""RabbitMQ: one server or a cluster, AMQP 0-9-1, publisher confirms and manual acknowledgements.

A subscriber has a durable queue of its own, classic or quorum, bound to the topics of its
subscription; publications are persistent. An unconfirmed publication is repeated, and RabbitMQ has
no message ids, so duplicates may arrive. A channel from before a change of a quorum queue's leader
may have each publication refused until the old leader returns. So a publisher with only refusals
for `refused_ms` attaches again.
"""

import asyncio
import base64
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
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
    WrongSettings,
    check_one_of,
    fetch_json,
    number_of,
    pair_servers,
    settle,
    translate_errors,
)
from bench.systems.rabbitmq import port_mapper

if TYPE_CHECKING:
    from aio_pika.abc import (
        AbstractChannel,
        AbstractConnection,
        AbstractExchange,
        AbstractIncomingMessage,
        AbstractQueue,
    )

EXCHANGE: Final = "load"
KINDS: Final = ("classic", "quorum")
PARTITIONS: Final = ("ignore", "pause_minority", "autoheal")


def start(
    program: str, servers: Sequence[Server], settings: Settings, version: str
) -> Sequence[Start]:
    """Return the servers, each with all state in its folder; several servers form a cluster."""
    check_one_of(settings, "queue", KINDS)
    check_one_of(settings, "partitions", PARTITIONS)
    if len(servers) > 1 and settings["queue"] != "quorum":
        raise WrongSettings("settings.queue: only a quorum queue is on several servers")
    return [_start(program, server, servers, settings) for server in servers]


def _start(program: str, server: Server, servers: Sequence[Server], settings: Settings) -> Start:
    mapper, distribution, management = server.further_ports
    folder = server.folder
    others = ",".join(
        f"{each.name}={server.through.get(each.name, each.further_ports[1])}"
        for each in servers
        if each is not server
    )
    environment = {
        "HOME": folder,
        "ERL_EPMD_PORT": mapper,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": _node(server),
        "RABBITMQ_DIST_PORT": distribution,
        "RABBITMQ_CONFIG_FILE": folder / "rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "enabled_plugins",
        "RABBITMQ_MNESIA_BASE": folder / "data",
        "RABBITMQ_LOG_BASE": folder / "log",
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": folder / "pid",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 -setcookie load",
        # Otherwise the script remains as a parent, and a kill would hit the script instead.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{server.port}",
        "log.console.level = warning",
        "disk_free_limit.absolute = 50MB",
    ]
    plugins = ""
    if len(servers) > 1:
        plugins = "rabbitmq_management"
        lines += [
            "management.tcp.ip = 127.0.0.1",
            f"management.tcp.port = {management}",
            "cluster_formation.peer_discovery_backend = classic_config",
            f"cluster_partition_handling = {settings['partitions']}",
        ]
        lines += [
            f"cluster_formation.classic_config.nodes.{number} = {_node(each)}"
            for number, each in enumerate(servers, start=1)
        ]
    command = (
        "/usr/bin/env",
        *(f"{key}={value}" for key, value in environment.items()),
        *(sys.executable, "-I", port_mapper.__file__, str(mapper), others),
        program,
    )
    files = {"rabbitmq.conf": "\n".join(lines) + "\n", "enabled_plugins": f"[{plugins}].\n"}
    return Start(command, files)


def _node(server: Server) -> str:
    return f"{server.name}@localhost"


def leader(servers: Sequence[Server], settings: Settings) -> str:
    """Return the leader of the first queue by name; "" if unknown."""
    words = base64.b64encode(b"guest:guest").decode()
    for server in servers:
        path = "/api/queues?columns=name,leader"
        found = fetch_json(server.further_ports[2], path, {"Authorization": f"Basic {words}"}) or ()
        leaders = {str(queue["name"]): str(queue.get("leader", "")) for queue in found}
        if leaders:
            return leaders[min(leaders)].partition("@")[0]
    return ""


def version(program: str) -> str:
    """Return the version from the installation folder; a version option starts a port mapper."""
    found = [*Path(program).parents[1].glob("lib/rabbitmq_server-*")]
    return found[0].name.replace("_server-", " ") if found else "RabbitMQ"


def is_up(server: Server, settings: Settings) -> bool:
    """Return True if the server answers the begin of a session."""
    try:
        with socket.create_connection(("127.0.0.1", server.port), ANSWER_S) as connection:
            connection.settimeout(ANSWER_S)
            connection.sendall(b"AMQP\0\0\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


class RabbitClient:
    """A SystemClient."""

    def __init__(self, attachment: Attachment) -> None:
        self._about = attachment
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel
        self._exchange: AbstractExchange
        self._queue: AbstractQueue | None = None
        self._lost: asyncio.Future[str] = asyncio.Future()
        self._arrivals = Arrivals()
        self._refused_since_s: float | None = None

    async def attach(self) -> None:
        import aio_pika
        import aio_pika.exceptions

        await self.drop()
        self._refused_since_s = None
        lost = self._lost = asyncio.get_running_loop().create_future()

        def closed(_: Any, error: BaseException | None) -> None:
            settle(lost, str(error) or "the connection was closed")

        with translate_errors(ConnectionLost, aio_pika.exceptions.AMQPError):
            connection = self._connection = await self._connect()
            connection.close_callbacks.add(closed)
            self._channel = await connection.channel(publisher_confirms=True)
            self._channel.close_callbacks.add(closed)
            await self._channel.set_qos(prefetch_count=number_of(self._about.settings, "prefetch"))
            self._exchange = await self._channel.declare_exchange(
                EXCHANGE, aio_pika.ExchangeType.DIRECT, durable=True
            )

    async def _connect(self) -> "AbstractConnection":
        """Return a connection to the first server that accepts."""
        import aio_pika
        import aio_pika.exceptions

        refused: list[str] = []
        for address in self._about.addresses:
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await aio_pika.connect(f"amqp://guest:guest@{address}/?heartbeat=5")
            except (aio_pika.exceptions.AMQPError, OSError, TimeoutError) as error:
                refused.append(f"{address}: {type(error).__name__}: {error}")
        raise ConnectionLost("; ".join(refused))

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._lost)

    async def subscribe(self, topics: Sequence[str]) -> None:
        import aio_pika.exceptions

        self._arrivals = Arrivals()
        kind = str(self._about.settings["queue"])
        with translate_errors(ConnectionLost, aio_pika.exceptions.AMQPError):
            queue = self._queue = await self._channel.declare_queue(
                self._about.name, durable=True, arguments={"x-queue-type": kind}
            )
            for topic in topics:
                await queue.bind(self._exchange, topic)
            await queue.consume(self._on_message)

    async def receive(self) -> Sequence[Delivery]:
        return await self._arrivals.take()

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        import aio_pika.exceptions

        with translate_errors(ConnectionLost, aio_pika.exceptions.AMQPError, OSError):
            for delivery in deliveries:
                await delivery.receipt.ack()

    async def publish(self, topic: str, message_id: str, body: bytes) -> None:
        import aio_pika
        import aio_pika.exceptions

        message = aio_pika.Message(
            body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, message_id=message_id
        )
        within_s = number_of(self._about.settings, "confirm_within_ms") / 1e3
        try:
            await self._exchange.publish(message, topic, mandatory=False, timeout=within_s)
            self._refused_since_s = None
        except aio_pika.exceptions.DeliveryError as error:
            self._on_refusal(asyncio.get_running_loop().time())
            raise NotAcknowledged(f"{type(error).__name__}: {error}") from error
        except (aio_pika.exceptions.AMQPError, OSError, TimeoutError) as error:
            raise NotAcknowledged(f"{type(error).__name__}: {error}") from error

    async def drop(self) -> None:
        import aio_pika.exceptions

        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            try:
                async with asyncio.timeout(ANSWER_S):
                    await connection.close()
            except (aio_pika.exceptions.AMQPError, OSError, TimeoutError):
                pass  # the connection is closed either way

    async def leave(self) -> None:
        import aio_pika.exceptions

        try:
            if self._queue is not None and not self._lost.done():
                async with asyncio.timeout(ANSWER_S):
                    await self._queue.delete(if_unused=False, if_empty=False)
        except (aio_pika.exceptions.AMQPError, OSError, TimeoutError):
            pass  # the servers end with the run
        await self.drop()

    def _on_refusal(self, now_s: float) -> None:
        if self._refused_since_s is None:
            self._refused_since_s = now_s
        refused_s = now_s - self._refused_since_s
        if refused_s * 1e3 >= number_of(self._about.settings, "refused_ms"):
            settle(self._lost, f"each publication was refused for {refused_s:.1f} s")

    async def _on_message(self, message: "AbstractIncomingMessage") -> None:
        assert message.routing_key is not None, message
        self._arrivals.put(Delivery(message.routing_key, message.body, message))


_SETTINGS: Final[Mapping[str, bool | int | str]] = {
    "queue": "classic",
    "partitions": "ignore",
    "prefetch": 500,
    "confirm_within_ms": 5_000,
    "refused_ms": 1_000,
}

SYSTEM = System(
    title="RabbitMQ",
    # Debian's wrapper in /usr/sbin works for two users only.
    program="/usr/lib/rabbitmq/bin/rabbitmq-server",
    package="rabbitmq-server",
    version_option="",
    version=version,
    settings=_SETTINGS,
    ports=4,
    largest=5,
    start_within_s=90.0,
    start=start,
    is_up=is_up,
    dials=pair_servers,
    dialled=2,
    leader=leader,
    client=RabbitClient,
    client_library="aio-pika",
)
