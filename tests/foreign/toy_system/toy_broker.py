"""A toy broker of one process: topics, a queue per subscriber, and one file.

`durable` is "yes" (written before the acknowledgement, message ids remembered), "synced" (like
"yes", and on the disk), "no" (not written, so a kill loses all), "repeats" (like "yes", but every
hundredth is delivered twice), "silent" (publications are never acknowledged) or "dies" (the broker
ends at once).
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

_LOG = Path("log.jsonl")


class Broker:
    def __init__(self, durable: str) -> None:
        self.durable = durable
        self.known: set[str] = set()
        self.topics: dict[str, list[str]] = {}
        self.queues: dict[str, dict[int, dict[str, Any]]] = {}
        self.writers: dict[str, asyncio.StreamWriter] = {}
        self.number = 0
        if durable != "no" and _LOG.exists():
            for line in _LOG.read_text().rpartition("\n")[0].splitlines():
                self.take(json.loads(line))
        self.log = _LOG.open("a")

    def take(self, said: dict[str, Any]) -> None:
        key = said["key"]
        if said["do"] == "subscribe":
            self.topics[said["client"]] = said["topics"]
            self.queues.setdefault(said["client"], {})
        elif said["do"] == "acknowledge":
            self.queues.get(said["client"], {}).pop(int(key.rpartition("-")[2]), None)
        elif key not in self.known:
            self.known.add(key)
            for client, wanted in self.topics.items():
                if said["topic"] in wanted:
                    self.put(client, said)

    def put(self, client: str, said: dict[str, Any]) -> None:
        for _ in range(2 if self.durable == "repeats" and self.number % 100 == 99 else 1):
            self.number += 1
            row = {"topic": said["topic"], "body": said["body"], "number": self.number}
            self.queues[client][self.number] = row
            self.send(client, row)

    def send(self, client: str, row: dict[str, Any]) -> None:
        if (writer := self.writers.get(client)) is not None:
            writer.write(json.dumps(row).encode() + b"\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            said = json.loads(line)
            if self.durable != "no":
                self.log.write(json.dumps(said) + "\n")
                self.log.flush()
            if self.durable == "synced":
                os.fsync(self.log.fileno())
            is_back = said["do"] == "subscribe"
            if is_back:
                self.writers.pop(said["client"], None)
            self.take(said)
            if said["do"] != "publish" or self.durable != "silent":
                writer.write(json.dumps({"done": said["key"]}).encode() + b"\n")
            if is_back:
                self.writers[said["client"]] = writer
                for row in self.queues[said["client"]].values():
                    self.send(said["client"], row)


async def main(port: int, durable: str) -> None:
    if durable == "dies":
        sys.exit("toy broker: nothing works")
    server = await asyncio.start_server(Broker(durable).serve, "127.0.0.1", port, limit=1 << 20)
    await server.serve_forever()


asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
