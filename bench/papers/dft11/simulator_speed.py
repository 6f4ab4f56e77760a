"""Speed of the simulator: events of brokers per second of processor time.

`pubsubctl experiment dft11.speed` prints the numbers. The simulation is a small
version of Fig. 10 of
[DFT11] with the whole protocol; only the oracle watches. Times are processor time, so that a busy
machine has little influence.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.papers.dft11.simulated_point import (
    Point,
    SimulatedExperiment,
    disable_garbage_collection,
    set_up,
)
from brokerd.overlay.generate import generate_balanced_tree
from brokerd.simulator.world.cluster import SimulatedCluster

BROKERS, FANOUT, DELTA, FAILED = 100, 5, 3, 17


@dataclass(frozen=True, slots=True)
class Speed:
    """The measurement of a phase.

    Attributes:
        broker_events: events handled by the cores of all brokers.
        processor_s: processor time of this process.
    """

    what: str
    broker_events: int
    processor_s: float

    @property
    def per_second(self) -> int:
        """Events per second of a core."""
        return round(self.broker_events / self.processor_s)


def measure_speed(brokers: int = BROKERS, failed: int = FAILED) -> list[Speed]:
    """Measure subscriptions, publications in a whole tree, and publications past failures.

    The last row is a story with checks of every step of every broker, as in a swarm.
    """
    with disable_garbage_collection():
        return [*_phases(brokers, failed)]


def _phases(brokers: int, failed: int) -> Iterator[Speed]:
    experiment = SimulatedExperiment(
        schema_="pubsubctl/simulated-experiment/1",
        name="speed", figure="dft11.fig10", question="deliveries",
        brokers=brokers, fanouts=[FANOUT], deltas=[DELTA], failed=[0, failed], measured_s=30,
    )  # fmt: skip
    began_s = time.process_time()
    cluster = set_up(experiment, FANOUT, DELTA, 0, assist="on")
    yield Speed("subscribing", cluster.inspection.broker_events, time.process_time() - began_s)
    for failures, phase in ((0, "publishing"), (failed, f"publishing past {failed} failures")):
        began_s, events = time.process_time(), cluster.inspection.broker_events
        for _ in Point(experiment, FANOUT, DELTA, failures, 0).measure(cluster):
            pass
        assert not cluster.oracle.violations, cluster.oracle.first_violations
        yield Speed(phase, cluster.inspection.broker_events - events, time.process_time() - began_s)
    began_s = time.process_time()
    watched = SimulatedCluster(
        generate_balanced_tree(10, FANOUT, DELTA), "delta_tree", seed=1
    ).start()
    for broker in watched.topology.brokers:
        watched.subscribe(broker)
    watched.run_until_quiet()
    for number in range(4 * brokers):
        watched.publish(watched.topology.brokers[number % 10], n=number)
        watched.run_for(0.05)
    yield Speed(
        "publishing, every step checked",
        watched.inspection.broker_events,
        time.process_time() - began_s,
    )
