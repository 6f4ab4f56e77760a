"""Tests of replies in another order than the requests, for every kind of request.

Disks and logs reply late and independently, and connections are slow for a while. A deferred read
thus overlaps a cached reply, the second reply precedes the first, and two commits are in flight.
All rules of each protocol must hold.
"""

from random import Random

import pytest

from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.swarm import SwarmOptions, plan_of
from brokerd.simulator.world.clock import TimedSchedule
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS

SEEDS = range(1, 3)
PROTOCOLS = ("delta_tree", "durable", "ges_reliable", "gryphon", "multi_proxy")
STALLS = 30


def _stall(cluster: SimulatedCluster, random: Random) -> None:
    """Delay one disk, log or connection by up to 300 ms."""
    schedule = cluster.schedule
    assert isinstance(schedule, TimedSchedule)
    wait_ns = random.randrange(5, 300) * MILLISECOND_NS
    broker = random.choice(cluster.brokers)
    kind = random.choice(("disk", "log", "link", "client"))
    if kind in ("disk", "log"):
        lane = broker.disk.lane if kind == "disk" else broker.disk.log_lane
        if broker.alive and not broker.frozen:
            lane.hold()
            schedule.at(schedule.now_ns + wait_ns, lane.release)
        return
    names = [*cluster.clients] if kind == "client" else [*broker.ends]
    if not names:
        return
    peer = random.choice(names)
    here = cluster.clients[peer].broker if kind == "client" else broker.number
    cluster.link_faults.delay(here, peer, wait_ns)
    schedule.at(schedule.now_ns + wait_ns, cluster.link_faults.delay, here, peer, 0)


def with_late_answers(seed: int, protocol: str) -> SeedReport:
    """Run a seed of the swarm on a clock, with delays of disks, logs and connections."""
    random = Random(f"answers {seed}")
    plan = plan_of(seed, protocol, SwarmOptions(layer="timed", faults=seed % 2 == 0))
    run = PlanRun(plan, check_purity=False)
    schedule = run._cluster.schedule
    assert isinstance(schedule, TimedSchedule)
    for _ in range(STALLS):
        schedule.at(random.randrange(plan.heal), _stall, run._cluster, random)
    return run.report(seed, "")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_protocol_is_correct_under_any_order_of_answers(protocol: str) -> None:
    reports = [with_late_answers(seed, protocol) for seed in SEEDS]
    assert not [(report.seed, report.violations) for report in reports if report.violations]
    assert all(report.counters["deliveries"] for report in reports)
