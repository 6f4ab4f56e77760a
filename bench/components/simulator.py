"""Speed of the simulator: events of brokers per second of a core.

`pubsubctl experiment dft11.speed` prints the same numbers.
"""

from collections.abc import Mapping

from bench.papers.dft11.simulator_speed import measure_speed


def measure() -> Mapping[str, float]:
    """Return `events_per_s` of the slowest phase with only the oracle as a watcher."""
    return {"events_per_s": min(speed.per_second for speed in measure_speed()[:-1])}
