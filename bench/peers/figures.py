"""What one measurement came to, whoever made it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

SATURATED: Final = 0.9
"""A process that uses so much of a core has no more to give."""
_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One system under one load, once.

    Attributes:
        system, brokers, rate: what was measured; a rate of 0 is as fast as it goes.
        delivered_per_s: while it was measured.
        cpu_us: processor time per delivery, by process; brokers begin with "broker".
        response_us, service_us: percentiles of received minus intended, and minus sent.
        lost: publications that never came; None where nobody counted.
        limited_by: what had no more to give: a process, "cores", "other work" of the machine, or
            "window" where nothing had; "" where nobody looked.
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
        """As a document."""
        return asdict(self)

    def broker_cpu_us(self) -> float:
        """Processor time per delivery and broker."""
        costs = [cost for name, cost in self.cpu_us.items() if name.startswith("broker")]
        return sum(costs) / len(costs) if costs else math.nan

    def client_cpu_us(self) -> float:
        """Processor time per delivery of all load clients."""
        return sum(cost for name, cost in self.cpu_us.items() if not name.startswith("broker"))


def limit_of(shares: Mapping[str, float], all_cores: float, cores: int) -> str:
    """What had no more to give.

    Args:
        shares: by process of the measurement, how much of one core it used.
        all_cores: how many cores' worth the whole machine used, of so many `cores`.
    """
    name, share = max(shares.items(), key=lambda item: item[1], default=("", 0.0))
    if share >= SATURATED:
        return name
    if sum(shares.values()) >= SATURATED * cores:
        return "cores"
    return "other work" if all_cores >= SATURATED * cores else "window"


def percentiles_us(durations_ns: Sequence[int]) -> dict[str, float]:
    """Percentiles in µs, each the smallest value that so many do not exceed; {} of nothing."""
    ordered = sorted(durations_ns)
    if not ordered:
        return {}
    return {
        name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1000
        for name, share in _PERCENTILES.items()
    }
