"""The time until neighbours reconnect to a broker that was stopped and resumes."""

import pytest

from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.gryphon_stories import Story

MUTANTS = bugs_of("gryphon")


def reached_after_ms(stall_s: float) -> int:
    """Return the milliseconds until all neighbours have a session with a resumed broker."""
    story = Story()
    story.cluster.run_for(5)
    broker = story.cluster.broker("b1")
    number = story.cluster.topology.number_of("b1")
    neighbours = [story.cluster.broker(name).broker.core for name in ("p1", "s1", "s2")]
    broker.freeze()
    story.cluster.run_for(stall_s)
    broker.thaw()
    resumed_ns = story.cluster.schedule.now_ns
    while not all(number in neighbour.status().ready for neighbour in neighbours):
        assert story.cluster.step(resumed_ns + 20 * SECOND_NS)
    return (story.cluster.schedule.now_ns - resumed_ns) // MILLISECOND_NS


@pytest.mark.parametrize("stall_s", [1, 2, 3.5, 4, 5])
def test_a_broker_is_reached_as_soon_as_it_continues(stall_s: float) -> None:
    assert reached_after_ms(stall_s) < 50


def test_a_broker_that_waits_first_is_reached_later() -> None:
    with plant([MUTANTS["waits-although-its-peer-is-there"]]):
        assert reached_after_ms(3.5) > 400
