"""The hosts' clocks: what to take off their stamps, and how far off they may still be.

A run's time line is the clock of one host, from the start of the measure phase. Another host's
clock was compared with it before the load and after: in between its offset goes along a straight
line, by which it may be off by what the comparisons may be off, and by one millionth of half the
time between them; after a single comparison by a ten thousandth of the time since. Hosts with one
clock id have one clock, and so has everybody in a run that compared nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Clocks:
    """The lines of clock.jsonl.

    Args:
        reference: the host of the time line.
        until_ns: the end of what was measured, by its clock.
    """

    reference: str
    until_ns: int
    lines: tuple[Mapping[str, Any], ...]

    def are_one(self, a: str, b: str) -> bool:
        """Whether two hosts have one clock."""
        ids = {line["host_id"]: line["clock_id"] for line in self.lines}
        return a == b or not ids or (a in ids and ids.get(b) == ids[a])

    def offset_ns(self, host: str, stamp_ns: int) -> int:
        """What to take off a stamp of this host."""
        lines = self._lines_of(host)
        if not lines:
            return 0
        first, last = lines[0], lines[-1]
        elapsed = stamp_ns - first["offset_ns"] - first["t_ns"]
        length = last["t_ns"] - first["t_ns"]
        share = min(max(elapsed / length, 0.0), 1.0) if length > 0 else 0.0
        gained_ns = int(last["offset_ns"]) - int(first["offset_ns"])
        return int(first["offset_ns"]) + round(share * gained_ns)

    def error_ns(self, *hosts: str) -> int | None:
        """How far stamps of two hosts may be apart, or of one from the time line."""
        a, b = hosts if len(hosts) == 2 else (hosts[0], self.reference)
        if self.are_one(a, b):
            return 0
        errors = [self._own_error_ns(host) for host in (a, b)]
        return None if None in errors else sum(filter(None, errors))

    def _own_error_ns(self, host: str) -> int | None:
        if self.are_one(host, self.reference):
            return 0
        lines = self._lines_of(host)
        if not lines:
            return None
        worst: int = max(line["err_ns"] for line in lines)
        first_ns, last_ns = int(lines[0]["t_ns"]), int(lines[-1]["t_ns"])
        if len(lines) == 1:
            return worst + max(0, self.until_ns - first_ns) // 10_000
        return worst + (last_ns - first_ns) // 2 // 1_000_000

    def worst_ns(self, pairs: Iterable[tuple[str, str]]) -> int | None:
        """The largest of the errors between these hosts; None if one is not known."""
        errors = [self.error_ns(a, b) for a, b in pairs]
        return None if None in errors else max(filter(None, errors), default=0)

    def _lines_of(self, host: str) -> list[Mapping[str, Any]]:
        if self.are_one(host, self.reference):
            return []
        mine = (line for line in self.lines if line["host_id"] == host)
        return sorted(mine, key=lambda line: int(line["t_ns"]))
