"""Offsets of the clocks of a run's hosts, and the permission to report latencies between clocks.

All stamps of a run are moved to a common time line, the clock of the reference host. A delivery
with both stamps from one clock has the latency of record. Between clocks the error of the latency
is the uncertainty of the clocks' offset, so a latency is reported only if this error is small in
comparison.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from brokerd.text import format_number

CLOCK_FILE = "clock.jsonl"
MOST_ERROR = 0.10
"""Limit of the error as a share of the median; a one-way latency with more uncertainty is
refused."""

WOBBLE_PPB = 1_000
LOOSE_DRIFT_PPB = 100_000


@dataclass(frozen=True)
class ClockRow:
    """A host's clock compared with the reference clock, at a moment.

    Attributes:
        phase: before or after the load.
        same_clock: both hosts have the same clock, so no estimate is needed.
        t_ns: time of the comparison, on the reference clock.
        offset_ns: host minus reference.
        err_ns: bound of the error of the offset.
    """

    phase: str
    host_id: str
    ref_host: str
    same_clock: bool
    clock_id: str
    t_ns: int
    offset_ns: int
    drift_ppb: float
    rtt_min_ns: int
    err_ns: int
    n: int


@dataclass(frozen=True)
class OneWay:
    """The permission to report a latency between two clocks, with the reason.

    Attributes:
        is_announced: False if the error exceeds MOST_ERROR of the median.
    """

    is_announced: bool
    words: str


def judge_one_way(median_us: float, error_us: float | None) -> OneWay:
    """Judge a latency: refused if the error of the clocks exceeds a tenth of the median.

    Args:
        median_us: median of the latencies by the stamps.
        error_us: bound of the error of the clocks' offset; None if the clocks were not compared; 0
            for one clock.
    """
    if error_us is None:
        return OneWay(False, "refused: the clocks were not compared")
    if error_us == 0:
        return OneWay(True, "both stamps are of one clock")
    share = error_us / median_us if median_us > 0 else math.inf
    text = f"clocks known to ±{format_number(error_us / 1000, 3)} ms"
    if share > MOST_ERROR:
        why = "a median that is not positive" if median_us <= 0 else f"{share:.0%} of the median"
        return OneWay(False, f"refused: {text}, {why}")
    return OneWay(True, f"{text}, {share:.1%} of the median")


@dataclass(frozen=True)
class Clocks:
    """The clocks of a run.

    Attributes:
        reference: the host with the clock of the run's time line.
    """

    reference: str
    rows: tuple[ClockRow, ...] = ()

    @classmethod
    def from_rows(cls, reference: str, rows: Iterable[Mapping[str, Any]]) -> "Clocks":
        """Read the lines of clock.jsonl."""
        names = ClockRow.__dataclass_fields__
        return cls(reference, tuple(ClockRow(**{n: row[n] for n in names}) for row in rows))

    def share(self, a: str, b: str) -> bool:
        """Return True if two hosts have the same clock.

        A run without rows is simulated, or older than the comparison of clocks, when all of a run
        was on one machine.
        """
        if a == b or not self.rows:
            return True
        known = {row.host_id: row.clock_id for row in self.rows}
        return a in known and known[a] == known.get(b)

    def offset_ns(self, host: str, stamp_ns: int) -> int:
        """Return the offset to subtract from a stamp of this host's clock; 0 if unknown."""
        rows = self._estimate(host)
        if not rows:
            return 0
        at_ns = stamp_ns - rows[0].offset_ns
        first, last = rows[0], rows[-1]
        if last.t_ns <= first.t_ns:
            return first.offset_ns
        share = min(1.0, max(0.0, (at_ns - first.t_ns) / (last.t_ns - first.t_ns)))
        return first.offset_ns + round(share * (last.offset_ns - first.offset_ns))

    def offsets_ns(self, host: str, stamps: Any) -> Any:
        """Return `offset_ns` of each stamp in an array.

        Two machines' clocks may be centuries apart, and a float has 53 bits: only the gain between
        the looks is multiplied.
        """
        rows = self._estimate(host)
        if not rows:
            return np.zeros(len(stamps), "i8")
        first, last = rows[0], rows[-1]
        if last.t_ns <= first.t_ns:
            return np.full(len(stamps), first.offset_ns, "i8")
        elapsed = stamps - first.offset_ns - first.t_ns
        share = np.clip(elapsed / (last.t_ns - first.t_ns), 0.0, 1.0)
        gained = np.rint(share * (last.offset_ns - first.offset_ns)).astype("i8")
        return first.offset_ns + gained

    def error_ns(self, host: str, until_ns: int) -> int | None:
        """Return the maximum error of a host's offset; None if the clock was not compared.

        Args:
            until_ns: the end of the measurement, on the reference clock.
        """
        if self.share(host, self.reference):
            return 0
        rows = self._estimate(host)
        if not rows:
            return None
        worst = max(row.err_ns for row in rows)
        if len(rows) == 1:
            return worst + LOOSE_DRIFT_PPB * max(0, until_ns - rows[0].t_ns) // 10**9
        return worst + WOBBLE_PPB * (rows[-1].t_ns - rows[0].t_ns) // 2 // 10**9

    def error_between_ns(self, a: str, b: str, until_ns: int) -> int | None:
        """Return the maximum latency error between hosts; 0 for a common clock, None if unknown."""
        if self.share(a, b):
            return 0
        errors = self.error_ns(a, until_ns), self.error_ns(b, until_ns)
        if errors[0] is None or errors[1] is None:
            return None
        return errors[0] + errors[1]

    def machines(self, hosts: Iterable[str]) -> int:
        """Return the number of clocks; a host that was not compared has its own clock."""
        if not self.rows:
            return 1
        known = {row.host_id: row.clock_id for row in self.rows}
        return len({known.get(host, host) for host in hosts})

    def _estimate(self, host: str) -> list[ClockRow]:
        if self.share(host, self.reference):
            return []
        rows = [row for row in self.rows if row.host_id == host]
        return sorted(rows, key=lambda row: row.t_ns)
