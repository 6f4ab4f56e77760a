"""Tests of the client for RabbitMQ: handling of refusals."""

import asyncio
from typing import Any

import pytest

from bench.systems.boundary import Attachment, NotAcknowledged
from bench.systems.rabbitmq.driver import SYSTEM, RabbitClient
from tests.helpers.patience import PATIENCE_S


class Refusing:
    """An exchange of a channel that refuses every publication."""

    async def publish(self, message: Any, topic: str, **more: Any) -> None:
        from aio_pika.exceptions import DeliveryError
        from pamqp.commands import Basic

        raise DeliveryError(None, Basic.Nack(1))


def client(refused_ms: int) -> RabbitClient:
    settings = {**SYSTEM.settings, "refused_ms": refused_ms}
    made = RabbitClient(Attachment("p", ("127.0.0.1:1",), True, ("all",), settings))
    made._exchange = Refusing()  # type: ignore[assignment]
    return made


def test_a_publisher_that_is_only_refused_attaches_again() -> None:
    pytest.importorskip("aio_pika")

    async def work() -> None:
        patient, hasty = client(3_600_000), client(0)
        for each in (patient, hasty):
            with pytest.raises(NotAcknowledged):
                await each.publish("all", "p-1", b"1")
        async with asyncio.timeout(PATIENCE_S):
            assert await hasty.wait_lost() == "each publication was refused for 0.0 s"
        waits = asyncio.ensure_future(patient.wait_lost())
        await asyncio.sleep(0)
        assert not waits.done()
        waits.cancel()

    asyncio.run(work())
