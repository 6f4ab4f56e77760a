"""Publishers that are started again under their name, without a store, under every protocol."""

import tomllib
from pathlib import Path

import pytest

import bench
from brokerd.client.core import ClientCore
from brokerd.protocols.registry import DEFINITIONS, read_topology
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY

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
    cluster.forget("shop", keeps=0)
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
    cluster.forget("shop", keeps=0)
    broker.start()
    cluster.run_until_quiet()
    cluster.publish(at, n=2, client="shop")
    cluster.run_for(60)  # a route that failed is tried again after a while
    cluster.oracle.judge_end()
    after = cluster.clients["shop"].core.source
    assert before != after
    assert sorted(subscription.client.received[1]) == sorted([(before, 1), (after, 1)])


@pytest.mark.parametrize("protocol", ["delta_tree", "gryphon", "durable"])
def test_a_publisher_with_an_older_copy_of_its_store_is_refused(protocol: str) -> None:
    """It would count again from where the copy was made, and lose what it publishes."""
    cluster, at, home = _cluster(protocol)
    subscription = cluster.subscribe(home)
    cluster.run_until_quiet()
    for number in range(5):
        cluster.publish(at, n=number, client="shop")
    cluster.run_until_quiet()
    older = cluster.clients["shop"].core.state()
    for number in range(5, 8):
        cluster.publish(at, n=number, client="shop")
    cluster.run_until_quiet()
    shop = cluster.clients["shop"]
    cluster.network.close(shop, shop.broker, "closed_by_us")
    refusals: list[str] = []
    shop.on_refused = lambda refused: refusals.append(refused.reason)
    shop.core = ClientCore.restart(older, instance=b"copy")
    shop.dial()
    cluster.run_for(5)
    assert refusals
    assert "continues behind 5, and has published up to 8" in refusals[0]
    assert not shop.core.attached
    assert len(subscription.client.received[1]) == 8
