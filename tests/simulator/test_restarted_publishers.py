"""Tests of clients that restart under the same name, without a store or with an older copy."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench
from brokerd.client.restart import restart, state_of
from brokerd.client.state import ClientState
from brokerd.model.losses import OLDER_COPY
from brokerd.protocols.parts.clients.progress import WRITE_INTERVAL_NS
from brokerd.protocols.registry import DEFINITIONS, read_topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription
from brokerd.units import SECOND_NS
from tests.helpers.cluster import STEADY

WRITTEN_S = WRITE_INTERVAL_NS / SECOND_NS + 1
"""The time after which all progress is on disk."""
TOPOLOGIES = {
    "tree": "chain3.toml",
    "cells": "chain3-cells.toml",
    "hierarchy": "t22-stored.toml",
    "bipartite": "proxies.toml",
}


def _cluster(protocol: str) -> tuple[SimulatedCluster, str, str]:
    """Return a running cluster, and two of its brokers that may have clients."""
    definition = DEFINITIONS[protocol]
    file = Path(bench.__file__).parent / "topologies" / TOPOLOGIES[definition.kind]
    topology = read_topology(tomllib.loads(file.read_text(encoding="utf-8")), file.name)
    homes = definition.homes(topology)
    return SimulatedCluster(topology, protocol, network=STEADY).start(), homes[0], homes[-1]


@pytest.mark.parametrize("protocol", [*DEFINITIONS])
def test_all_that_a_restarted_publisher_publishes_is_delivered(protocol: str) -> None:
    cluster, at, home = _cluster(protocol)
    subscription = cluster.subscribe(home)
    cluster.run_until_quiet()
    for number in range(20):
        cluster.publish(at, n=number, client="shop")
    cluster.run_until_quiet()
    before = cluster.clients["shop"].core.source
    cluster.population.forget("shop", keeps=0)
    for number in range(25):
        cluster.publish(at, n=number, client="shop")
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    after = cluster.clients["shop"].core.source
    assert before is not None
    assert after is not None
    assert after.incarnation > before.incarnation
    received = subscription.client.received[1]
    assert sorted(received) == [
        *((before, number) for number in range(1, 21)),
        *((after, number) for number in range(1, 26)),
    ]


@pytest.mark.parametrize("protocol", [*DEFINITIONS])
def test_a_publisher_and_its_broker_are_started_again_together(protocol: str) -> None:
    cluster, at, home = _cluster(protocol)
    subscription = cluster.subscribe(home)
    cluster.run_until_quiet()
    cluster.publish(at, n=1, client="shop")
    cluster.run_until_quiet()
    before = cluster.clients["shop"].core.source
    broker = cluster.broker(at).kill()
    cluster.population.forget("shop", keeps=0)
    broker.start()
    cluster.run_until_quiet()
    cluster.publish(at, n=2, client="shop")
    cluster.run_for(60)  # a route that failed is tried again after a while
    cluster.oracle.judge_end()
    after = cluster.clients["shop"].core.source
    assert before != after
    assert sorted(subscription.client.received[1]) == sorted([(before, 1), (after, 1)])


def _restore(cluster: SimulatedCluster, older: ClientState, broker: str) -> list[str]:
    """Start `shop` at a broker from a copy of its state; return the refusals in order of arrival.

    Before it is connected, `shop` publishes up to the number that was published before.
    """
    shop = cluster.clients["shop"]
    cluster.network.close(shop, shop.broker, "closed_by_us")
    refusals: list[str] = []
    shop.on_refused = lambda refused: refusals.append(refused.reason)
    shop.core = restart(older, instance=b"copy")
    shop.core.revision.is_kept = False
    for _ in range(8 - older.next_sequence + 1):
        shop.core.outgoing.publish(b"\xa0", b"")
    shop.broker = cluster.topology.number_of(broker)
    shop.alive = True
    shop.dial()
    cluster.run_for(5)
    return refusals


def _publish_further(cluster: SimulatedCluster, *, copied: int) -> ClientState:
    """Publish 8 as `shop`; return its state after the first ones."""
    states: list[ClientState] = []
    for number in range(9):
        if number == copied:
            cluster.run_for(1)
            states.append(state_of(cluster.clients["shop"].core))
        if number < 8:
            cluster.publish("", n=number, client="shop")
    cluster.run_for(1)
    return states[0]


def _is_refused(refusals: list[str], copied: int) -> bool:
    return f"continues behind {copied}, and has published up to 8" in "".join(refusals[:1])


@pytest.mark.parametrize("protocol", [*DEFINITIONS])
def test_a_publisher_with_an_older_copy_of_its_store_is_refused(protocol: str) -> None:
    """The publisher would reuse numbers after the copy, and its publications would be lost."""
    for copied in (0, 5):
        cluster, at, home = _cluster(protocol)
        subscription = cluster.subscribe(home)
        cluster.client("shop", at, publishes=True)
        cluster.run_until_quiet()
        older = _publish_further(cluster, copied=copied)
        refusals = _restore(cluster, older, at)
        assert _is_refused(refusals, copied), refusals
        assert not cluster.clients["shop"].core.attached
        assert len(subscription.client.received[1]) == 8


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("protocol", [*DEFINITIONS])
def test_a_restarted_broker_refuses_an_older_copy_of_a_publishers_store(
    protocol: str, stays: bool
) -> None:
    """The highest number is on the broker's disk, or at a storage."""
    for copied in (0, 5):
        cluster, at, home = _cluster(protocol)
        subscription = cluster.subscribe(home)
        cluster.client("shop", at, publishes=True)
        cluster.run_until_quiet()
        older = _publish_further(cluster, copied=copied)
        shop = cluster.clients["shop"]
        if not stays:
            shop.alive = False
            cluster.network.close(shop, shop.broker, "closed_by_us")
        cluster.run_for(WRITTEN_S)
        cluster.broker(at).kill()
        shop.alive = False
        cluster.broker(at).start()
        cluster.run_for(5)
        refusals = _restore(cluster, older, at)
        assert _is_refused(refusals, copied), refusals
        assert len(subscription.client.received[1]) == 8


def test_numbers_of_a_session_that_ends_are_written() -> None:
    """The session ends between two writes, after publications on the fast path."""
    cluster, at, home = _cluster("delta_tree")
    cluster.subscribe(home)
    cluster.client("shop", at, publishes=True)
    cluster.run_until_quiet()
    older = _publish_further(cluster, copied=5)
    shop = cluster.clients["shop"]
    cluster.run_for(WRITTEN_S)
    cluster.publish("", n=9, client="shop")
    cluster.run_for(WRITTEN_S / 2)
    for number in range(3):
        cluster.publish("", n=number, client="shop")
    cluster.run_for(0.2)
    shop.alive = False
    cluster.network.close(shop, shop.broker, "closed_by_us")
    cluster.run_for(WRITTEN_S)
    cluster.broker(at).kill().start()
    cluster.run_for(5)
    refusals = _restore(cluster, older, at)
    assert "has published up to 12" in refusals[0]


@pytest.mark.parametrize("way", ["another broker", "a restarted broker"])
def test_storages_refuse_an_older_copy_of_a_publishers_store(way: str) -> None:
    """The access broker does not have the number of publications of the source."""
    for copied in (0, 5):
        cluster, at, home = _cluster("ges_reliable")
        subscription = cluster.subscribe(home)
        cluster.client("shop", at, publishes=True)
        cluster.run_until_quiet()
        older = _publish_further(cluster, copied=copied)
        shop = cluster.clients["shop"]
        cluster.network.close(shop, shop.broker, "closed_by_us")
        if way == "a restarted broker":
            cluster.broker(at).kill().start()
        refusals = _restore(cluster, older, home if way == "another broker" else at)
        assert _is_refused(refusals, copied), refusals
        assert len(shop.core.outgoing) == 8 - copied
        assert len(subscription.client.received[1]) == 8


def test_a_publisher_that_returns_waits_for_its_storage_once() -> None:
    """The publisher continues from the storage's state; the storage was down at the return."""
    cluster, at, home = _cluster("ges_reliable")
    subscription = cluster.subscribe(home)
    cluster.client("shop", at, publishes=True)
    cluster.run_until_quiet()
    _publish_further(cluster, copied=5)
    cluster.broker("n1").freeze()
    shop = cluster.clients["shop"]
    cluster.network.close(shop, shop.broker, "closed_by_us")
    shop.dial()
    cluster.run_for(2)
    cluster.publish(at, n=8, client="shop")
    cluster.run_for(2)
    assert len(shop.core.outgoing) == 1
    cluster.broker("n1").thaw()
    cluster.run_for(20)
    cluster.oracle.judge_end()
    assert len(subscription.client.received[1]) == 9
    assert not len(shop.core.outgoing)


def _receive_further(
    cluster: SimulatedCluster, at: str, home: str, before: int = 5
) -> tuple[Subscription, ClientState]:
    """Publish 8; return a complete subscription, and the client's state after some of them."""
    subscription = cluster.subscribe(home)
    cluster.run_until_quiet()
    states = []
    for count in (before, 8 - before):
        for number in range(count):
            cluster.publish(at, n=number, client="shop")
        cluster.run_for(4)
        states.append(_kept(subscription))
    assert len(subscription.client.received[1]) == 8
    return subscription, states[0]


def _kept(subscription: Subscription) -> ClientState:
    """Return the state of a subscriber as a store has it: all deliveries are recorded."""
    state = state_of(subscription.client.core)
    kept = tuple(replace(each, given=each.committed) for each in state.subscriptions)
    return replace(state, subscriptions=kept)


class _WithoutGaps:
    """An oracle that does not judge gaps, because it has no client with an older state."""

    def __init__(self, oracle: Any) -> None:
        self._oracle = oracle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name) if name != "on_gap" else lambda *_: None


def _return_with(
    subscription: Subscription, cluster: SimulatedCluster, state: ClientState, broker: str = ""
) -> None:
    subscriber = subscription.client
    cluster.network.close(subscriber, subscriber.broker, "closed_by_us")
    if broker:
        subscriber.broker = cluster.topology.number_of(broker)
    subscriber.core = restart(state, instance=b"copy")
    subscriber.core.revision.is_kept = False
    subscriber._observer = _WithoutGaps(cluster.oracle)
    subscriber.dial()
    cluster.run_for(4)


@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize(
    "protocol", ["delta_tree", "gryphon", "durable", "multi_proxy", "ges_reliable"]
)
def test_a_subscriber_with_an_older_copy_of_its_store_receives_a_gap(
    protocol: str, before: int
) -> None:
    """No broker keeps the publications acknowledged since; a second session repeats nothing."""
    cluster, at, home = _cluster(protocol)
    subscription, older = _receive_further(cluster, at, home, before)
    subscriber = subscription.client
    _return_with(subscription, cluster, older)
    assert subscriber.started_numbers
    assert [gap.number for gap in subscriber.gaps] == [1]
    assert subscriber.gaps[0].last - subscriber.gaps[0].first >= 7 - before
    cluster.network.close(subscriber, subscriber.broker, "closed_by_us")
    subscriber.core.on_lost()
    subscriber.dial()
    cluster.publish(at, n=8, client="shop")
    cluster.run_for(4)
    assert len(subscriber.gaps) == 1
    assert len(subscriber.received[1]) == 9


@pytest.mark.parametrize("broker", ["n11", "n1"])
@pytest.mark.parametrize(
    "protocol", ["delta_tree", "gryphon", "durable", "multi_proxy", "ges_reliable"]
)
def test_a_restarted_broker_announces_an_older_copy_of_a_subscribers_store(
    protocol: str, broker: str
) -> None:
    """The acknowledged positions are on disk, at the access broker or at the storage."""
    cluster, at, home = _cluster(protocol)
    subscription, older = _receive_further(cluster, at, home)
    cluster.broker(broker if protocol == "ges_reliable" else home).kill().start()
    cluster.run_for(5)
    _return_with(subscription, cluster, older)
    assert subscription.client.started_numbers
    assert [gap.number for gap in subscription.client.gaps] == [1]
    cluster.publish(at, n=8, client="shop")
    cluster.run_for(4)
    assert len(subscription.client.gaps) == 1
    assert len(subscription.client.received[1]) == 9


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("protocol", [*DEFINITIONS])
def test_a_subscriber_with_its_present_store_receives_no_gap(protocol: str, restarts: bool) -> None:
    cluster, at, home = _cluster(protocol)
    subscription, _ = _receive_further(cluster, at, home)
    if restarts:
        cluster.broker(home).kill().start()
        cluster.run_for(5)
    _return_with(subscription, cluster, _kept(subscription))
    cluster.publish(at, n=8, client="shop")
    cluster.run_for(4)
    assert subscription.client.gaps == []
    assert len(subscription.client.received[1]) == 9


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "protocol", ["delta_tree", "gryphon", "durable", "multi_proxy", "ges_reliable"]
)
def test_a_subscriber_without_memory_receives_no_gap_of_an_earlier_process(
    protocol: str, restarts: bool
) -> None:
    """The positions of an earlier process are unknown to the client."""
    cluster, at, home = _cluster(protocol)
    name = _receive_further(cluster, at, home)[0].client.name
    subscriber = cluster.population.forget(name, keeps=0)
    cluster.subscribe(home, client=name)
    cluster.run_for(5)
    if restarts:
        cluster.broker(home).kill().start()
        cluster.run_for(5)
    cluster.network.close(subscriber, subscriber.broker, "closed_by_us")
    cluster.run_for(5)
    cluster.publish(at, n=8, client="shop")
    cluster.run_for(5)
    assert subscriber.gaps == []
    assert len(subscriber.received[1]) == 1


def test_an_older_store_is_announced_at_another_broker() -> None:
    """The storage of the subscription has the acknowledgements of the client."""
    cluster, at, home = _cluster("ges_reliable")
    subscription, older = _receive_further(cluster, at, home)
    older = replace(older, incarnation=older.incarnation + 1)
    _return_with(subscription, cluster, older, "n12")
    gaps = subscription.client.gaps
    assert [(gap.first, gap.last, gap.reason) for gap in gaps] == [(6, 8, OLDER_COPY)]


@pytest.mark.parametrize("protocol", ["durable", "ges_reliable"])
def test_a_moved_subscriber_with_an_older_store_is_served(protocol: str) -> None:
    """The generation was used at this broker before the move; another broker has the last one."""
    cluster, at, home = _cluster(protocol)
    subscription, older = _receive_further(cluster, at, home)
    subscriber = subscription.client
    for broker in cluster.topology.brokers[:2]:
        cluster.transfers.reattach(subscriber.name, broker)
        cluster.run_for(4)
    subscriber.started_numbers.clear()
    _return_with(subscription, cluster, older, home)
    sessions: list[str] = []
    subscriber.on_change = lambda: sessions.extend(["lost"] * (not subscriber.ends))
    cluster.publish(at, n=8, client="shop")
    cluster.run_for(20)
    assert subscriber.started_numbers
    assert len(subscriber.received[1]) == 9
    assert len(subscriber.gaps) == 1
    assert not sessions
