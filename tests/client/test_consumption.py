"""Tests of the bound on uncommitted deliveries to an application, also after a rollback."""

from types import SimpleNamespace
from typing import Any

from brokerd.client.consumption import Consumption, Taken
from brokerd.client.events import Received
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun

SOURCE = SourceId(1, 0, 1)


def given(consumption: Consumption) -> list[int]:
    """Return the numbers of deliveries until a commit is due or none remains."""
    numbers = []
    while (item := consumption.next()) is not None:
        assert isinstance(item, Taken)
        numbers.append(item.sequence)
    return numbers


def test_as_many_deliveries_are_given_again_after_a_rollback_as_before() -> None:
    committed: list[int] = []
    progress = SimpleNamespace(
        commit_consumed=lambda number, serial, source, sequence: committed.append(sequence)
    )
    core: Any = SimpleNamespace(progress=progress, request_commit=lambda number: 1)
    consumption = Consumption(core, 1, most=3)
    run = PublicationRun(SOURCE, range(1, 6), (b"a",), bytes(5), 0, ())
    consumption.put(Received((Deliveries(run, (1,)),), 1))
    for _ in range(3):
        assert given(consumption) == [1, 2, 3]
        assert consumption.is_full
        consumption.roll_back()
        assert not consumption.is_full
    assert given(consumption) == [1, 2, 3]
    assert consumption.commit() == 1
    assert committed == [3]
    assert given(consumption) == [4, 5]
