"""Measurements of SSH on loopback, printed at the end of the run without a verdict.

pytest -m slow tests/pubsubctl/test_ssh_speed.py
"""

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from pubsubctl.hosts.ssh.connections import SshConnections
from tests.helpers.ssh_inventory import inventory_of
from tests.helpers.ssh_server import NO_SSHD, SSHD, make_key, running_sshd

FILE_MIB = 128
COMMANDS = 100
ROUND_TRIPS = 300


@pytest.mark.slow
@pytest.mark.skipif(SSHD is None, reason=NO_SSHD)
def test_ssh_costs_on_loopback_are_measured(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    user_key = make_key(tmp_path / "id_test")
    source, there, back = tmp_path / "source", tmp_path / "there", tmp_path / "back"
    source.write_bytes(os.urandom(1 << 20) * FILE_MIB)
    told: list[str] = []

    async def measured(
        text: str, per: Callable[[float], float], work: Callable[[], Awaitable[None]]
    ) -> None:
        begin_s = time.perf_counter()
        await work()
        told.append(text.format(per(time.perf_counter() - begin_s)))

    async def main(port: SshConnections) -> None:
        host = inventory.hosts[0]

        async def first() -> None:
            await port.run(host, ["true"])

        async def commands() -> None:
            for _ in range(COMMANDS):
                await port.run(host, ["true"])

        async def stream() -> None:
            received = 0
            async with port.open(host, ["cat", str(source)]) as output:
                while data := await output.receive_some():
                    received += len(data)
            assert received == FILE_MIB << 20

        async def round_trips() -> None:
            async with port.open(host, ["cat"]) as echo:
                for _ in range(ROUND_TRIPS):
                    await echo.send_all(b"x" * 100)
                    assert await echo.receive_some() == b"x" * 100

        await measured("connect and first command {:.0f} ms", lambda s: s * 1e3, first)
        await measured("command {:.1f} ms", lambda s: s * 1e3 / COMMANDS, commands)
        await measured("round trip {:.2f} ms", lambda s: s * 1e3 / ROUND_TRIPS, round_trips)
        await measured("stream {:.0f} MiB/s", lambda s: FILE_MIB / s, stream)
        await measured(
            "put {:.0f} MiB/s", lambda s: FILE_MIB / s, lambda: port.put(host, source, str(there))
        )
        await measured(
            "get {:.0f} MiB/s", lambda s: FILE_MIB / s, lambda: port.get(host, str(there), back)
        )

    with running_sshd(tmp_path / "sshd", authorized=[user_key]) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)

        async def connected() -> None:
            async with SshConnections(inventory) as port:
                await main(port)

        trio.run(connected)
    assert back.read_bytes() == source.read_bytes()
    for path in (source, there, back):
        path.unlink()
    record_property("measured", f"ssh on loopback: {', '.join(told)}")
