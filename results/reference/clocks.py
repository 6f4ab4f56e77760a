"""The hosts' clocks: the offsets of their stamps, and the bounds of the remaining errors.

A run's time line is the clock of a reference host, from the start of the measure phase. Another
host's clock was compared with the reference clock before and after the load. In between, the offset
follows a straight line. Its error is bounded by the error of the comparisons plus a millionth of
half the time between them, or, after a single comparison, plus a ten thousandth of the time since.
Hosts with a common clock id have a common clock, as have all hosts in a run without comparisons.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Clocks:
    """The lines of clock.jsonl.

    Args:
        reference: the host of the time line.
        until_ns: the end of the measurement, on the reference clock.
    """

    reference: str
    until_ns: int
    lines: tuple[Mapping[str, Any], ...]

    @cached_property
    def _ids(self) -> Mapping[str, Any]:
        return {line["host_id"]: line["clock_id"] for line in self.lines}

    @cached_property
    def _lines_by_host(self) -> dict[str, list[Mapping[str, Any]]]:
        """The comparisons of each host with the reference clock, once they were asked for."""
        return {}

    def is_same_clock(self, a: str, b: str) -> bool:
        """Return True if two hosts have a common clock."""
        ids = self._ids
        return a == b or not ids or (a in ids and ids.get(b) == ids[a])

    def offset_ns(self, host: str, stamp_ns: int) -> int:
        """Return the offset to subtract from a stamp of this host."""
        lines = self._lines_of(host)
        if not lines:
            return 0
        first, last = lines[0], lines[-1]
        if first is last:
            return int(first["offset_ns"])
        elapsed = stamp_ns - first["offset_ns"] - first["t_ns"]
        length = last["t_ns"] - first["t_ns"]
        share = min(max(elapsed / length, 0.0), 1.0) if length > 0 else 0.0
        gained_ns = int(last["offset_ns"]) - int(first["offset_ns"])
        return int(first["offset_ns"]) + round(share * gained_ns)

    def error_ns(self, *hosts: str) -> int | None:
        """Return the maximum error between stamps of two hosts, or of a host on the time line."""
        a, b = hosts if len(hosts) == 2 else (hosts[0], self.reference)
        if self.is_same_clock(a, b):
            return 0
        errors = [self._error_of_ns(host) for host in (a, b)]
        return None if None in errors else sum(filter(None, errors))

    def _error_of_ns(self, host: str) -> int | None:
        if self.is_same_clock(host, self.reference):
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
        """Return the largest of the errors between these hosts; None if any error is unknown."""
        errors = [self.error_ns(a, b) for a, b in pairs]
        return None if None in errors else max(filter(None, errors), default=0)

    def _lines_of(self, host: str) -> list[Mapping[str, Any]]:
        found = self._lines_by_host
        if host not in found:
            mine = [line for line in self.lines if line["host_id"] == host]
            if self.is_same_clock(host, self.reference):
                mine = []
            found[host] = sorted(mine, key=lambda line: int(line["t_ns"]))
        return found[host]
