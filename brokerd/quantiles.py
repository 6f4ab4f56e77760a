"""Quantiles by the nearest-rank method: each is one of the values."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}


def quantile(ordered: Sequence[int], share: float) -> int:
    """Return the quantile of values in ascending order, of which there is at least one."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def percentiles_us(
    durations_ns: Sequence[int], shares: Mapping[str, float] = PERCENTILES
) -> dict[str, float]:
    """Return percentiles in µs; {} without durations."""
    ordered = sorted(durations_ns)
    return {name: quantile(ordered, share) / 1000 for name, share in shares.items() if ordered}
