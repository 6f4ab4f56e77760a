"""Tests of clients that disconnect for long, lose state, exceed limits, or subscribe in bulk."""

from dataclasses import replace
from typing import Any

import pytest

from brokerd.config import SessionParameters
from brokerd.model.client_messages import Publish
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.parts.clients.table import ClientTable
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.search.client_moves import Detachment, MemoryLoss, SubscriptionRequest
from brokerd.simulator.search.moves import FaultInjection
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.swarm import SwarmOptions, plan_of
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.sessions import transmit
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes
from tests.helpers.cluster import STEADY, chain


def _chain(**parameters: int) -> SimulatedCluster:
    return SimulatedCluster(
        chain("b1", "b2", "b3"),
        network=STEADY,
        parameters=DeltaTreeParameters(delta=1, **parameters),  # type: ignore[arg-type]
    ).start()


def _stay_away(cluster: SimulatedCluster, seconds: float) -> None:
    """Disconnect a subscriber at b3 while b1 publishes."""
    subscription = cluster.subscribe("b3")
    cluster.run_until_quiet()
    line = cluster.link("s1-b3", "b3")
    for number in range(40):
        cluster.publish("b1", n=number)
        if number == 10:
            line.cut()
        cluster.run_for(seconds / 20)
        if number == 30:
            line.heal()
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    numbers = [published.sequence for published in subscription.received]
    assert numbers == sorted(set(numbers))


def test_a_subscriber_that_returns_in_time_misses_no_publication() -> None:
    cluster = _chain(client_linger_ns=10 * SECOND_NS)
    _stay_away(cluster, 2.0)
    assert cluster.oracle.owed == 40


def test_a_subscriber_that_returns_too_late_restarts() -> None:
    cluster = _chain(client_linger_ns=SECOND_NS)
    _stay_away(cluster, 8.0)
    assert cluster.checker.marks is not None
    assert cluster.checker.marks.counts["subscription-expired"] == 1
    assert cluster.oracle.owed < 30


def test_a_broker_that_waits_for_half_as_long_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    linger = ClientTable.linger

    def hurry(self: ClientTable[Any], name: str) -> None:
        linger(self, name)
        key = ("linger", name)
        due_ns = self._deadlines.instant(key)
        assert due_ns is not None
        now_ns = self._machine.now_ns
        self._deadlines.set(key, now_ns + (due_ns - now_ns) // 2)

    monkeypatch.setattr(ClientTable, "linger", hurry)
    with pytest.raises(InvariantViolated, match=r"expired early: b3 ends s1-b3/1 after"):
        _stay_away(_chain(client_linger_ns=SECOND_NS), 8.0)


def test_a_subscriber_without_stored_state_resumes_at_its_position() -> None:
    cluster = _chain()
    cluster.subscribe("b3")
    cluster.run_until_quiet()
    for number in range(6):
        cluster.publish("b1", n=number)
    cluster.run_until_quiet()
    cluster.population.forget("s1-b3", keeps=1)
    cluster.publish("b1", n=6)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    received = [sequence for _, sequence in cluster.clients["s1-b3"].received[1]]
    assert received == [7]


def test_subscriptions_that_a_stateless_subscriber_does_not_renew_expire() -> None:
    cluster = _chain(client_linger_ns=SECOND_NS)
    for _ in range(3):
        cluster.subscribe("b3", client="s1-b3")
    cluster.run_until_quiet()
    cluster.population.forget("s1-b3", keeps=1)
    cluster.run_for(2)
    cluster.run_until_quiet()
    assert cluster.statistics()["subscriptions"] == 3  # one, at three brokers
    cluster.publish("b1", n=1)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()


def test_a_publisher_without_memory_is_another_source() -> None:
    cluster = _chain()
    subscription = cluster.subscribe("b3")
    cluster.run_until_quiet()
    cluster.publish("b1", n=1)
    cluster.run_until_quiet()
    before = cluster.clients["p-b1"].core.source
    cluster.population.forget("p-b1", keeps=0)
    cluster.publish("b1", n=2)
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    after = cluster.clients["p-b1"].core.source
    assert before is not None
    assert after == before._replace(incarnation=2)
    assert subscription.client.received[1] == [(before, 1), (after, 1)]


def test_a_subscription_above_the_limit_is_refused_and_the_others_are_kept() -> None:
    cluster = _chain(client_subscriptions=2)
    for _ in range(3):
        cluster.subscribe("b3", client="s1-b3")
    cluster.run_until_quiet()
    client = cluster.clients["s1-b3"]
    assert [refused.number for refused in client.refused] == [3]
    assert [*client.core.subscriptions] == [1, 2]


def test_a_refusal_of_a_legal_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker counts one subscription too many."""
    cluster = _chain(client_subscriptions=2)
    cluster.state.parameters = DeltaTreeParameters(delta=1, client_subscriptions=3)
    for _ in range(3):
        cluster.subscribe("b3", client="s1-b3")
    with pytest.raises(InvariantViolated, match="refused: s1-b3"):
        cluster.run_until_quiet()


def test_seeds_draw_all_of_it() -> None:
    plans = [plan_of(seed, "delta_tree") for seed in range(200)]
    moves = [move for plan in plans for move in plan.moves]
    assert sum(type(move) is MemoryLoss for move in moves) > 50
    kinds = [move.kind for move in moves if type(move) is FaultInjection]
    assert kinds.count("client_away") > 30
    assert kinds.count("partition") > 50
    groups = [
        move for move in moves if type(move) is SubscriptionRequest and move.client[:3] == "s0-"
    ]
    assert len(groups) > 100
    assert any(type(move) is Detachment and move.client[:3] == "s0-" for move in moves)
    assert sum(plan.parameters.client_linger_ns < 100 * SECOND_NS for plan in plans) > 100
    assert sum(plan.parameters.queue_limit < 100 for plan in plans) > 30
    assert sum(plan.parameters.client_subscriptions < 5 for plan in plans) > 20
    assert 50 < sum(plan.network.encode for plan in plans) < 100
    assert sum(plan.network.session.frame_limit_bytes < 10_000 for plan in plans) > 15


def test_seed_900110_may_linger() -> None:
    """The oracle mistook an expired client's publications for early confirmations."""
    options = SwarmOptions(settings=("client_linger_ns=2000000000",))
    report = PlanRun(plan_of(900110, "delta_tree", options)).report(900110, "")
    assert not report.violations, report.describe()


def test_a_large_message_arrives_in_parts_that_add_up() -> None:
    run = PublicationRun(
        SourceId(0, 0, 1), range(1, 21), (b"\xa0",), bytes(20), 200, (bytes(4_000),)
    )
    parts = transmit(Publish(run), 1_000)
    assert [sequence for part, _ in parts for sequence in part.run.sequences] == [*range(1, 21)]
    assert len(parts) > 4
    assert all(size <= 1_000 for _, size in parts)


def test_a_run_split_on_its_path_is_delivered_once_and_in_order() -> None:
    session = SessionParameters(frame_limit_bytes=1_000)
    network = replace(STEADY, encode=True, session=session)
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=network).start()
    subscription = cluster.subscribe("b3")
    cluster.run_until_quiet()
    blob = encode_attributes({"n": 1})
    sent = cluster.publish_run("b1", [(blob, bytes(300)) for _ in range(20)])
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    assert subscription.received == sent
    assert cluster.network.counters["frames_split"]
