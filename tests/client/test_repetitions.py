"""Tests of repetitions: only subscriptions without the publication receive it."""

from brokerd.client.core import ClientCore
from brokerd.client.events import Received
from brokerd.model.client_messages import Connected, Deliveries
from brokerd.model.identity import SourceId
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import PublicationRun

SOURCE = SourceId(1, 4, 1)


def subscriber(subscriptions: int) -> ClientCore:
    core = ClientCore("c", publishes=False)
    core.on_established()
    core.on_message(Connected(None, 1))
    for _ in range(subscriptions):
        core.subscribe(EVERYTHING)
    return core


def given(
    core: ClientCore, first: int, last: int, *numbers: int
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Return the deliveries to the application after the arrival of a run."""
    count = last - first + 1
    run = PublicationRun(SOURCE, range(first, last + 1), (b"a",), bytes(count), 1, (bytes(count),))
    return [
        (list(item.run.sequences), item.subscriptions)
        for event in core.on_message(Deliveries(run, numbers))
        if isinstance(event, Received)
        for item in event.deliveries
    ]


def test_a_delivered_run_is_split_by_the_progress_of_each_subscription() -> None:
    core = subscriber(2)
    assert given(core, 1, 4, 1) == [([1, 2, 3, 4], (1,))]
    assert given(core, 1, 2, 2) == [([1, 2], (2,))]
    assert given(core, 3, 6, 1, 2) == [([3, 4], (2,)), ([5, 6], (1, 2))]


def test_a_repetition_of_the_beginning_brings_nothing_again_that_follows_it() -> None:
    core = subscriber(1)
    assert given(core, 1, 4, 1) == [([1, 2, 3, 4], (1,))]
    assert given(core, 1, 2, 1) == []
    assert given(core, 3, 5, 1) == [([5], (1,))]


def test_an_ended_subscription_receives_no_late_deliveries() -> None:
    core = subscriber(2)
    core.unsubscribe(1)
    assert given(core, 1, 2, 1, 2) == [([1, 2], (2,))]
    assert given(core, 3, 4, 1) == []
