"""Stories of the gate of a client: shut and opened at any moment of a dial, once and again."""

from random import Random

import pytest
import trio
import trio.testing

from brokerd.runtime.streams import Gate
from tests.helpers.memory_links import nursery_of_the_test
from tests.helpers.virtual_time import in_virtual_time

DIAL_S = 1.0


class SlowDial:
    """A dial of a second; remembers the near ends of its streams."""

    def __init__(self) -> None:
        self.begun_s: list[float] = []
        self.streams: list[trio.abc.Stream] = []

    async def __call__(self, address: str) -> trio.abc.Stream:
        self.begun_s.append(trio.current_time())
        await trio.sleep(DIAL_S)
        near, _ = trio.testing.memory_stream_pair()
        self.streams.append(near)
        return near


async def is_closed(stream: trio.abc.Stream) -> bool:
    try:
        await stream.send_all(b"x")
    except (trio.ClosedResourceError, trio.BrokenResourceError):
        return True
    return False


@in_virtual_time
async def test_a_connection_that_is_made_while_its_gate_is_shut_is_closed() -> None:
    """The gate is shut after the dial has begun and before it has ended."""
    gate, dial = Gate(), SlowDial()
    made: list[trio.abc.Stream] = []
    async with nursery_of_the_test() as nursery:
        nursery.start_soon(shut_after, gate, DIAL_S / 2)
        try:
            made.append(await gate.before(dial)("b1"))
        except ConnectionAbortedError as error:
            said = str(error)
        is_ended = await is_closed(dial.streams[0])
    assert made == []
    assert said == "blocked from b1 by a fault"
    assert (gate.is_shut, is_ended, gate._streams) == (True, True, [])


async def shut_after(gate: Gate, pause_s: float) -> None:
    await trio.sleep(pause_s)
    gate.shut()


@pytest.mark.parametrize("seed", range(12))
@in_virtual_time
async def test_a_dial_begins_only_while_the_gate_is_open(seed: int) -> None:
    """Two dials at once, and a gate that is shut and opened several times, also twice in a row."""
    random, gate, dial = Random(seed), Gate(), SlowDial()
    shut_s: list[tuple[float, float]] = []

    async def keep_dialling() -> None:
        while True:
            try:
                await gate.before(dial)("b1")
            except ConnectionAbortedError:
                assert gate.is_shut
            else:
                assert not gate.is_shut
            await trio.sleep(random.random())

    async with nursery_of_the_test() as nursery:
        for _ in range(2):
            nursery.start_soon(keep_dialling)
        for _ in range(5):
            await trio.sleep(3 * random.random())
            began_s = trio.current_time()
            for _ in range(random.choice((1, 2))):
                gate.shut()
                await trio.sleep(2 * random.random())
            for _ in range(random.choice((1, 2))):
                gate.open()
            shut_s.append((began_s, trio.current_time()))
        await trio.sleep(3)
    assert not [at for at in dial.begun_s if any(low < at < high for low, high in shut_s)]
    assert dial.begun_s[-1] > shut_s[-1][1], "it goes on after the last time"
