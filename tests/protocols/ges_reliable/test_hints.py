"""Clients that follow a redirect of their broker miss no event and receive no duplicate."""

from tests.protocols.ges.hint_stories import Crowd, Parted, names


def test_subscribers_and_publishers_that_are_sent_next_door_lose_nothing() -> None:
    """Clients arrive one by one while all publish; every check redirects the last three."""
    crowd = Crowd(above=2, protocol="ges_reliable")
    cluster = crowd.cluster
    for number, name in enumerate(names(8)):
        crowd.come("a", name, seconds=0.1)
        for _ in range(3):
            cluster.publish("a", client=f"p{number}", kind="a")
            cluster.publish("c", client="p", kind="a")
            cluster.publish("a", client="p0", kind="a")
            cluster.run_for(0.1)
    crowd.settle(20)
    cluster.oracle.judge_end()
    assert not list(cluster.oracle.obligations.unacknowledged())
    assert len(crowd.at("a")) == len(crowd.at("b")) == 8
    assert not crowd.at("c")[1:]
    gone = [name for name in crowd.told if cluster.clients[name].broker == 1]
    assert any(name.startswith("p") for name in gone)
    assert any(name.startswith("s") for name in gone)
    assert [broker.core.status().queued for broker in cluster.state.staying] == [0, 0, 0]


def test_a_client_redirected_while_its_storage_is_down_misses_nothing() -> None:
    crowd = Crowd(above=1, protocol="ges_reliable")
    cluster = crowd.cluster
    crowd.come("a", *names(2), seconds=0.3)
    cluster.publish("a", client="p", kind="a")
    cluster.broker("c").kill()
    for _ in range(5):
        cluster.publish("a", client="p", kind="a")
        cluster.run_for(0.4)
    assert len(crowd.at("b")) == 1
    cluster.broker("c").start()
    cluster.run_for(5)
    cluster.publish("a", client="p", kind="a")
    crowd.settle(10)
    cluster.oracle.judge_end()
    assert not list(cluster.oracle.obligations.unacknowledged())
    assert [len(cluster.clients[name].received[1]) for name in names(2)] == [7, 7]


def test_clients_in_a_partition_miss_no_publication() -> None:
    """Brokers b and d lose a for a while; d loses all brokers, and then all reconnect."""
    parted = Parted(protocol="ges_reliable")
    cluster = parted.cluster
    links = [cluster.link(*ends) for ends in ("ab", "bd", "cd")]
    for link in links[:1], links:
        for each in link:
            each.cut()
        for _ in range(8):
            for at in "abd":
                cluster.publish(at, client=f"p-{at}", kind="a")
            cluster.run_for(1)
    assert [parted.where(f"s-{at}") for at in "abd"] == ["a", "c", "c"]
    for each in links:
        each.heal()
    cluster.run_for(20)
    cluster.oracle.judge_end()
    assert not list(cluster.oracle.obligations.unacknowledged())
    assert [len(cluster.clients[f"s-{at}"].received[1]) for at in "abd"] == [48, 48, 48]
