"""A broker that accepted a loss of state restarts the subscriptions of its clients behind gaps."""

from collections.abc import Callable, Sequence
from typing import Any

from brokerd.model.client_messages import Gap, Notice
from brokerd.model.identity import ClientId
from brokerd.model.losses import STATE_LOST
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import Deliver, Effect, Event
from brokerd.simulator.checks.invariants import Watcher
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import Subscription
from brokerd.simulator.world.views import BrokerView
from tests.helpers.cluster import STEADY, chain


def begun(*, logged: bool = False, watcher: Watcher | None = None) -> SimulatedCluster:
    cluster = SimulatedCluster(
        chain("p1", "b1", "s1"),
        "delta_tree",
        network=STEADY,
        parameters=DeltaTreeParameters(delta=1, publication_log=logged),
        strict=True,
        watcher=watcher,
    )
    cluster.start()
    cluster.run_until_quiet()
    return cluster


def publish(cluster: SimulatedCluster, count: int) -> None:
    for _ in range(count):
        cluster.publish("p1", kind="a")
        cluster.run_for(0.02)


def lose(
    cluster: SimulatedCluster,
    copy: tuple[Any, ...] | None,
    on_return: Callable[[], object] = lambda: None,
) -> None:
    """Restore a disk of the subscriber's broker while the client is disconnected, and publish."""
    broker = cluster.broker("s1")
    cluster.link("s1-s1", "s1").cut()
    cluster.run_for(3)
    broker.kill()
    cluster.run_for(3)
    publish(cluster, 5)
    broker.put_back(copy)
    cluster.run_for(3)
    cluster.link("s1-s1", "s1").heal()
    on_return()
    cluster.run_for(30)
    publish(cluster, 5)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()


def received(subscription: Subscription) -> list[int]:
    return [each.sequence for each in subscription.received]


def test_a_subscription_without_a_delivery_restarts_behind_a_gap() -> None:
    """The client had no position to report."""
    cluster = begun()
    subscriber = cluster.subscribe("s1", client="s1-s1")
    cluster.run_until_quiet()
    lose(cluster, None)
    assert received(subscriber) == [*range(6, 11)]
    assert cluster.oracle.in_gaps == {STATE_LOST: 5}


def test_a_gap_reaches_a_client_whose_broker_crashes_before_it() -> None:
    cluster = begun()
    subscriber = cluster.subscribe("s1", client="s1-s1")
    cluster.run_until_quiet()
    publish(cluster, 3)
    cluster.run_until_quiet()

    def crash() -> None:
        while not cluster.broker("s1").status().own_subscriptions:
            cluster.run_for(0.001)
        cluster.link("s1", "s1-s1").absorb("out")
        cluster.run_for(0.5)
        cluster.broker("s1").kill()
        cluster.link("s1-s1", "s1").heal()
        cluster.broker("s1").start()

    lose(cluster, None, crash)
    assert received(subscriber) == [1, 2, 3, *range(9, 14)]
    assert cluster.oracle.in_gaps == {STATE_LOST: 5}


def test_a_subscription_that_started_after_the_copy_restarts_behind_a_gap() -> None:
    """The copy of the disk has the request but not the start."""
    cluster = begun()
    cluster.broker("b1").absorb()
    cluster.run_for(0.1)
    subscriber = cluster.subscribe("s1", client="s1-s1")
    cluster.run_for(0.1)
    disk = cluster.broker("s1").broker.disk
    assert "s1-s1/1" in disk.recovered()["subscriptions"]
    copy = disk.copy()
    assert not subscriber.started
    cluster.broker("b1").release()
    cluster.run_until_quiet()
    publish(cluster, 3)
    cluster.run_until_quiet()
    lose(cluster, copy)
    numbers = received(subscriber)
    assert numbers[:3] == [1, 2, 3]
    assert numbers[-5:] == [*range(9, 14)]
    assert len(numbers) + cluster.oracle.in_gaps.get(STATE_LOST, 0) == 13


def test_a_subscription_that_ended_after_the_copy_ends_at_its_broker() -> None:
    """The neighbours have the end of the subscription, and the sessions with them stay up."""
    cluster = begun()
    ended = cluster.subscribe("s1", client="s1-s1")
    cluster.run_until_quiet()
    copy = cluster.broker("s1").broker.disk.copy()
    cluster.unsubscribe("s1-s1", ended.number)
    cluster.run_until_quiet()
    lose(cluster, copy)
    assert not received(ended)
    assert cluster.broker("s1").status().own_subscriptions == 0
    recorded = [event for event, _ in cluster.broker("s1").broker.recorded]
    assert "subscriptions_revoked" in recorded


def test_a_later_subscription_of_a_client_restarts_beside_an_ended_one() -> None:
    """The copy of the disk has an ended subscription of the client and lacks the current one."""
    cluster = begun()
    cluster.subscribe("s1", client="s1-s1")
    cluster.run_until_quiet()
    copy = cluster.broker("s1").broker.disk.copy()
    cluster.unsubscribe("s1-s1", 1)
    cluster.run_until_quiet()
    again = cluster.subscribe("s1", client="s1-s1")
    cluster.run_until_quiet()
    publish(cluster, 3)
    cluster.run_until_quiet()
    lose(cluster, copy)
    assert received(again) == [1, 2, 3, *range(9, 14)]
    assert cluster.oracle.in_gaps == {STATE_LOST: 5}


def test_a_loss_of_logged_publications_is_announced_although_no_publisher_returns() -> None:
    """Every subscription receives one gap, also after later restarts of all brokers.

    When the publisher returns, the gap of its publications begins behind a subscription's start.
    """
    gaps: dict[ClientId, list[Gap]] = {}

    def watch(_: BrokerView, _event: Event, effects: Sequence[Effect]) -> None:
        items = [(each.client, each.item) for each in effects if type(each) is Deliver]
        for client, item in items:
            if type(item) is Gap:
                gaps.setdefault(client, []).append(item)

    cluster = begun(logged=True, watcher=watch)
    subscribers = [cluster.subscribe(broker, client=f"s-{broker}") for broker in ("b1", "s1")]
    cluster.run_until_quiet()
    publish(cluster, 3)
    cluster.run_until_quiet()
    broker = cluster.broker("p1")
    for near in ("b1", "s1"):
        cluster.link("p1", near).cut()
    cluster.run_for(1)
    publish(cluster, 2)
    cluster.run_for(1)
    cluster.link("p1", "p-p1").cut()
    broker.kill().put_back(None)
    for near in ("b1", "s1"):
        cluster.link("p1", near).heal()
    cluster.run_for(30)
    subscribers.append(cluster.subscribe("s1", client="late-s1"))
    cluster.run_for(5)
    for other in ("b1", "s1"):
        cluster.broker(other).restart()
        cluster.run_for(30)
    broker.kill()
    cluster.run_for(2)
    subscribers.append(cluster.subscribe("s1", client="later-s1"))
    cluster.run_for(5)
    broker.start()
    cluster.run_for(30)
    assert sorted(gaps) == ["s-b1", "s-s1"]
    assert [(gap.first, gap.last) for each in gaps.values() for gap in each] == [(1, 1)] * 2
    cluster.link("p1", "p-p1").heal()
    cluster.run_for(5)
    publish(cluster, 2)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert [received(each) for each in subscribers] == [[1, 2, 3, 6, 7]] * 2 + [[6, 7]] * 2
    (late,) = gaps["late-s1"]
    assert (late.first, late.last) == (4, 5)


def test_a_restart_after_a_loss_announces_no_further_loss() -> None:
    """The log has released all publications, and the other brokers have received none.

    The last one is delivered before it is on disk, and then the broker crashes.
    """
    gaps: list[Gap] = []

    def watch(_: BrokerView, _event: Event, effects: Sequence[Effect]) -> None:
        items = [each.item for each in effects if type(each) is Deliver and each.client == "o-s1"]
        gaps.extend(item for item in items if type(item) is Gap)

    cluster = begun(logged=True, watcher=watch)
    subscriber = cluster.subscribe("p1", "kind = 'a'")
    other = cluster.subscribe("s1", "kind = 'b'", client="o-s1")
    cluster.run_until_quiet()
    publish(cluster, 3)
    cluster.run_until_quiet()
    broker = cluster.broker("p1")
    broker.kill().put_back(None)
    cluster.run_for(30)
    publish(cluster, 3)
    cluster.run_until_quiet()
    assert sorted(gap.stream.broker for gap in gaps) == [0, 0], "one of the source, one of the log"
    for crashes_early in (False, True):
        broker.restart()
        cluster.run_for(30)
        if crashes_early:
            for lane in (broker.broker.disk.lane, broker.broker.disk.log_lane):
                lane.hold()
        publish(cluster, 1)
        cluster.run_for(1)
    broker.broker.kill(kept=0)
    broker.start()
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert len(gaps) == 2
    assert [event for event, _ in broker.broker.recorded].count("loss_announced") == 1
    assert [received(subscriber), received(other)] == [[*range(1, 9)], []]


def test_a_loss_is_announced_to_a_subscription_behind_a_partition() -> None:
    """The subscription started without the broker, so the broker's publications are withheld."""
    items: list[tuple[type, int]] = []

    def watch(_: BrokerView, _event: Event, effects: Sequence[Effect]) -> None:
        delivered = [each.item for each in effects if type(each) is Deliver]
        items.extend((Gap, gap.stream.publisher) for gap in delivered if type(gap) is Gap)
        items.extend((Notice, each.source.publisher) for each in delivered if type(each) is Notice)

    cluster = begun(logged=True, watcher=watch)
    publish(cluster, 2)
    cluster.run_until_quiet()
    broker = cluster.broker("p1")
    for near in ("b1", "s1"):
        cluster.link("p1", near).cut()
    cluster.run_for(1)
    broker.kill()
    cluster.run_for(2)
    late = cluster.subscribe("s1", client="s1-s1")
    cluster.run_for(3)
    broker.put_back(None)
    for near in ("b1", "s1"):
        cluster.link("p1", near).heal()
    cluster.run_for(30)
    publish(cluster, 2)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert received(late) == [3, 4]
    assert [kind for kind, publisher in items if publisher] == [Gap]
