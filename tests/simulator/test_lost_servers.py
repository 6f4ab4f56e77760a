"""Tests of a server of multi_proxy that loses its disk together with all proxies.

No neighbour has a mark of the server's state. The access brokers prove the loss: requests return
the mark of the server's log.
"""

from collections import Counter
from typing import Any

import pytest

from brokerd.model.losses import STATE_LOST
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.multi_proxy.checks.steps import MultiProxyChecks
from brokerd.protocols.multi_proxy.parameters import ARBITER, RENDEZVOUS, MultiProxyParameters
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, crash_in_repetition

OWNERSHIPS = (ARBITER, RENDEZVOUS)
COPY, EMPTY = "copy", "empty"


class LostServer:
    """The server b1 and the proxy x1 lose their disks; p2 has not run before.

    The publisher at p1 has published 5 events before the copy, and 5 events after it.

    Args:
        how: the kind of the disks that are put back.
        is_away: the subscriber's broker is down while the later events are published.
    """

    def __init__(self, ownership: str, how: str, *, is_away: bool = False) -> None:
        names = ["p1", "x1", "b1", "s1", "p2"]
        section = {"edges": ["p1", "s1", "p2"], "proxies": ["x1"], "servers": ["b1"]}
        values: dict[str, Any] = {"schema": SCHEMA, "name": "one", "kind": "bipartite"}
        values |= {"brokers": names, "bipartite": section}
        self.cluster = cluster = SimulatedCluster(
            Topology.from_mapping(values, "one"),
            "multi_proxy",
            network=STEADY,
            parameters=MultiProxyParameters(ownership=ownership, topic_attribute="kind"),
            strict=True,
        )
        for name in names[:-1]:
            cluster.broker(name).start()
        cluster.run_for(3)
        self.subscriber = cluster.subscribe("s1", "kind = 'a'")
        cluster.run_for(3)
        self.server, self.proxy = cluster.broker("b1"), cluster.broker("x1")
        self.publish(5)
        cluster.run_for(3)
        self.copy = self.server.copy(is_empty=how == EMPTY)
        if is_away:
            cluster.broker("s1").kill()
        self.publish(5)
        cluster.run_for(8)

    def publish(self, count: int, broker: str = "p1") -> None:
        """Publish events at a broker."""
        for _ in range(count):
            self.cluster.publish(broker, kind="a")
            self.cluster.run_for(0.02)

    def lose(self) -> None:
        """Let the server and the proxy lose their disks, and start them."""
        self.server.kill()
        self.proxy.kill()
        self.cluster.run_for(2)
        self.proxy.put_back(None)
        self.server.broker.disk.put_back(self.copy)
        self.server.start()
        self.cluster.run_for(5)

    @property
    def proofs(self) -> list[str]:
        """The causes of the proved losses of the server."""
        recorded = self.server.broker.recorded
        return [details["cause"] for event, details in recorded if event == "loss_proved"]

    def accept(self, *, crash_at: int = 0) -> None:
        """Accept the loss, and publish five further events at p1.

        Args:
            crash_at: number of records in the log at which the server crashes; 0 for no crash.
        """
        self.server.kill()
        self.cluster.run_for(2)
        self.server.put_back(self.server.broker.disk.copy())
        if crash_at:
            crash_in_repetition(self.cluster, self.server, "topics", crash_at)
        self.cluster.run_for(30)
        self.publish(5)
        self.cluster.run_for(30)
        self.cluster.oracle.judge_end()

    def received(self, client: str = "p-p1") -> list[int]:
        """Return the numbers of the received events of a publisher."""
        events = self.subscriber.received
        return [each.sequence for each in events if each.client == client]


def missing(how: str) -> str:
    if how == COPY:
        return "the last 5 records of incarnation 1 were on disk, and are missing"
    return "incarnation 1 has run with another log, which is missing"


@pytest.mark.parametrize("how", [COPY, EMPTY])
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_publish_request_before_any_fetch_request_proves_a_loss(ownership: str, how: str) -> None:
    """The server stores nothing: no lost position is assigned again."""
    story = LostServer(ownership, how)
    story.cluster.link("s1", "x1").cut()
    story.lose()
    story.publish(5)
    story.cluster.run_for(5)
    assert story.proofs == [missing(how)]
    story.cluster.link("s1", "x1").heal()
    story.accept()
    assert story.received() == [*range(1, 21)]


@pytest.mark.parametrize("how", [COPY, EMPTY])
@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("prover", ["p1", "s1"])
def test_a_loss_is_proved_although_the_subscribers_broker_was_down(
    ownership: str, how: str, prover: str
) -> None:
    """The broker that was down proves the loss if no other access broker is connected."""
    story = LostServer(ownership, how, is_away=True)
    if prover == "s1":
        story.cluster.link("p1", "x1").cut()
    story.lose()
    assert len(story.proofs) == (prover == "p1")
    story.cluster.broker("s1").start()
    story.cluster.run_for(5)
    is_unseen = prover == "s1" and how == COPY
    assert len(story.proofs) == (not is_unseen), "s1 has seen no record that the copy lacks"
    story.cluster.link("p1", "x1").heal()
    story.cluster.run_for(5)
    assert story.proofs == [missing(how)]
    story.accept()
    assert story.received() == [*range(1, 6), *range(11, 16)]
    assert story.cluster.oracle.in_gaps == {STATE_LOST: 5}
    assert len(story.subscriber.client.gaps) == 1


@pytest.mark.parametrize("how", [COPY, EMPTY])
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_as_many_new_publications_as_were_lost_hide_no_loss(
    ownership: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker without a mark publishes, until the fetched position looks plausible.

    A follower without a mark fetches these publications at positions of lost publications, which
    the checks would not allow.
    """
    monkeypatch.setattr(MultiProxyChecks, "_check_announced", lambda *_arguments: None)
    story = LostServer(ownership, how)
    for name in ("p1", "s1"):
        story.cluster.link(name, "x1").cut()
    story.lose()
    story.cluster.broker("p2").start()
    story.cluster.run_for(3)
    neighbour = story.cluster.subscribe("p2", "kind = 'a'")
    story.cluster.run_for(3)
    count = 5 if how == COPY else 10
    story.publish(count, "x1")
    story.cluster.run_for(3)
    assert story.proofs == []
    for name in ("s1", "p1"):
        story.cluster.link(name, "x1").heal()
        story.cluster.run_for(3)
    assert story.proofs == [missing(how)]
    story.accept()
    assert story.received() == [*range(1, 16)]
    assert story.received("p-x1") == [*range(1, count + 1)]
    assert len(story.subscriber.client.gaps) == 1
    assert {"p-x1": count, "p-p1": 5}.items() <= Counter(
        each.client for each in neighbour.received if each.client == "p-x1" or each.sequence > 10
    ).items()


@pytest.mark.parametrize("crash_at", [0, 6], ids=["no crash", "crash"])
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_publications_before_the_proof_are_kept_without_a_follower(
    ownership: str, crash_at: int
) -> None:
    """An access broker may be owed all of an empty log until its topics are stated.

    A crash after publications are stored again behind the loss stores none a third time.
    """
    story = LostServer(ownership, EMPTY)
    for name in ("p1", "s1"):
        story.cluster.link(name, "x1").cut()
    story.lose()
    story.publish(3, "x1")
    story.cluster.run_for(3)
    assert story.proofs == []
    for name in ("s1", "p1"):
        story.cluster.link(name, "x1").heal()
    story.cluster.run_for(3)
    assert story.proofs == [missing(EMPTY)]
    story.accept(crash_at=crash_at)
    assert story.received() == [*range(1, 16)]
    assert story.received("p-x1") == [*range(1, 4)]
    assert len(story.subscriber.client.gaps) == 1


@pytest.mark.parametrize("how", [COPY, EMPTY])
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_an_access_broker_without_subscriptions_proves_a_loss(ownership: str, how: str) -> None:
    """The broker publishes nothing; the session with the proxy suffices."""
    story = LostServer(ownership, how)
    story.cluster.link("s1", "x1").cut()
    story.lose()
    assert story.proofs == [missing(how)]
    story.cluster.link("s1", "x1").heal()
    story.accept()
    assert story.received() == [*range(1, 16)]


def test_a_server_that_keeps_its_disk_is_proved_no_loss() -> None:
    story = LostServer(RENDEZVOUS, COPY)
    for _ in range(3):
        story.proxy.kill()
        story.server.kill()
        story.cluster.run_for(2)
        story.proxy.put_back(None)
        story.server.start()
        story.cluster.run_for(3)
        story.publish(2)
    story.cluster.run_for(8)
    assert not story.proofs
    assert story.received() == [*range(1, 17)]
