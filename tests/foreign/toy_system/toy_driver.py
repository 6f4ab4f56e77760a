"""A driver for a toy broker: the start of its one server, and a client."""

import asyncio
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.systems.boundary import (
    Attachment,
    ConnectionLost,
    Delivery,
    NotAcknowledged,
    Server,
    Settings,
    Start,
    System,
)

BROKER = Path(__file__).with_name("toy_broker.py")


def start(
    program: str, servers: Sequence[Server], settings: Settings, version: str
) -> Sequence[Start]:
    return [
        Start((program, str(BROKER), str(server.port), str(settings["durable"])))
        for server in servers
    ]


def is_up(server: Server, settings: Settings) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
    except OSError:
        return False
    return True


class ToyClient:
    """One line of JSON per request, one per reply or publication."""

    def __init__(self, attachment: Attachment) -> None:
        self.about = attachment
        self.lost: asyncio.Future[str] = asyncio.Future()
        self.answers: dict[str, asyncio.Future[None]] = {}
        self.came: asyncio.Queue[Delivery] = asyncio.Queue()
        self.reading: asyncio.Task[None] | None = None
        self.had = 0
        self.writer: asyncio.StreamWriter

    async def attach(self) -> None:
        host, _, port = self.about.addresses[0].rpartition(":")
        reader, self.writer = await asyncio.open_connection(host, int(port))
        self.lost, self.came = asyncio.Future(), asyncio.Queue()
        self.reading = asyncio.create_task(self.read(reader))

    async def wait_lost(self) -> str:
        return await asyncio.shield(self.lost)

    async def subscribe(self, topics: Sequence[str]) -> None:
        await self.ask("subscribe", self.about.name, topics=list(topics))

    async def receive(self) -> Sequence[Delivery]:
        while (delivery := await self.came.get()).receipt <= self.had:
            await self.acknowledge([delivery])  # the broker was killed before it knew
        return [delivery]

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.had = max(self.had, delivery.receipt)
            await self.ask("acknowledge", f"{self.about.name}-{delivery.receipt}")

    async def publish(self, topic: str, message_id: str, body: bytes) -> None:
        try:
            await self.ask("publish", message_id, topic=topic, body=body.hex())
        except ConnectionLost as error:
            raise NotAcknowledged(message_id) from error

    async def drop(self) -> None:
        self.writer.transport.abort()
        await asyncio.wait({self.lost})

    async def leave(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
            self.writer.close()

    async def ask(self, what: str, key: str, **more: object) -> None:
        if self.lost.done():
            raise ConnectionLost(self.lost.result())
        answer = self.answers[key] = asyncio.Future()
        line = {"do": what, "key": key, "client": self.about.name, **more}
        self.writer.write(json.dumps(line).encode() + b"\n")
        await answer

    async def read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                said = json.loads(line)
                if "done" in said:
                    if (waiting := self.answers.pop(said["done"], None)) and not waiting.done():
                        waiting.set_result(None)
                else:
                    body = bytes.fromhex(said["body"])
                    self.came.put_nowait(Delivery(said["topic"], body, said["number"]))
        except OSError:
            pass
        self.lost.set_result("the broker is gone")
        for waiting in self.answers.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("the broker is gone"))
        self.answers.clear()


SYSTEM = System(
    title="the toy broker",
    program=sys.executable,
    package="python3",
    version_option="--version",
    settings={"durable": "yes"},
    start=start,
    is_up=is_up,
    client=ToyClient,
)
