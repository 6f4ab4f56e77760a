"""Tests of a timer shared by short waits."""

import trio

from brokerd.runtime.sweeper import process_sweeper
from brokerd.units import MILLISECOND_NS
from tests.helpers.virtual_time import in_virtual_time


@in_virtual_time
async def test_each_call_happens_at_its_instant_unless_cancelled() -> None:
    sweeper = process_sweeper()
    assert process_sweeper() is sweeper
    start_ns = round(trio.current_time() * 1_000_000_000)
    calls: list[tuple[str, int]] = []

    def late(now_ns: int) -> None:
        calls.append(("late", now_ns))
        if len(calls) < 4:
            sweeper.call(late, now_ns + 5 * MILLISECOND_NS)

    def early(now_ns: int) -> None:
        calls.append(("early", now_ns))

    def never(now_ns: int) -> None:
        calls.append(("never", now_ns))

    sweeper.call(late, start_ns + 10 * MILLISECOND_NS)
    sweeper.call(never, start_ns + 1 * MILLISECOND_NS)
    await trio.sleep(0.0005)
    sweeper.call(early, start_ns + 2 * MILLISECOND_NS)
    sweeper.forget(never)
    await trio.sleep(1)
    assert [(who, round((at_ns - start_ns) / MILLISECOND_NS)) for who, at_ns in calls] == [
        ("early", 2),
        ("late", 10),
        ("late", 15),
        ("late", 20),
    ]


@in_virtual_time
async def test_a_call_after_a_rest_happens_at_its_instant() -> None:
    sweeper = process_sweeper()
    calls: list[int] = []

    def note(now_ns: int) -> None:
        calls.append(now_ns)

    for calls_so_far in range(2):
        assert len(calls) == calls_so_far
        sweeper.call(note, round((trio.current_time() + 0.01) * 1_000_000_000))
        await trio.sleep(1)
    assert len(calls) == 2
