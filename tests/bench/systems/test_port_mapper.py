"""Tests of the port mapper of Erlang's nodes, with bytes as Erlang documents them."""

import asyncio
import struct

from bench.systems.rabbitmq.port_mapper import PortMapper
from tests.helpers.patience import PATIENCE_S

ME_AT_258 = b"x\x01\x02" + b"M\0\0\6\0\5" + b"\0\2n1" + b"\0\0"


def _request(body: bytes) -> bytes:
    return struct.pack("!H", len(body)) + body


async def _asked(port: int, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(body))
    answer = await reader.read()
    writer.close()
    return answer


def test_the_mapper_lists_a_node_while_its_connection_lasts_and_peers_always() -> None:
    async def work() -> None:
        mapper = PortMapper(4369, {"n2": 515})
        server = await asyncio.start_server(mapper.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(PATIENCE_S), server:
            assert await _asked(port, b"zn1") == b"w\1"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_request(ME_AT_258))
            told = await reader.readexactly(6)
            assert told[:2] == b"v\0", "registered"
            assert int.from_bytes(told[2:]) > 3, "a creation that no node has by itself"
            assert await _asked(port, b"zn1") == b"w\0\1\2M\0\0\6\0\5\0\2n1\0\0"
            assert await _asked(port, b"zn2") == b"w\0\2\3M\0\0\6\0\5\0\2n2\0\0"
            assert await _asked(port, b"zn3") == b"w\1"
            assert await _asked(port, b"n") == b"\0\0\x11\x11name n1 at port 258\n"
            assert await _asked(port, b"?") == b""
            writer.close()
            while await _asked(port, b"zn1") != b"w\1":
                await asyncio.sleep(0)
            assert await _asked(port, b"n") == b"\0\0\x11\x11", "n2 was asked for, and is elsewhere"

    asyncio.run(work())
