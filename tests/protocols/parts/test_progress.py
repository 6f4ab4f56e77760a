"""The progress of publishers: what is written, and what is forgotten."""

import pytest

from brokerd.model.identity import SourceId
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients import progress
from brokerd.protocols.parts.clients.progress import PUBLISHER_PROGRESS, PublisherProgress


def _source(publisher: int, incarnation: int = 1) -> SourceId:
    return SourceId(3, publisher, incarnation)


def test_each_publisher_has_one_row_with_its_latest_source() -> None:
    known = PublisherProgress(is_written=True)
    for last in (1, 5, 4):
        known.advance("shop", _source(0), last)
    assert known.take_changes() == [Change(PUBLISHER_PROGRESS, "shop", (3, 0, 1, 5))]
    known.advance("shop", _source(0, 2), 1)
    assert known.take_changes() == [Change(PUBLISHER_PROGRESS, "shop", (3, 0, 2, 1))]
    assert known.take_changes() == []
    assert known.highest("shop", _source(0, 2)) == 1
    assert known.highest("shop", _source(0)) == 0


def test_progress_in_memory_has_nothing_to_write() -> None:
    known = PublisherProgress(is_written=False)
    assert not known.advance("shop", _source(0), 5)
    assert known.highest("shop", _source(0)) == 5
    assert known.take_changes() == []


def test_the_progress_of_the_longest_absent_publisher_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "MOST_PUBLISHERS", 2)
    known = PublisherProgress(is_written=True)
    for number, name in enumerate(("till", "shop", "bank")):
        known.advance(name, _source(number), 7)
    known.take_changes()
    known.renew("bank", present=["till", "bank"])
    assert known.take_changes() == [Change(PUBLISHER_PROGRESS, "shop", None)]
    assert known.highest("till", _source(0)) == 7
    known.advance("shop", _source(1), 8)
    known.renew("shop", present=["shop"])
    assert [known.highest(name, _source(n)) for n, name in enumerate(("till", "shop"))] == [0, 8]
