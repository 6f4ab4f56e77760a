"""Tests of a publisher's broker with an accepted loss of state, and the gaps at subscribers."""

from itertools import pairwise
from typing import Any

import pytest

from brokerd.model.losses import STATE_LOST
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.simulator.search.plan import read_plan, write_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.world.clock import WallClocks
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, chain, crash_in_repetition
from tests.helpers.gryphon_stories import cells, paper_cells

AGE_NS = 10**18
CELLS = ("p1-b1", "b1-s1")


def proxies(publisher: str, proxy: str, server: str, subscriber: str) -> Topology:
    """Return an overlay of two edges around a proxy and a server."""
    section = {"edges": [publisher, subscriber], "proxies": [proxy], "servers": [server]}
    names = [publisher, proxy, server, subscriber]
    values = {"schema": SCHEMA, "name": "proxies", "kind": "bipartite", "brokers": names}
    return Topology.from_mapping({**values, "bipartite": section}, "proxies")


def unit(*names: str, storage: str) -> Topology:
    """Return a hierarchy of one unit, whose brokers are a chain."""
    section = {
        "links": [list(pair) for pair in pairwise(names)],
        "addresses": {name: f"0.{place}" for place, name in enumerate(names)},
        "storages": {storage: 1},
    }
    values = {"schema": SCHEMA, "name": "unit", "kind": "hierarchy", "brokers": [*names]}
    return Topology.from_mapping({**values, "hierarchy": section}, "unit")


WORLDS: dict[str, tuple[Topology, Any]] = {
    "gryphon": (cells(*CELLS), GryphonParameters()),
    "gryphon in total order": (cells(*CELLS), GryphonParameters(order="total")),
    "gryphon without filters": (cells(*CELLS), GryphonParameters(filters=False)),
    "durable": (cells(*CELLS), DurableParameters()),
    "multi_proxy": (
        proxies("p1", "x1", "b1", "s1"),
        MultiProxyParameters(),
    ),
    "ges_reliable": (
        unit("p1", "b1", "s1", storage="p1"),
        GesReliableParameters(),
    ),
    "delta_tree": (chain("p1", "b1", "s1"), DeltaTreeParameters(delta=1, publication_log=True)),
}
MORE_WORLDS: dict[str, tuple[Topology, Any]] = {
    "ges_reliable at b1": (unit("p1", "b1", "s1", storage="b1"), GesReliableParameters()),
}
"""Without publishers or subscribers at the broker that stores publications."""


def test_a_broker_without_streams_accepts_a_loss_and_its_neighbours_do_not_refuse_it() -> None:
    """An inner broker of a wide cell announced a loss in streams that do not exist."""
    topology = paper_cells()
    cluster = SimulatedCluster(
        topology, "gryphon", network=STEADY, parameters=GryphonParameters(), strict=True
    )
    cluster.start()
    subscriber = cluster.subscribe("s1")
    cluster.run_until_quiet()
    publish(cluster, 5)
    cluster.broker("b1").kill()
    cluster.run_for(2)
    cluster.broker("b1").put_back(None)
    cluster.run_until_quiet()
    cluster.broker("b2").kill()
    publish(cluster, 5)
    cluster.run_until_quiet()
    assert len(subscriber.received) == 10


def begun(world: str) -> SimulatedCluster:
    topology, parameters = (WORLDS | MORE_WORLDS)[world]
    cluster = SimulatedCluster(
        topology, world.partition(" ")[0], network=STEADY, parameters=parameters, strict=True
    )
    cluster.start()
    cluster.run_until_quiet()
    return cluster


def publish(cluster: SimulatedCluster, count: int) -> None:
    for _ in range(count):
        cluster.publish("p1", kind="a")
        cluster.run_for(0.02)


@pytest.mark.parametrize("world", [world for world in WORLDS if world != "multi_proxy"])
@pytest.mark.parametrize("is_copy", [True, False], ids=["older copy", "empty disk"])
def test_lost_publications_of_an_access_broker_are_announced(
    world: str, is_copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The access broker is cut off while it accepts events, so that no event leaves it."""
    monkeypatch.setattr(WallClocks, "read_at_start", lambda self, broker, now_ns: AGE_NS + now_ns)
    cluster = begun(world)
    subscriber = cluster.subscribe("s1")
    cluster.run_until_quiet()
    publish(cluster, 10)
    cluster.run_until_quiet()
    broker = cluster.broker("p1")
    copy = broker.broker.disk.copy() if is_copy else None
    for other in ("b1", "s1"):
        cluster.link("p1", other).cut()
    cluster.run_for(2)
    publish(cluster, 10)
    cluster.run_for(2)
    broker.kill()
    cluster.run_for(2)
    for other in ("b1", "s1"):
        cluster.link("p1", other).heal()
    broker.put_back(copy)
    cluster.run_for(30)
    publish(cluster, 10)
    cluster.run_until_quiet(limit_s=5)
    cluster.oracle.judge_end()
    assert not cluster.oracle.violations, cluster.oracle.first_violations
    received = [each.sequence for each in subscriber.received]
    assert received == [*range(1, 11), *range(21, 31)]
    assert cluster.oracle.in_gaps == {STATE_LOST: 10}
    if world == "delta_tree":
        recorded = [each for event, each in broker.broker.recorded if event == "loss_announced"]
        ranges = [(each["first"], each["last"]) for each in recorded if "first" in each]
        assert ranges == [(11 if is_copy else 1, 20)]
    of_streams = [gap for gap in subscriber.client.gaps if gap.source.incarnation == 0]
    assert bool(of_streams) == (world != "delta_tree"), "publishers may never come back"


def test_a_broker_that_lost_its_disk_waits_for_all_pubends_of_a_total_order() -> None:
    """The broker has lost the list of started pubends; without the wait all deliveries stall."""
    cluster = begun("gryphon in total order")
    subscriber = cluster.subscribe("s1")
    cluster.run_until_quiet()
    publish(cluster, 5)
    cluster.run_until_quiet()
    cluster.broker("s1").kill()
    cluster.run_for(2)
    cluster.broker("s1").put_back(None)
    cluster.run_for(10)
    publish(cluster, 5)
    cluster.run_for(30)
    assert len(subscriber.received) == 10


@pytest.mark.parametrize("world", ["gryphon", "durable", "delta_tree", "multi_proxy"])
def test_a_client_without_memory_receives_no_gap_of_what_it_was_never_owed(world: str) -> None:
    """The subscription restarted for the previous process, and the session is lost later."""
    cluster = begun(world)
    cluster.subscribe("s1", client="s1-s1")
    cluster.run_until_quiet()
    publish(cluster, 5)
    cluster.run_until_quiet()
    cluster.broker("s1").kill()
    cluster.run_for(2)
    cluster.broker("s1").put_back(None)
    cluster.run_for(30)
    client = cluster.population.forget("s1-s1")
    cluster.run_for(10)
    for _ in range(2):
        cluster.link("s1-s1", "s1").cut()
        cluster.run_for(3)
        cluster.link("s1-s1", "s1").heal()
        cluster.run_for(10)
        cluster.broker("s1").restart()
        cluster.run_for(10)
    assert not client.gaps


@pytest.mark.parametrize("world", ["gryphon", "gryphon in total order"])
def test_a_subscription_of_a_copy_without_its_beginning_restarts_behind_a_gap(world: str) -> None:
    """The subscription starts without its client; first deliveries wait before the gap is due."""
    cluster = begun(world)
    subscriber = cluster.subscribe("s1")
    broker = cluster.broker("s1")
    while not broker.broker.on_disk().get("subscriptions"):
        cluster.run_for(0.001)
    copy = broker.broker.disk.copy()
    cluster.run_until_quiet()
    publish(cluster, 5)
    cluster.run_until_quiet()
    line = cluster.link(subscriber.client.name, "s1")
    line.cut()
    publish(cluster, 5)
    cluster.run_for(2)
    broker.kill()
    cluster.run_for(2)
    broker.put_back(copy)
    cluster.run_for(10)
    publish(cluster, 5)
    cluster.run_for(10)
    line.heal()
    cluster.run_for(30)
    received = [each.sequence for each in subscriber.received]
    assert received == [*range(1, 6), *range(11, 16)]
    assert cluster.oracle.in_gaps[STATE_LOST] >= 5
    assert not cluster.oracle.violations, cluster.oracle.first_violations


class Restart:
    """The subscriber's broker accepted the loss of its disk while the subscriber was away."""

    def __init__(self, world: str, *, is_copy: bool = False, delivered: int = 0) -> None:
        self.cluster = cluster = begun(world)
        self.subscriber = cluster.subscribe("s1")
        self.broker = cluster.broker("s1")
        while is_copy and not self.broker.broker.on_disk().get("subscriptions"):
            cluster.run_for(0.001)
        copy = self.broker.broker.disk.copy() if is_copy else None
        cluster.run_until_quiet()
        publish(cluster, delivered)
        cluster.run_until_quiet()
        self.line = cluster.link(self.subscriber.client.name, "s1")
        self.line.cut()
        cluster.run_for(2)
        cluster.publish("s1", client="q-s1", kind="a")
        publish(cluster, 3)
        cluster.run_for(2)
        cluster.link("q-s1", "s1").cut()
        self.broker.kill()
        cluster.run_for(2)
        self.broker.put_back(copy)
        cluster.run_for(10)

    def crash_behind_the_start(self) -> None:
        """Let the subscriber request its subscription again, and leave before the gap arrives."""
        self.line.heal()
        while not self.broker.broker.on_disk().get("begins"):
            self.cluster.run_for(0.001)
        self.line.cut()
        self.cluster.run_for(2)
        self.broker.restart()
        self.cluster.run_for(10)

    def come_back(self) -> None:
        """Let the subscriber return."""
        self.line.heal()
        self.cluster.run_for(20)

    @property
    def lacks(self) -> list[str]:
        """The violations, and the owed publications without a delivery or a gap."""
        oracle = self.cluster.oracle
        missing = oracle.obligations.describe_undelivered()
        return [*oracle.first_violations, *(line for line in missing if "misses" in line)]


WITH_FILTERS = ("gryphon", "gryphon in total order")


@pytest.mark.parametrize("world", WITH_FILTERS)
def test_a_lost_subscription_without_a_delivery_is_notified_of_the_loss(world: str) -> None:
    """The client states no position; the subscription of the copy started again without it."""
    story = Restart(world, is_copy=True)
    story.come_back()
    assert not story.lacks
    assert story.cluster.oracle.in_gaps == {STATE_LOST: 4}


@pytest.mark.parametrize("world", WITH_FILTERS)
def test_a_gap_is_announced_although_the_broker_crashes_before(world: str) -> None:
    """The publisher at the broker never returns, so that only the subscription shows its loss."""
    story = Restart(world)
    story.crash_behind_the_start()
    story.come_back()
    assert not story.lacks
    assert story.cluster.oracle.in_gaps == {STATE_LOST: 4}


@pytest.mark.parametrize("world", WITH_FILTERS)
def test_a_subscription_behind_its_gap_receives_all_later_publications(world: str) -> None:
    """The client of a restarted subscription is away again, twice."""
    story = Restart(world, is_copy=True, delivered=1)
    story.come_back()
    for _ in range(2):
        story.line.cut()
        story.cluster.run_for(2)
        story.cluster.publish("s1", client="r-s1", kind="a")
        publish(story.cluster, 1)
        story.cluster.run_for(2)
        story.come_back()
    assert not story.lacks
    assert len(story.subscriber.received) == 5
    assert story.cluster.oracle.in_gaps == {STATE_LOST: 4}


@pytest.mark.parametrize("world", [*WITH_FILTERS, "durable", "multi_proxy"])
def test_a_client_without_memory_resumes_its_subscription_long_after_a_loss(world: str) -> None:
    """It states no subscription, and the broker took its own for one that had ended."""
    story = Restart(world)
    story.come_back()
    story.line.cut()
    story.cluster.run_for(2)
    story.broker.restart()
    story.cluster.run_for(5)
    publish(story.cluster, 2)
    story.cluster.run_for(2)
    story.cluster.population.forget(story.subscriber.client.name)
    story.come_back()
    publish(story.cluster, 1)
    story.cluster.run_for(2)
    assert not story.lacks


PLAN = """
simulation timed
protocol gryphon
brokers p1 b1 s1
overlay cells {"bundles": [["p1", "b1"], ["b1", "s1"]], "members": {}}
limits failed=1 links=1
chance 1
publisher p0-p1
at 0.1 subscribe s1-s1 kind = 'a'
at 1 publish p0-p1 a,10,3 a,40,3
at 2 fault restored p1 HOW then 3 4
at 8 publish p0-p1 a,10,3 a,40,3
heal 10
end 10
"""


@pytest.mark.parametrize("how", ["copy", "empty"])
def test_a_plan_may_put_an_older_disk_back(how: str) -> None:
    plan = read_plan(PLAN.replace("HOW", how))
    assert read_plan(write_plan(plan)) == plan
    report = PlanRun(plan).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["fault_restored"] == 1
    assert report.counters["deliveries"] == 4


@pytest.mark.parametrize("stays", [True, False], ids=["connected", "reconnects"])
def test_a_publisher_proves_the_loss_of_a_storage_and_is_refused(stays: bool) -> None:
    """No neighbour has a mark; later publications would wait for the lost ones for ever."""
    topology, parameters = unit("p1", "b1", "s1", storage="b1"), GesReliableParameters()
    cluster = SimulatedCluster(
        topology, "ges_reliable", network=STEADY, parameters=parameters, strict=True
    )
    cluster.start()
    cluster.run_until_quiet()
    publish(cluster, 5)
    cluster.run_until_quiet()
    storage = cluster.broker("b1")
    copy = storage.copy(is_empty=False)
    publish(cluster, 5)
    cluster.run_until_quiet()
    publisher, refusals = cluster.clients["p-p1"], list[str]()
    publisher.on_refused = lambda refused: refusals.append(refused.reason)
    storage.kill()
    if not stays:
        cluster.link("p-p1", "p1").cut()
    cluster.run_for(2)
    storage.broker.disk.put_back(copy)
    storage.start()
    cluster.run_for(5)
    if not stays:
        cluster.link("p-p1", "p1").heal()
        cluster.run_for(5)
    publish(cluster, 1)
    cluster.run_for(10)
    assert "6 to 10 were acknowledged, and are missing at the storage b1: an older" in refusals[0]
    recorded = [each for event, each in storage.broker.recorded if event == "loss_proved"]
    assert len(recorded) == 1
    assert "publications 6 to 10 of source (0, 0, 1)" in recorded[0]["cause"]


@pytest.mark.parametrize("is_copy", [True, False], ids=["older copy", "empty disk"])
def test_an_access_broker_proves_the_loss_of_a_storage(is_copy: bool) -> None:
    """No neighbour has a mark, and the publisher is away; the session ended again and again."""
    cluster = begun("ges_reliable at b1")
    subscriber = cluster.subscribe("s1")
    cluster.run_until_quiet()
    publish(cluster, 5)
    cluster.run_until_quiet()
    storage, line = cluster.broker("b1"), cluster.link("p-p1", "p1")
    copy = storage.copy(is_empty=not is_copy)
    publish(cluster, 5)
    cluster.run_until_quiet()
    line.cut()
    storage.kill()
    cluster.run_for(2)
    storage.broker.disk.put_back(copy)
    storage.start()
    cluster.run_for(10)
    proofs = [each["cause"] for event, each in storage.broker.recorded if event == "loss_proved"]
    missing = f"epochs {6 if is_copy else 1} to 10, which broker 2 has"
    assert [missing in proof for proof in proofs] == [True]
    storage.kill()
    cluster.run_for(2)
    storage.put_back(storage.broker.disk.copy())
    cluster.run_for(10)
    line.heal()
    cluster.run_for(10)
    publish(cluster, 5)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert [each.sequence for each in subscriber.received] == [*range(1, 16)]


MOMENTS = ("before the proof", "behind the proof", "after a restart", "before a crash")


@pytest.mark.parametrize("moment", MOMENTS)
def test_publications_beside_the_proof_of_a_lost_storage_arrive(moment: str) -> None:
    """Their epochs would be epochs that the subscriber's access broker has received before.

    Before the proof, more publications than were lost would prove nothing.
    """
    is_before = moment in ("before the proof", "before a crash")
    count = 2 if is_before else 4
    cluster = begun("ges_reliable at b1")
    subscriber = cluster.subscribe("s1")
    cluster.run_until_quiet()
    storage, near = cluster.broker("b1"), cluster.link("b1", "s1")
    copy = storage.copy(is_empty=False)
    publish(cluster, 3)
    cluster.run_until_quiet()
    storage.kill()
    cluster.link("p-p1", "p1").cut()
    cluster.run_for(2)
    storage.broker.disk.put_back(copy)
    if is_before:
        near.cut()
    storage.start()
    cluster.run_for(2)
    if moment == "after a restart":
        near.cut()
        storage.restart()
        cluster.run_for(2)
    for _ in range(count):
        cluster.publish("b1", kind="a")
        cluster.run_for(0.02)
    cluster.run_for(2)
    near.heal()
    cluster.run_for(5)
    assert "loss_proved" in [event for event, _ in storage.broker.recorded]
    storage.kill()
    cluster.run_for(2)
    storage.put_back(storage.broker.disk.copy())
    if moment == "before a crash":
        crash_in_repetition(cluster, storage, "storage", records=5)
    cluster.run_for(5)
    storage.restart()
    cluster.run_until_quiet()
    assert len(subscriber.received) == 3 + count
    cluster.oracle.judge_end()


def test_a_lagging_access_broker_discards_epochs_that_a_lost_storage_assigned_again() -> None:
    """Another access broker proves the loss after two epochs of lost publications are reused."""
    cluster = SimulatedCluster(
        unit("p1", "b1", "s1", "s2", storage="b1"),
        "ges_reliable",
        network=STEADY,
        parameters=GesReliableParameters(),
        strict=True,
    )
    cluster.start()
    subscriber, late = cluster.subscribe("s1"), cluster.subscribe("s2")
    cluster.run_until_quiet()
    storage, near, far = cluster.broker("b1"), cluster.link("b1", "s1"), cluster.link("s1", "s2")
    far.cut()
    copy = storage.copy(is_empty=False)
    publish(cluster, 4)
    cluster.run_for(5)
    storage.kill()
    cluster.link("p-p1", "p1").cut()
    cluster.run_for(2)
    storage.broker.disk.put_back(copy)
    near.cut()
    storage.start()
    cluster.run_for(2)
    for _ in range(2):
        cluster.publish("b1", kind="a")
        cluster.run_for(0.02)
    near.heal()
    cluster.run_for(5)
    assert "loss_proved" in [event for event, _ in storage.broker.recorded]
    storage.kill()
    cluster.run_for(2)
    storage.put_back(storage.broker.disk.copy())
    cluster.run_for(5)
    far.heal()
    cluster.run_for(10)
    cluster.link("p-p1", "p1").heal()
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert [each.sequence for each in subscriber.received] == [1, 2, 3, 4, 1, 2]
    assert [each.sequence for each in late.received] == [1, 2]


@pytest.mark.parametrize("is_copy", [True, False], ids=["older copy", "empty disk"])
def test_an_access_broker_proves_the_loss_of_a_server_and_of_its_proxies(is_copy: bool) -> None:
    """No broker has a mark of the server; its positions would be assigned again."""
    cluster = begun("multi_proxy")
    subscriber = cluster.subscribe("s1")
    cluster.run_until_quiet()
    publish(cluster, 5)
    cluster.run_until_quiet()
    server, proxy = cluster.broker("b1"), cluster.broker("x1")
    copy = server.copy(is_empty=not is_copy)
    publish(cluster, 5)
    cluster.run_until_quiet()
    server.kill()
    proxy.kill()
    cluster.run_for(2)
    publish(cluster, 5)
    proxy.put_back(None)
    server.broker.disk.put_back(copy)
    server.start()
    cluster.run_for(20)
    assert len(subscriber.received) == 10
    proofs = [each["cause"] for event, each in server.broker.recorded if event == "loss_proved"]
    missing = "the last 5 records of incarnation 1" if is_copy else "has run with another log"
    assert [missing in proof for proof in proofs] == [True]
    server.kill()
    cluster.run_for(2)
    server.put_back(server.broker.disk.copy())
    cluster.run_for(30)
    publish(cluster, 5)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert not cluster.oracle.violations, cluster.oracle.first_violations
    assert [each.sequence for each in subscriber.received] == [*range(1, 21)]
    assert subscriber.client.gaps, "positions behind the received ones are lost"


WIDE: dict[str, tuple[tuple[str, str], dict[str, str]]] = {
    "gryphon": (("b1", "b2"), {"b1": "p1", "b2": "s1"}),
    "durable": (("b1", "b2"), {"b1": "p1", "b2": "s1"}),
    "multi_proxy": (("x1", "b1"), {"x1": "p1"}),
}
"""Neighbours that lose their disks together, and the witness of each former state."""


@pytest.mark.parametrize("world", WIDE)
def test_neighbours_with_empty_disks_vouch_for_each_other_and_hide_no_proof(world: str) -> None:
    """The lost brokers connect first; the witnesses return later, and prove both losses."""
    topology = WORLDS[world][0] if world == "multi_proxy" else cells("p1-b1", "b1-b2", "b2-s1")
    cluster = SimulatedCluster(
        topology, world, network=STEADY, parameters=WORLDS[world][1], strict=True
    )
    cluster.start()
    subscriber = cluster.subscribe("s1")
    cluster.run_until_quiet()
    publish(cluster, 5)
    cluster.run_until_quiet()
    names, witnesses = WIDE[world]
    lost = {name: cluster.broker(name) for name in names}
    disks = {name: each.broker.disk for name, each in lost.items()}
    before = {name: disk.ledger.mark() for name, disk in disks.items()}
    edges = [cluster.link("p1", names[0]), cluster.link("s1", names[world != "multi_proxy"])]
    for name, each in lost.items():
        each.kill()
        disks[name].put_back(None)
    for edge in edges:
        edge.cut()
    for each in lost.values():
        each.start()
    cluster.run_for(5)
    for name, other in (names, reversed(names)):
        ledger = disks[name].ledger
        assert ledger.loss(lost[other].broker.number, ledger.mark()) is None
    for each in lost.values():
        each.restart()
    cluster.run_for(5)
    for name, witness in witnesses.items():
        proof = disks[name].ledger.loss(cluster.broker(witness).broker.number, before[name])
        assert "another state folder, which is lost" in str(proof)
    for name, each in lost.items():
        each.kill()
        cluster.run_for(2)
        each.put_back(disks[name].copy())
    for edge in edges:
        edge.heal()
    publish(cluster, 5)
    cluster.run_for(30)
    cluster.oracle.judge_end()
    assert not cluster.oracle.violations, cluster.oracle.first_violations
    assert [each.sequence for each in subscriber.received] == [*range(1, 11)]
