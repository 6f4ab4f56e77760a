"""Tests of the inbox: reports and deliveries leave in order of arrival."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.client.application import Callbacks, ClientError
from brokerd.client.events import GapAnnounced, GapsAnnounced, Received
from brokerd.client.inbox import Inbox
from brokerd.client.waits import Arrivals
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from tests.helpers.virtual_time import in_virtual_time

SOURCE = SourceId(1, 0, 1)


class World:
    """An inbox, a line that records receipts, and the view of the application."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.taken: list[int] = []
        progress = SimpleNamespace(
            record_delivery=lambda serial: None,
            record_partial_delivery=lambda part: None,
            retract_delivery=lambda part: None,
            take=self.taken.append,
        )
        core = SimpleNamespace(progress=progress)
        self.line: Any = SimpleNamespace(core=core, nudge=lambda: None, acknowledge=lambda: None)
        callbacks = Callbacks(on_notice=self.seen.append, on_gap=self.seen.append)
        self.inbox = Inbox(callbacks)

    def receives(self, serial: int, first: int) -> None:
        run = PublicationRun(SOURCE, range(first, first + 2), (b"\xa0",), bytes(2), 0, ())
        self.inbox.put(self.line, Received((Deliveries(run, (1,)),), serial))

    def misses(self, serial: int, number: int, first: int) -> GapAnnounced:
        gap = GapAnnounced(number, SOURCE, first, first + 1, "released")
        self.inbox.put(self.line, GapsAnnounced((gap,), serial))
        return gap

    def fetch(self, limit: int) -> None:
        self.seen += [item.run.first for item in self.inbox.take(limit)]


def test_an_arrival_of_several_runs_is_acknowledged_after_its_last_run() -> None:
    world = World()
    for serial in (1, 2):
        runs = [
            PublicationRun(SOURCE, range(n, n + 1), (b"a",), bytes(1), 4, (b"load",))
            for n in (10 * serial, 10 * serial + 1)
        ]
        items = tuple(Deliveries(run, (1,)) for run in runs)
        world.inbox.put(world.line, Received(items, serial))
    waiting = world.inbox.waiting_bytes
    for taken in ([], [1], [1], [1, 2]):
        world.fetch(1)
        world.inbox.acknowledge_taken()
        assert world.taken == taken
        waiting -= 68
        assert world.inbox.waiting_bytes == waiting
    assert world.seen == [10, 11, 20, 21]


def test_all_parts_of_an_arrival_are_committed_before_the_client_leaves() -> None:
    """The runs of an arrival may be for different subscriptions."""
    world = World()
    committed: list[Any] = []
    world.line.core.progress.take_part = committed.append
    items = tuple(
        Deliveries(PublicationRun(SOURCE, range(n, n + 2), (b"\xa0",), bytes(2), 0, ()), numbers)
        for n, numbers in ((1, (1,)), (3, (2,)), (5, (1, 2)))
    )
    for _ in range(2):
        world.inbox.put(world.line, Received(items, 7))
        for _ in range(3):
            world.inbox.take_publication()
        world.inbox.commit_parts()
        assert [(part.last, part.subscriptions) for part in committed] == [(2, (1,)), (3, (2,))]
        committed.clear()
        world.fetch(9)
        world.inbox.commit_parts()
        assert not committed


def test_a_gap_is_announced_between_earlier_and_later_deliveries() -> None:
    world = World()
    world.receives(1, 1)
    gap = world.misses(2, 1, 3)
    world.receives(3, 5)
    world.inbox.announce_leading()
    assert world.seen == []
    world.fetch(1)
    world.inbox.acknowledge_taken()
    world.inbox.announce_leading()
    assert world.seen == [1, gap]
    assert world.taken == [1, 2]
    world.fetch(9)
    assert world.seen == [1, gap, 5]


def test_a_gap_of_an_ended_subscription_is_not_announced() -> None:
    world = World()
    world.misses(1, 1, 3)
    gap = world.misses(2, 2, 3)
    world.inbox.forget(1)
    world.inbox.announce_leading()
    assert world.seen == [gap]
    assert world.taken == [1, 2]


def test_arrivals_that_are_put_back_are_returned_again_in_order() -> None:
    world = World()
    for serial, first in ((1, 1), (2, 3), (3, 5)):
        world.receives(serial, first)
    waiting_bytes = world.inbox.waiting_bytes
    popped = [world.inbox.pop() for _ in range(2)]
    world.inbox.put_back(world.line, popped)
    assert world.inbox.waiting_bytes == waiting_bytes
    world.fetch(9)
    assert world.seen == [1, 3, 5]


@in_virtual_time
async def test_no_call_returns_an_arrival_after_the_end_of_the_client() -> None:
    """One call in many lets other tasks run, and then checked nothing."""
    world = World()
    world.receives(1, 1)
    arrivals = Arrivals(world.inbox)

    def check() -> None:
        raise ClientError("client c is closed")

    for _ in range(100):
        with pytest.raises(ClientError):
            await arrivals.wait(check, lambda: None)


@in_virtual_time
async def test_a_gap_that_arrives_while_a_call_yields_is_announced_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The application then receives the publication behind the gap, and no gap in its place."""
    world = World()

    async def run_other_tasks() -> None:
        world.misses(1, 1, 1)
        world.receives(2, 3)

    monkeypatch.setattr(trio.lowlevel, "checkpoint", run_other_tasks)
    await Arrivals(world.inbox).wait(lambda: None, world.inbox.announce_leading)
    assert world.inbox.take_publication().sequence == 3
