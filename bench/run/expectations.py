"""Expectations: bounds of a workload on the numbers of a run or of a component.

Unlike a guarantee, an expectation concerns speed, amount and cost rather than correctness. It is
judged by the recorded numbers of the run. The verdict on the guarantee is independent.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

from bench.spec.values import parse_rate
from brokerd.overlay.topology import nearest
from brokerd.text import format_number
from brokerd.units import parse_duration_ns, parse_size_bytes

Component = Literal["matching", "simulator", "verdict"]
COMPONENTS: Final = ("matching", "simulator", "verdict")


Kind = Literal["duration", "rate", "count", "ratio", "size"]

_PERCENTILES = ("p50", "p90", "p99", "p999", "max")
_TERMS = re.compile(r"(<=|>=|==|<|>)\s*(\S.*)")
_COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
_GIVEN: Final[Mapping[Kind, str]] = {
    "duration": '"< 50ms"',
    "rate": '">= 1000/s"',
    "count": '"== 0"',
    "ratio": '"<= 1.5"',
    "size": '"<= 8MiB"',
}

METRICS: Final[Mapping[str, tuple[Kind, tuple[str, ...]]]] = {
    **{f"latency.{name}": ("duration", ("response_us", name)) for name in _PERCENTILES},
    **{f"service.{name}": ("duration", ("service_us", name)) for name in _PERCENTILES},
    **{f"acknowledged.{name}": ("duration", ("acknowledged_us", name)) for name in _PERCENTILES},
    "broker.cpu_per_message": ("duration", ("broker_cpu_us_per_message_mean",)),
    "delivered.rate": ("rate", ("delivered_per_s",)),
    "delivered.count": ("count", ("delivered",)),
    "published.count": ("count", ("published",)),
    "delivery.missing": ("count", ("online", "missing")),
    "delivery.duplicates": ("count", ("online", "duplicate")),
    "delivery.reordered": ("count", ("online", "reordered")),
    "broker.private_memory": ("size", ("broker_private_bytes_max",)),
    "broker.core_share": ("ratio", ("broker_core_share_mean",)),
    "brokers.ready": ("duration", ("ready_after_us",)),
    "recovery.time": ("duration", ("recovery", "us")),
    "sessions.lost": ("count", ("sessions_lost",)),
    "matching.hits_ratio": ("ratio", ("matching", "hits_ratio")),
    "matching.miss": ("duration", ("matching", "miss_us")),
    "simulator.events": ("rate", ("simulator", "events_per_s")),
    "verdict.time": ("duration", ("verdict", "us")),
}
"""Name → kind, and place in the `headline` of a run (durations there are in µs).

`latency` counts from the intended time of a publication, `service` from the sent time;
`acknowledged` from the intended time to the publisher's acknowledgement. `broker.private_memory` is
the maximum over brokers at the end, `broker.core_share` the mean over brokers during the
measurement, `brokers.ready` the time since the start of the deployment, and `sessions.lost` counts
sessions between brokers. `recovery.time` counts from the last change of the faults, or from the end
of a burst of the load, to latencies as before (`bench.run.recovery`). The last metrics belong to
`bench.components`, with numbers below the names of the components.
"""


def component_of(metric: str) -> str:
    """Return the component with the metric; "" for a metric of runs."""
    _, place = METRICS.get(metric, ("", ("",)))
    return place[0] if place[0] in COMPONENTS else ""


@dataclass(frozen=True)
class Expectation:
    """One line of a workload's [expectations].

    Attributes:
        limit: in µs, per second, or as a number.
    """

    metric: str
    wanted: str
    comparison: str
    limit: float

    @classmethod
    def of(cls, metric: str, wanted: object) -> "Expectation":
        """Return the expectation `metric = "wanted"`.

        Raises:
            ValueError: no such metric, or no such limit of the metric; names valid values.
        """
        if metric not in METRICS:
            raise ValueError(f"no metric {metric!r}{nearest(metric, list(METRICS))}")
        kind, _ = METRICS[metric]
        found = _TERMS.fullmatch(wanted) if isinstance(wanted, str) else None
        if found is None:
            raise ValueError(f"{metric}: expected <, <=, >, >= or == and a {kind}: {_GIVEN[kind]}")
        return cls(metric, found[0], found[1], _limit(kind, found[2]))

    def judge(self, headline: Mapping[str, Any]) -> "Judgement":
        """Compare the expectation with the numbers of a run."""
        kind, place = METRICS[self.metric]
        value: Any = headline
        for name in place:
            value = value.get(name) if isinstance(value, Mapping) else None
        if not isinstance(value, int | float):
            return Judgement(self, None, None)
        holds = _COMPARED[self.comparison](value, self.limit)
        if holds and self.metric == "recovery.time" and not headline["recovery"]["is_over"]:
            return Judgement(self, value, None, "the end of the run: it has not recovered")
        is_lower_bound = self.comparison in (">", ">=") and holds
        if kind == "rate" and headline.get("is_load_generator_limit") and not is_lower_bound:
            return Judgement(self, value, None, str(headline.get("limited_by")))
        return Judgement(self, value, holds)


@dataclass(frozen=True)
class Judgement:
    """An expectation with the number of a run.

    Attributes:
        value: the number in its metric's base unit (ns, 1/s, bytes); None if it was not measured.
        holds: None if the number decides nothing.
        limited_by: the load generator that limited the run, if the reason is a limit.
    """

    expectation: Expectation
    value: float | None
    holds: bool | None
    limited_by: str = ""

    @property
    def text(self) -> str:
        """The judgement in a line."""
        text = f"{self.expectation.metric} {self.expectation.wanted}"
        if self.limited_by:
            return f"{text}: not measured, the limit was {self.limited_by}"
        if self.value is None or self.holds is None:
            return f"{text}: not measured"
        return f"{text}: {'holds' if self.holds else 'fails'} with {self.number}"

    @property
    def number(self) -> str:
        """The measured number with its unit, as "12.3 ms"; "" if nothing was measured."""
        if self.value is None:
            return ""
        kind, _ = METRICS[self.expectation.metric]
        return {
            "duration": _duration(self.value),
            "rate": f"{self.value:.1f}/s",
            "count": format_number(self.value),
            "ratio": format_number(self.value, 3),
            "size": f"{self.value / (1 << 20):.1f} MiB",
        }[kind]

    def row(self) -> dict[str, Any]:
        """Return the judgement for --json."""
        return {
            "metric": self.expectation.metric,
            "wanted": self.expectation.wanted,
            "value": self.value,
            "holds": self.holds,
        }


def _duration(value_us: float) -> str:
    if value_us >= 10e6:
        return f"{format_number(value_us / 1e6, 3)} s"
    return f"{format_number(value_us / 1000, 3)} ms"


def _limit(kind: Kind, text: str) -> float:
    if kind == "duration":
        return parse_duration_ns(text) / 1000
    if kind == "count":
        if not text.isdecimal():
            raise ValueError(f"a count is a whole number, not {text!r}")
        return int(text)
    if kind == "ratio":
        return _ratio(text)
    if kind == "size":
        return parse_size_bytes(text)
    rate = parse_rate(text)
    if rate.per_second is None:
        raise ValueError('"max" is no limit')
    return float(rate.per_second)


def _ratio(text: str) -> float:
    try:
        return float(Decimal(text))
    except InvalidOperation:
        raise ValueError(f"a ratio is a number, not {text!r}") from None
