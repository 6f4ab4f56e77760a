"""Random programs of users receive every publication once, in any way to receive.

`python -m tests.helpers.user_programs PROTOCOL FIRST COUNT` runs more programs.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest
import trio
import trio.testing

from brokerd.client.application import Publication
from brokerd.client.events import GapAnnounced
from brokerd.client.transactions import DurableSubscription, Transaction
from brokerd.model.identity import SourceId
from brokerd.model.losses import STATE_LOST
from brokerd.protocols.registry import DEFINITIONS
from tests.helpers.user_programs.history import Gap, History, Published, Receipt, SubscriptionRecord
from tests.helpers.user_programs.judge import judge
from tests.helpers.user_programs.programs import run_seed
from tests.helpers.user_programs.subscribers import Subscriber

PROGRAMS: Final = 1
"""The number of programs of each protocol; hundreds have run elsewhere."""


@pytest.mark.parametrize("protocol", DEFINITIONS)
def test_a_random_program_receives_each_publication_once(protocol: str) -> None:
    received = 0
    for seed in range(PROGRAMS):
        found, deliveries = run_seed(protocol, seed)
        assert not found, f"seed {seed}"
        received += deliveries
    assert received


SOURCE: Final = SourceId(0, 0, 1)
GAP: Final = GapAnnounced(1, SOURCE, 2, 2, STATE_LOST)
STORAGE: Final = SourceId(1, 0, 0)


def lives_of(count: int) -> tuple[History, SubscriptionRecord]:
    """Return a program of `count` publications, all received."""
    history, record = History(calls=count), SubscriptionRecord("true", started=0)
    for number in range(count):
        attributes = {"kind": "a", "n": number, "v": 1}
        published = Published(attributes, number + 1, 9, "published", number + 1, SOURCE)
        history.published[f"p-{number}"] = published
        record.receipts.append(
            Receipt(f"p-{number}", SOURCE, number + 1, dict(attributes), 9, False, 0, 1)
        )
    return history, record


MISTAKES: Final = {
    "missing": lambda history, record: record.receipts.pop(1),
    "duplicate": lambda history, record: record.receipts.append(record.receipts[2]),
    "order": lambda history, record: record.receipts.reverse(),
    "phantom": lambda history, record: history.published.pop("p-1"),
    "cancelled": lambda history, record: setattr(history.published["p-1"], "fate", "cancelled"),
    "number": lambda history, record: setattr(history.published["p-1"], "sequence", 9),
    "attributes": lambda history, record: record.receipts[1].attributes.update(v=True),
    "size": lambda history, record: record.receipts.append(
        replace(record.receipts.pop(), size_bytes=8)
    ),
    "no match": lambda history, record: setattr(record, "predicate", "v = '1' or v = ''"),
    "gap": lambda history, record: record.gaps.append(Gap(GAP, 3)),
    "after the end": lambda history, record: (
        record.end({0: 1}),
        record.add(replace(record.receipts.pop(), call=2)),
    ),
}


@pytest.mark.parametrize("mistake", [None, *MISTAKES])
def test_a_mistake_in_a_program_is_found(mistake: str | None) -> None:
    history, record = lives_of(3)
    if mistake is not None:
        MISTAKES[mistake](history, record)
    found = judge(record, history, by_kind=False, may_repeat=False, may_lose=False)
    assert any(mistake in text for text in found) if mistake else not found


IN_LOG: Final = replace(GAP, source=STORAGE)
"""A gap in positions of another broker's log."""


@pytest.mark.parametrize(
    "missing, gap, has_storages, is_covered",
    [
        (1, Gap(GAP, 3), False, True),
        (2, Gap(GAP, 3), False, False),
        (1, Gap(GAP, 1), False, False),
        (1, Gap(IN_LOG, 3), False, False),
        (1, Gap(IN_LOG, 2), True, True),
        (1, Gap(IN_LOG, 1), True, False),
    ],
)
def test_a_gap_stands_for_the_earlier_publications_in_it_alone(
    missing: int, gap: Gap, has_storages: bool, is_covered: bool
) -> None:
    history, record = lives_of(3)
    record.gaps.append(gap)
    del record.receipts[missing]
    found = judge(
        record,
        history,
        by_kind=False,
        may_repeat=False,
        may_lose=False,
        may_have_gaps=True,
        has_storages=has_storages,
    )
    assert (not found) == is_covered


class PutBack(Transaction):
    """A transaction that receives one publication, and then waits for ever for another."""

    def __init__(self) -> None:
        self.gaps = []
        self._left = [Publication(SOURCE, 1, {"kind": "a", "n": 0}, b"p-0|", (1,))]

    @property
    def token(self) -> bytes:
        return b"t"

    async def receive(self, limit: int = 1) -> list[Publication]:
        while not self._left:
            await trio.sleep_forever()
        return [self._left.pop()]


class LastDeliveries(DurableSubscription):
    """A subscription with one publication that is not committed; a transaction takes no other."""

    def __init__(self) -> None:
        self.number = 1
        self.is_committed = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        if self.is_committed:
            await trio.sleep_forever()
        yield PutBack()
        self.is_committed = True


@pytest.mark.parametrize("seed", range(8))
def test_a_subscriber_ends_only_after_it_commits_the_last(seed: int) -> None:
    choices = random.Random(seed)
    subscriber = Subscriber("s", History(), object(), choices, "own")  # type: ignore[arg-type]
    subscriber.records[1] = SubscriptionRecord("true", started=0)

    async def run() -> None:
        end = trio.Event()
        end.set()
        await subscriber.receive_to(end, None, LastDeliveries(), 0)  # type: ignore[arg-type]

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [each.name for each in subscriber.records[1].receipts] == ["p-0"]
