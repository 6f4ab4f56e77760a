"""Brokers of gryphon that start on an older copy of their disk, or on an empty disk."""

import pytest

from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.search.plan import read_plan
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.swarm import PlanRun
from brokerd.simulator.world.clock import WallClocks

PLAN = """
simulation timed
protocol gryphon
brokers b1 b2
overlay cells {"bundles": [["b1", "b2"]], "members": {}}
limits failed=1 links=1
core filters=FILTERS client_linger_ns=1000000000000000
chance 1
publisher p0-b1
at 0.1 subscribe s1-b1 true
at 1 publish p0-b1 a,10,3
at 2 fault client_away s1-b1 then 6
at 2.5 fault restored b1 empty then 4 5
at 3 publish p0-b1 a,10,3 a,40,3
heal 10
end 10
"""


def _report(filters: bool) -> SeedReport:
    return PlanRun(read_plan(PLAN.replace("FILTERS", str(filters)))).report(-1, "")


@pytest.mark.parametrize("filters", [True, False])
def test_a_loss_is_announced_to_subscribers_of_the_broker_itself(filters: bool) -> None:
    """The loss marker is older than the subscription, which its broker lost, too."""
    report = _report(filters)
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert (report.counters["deliveries"], report.counters["in_gaps_of_lost_state"]) == (1, 2)


def test_a_loss_in_own_streams_that_is_not_announced_is_seen() -> None:
    with plant([bugs_of("gryphon")["own-streams-lose-without-a-gap"]]):
        assert _report(filters=True).violations


def test_the_clock_of_a_broker_that_accepts_a_loss_is_ahead_of_all_its_times() -> None:
    clocks = WallClocks(1)
    earlier = [clocks.read_at_start(0, 0) for _ in range(20)]
    clocks.set_ahead(0)
    assert clocks.read_at_start(0, 0) > max(earlier)
