"""Tests of the wall clocks of simulated brokers."""

from itertools import pairwise

from brokerd.protocols.interface import Started
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, chain

HOUR_NS = 3_600 * 10**9


def starts(seed: int, incarnations: int) -> list[tuple[int, int]]:
    """Return the virtual time and the wall clock at the start of each incarnation of a broker."""
    cluster = SimulatedCluster(chain("a", "b"), network=STEADY, seed=seed)
    broker = cluster.broker("a").broker
    broker.history = []
    cluster.start()
    found = []
    for _ in range(incarnations):
        assert broker.history is not None
        event, now_ns, _ = broker.history[0]
        assert isinstance(event, Started)
        found.append((now_ns, event.wall_ns))
        cluster.run_for(1)
        cluster.broker("a").restart()
    return found


def test_a_wall_clock_starts_anywhere_and_steps_both_ways_between_incarnations() -> None:
    firsts, steps = set(), []
    for seed in range(5):
        found = starts(seed, 20)
        assert found == starts(seed, 20)
        firsts.add(found[0][1])
        steps += [
            (wall_ns - wall_before_ns) - (now_ns - before_ns)
            for (before_ns, wall_before_ns), (now_ns, wall_ns) in pairwise(found)
        ]
    assert len(firsts) == 5
    assert min(steps) < -HOUR_NS / 2
    assert max(steps) > HOUR_NS / 2
    assert 0 in steps
    assert all(abs(step) <= HOUR_NS for step in steps)
