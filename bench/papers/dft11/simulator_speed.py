"""How fast the simulator is: events that brokers handle in a second of one core's time.

`pubsubctl simulate speed` prints it. What is simulated is figure 10 of [DFT11] in small, with the
protocol whole; nothing but the oracle watches. The times are the processor's, so that a busy
machine disturbs them little.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.papers.dft11.simulated_experiments import (
    Point,
    SimulatedExperiment,
    no_garbage_collection,
    set_up,
)
from brokerd.overlay.generate import balanced_tree
from brokerd.simulator.world.cluster import SimulatedCluster

BROKERS, FANOUT, DELTA, FAILED = 100, 5, 3, 17


@dataclass(frozen=True, slots=True)
class Speed:
    """What one phase took.

    Attributes:
        broker_events: events that the cores of all brokers handled.
        processor_s: of this process.
    """

    what: str
    broker_events: int
    processor_s: float

    @property
    def per_second(self) -> int:
        """Events in a second of one core."""
        return round(self.broker_events / self.processor_s)


def measure_speed(brokers: int = BROKERS, failed: int = FAILED) -> list[Speed]:
    """Subscribing, publishing in a whole tree, and publishing past failures, one after the other.

    The last row is a story in which every step of every broker is checked, as in a swarm.
    """
    with no_garbage_collection():
        return [*_phases(brokers, failed)]


def _phases(brokers: int, failed: int) -> Iterator[Speed]:
    experiment = SimulatedExperiment(
        schema_="pubsubctl/simulated-experiment/1",
        name="speed", figure="dft11.fig10", question="deliveries",
        brokers=brokers, fanouts=[FANOUT], deltas=[DELTA], failed=[0, failed], measured_s=30,
    )  # fmt: skip
    began_s = time.process_time()
    cluster = set_up(experiment, FANOUT, DELTA, 0, assist="on")
    yield Speed("subscribing", cluster.broker_events, time.process_time() - began_s)
    for failures, what in ((0, "publishing"), (failed, f"publishing past {failed} failures")):
        began_s, events = time.process_time(), cluster.broker_events
        for _ in Point(experiment, FANOUT, DELTA, failures, 0).measure(cluster):
            pass
        assert not cluster.oracle.violations, cluster.oracle.first_violations
        yield Speed(what, cluster.broker_events - events, time.process_time() - began_s)
    began_s = time.process_time()
    watched = SimulatedCluster(balanced_tree(10, FANOUT, DELTA), "delta_tree", seed=1).start()
    for broker in watched.topology.brokers:
        watched.subscribe(broker)
    watched.run_until_quiet()
    for number in range(4 * brokers):
        watched.publish(watched.topology.brokers[number % 10], n=number)
        watched.run_for(0.05)
    yield Speed(
        "publishing, every step checked", watched.broker_events, time.process_time() - began_s
    )
