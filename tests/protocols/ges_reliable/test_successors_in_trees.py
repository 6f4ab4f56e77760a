"""Stories of whole trees whose subscriptions continue at a successor storage."""

from collections.abc import Callable

import pytest

from brokerd.protocols.interface import (
    OverlayChanged,
)
from tests.protocols.ges_reliable.test_trees import Trees


def a_broker_dies_in_a_handover() -> None:
    """The client has all events before the successor; the next broker asks there (seed 33472)."""
    for milliseconds in range(35, 55, 3):
        trees = Trees()
        late = trees.subscribe("g", "kind = 'b'")
        trees.publish("z", "b", seconds=2)
        trees.cluster.transfers.reattach(late.client.name, "x")
        trees.publish("z", "b", seconds=2)
        trees.cluster.transfers.reattach(late.client.name, "g")
        trees.cluster.run_for(milliseconds / 1000)
        trees.cluster.broker("g").kill()
        trees.cluster.transfers.reattach(late.client.name, "r")
        trees.publish("z", "b")
        trees.settle(20)
        assert len(late.received) == 3
        assert [trees.stored_for(name) for name in "rfq"] == [1, 1, 0]


def a_client_that_moves_back_and_forth_is_stored_for_once() -> None:
    """The client returns before the storage was notified of its move (seed 162)."""
    for milliseconds in (40, 55, 70):
        trees = Trees()
        late = trees.subscribe("x", "kind = 'b'")
        for broker, seconds in (("g", 1.0), ("x", milliseconds / 1000), ("g", 1.0)):
            trees.publish("z", "b", "b", seconds=0.3)
            trees.cluster.transfers.reattach(late.client.name, broker)
            trees.publish("z", "b", "b", seconds=seconds)
        trees.settle(20)
        assert len(late.received) == 12
        assert sum(trees.stored_for(name) for name in "rfq") == 2


def a_client_that_moves_in_a_tree_is_stored_for_in_its_unit() -> None:
    trees = Trees()
    client = trees.subscription.client
    for broker, stored in (("g", [1, 0, 0]), ("x", [0, 1, 0]), ("g", [1, 0, 0])):
        trees.cluster.transfers.reattach(client.name, broker)
        trees.publish("z", "a", "b", "a", seconds=3)
        assert [trees.stored_for(name) for name in "rfq"] == stored
    trees.settle()
    assert trees.got() == 7
    trees.cluster.unsubscribe(client.name)
    trees.settle()
    assert not any(trees.stored_for(name) + trees.successors(name) for name in "rfq")


def a_client_that_moves_on_during_a_handover_misses_nothing() -> None:
    """Access brokers die before the deliveries of the first storage are acknowledged."""
    trees = Trees()
    client = trees.subscription.client
    client.take_after_ns = 200_000_000
    trees.publish("z", *"a" * 12, seconds=0.5)
    for broker in ("g", "x", "g"):
        trees.cluster.transfers.reattach(client.name, broker)
        trees.publish("z", "a", seconds=0.6)
    trees.lose("g")
    trees.cluster.transfers.reattach(client.name, "y")
    trees.publish("z", "a")
    trees.settle(20)
    assert trees.got() == 17


def a_client_that_loses_memory_in_a_handover_misses_nothing() -> None:
    trees = Trees()
    client = trees.subscription.client
    client.take_after_ns = 300_000_000
    trees.publish("z", *"a" * 8, seconds=0.05)
    trees.cluster.transfers.reattach(client.name, "g")
    trees.cluster.run_for(0.15)
    assert [trees.stored_for(name) for name in "rfq"] == [1, 1, 0]
    again = trees.cluster.population.forget(client.name)
    trees.publish("z", "a")
    trees.settle(20)
    assert [trees.stored_for(name) for name in "rfq"] == [1, 0, 0]
    assert len(again.received[1]) >= 8


def the_first_storage_delivers_while_the_successor_is_down() -> None:
    trees = Trees()
    late = trees.subscribe("g", "kind = 'b'")
    trees.cluster.broker("f").kill()
    trees.cluster.transfers.reattach(late.client.name, "x")
    trees.publish("z", "b", seconds=3)
    assert len(late.received) == 1
    trees.cluster.broker("f").start()
    trees.publish("z", "b")
    trees.settle(20)
    assert len(late.received) == 2
    assert [trees.stored_for(name) for name in "rfq"] == [0, 2, 0]


def a_storage_is_added_during_publications() -> None:
    """The storage dies meanwhile; all subscriptions continue there (a19_finer_mid_traffic)."""
    trees = Trees()
    local = trees.subscribe("g", "kind = 'b'")
    for number in range(12):
        trees.publish("z", "a", "b", "b", seconds=0.05)
        if number == 3:
            assert trees.cluster.membership.change_role("g", "1")
        if number == 5:
            trees.cluster.broker("g").kill()
        if number == 9:
            trees.cluster.broker("g").start()
    trees.cluster.run_for(5)
    late = trees.subscribe("g", "kind = 'b'")
    trees.publish("z", "b")
    trees.settle()
    assert (len(local.received), len(late.received), trees.got()) == (25, 1, 13)
    assert [trees.stored_for(name) for name in "rgfq"] == [0, 2, 1, 0]


def a_coarser_storage_is_added_above_an_unchanged_one() -> None:
    """Brokers of the unit without a finer storage are stored for there."""
    trees = Trees()
    assert trees.cluster.membership.change_role("y", "0")
    other = trees.subscribe("y")
    assert trees.cluster.membership.change_role("q", "1") is False, "it is a root"
    assert trees.cluster.membership.change_role("z", "1")
    trees.subscribe("z")
    trees.publish("x", "a", "b")
    trees.settle()
    assert [trees.stored_for(name) for name in "rfqyz"] == [0, 1, 0, 1, 1]
    assert len(other.received) == 2


def a_storage_retires() -> None:
    """Other storages have all its events before it is empty; absent clients find them (A9.3)."""
    trees = Trees()
    away = trees.subscribe("x", "kind = 'b'")
    link = trees.cluster.link(away.client.name, "x").cut()
    trees.publish("z", "a", "b", seconds=3)
    assert trees.cluster.membership.change_role("f", "retired")
    trees.publish("z", "a", "b", seconds=3)
    assert [trees.stored_for(name) for name in "rf"] == [1, 1]
    link.heal()
    trees.publish("z", "b")
    trees.settle()
    assert [trees.stored_for(name) for name in "rf"] == [2, 0]
    assert (trees.got(), len(away.received)) == (3, 3)
    parent = trees.cluster.broker("r").broker.core.storage
    assert not [*parent.dependents.predicates()]


def a_new_storage_repeats_its_request_until_others_accept_it() -> None:
    trees = Trees()
    local = trees.subscribe("g", "kind = 'b'")
    cluster = trees.cluster
    changed = cluster.topology.with_role("g", "1", "test")
    cluster.state.change(changed)
    told = OverlayChanged(cluster.graph.overlay)
    cluster.broker("g").broker.operate(told)
    trees.publish("z", "b")
    assert [trees.stored_for(name) for name in "rg"] == [1, 0]
    cluster.broker("r").broker.operate(told)
    trees.publish("z", "b")
    trees.settle()
    assert [trees.stored_for(name) for name in "rg"] == [0, 1]
    assert len(local.received) == 2


TREE_SUCCESSOR_STORIES = (
    a_broker_dies_in_a_handover,
    a_client_that_moves_back_and_forth_is_stored_for_once,
    a_client_that_moves_in_a_tree_is_stored_for_in_its_unit,
    a_client_that_moves_on_during_a_handover_misses_nothing,
    a_client_that_loses_memory_in_a_handover_misses_nothing,
    the_first_storage_delivers_while_the_successor_is_down,
    a_storage_is_added_during_publications,
    a_coarser_storage_is_added_above_an_unchanged_one,
    a_storage_retires,
    a_new_storage_repeats_its_request_until_others_accept_it,
)


@pytest.mark.parametrize("story", TREE_SUCCESSOR_STORIES, ids=lambda story: story.__name__)
def test_story(story: Callable[[], None]) -> None:
    story()
