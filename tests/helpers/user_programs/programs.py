"""A random program: its brokers, its clients, its schedule, and its violations."""

import random
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
import trio.testing

from tests.helpers.user_programs.environment import LOSSY, Brokers
from tests.helpers.user_programs.history import History
from tests.helpers.user_programs.judge import judge
from tests.helpers.user_programs.publishers import Publisher
from tests.helpers.user_programs.subscribers import DURABLE_MODES, MODES, Subscriber

HANG_S: Final = 3_000.0
"""No program takes so long."""


async def run_program(protocol: str, seed: int) -> tuple[list[str], int]:
    """Run one program; return the violations, and the number of deliveries."""
    choices = random.Random(f"{seed} {protocol}")
    history = History()
    modes = DURABLE_MODES if protocol == "durable" else MODES
    async with trio.open_nursery() as nursery:
        brokers = Brokers(protocol, choices, nursery, history)
        await brokers.start_all()
        nursery.start_soon(brokers.disturb)
        subscribers = [
            Subscriber(f"s{number}", history, brokers, choices, choices.choice(modes))
            for number in range(choices.choice((1, 2, 3)))
        ]
        end = trio.Event()
        async with trio.open_nursery() as clients:
            for subscriber in subscribers:
                clients.start_soon(subscriber.run, end)
            async with trio.open_nursery() as publishers:
                for number in range(choices.choice((1, 2, 3))):
                    publisher = Publisher(f"p{number}", history, brokers, choices)
                    publishers.start_soon(publisher.run)
            brokers.is_over = True
            await trio.sleep(10)
            end.set()
        nursery.cancel_scope.cancel()
    found = [
        f"{each.name}.{number} ({each.mode}, {each.way}, {record.predicate}, "
        f"{brokers.parameters}): {text}"
        for each in subscribers
        for number, record in each.records.items()
        for text in judge(
            record,
            history,
            by_kind=protocol == "multi_proxy",
            may_repeat=each.mode not in ("plain", "own"),
            may_have_gaps=brokers.loses_disk,
            has_storages=protocol == "ges_reliable",
            may_lose=protocol in LOSSY and history.is_disturbed,
        )
    ]
    received = sum(len(record.receipts) for each in subscribers for record in each.records.values())
    return found, received


async def _run_bounded(protocol: str, seed: int) -> tuple[list[str], int]:
    with trio.fail_after(HANG_S):
        return await run_program(protocol, seed)


def run_seed(protocol: str, seed: int) -> tuple[list[str], int]:
    """Run `run_program` in virtual time, with the schedule that the seed determines."""

    async def at_once(work: Callable[[], None], limiter: Any) -> None:
        await trio.lowlevel.checkpoint()
        work()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brokerd.client.store.run_in_thread", at_once)
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr("trio._core._run._r", random.Random(seed))
        before = random.getstate()
        random.seed(seed)
        clock = trio.testing.MockClock(autojump_threshold=0)
        try:
            return trio.run(_run_bounded, protocol, seed, clock=clock)
        finally:
            random.setstate(before)
