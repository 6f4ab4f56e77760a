"""How many events of brokers the simulator carries out in a second of one core, as
`pubsubctl simulate speed` has them."""

from collections.abc import Mapping

from bench.papers.dft11.simulator_speed import measure_speed


def measure() -> Mapping[str, float]:
    """`events_per_s`: of the slowest phase in which nothing but the oracle watches."""
    return {"events_per_s": min(speed.per_second for speed in measure_speed()[:-1])}
