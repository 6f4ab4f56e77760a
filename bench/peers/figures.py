"""Results of one measurement, of any system."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

SATURATED: Final = 0.9
"""Share of a core at which a process is saturated."""
_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The result of one system under one load, once.

    Attributes:
        system, brokers, rate: the measured system, chain and load; rate 0 is the highest rate.
        delivered_per_s: deliveries per second of the measurement.
        cpu_us: processor time per delivery, by process; brokers begin with "broker".
        response_us, service_us: percentiles of received minus intended, and minus sent.
        lost: publications that never arrived; None if not counted.
        limited_by: the saturated process, "cores", "other work" of the machine, or "window" if
            nothing was saturated; "" if not measured.
    """

    system: str
    brokers: int
    rate: int
    delivered_per_s: float
    cpu_us: Mapping[str, float]
    lost: int | None
    limited_by: str
    response_us: Mapping[str, float] = field(default_factory=dict)
    service_us: Mapping[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return the result as a document."""
        return asdict(self)

    def broker_cpu_us(self) -> float:
        """Return the processor time per delivery and broker."""
        costs = [cost for name, cost in self.cpu_us.items() if name.startswith("broker")]
        return sum(costs) / len(costs) if costs else math.nan

    def client_cpu_us(self) -> float:
        """Return the processor time per delivery of all load clients."""
        return sum(cost for name, cost in self.cpu_us.items() if not name.startswith("broker"))


def limit_of(shares: Mapping[str, float], all_cores: float, cores: int) -> str:
    """Return the saturated process or resource.

    Args:
        shares: by process of the measurement, the used share of one core.
        all_cores: number of cores that the whole machine used, out of `cores`.
    """
    name, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    if share >= SATURATED:
        return name
    if sum(shares.values()) >= SATURATED * cores:
        return "cores"
    return "other work" if all_cores >= SATURATED * cores else "window"


def percentiles_us(durations_ns: Sequence[int]) -> dict[str, float]:
    """Return percentiles in µs by the nearest-rank method; {} without durations."""
    ordered = sorted(durations_ns)
    if not ordered:
        return {}
    return {
        name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1000
        for name, share in _PERCENTILES.items()
    }
