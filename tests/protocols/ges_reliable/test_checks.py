"""The judge of losses of storages: publications that no storage has stored again are lost."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.identity import SourceId
from brokerd.model.losses import STATE_LOST
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.checks.steps import GesReliableChecks
from brokerd.protocols.ges_reliable.epochs import EpochLog
from brokerd.protocols.ges_reliable.state import LogAppend
from brokerd.protocols.interface import Append, DeadlineReached, Started
from brokerd.simulator.checks.violations import InvariantViolated
from tests.simulator.test_accepted_losses import LossStory
from tests.simulator.test_oracle import SOURCE

STORAGE = 0


class StorageLosses:
    """Checks that see what a storage writes, before and after an accepted loss."""

    def __init__(self) -> None:
        self.checks = GesReliableChecks(SimpleNamespace())  # type: ignore[arg-type]
        self.broker: Any = SimpleNamespace(
            number=STORAGE, name="b", core=SimpleNamespace(storage=SimpleNamespace(profile=None))
        )
        self.log = EpochLog(STORAGE, 100)

    def store(self, *sequences: int) -> None:
        for sequence in sequences:
            run = PublicationRun(SOURCE, range(sequence, sequence + 1), (b"",), b"\0", 0, ())
            self.write(self.log.store(run, STORAGE))

    def write(self, appends: Iterable[LogAppend]) -> None:
        for each in appends:
            append = Append("log", (each.record,), None)
            self.checks.step(self.broker, DeadlineReached(), [append])

    def lose_all(self) -> None:
        self.log = EpochLog(STORAGE, 100)
        self.checks.step(self.broker, Started(4096, True, {}, lineage=1), [])
        self.write(self.log.announce_loss(1))

    def lost(self, source: SourceId = SOURCE) -> list[int]:
        return [sequence for sequence in range(1, 6) if self.checks.has_lost(source, sequence)]


def test_a_publication_is_lost_until_it_is_stored_behind_the_loss() -> None:
    losses = StorageLosses()
    losses.store(1, 2, 3)
    assert losses.lost() == []
    losses.lose_all()
    assert losses.lost() == [1, 2, 3]
    losses.store(1, 2)
    assert losses.lost() == [3]
    assert losses.lost(SOURCE._replace(incarnation=2)) == []


def test_a_finer_storage_has_lost_no_publication() -> None:
    """Its broker became a storage after the loss."""
    losses = StorageLosses()
    losses.broker.core.storage.profile = object()
    losses.checks.step(losses.broker, Started(4097, True, {}, lineage=1), [])
    losses.store(1, 2)
    assert losses.lost() == []


@pytest.mark.parametrize("is_stored_again", [False, True])
def test_the_gap_of_a_lost_publication_may_follow_a_later_publication(
    is_stored_again: bool,
) -> None:
    """The second publication was stored before the loss; its acknowledgement was in transit."""
    losses = StorageLosses()
    losses.store(1, 2)
    losses.lose_all()
    if is_stored_again:
        losses.store(1, 2)
    story = LossStory(acknowledged=1)
    story.oracle.losses.disk_view.has_lost = losses.checks.has_lost
    story.acknowledge(2, 2)
    if is_stored_again:
        with pytest.raises(InvariantViolated, match="without 2"):
            story.deliver(3)
        return
    story.deliver(3)
    story.oracle.on_gap("s", 1, SOURCE, 2, 2, STATE_LOST)
    story.deliver(4, 5)
    story.acknowledge(3, 5)
    story.oracle.judge_end()
