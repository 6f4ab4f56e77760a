"""Story of a subscription that is requested twice: the first request is the one that counts."""

import asyncio

import pytest

from bench.systems import load
from bench.systems.load import SystemSubscriber


def test_a_repeated_request_does_not_begin_the_subscription_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def request() -> list[int]:
        subscriber = SystemSubscriber.__new__(SystemSubscriber)
        subscriber._issued_ns = 0
        subscriber._requested = asyncio.Event()
        issued = []
        for now_ns in (7, 9):
            monkeypatch.setattr(load.time, "monotonic_ns", lambda now_ns=now_ns: now_ns)
            subscriber.subscribe()
            issued.append(subscriber._issued_ns)
            assert subscriber._requested.is_set()
        monkeypatch.undo()
        return issued

    assert asyncio.run(request()) == [7, 7]
