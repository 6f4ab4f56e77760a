"""Pairs of moves that plans draw at one broker."""

import pytest

from brokerd.simulator.search.moves import BrokerJoin, FaultInjection
from brokerd.simulator.search.plan import Plan
from brokerd.simulator.search.swarm import SwarmOptions, plan_of
from tests.helpers.drawn_pairs import count_pairs, describe_pairs

SEEDS = range(201, 401)
"""Earlier seeds have no compound faults."""

AT_ONE_BROKER = {
    "delta_tree": [("depart", "kill"), ("join", "restored"), ("restored", "restored")],
    "durable": [("kill_for_good", "restored"), ("client_away", "kill_for_good")],
    "ges": [
        ("depart", "kill"), ("cut", "depart"), ("cut", "delay"),
        ("depart", "publish"), ("depart", "slow_client"), ("depart", "lost"), ("join", "lost"),
    ],
    "ges_reliable": [
        ("lost", "restored"), ("client_away", "lost"), ("depart", "restored"),
        ("depart", "forget"), ("depart", "partition"), ("depart", "publish"),
        ("depart", "lost"), ("join", "lost"), ("kill", "lost"), ("kill_twice", "lost"),
        ("absorb_then_release", "lost"),
    ],
    "multi_proxy": [
        ("client_away", "kill_for_good"), ("kill_for_good", "restored"),
        ("kill_for_good", "publish"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("protocol", AT_ONE_BROKER)
def test_compound_faults_are_drawn(protocol: str) -> None:
    plans = [plan_of(seed, protocol, SwarmOptions()) for seed in SEEDS]
    _, at_one = count_pairs(plans)
    assert [pair for pair in AT_ONE_BROKER[protocol] if not at_one.get(pair)] == []


def test_pairs_are_counted_by_plan_and_by_broker() -> None:
    plan = plan_of(1, "delta_tree", SwarmOptions(faults=False)).with_moves(())
    apart = [BrokerJoin(1, "n1", "b1"), FaultInjection(2, "kill", ("b2",))]
    at_one = [BrokerJoin(1, "n1", "b1"), FaultInjection(2, "kill", ("n1",))]
    plans: list[Plan] = [plan.with_moves(moves) for moves in (apart, apart, at_one)]
    assert count_pairs(plans) == ({("join", "kill"): 3}, {("join", "kill"): 1})
    assert [*describe_pairs(plans)][1:] == [
        "in no plan: join × join; kill × kill",
        "never at one broker: none",
    ]
