"""Tests of full disks that need no root."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.pubsubctl.conftest import Call


@pytest.mark.parametrize("free_bytes, is_full", [(0, True), (4096, True), (1 << 20, False)])
def test_nothing_is_deployed_where_the_disk_is_full(
    call: Call, monkeypatch: pytest.MonkeyPatch, free_bytes: int, is_full: bool
) -> None:
    monkeypatch.setattr(
        "brokerd.agent.host.server.os.statvfs",
        lambda _: SimpleNamespace(f_bavail=free_bytes // 4096, f_frsize=4096),
    )
    started: list[Any] = []

    async def refuse(*arguments: Any) -> None:
        started.append(arguments)
        raise OSError("nothing is started in this test")

    monkeypatch.setattr("pubsubctl.deployment.deploy.start_agents", refuse)
    answer = call("deploy", "chain3")
    assert (f"{free_bytes:,} bytes free in" in answer.err) == is_full
    assert bool(started) != is_full
    assert (answer.status == 4) == is_full
