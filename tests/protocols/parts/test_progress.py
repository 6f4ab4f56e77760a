"""The progress of publishers: what is written, and what is forgotten."""

from typing import Any

import pytest

from brokerd.model.identity import Peer, SourceId, StreamId
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.interface import Change, Commit
from brokerd.protocols.parts.clients import progress
from brokerd.protocols.parts.clients.progress import (
    PUBLISHER_PROGRESS,
    WRITE_INTERVAL_NS,
    PublisherProgress,
)
from brokerd.protocols.parts.clients.table import ClientTable, HostedClient
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine


def _source(publisher: int, incarnation: int = 1) -> SourceId:
    return SourceId(3, publisher, incarnation)


class World:
    """A table of clients without a core; written rows are taken from its effects."""

    def __init__(self, *, is_written: bool) -> None:
        self.machine = EventMachine()
        self.deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        self.table = ClientTable(
            3,
            self.machine,
            self.deadlines,
            BestEffortParameters(),
            HostedClient[Any],
            writes_published=is_written,
        )

    def written(self) -> list[Change]:
        """Write the progress; return the rows."""
        self.table.write_progress()
        effects, self.machine.effects = self.machine.effects, []
        return [row for each in effects if isinstance(each, Commit) for row in each.changes]


def test_each_publisher_has_one_row_with_its_latest_source() -> None:
    world = World(is_written=True)
    for last in (1, 5, 4):
        world.table.record_published("shop", _source(0), last)
    assert world.written() == [Change(PUBLISHER_PROGRESS, "shop", (3, 0, 1, 5))]
    world.table.record_published("shop", _source(0, 2), 1)
    assert world.written() == [Change(PUBLISHER_PROGRESS, "shop", (3, 0, 2, 1))]
    assert world.written() == []


def test_all_numbers_of_an_interval_are_written_at_its_end() -> None:
    world = World(is_written=True)
    for now_ns in (0, WRITE_INTERVAL_NS // 2):
        world.machine.now_ns = now_ns
        world.table.record_published("shop", _source(0), now_ns + 1)
    assert world.deadlines.earliest() == WRITE_INTERVAL_NS
    world.written()
    assert world.deadlines.earliest() is None
    world.table.record_published("shop", _source(0), 1)  # again
    assert world.deadlines.earliest() is None
    world.table.record_published("shop", _source(0), WRITE_INTERVAL_NS)
    assert world.deadlines.earliest() == WRITE_INTERVAL_NS // 2 + WRITE_INTERVAL_NS


def test_progress_in_memory_has_nothing_to_write() -> None:
    world = World(is_written=False)
    world.table.record_published("shop", _source(0), 5)
    assert world.deadlines.earliest() is None
    assert world.written() == []


def test_the_highest_number_is_that_of_the_latest_source() -> None:
    known = PublisherProgress(is_written=False)
    known.latest["shop"] = _source(0, 2), 1
    assert known.highest("shop", _source(0, 2)) == 1
    assert known.highest("shop", _source(0)) == 0


def test_the_progress_of_the_longest_absent_publisher_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "MOST_PUBLISHERS", 2)
    known = PublisherProgress(is_written=True)
    for number, name in enumerate(("till", "shop", "bank")):
        known.latest[name] = _source(number), 7
    known.renew("bank", present=["till", "bank"])
    assert known.take_changes() == [Change(PUBLISHER_PROGRESS, "shop", None)]
    assert known.highest("till", _source(0)) == 7
    known.latest["shop"] = _source(1), 8
    known.renew("shop", present=["shop"])
    assert [known.highest(name, _source(n)) for n, name in enumerate(("till", "shop"))] == [0, 8]


def test_the_gap_of_a_lost_subscription_begins_behind_its_position_or_at_the_first() -> None:
    """A lost subscription without a position in a stream has had nothing of that stream."""
    client = HostedClient[Any]("s")
    client.lost_positions = {1: {StreamId(3, 1, 0): 4, StreamId(3, 2, 0): 9}}
    begins = {StreamId(3, publisher, 0): 9 for publisher in (1, 2, 3)}
    table = World(is_written=False).table
    gaps = [(each.first, each.last) for each in table.gaps_of_lost(client, 1, begins)]
    assert gaps == [(5, 9), (1, 9)]
    assert [*table.gaps_of_lost(client, 1, begins)] == []
