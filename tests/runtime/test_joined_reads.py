"""Tests of joined reads: one message for many destinations, and single frames for few."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from brokerd.config import SessionParameters
from brokerd.model.message_kind import JOINED_BYTES
from brokerd.protocols.interface import Event, MessageReceived
from brokerd.runtime.connection import FLOOD_RECEIVE_BYTES, MANY, Connection
from brokerd.sessions.session import Session, SessionState
from brokerd.wire.fast_path import StraightReader
from tests.helpers.memory_links import copy
from tests.helpers.raw_peer import words
from tests.helpers.virtual_time import in_virtual_time
from tests.runtime.test_retained_reads import Keeper

LARGE_BYTES = 100_000


async def lengths(destinations: int) -> list[int]:
    """Return the lengths of the runs of a second read of the largest size."""
    near, far = trio.testing.memory_stream_pair()
    session = Session(1, 1, SessionState.ESTABLISHED)
    connection = Connection(near, session, StraightReader(), SessionParameters(), Keeper())
    told: list[Event] = []

    def post(events: Sequence[Event]) -> int:
        told[:] = events
        return destinations

    connection.post = post
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        await far.send_all(words(copy(1, 1)))
        await trio.testing.wait_all_tasks_blocked()
        connection._receive_bytes = FLOOD_RECEIVE_BYTES
        numbers = range(2, 2 + FLOOD_RECEIVE_BYTES // LARGE_BYTES)
        await far.send_all(b"".join([words(copy(number, LARGE_BYTES)) for number in numbers]))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return [len(each.message.run) for each in told if isinstance(each, MessageReceived)]


@pytest.mark.parametrize("destinations", [2, MANY - 1])
@in_virtual_time
async def test_messages_for_few_destinations_are_joined_up_to_one_frame(
    destinations: int,
) -> None:
    found = await lengths(destinations)
    assert len(found) > 1
    assert max(found) * LARGE_BYTES <= JOINED_BYTES


@in_virtual_time
async def test_messages_for_many_destinations_are_joined_as_read() -> None:
    assert await lengths(MANY) == [FLOOD_RECEIVE_BYTES // LARGE_BYTES]
