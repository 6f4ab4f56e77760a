"""What a run knows of its hosts' clocks, and whether a latency between two of them may be told.

All stamps of a run are put on one time line, that of the host whose clock it names. A delivery
whose two stamps are of one clock has the latency of record. Between clocks the latency is off
by as much as the clocks' offset is uncertain, so it is told only where that is small beside it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CLOCK_FILE = "clock.jsonl"
MOST_ERROR = 0.10
"""Of the median; a one-way latency with more uncertainty than that is refused."""

WOBBLE_PPB = 1_000
LOOSE_DRIFT_PPB = 100_000


@dataclass(frozen=True)
class ClockRow:
    """One host's clock against the reference's, at one moment.

    Attributes:
        phase: before or after the load.
        same_clock: whether they are one clock; then there is nothing to estimate.
        t_ns: by the reference's clock.
        offset_ns: host minus reference.
        err_ns: how far off that may be.
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
    """Whether the latency between two clocks may be told, and why.

    Attributes:
        is_told: False where its error exceeds MOST_ERROR of its median.
        error_share: of the median; infinite where nothing is known.
    """

    is_told: bool
    error_share: float
    words: str


def judge_one_way(median_us: float, error_us: float | None) -> OneWay:
    """The rule: refused where the error of the clocks exceeds a tenth of the median.

    Args:
        median_us: of the latencies, as the stamps have them.
        error_us: by how much the offset of the clocks may be wrong; None where nobody compared
            them; 0 for one clock.
    """
    if error_us is None:
        return OneWay(False, math.inf, "refused: nobody compared the clocks")
    if error_us == 0:
        return OneWay(True, 0.0, "both stamps are of one clock")
    share = error_us / median_us if median_us > 0 else math.inf
    told = f"clocks known to ±{error_us / 1000:.3g} ms"
    if share > MOST_ERROR:
        why = "a median that is not positive" if median_us <= 0 else f"{share:.0%} of the median"
        return OneWay(False, share, f"refused: {told}, {why}")
    return OneWay(True, share, f"{told}, {share:.1%} of the median")


@dataclass(frozen=True)
class Clocks:
    """The clocks of one run.

    Attributes:
        reference: the host whose clock the run's time line is of.
    """

    reference: str
    rows: tuple[ClockRow, ...] = ()

    @classmethod
    def of_rows(cls, reference: str, rows: Iterable[Mapping[str, Any]]) -> "Clocks":
        """From the lines of clock.jsonl."""
        names = ClockRow.__dataclass_fields__
        return cls(reference, tuple(ClockRow(**{n: row[n] for n in names}) for row in rows))

    def share(self, a: str, b: str) -> bool:
        """Whether two hosts are known to have one clock.

        A run without rows is simulated, or older than the comparing of clocks, when all of a
        run was on one machine.
        """
        if a == b or not self.rows:
            return True
        known = {row.host_id: row.clock_id for row in self.rows}
        return a in known and known[a] == known.get(b)

    def offset_ns(self, host: str, stamp_ns: int) -> int:
        """What to take off a stamp of this host's clock; 0 where nothing is known of it."""
        rows = self._estimated(host)
        if not rows:
            return 0
        at_ns = stamp_ns - rows[0].offset_ns
        first, last = rows[0], rows[-1]
        if last.t_ns <= first.t_ns:
            return first.offset_ns
        share = min(1.0, max(0.0, (at_ns - first.t_ns) / (last.t_ns - first.t_ns)))
        return round(first.offset_ns + share * (last.offset_ns - first.offset_ns))

    def error_ns(self, host: str, until_ns: int) -> int | None:
        """By how much the offset of a host may be wrong at worst; None where nobody looked.

        Args:
            until_ns: the end of what was measured, by the reference's clock.
        """
        if self.share(host, self.reference):
            return 0
        rows = self._estimated(host)
        if not rows:
            return None
        worst = max(row.err_ns for row in rows)
        if len(rows) == 1:
            return worst + LOOSE_DRIFT_PPB * max(0, until_ns - rows[0].t_ns) // 10**9
        return worst + WOBBLE_PPB * (rows[-1].t_ns - rows[0].t_ns) // 2 // 10**9

    def error_between_ns(self, a: str, b: str, until_ns: int) -> int | None:
        """By how much a latency from one host to another may be wrong; 0 for one clock."""
        if self.share(a, b):
            return 0
        errors = self.error_ns(a, until_ns), self.error_ns(b, until_ns)
        if errors[0] is None or errors[1] is None:
            return None
        return errors[0] + errors[1]

    def machines(self, hosts: Iterable[str]) -> int:
        """How many different clocks these hosts have; hosts nobody looked at count as one each."""
        if not self.rows:
            return 1
        known = {row.host_id: row.clock_id for row in self.rows}
        return len({known.get(host, host) for host in hosts})

    def _estimated(self, host: str) -> list[ClockRow]:
        if self.share(host, self.reference):
            return []
        rows = [row for row in self.rows if row.host_id == host]
        return sorted(rows, key=lambda row: row.t_ns)
