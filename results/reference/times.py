"""Times: the hosts' clocks, with bounds of errors, and impossible times of records.

The times of a publisher follow from the seed. The phase of publisher p is mix(mix(seed ^
0x7E570001) + 1000003 p) modulo the period, and the k-th publication is due k / rate after the
phase. With Poisson arrivals gaps are -log(1 - u) / rate, u being the upper 53 bits of mix(mix(seed
^ 0x7E570002) + 1000003 p + k).

A run's time line is the clock of a reference host, from the start of the measure phase. Another
host's clock was compared with the reference clock before and after the load. In between, the offset
follows a straight line. Its error is bounded by the error of the comparisons plus a millionth of
half the time between them, or, after a single comparison, plus a ten thousandth of the time since.
Hosts with a common clock id have a common clock, as have all hosts in a run without comparisons.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import log1p
from pathlib import Path
from typing import Any

from results.reference.contents import Contents, clients_of, mix
from results.reference.files import STRETCH, Records, read_lines
from results.reference.specification import nanoseconds
from results.rules.terms import doubt

_SECOND_NS = 10**9
_ONE_IN = {"full": 1, "sampled": 16, "hist": 256}


@dataclass(frozen=True)
class TimeFacts:
    """The facts that limit the times of a run.

    Attributes:
        phases: begin and end on the time line, by name.
        to_timeline: moves a stamp of a host to the time line.
        error_ns: returns the error of a host's clock on the time line; None if unknown.
    """

    folder: Path
    manifest: Mapping[str, Any]
    workload: Mapping[str, Any]
    content: Contents
    phases: Mapping[str, tuple[int, int]]
    simulated: bool
    to_timeline: Callable[[int, str], int]
    error_ns: Callable[[str], int | None]

    def doubts(self, records: Sequence[tuple[str, Records]]) -> Iterator[str]:
        """Yield contradictions to the specification or the manifest.

        Args:
            records: the records of this run, with the layout.
        """
        if "measure" not in self.phases or self.manifest.get("state") == "aborted":
            return
        yield from self._check_phases()
        for layout, each in records:
            if layout == "publications":
                yield from self._check_schedule(each)
                yield from self._check_lateness(each)
            yield from self._check_bounds(each)
            if layout == "deliveries":
                yield from self._check_stretches(each)

    def _check_phases(self) -> Iterator[str]:
        if (self.manifest.get("labels") or {}).get("history"):
            return
        phases = {"warmup": "2s", "drain": "30s", **self.workload.get("phases", {})}
        for name in ("measure",) if self.simulated else ("measure", "warmup"):
            wanted = nanoseconds(phases.get(name, "0s"))
            if name not in self.phases:
                yield doubt(
                    "phase_length", phase=name, found="no time", wanted=f"{wanted / 1e9:.3f} s"
                )
                continue
            took = self.phases[name][1] - self.phases[name][0]
            if not -1_000_000 <= took - wanted <= 1_000_000:
                yield doubt(
                    "phase_length", phase=name, found=f"{took / 1e9:.3f} s",
                    wanted=f"{wanted / 1e9:.3f} s",
                )  # fmt: skip
        if self.phases["measure"][0]:
            yield doubt("phase_origin", phase="measure", s=self.phases["measure"][0] / 1e9)
        over, last = None, ""
        for name in ("deploy", "warmup", "measure", "drain"):
            if name in self.phases:
                if over is not None and self.phases[name][0] < over:
                    yield doubt("phases_overlap", before=last, after=name)
                over, last = self.phases[name][1], name
        took_s = (self.manifest.get("drain") or {}).get("took_s")
        if "drain" not in self.phases or not isinstance(took_s, int | float):
            return
        lasted = self.phases["drain"][1] - self.phases["drain"][0]
        bound = nanoseconds(phases.get("drain_bound", "0s")) or 10 * nanoseconds(phases["drain"])
        if took_s * 1e9 > lasted + _SECOND_NS:
            yield doubt("drain_length", found=f"{lasted / 1e9:.3f} s", wanted=f"{took_s:.3f} s")
        elif took_s * 1e9 > 2 * bound + 120 * _SECOND_NS:
            yield doubt("drain_length", found=f"{took_s:.3f} s", wanted=f"{bound / 1e9:.3f} s")

    # --- Schedules ------------------------------------------------------------------------------

    def _check_schedule(self, records: Records) -> Iterator[str]:
        begin, end = self.phases["measure"]
        if "warmup" in self.phases and not self.simulated:
            begin = self.phases["warmup"][0]
        entries = {name: entry for name, _, entry in clients_of(self.workload, "publishers", "pub")}
        record_place = f"raw/{records.name}"
        names = records.tables.get("publisher_names") or {}
        for number, source in enumerate(records.tables.get("publishers", ())):
            name = str(names.get(source, ""))
            mine = sorted(
                (row for row in records.rows if row["publisher"] == number),
                key=lambda row: (row["incarnation"], row["sequence"]),
            )
            if name not in entries or not mine:
                continue
            if early := sum(row["at_ns"] < row["intended_ns"] for row in mine):
                yield doubt("sent_early", file=record_place, source=source, n=early)
            fences = [row["attribute_set"] == self.content.fence_set for row in mine]
            data = [row for row, fence in zip(mine, fences, strict=True) if not fence]
            entry = entries[name]
            lead = 0 if self.simulated else self.phases["measure"][0] - begin
            parts = parts_of(entry.get("rate", "max"), lead, self.phases["measure"])
            if parts is None:
                if not self.simulated and any(row["at_ns"] != row["intended_ns"] for row in mine):
                    yield doubt(
                        "off_schedule", file=record_place, source=source, n=len(data), first=1
                    )
                continue
            index = self.content.publishers[name].index
            arrivals = str(entry.get("arrivals", "fixed"))
            wanted = due_times(parts, self.content.seed, index, arrivals)
            off: list[int] = []
            exact = self.error_ns(records.host) == 0
            slack = 1000 if exact else 50_001_000 + (end - begin) // 10_000
            ahead = 0
            if data:
                intended_ns = data[0]["intended_ns"]
                ahead = self.to_timeline(intended_ns, records.host) - intended_ns
            over = False
            for place, row in enumerate(data, start=1):
                at = next(wanted, None)
                if at is None or abs(row["intended_ns"] + ahead - begin - at) > slack:
                    off.append(place)
                over = at is None
            if off:
                yield doubt(
                    "off_schedule", file=record_place, source=source, n=len(off), first=off[0]
                )
            elif not over and fences[-1] and sum(fences) > 1 and next(wanted, None) is not None:
                yield doubt("schedule_unmet", file=record_place, source=source, n=len(data))

    def _check_lateness(self, records: Records) -> Iterator[str]:
        if self.simulated or self.manifest.get("loadgen_saturated"):
            return
        host, process, _ = records.name.split("/")
        stats = read_lines(self.folder / "raw" / host / process / "stats.jsonl")
        if stats and stats[-1].get("backlog"):
            return
        kept = 1000 * max([line.get("blocked_us") or 0 for line in stats], default=0)
        bound = (self.workload.get("thresholds") or {}).get("loadgen.lateness_p99", "< 50ms")
        limit = 1.1 * (nanoseconds(str(bound).lstrip("< ")) + kept)
        data = [
            r
            for r in records.rows
            if r["attribute_set"] != self.content.fence_set
            and self.to_timeline(r["intended_ns"], records.host) >= self.phases["measure"][0]
        ]
        late = sum(row["at_ns"] - row["intended_ns"] >= limit for row in data)
        if late > 1 + 0.01 * len(data):
            yield doubt("late_unreported", file=f"raw/{records.name}", n=late, ms=limit / 1e6)

    # --- Bounds and stretches ------------------------------------------------------------------

    def _check_bounds(self, records: Records) -> Iterator[str]:
        error = self.error_ns(records.host)
        stamps = [row["at_ns"] for row in records.rows if row["at_ns"] > 0]
        if error is None or not stamps:
            return
        was_seen = (self.manifest.get("drain") or {}).get("ended_by", "evidence") == "evidence"
        first = min(start for start, _ in self.phases.values()) - _SECOND_NS - error
        last = max(end for _, end in self.phases.values()) + error
        last += (5 if was_seen else 120) * _SECOND_NS
        ahead = self.to_timeline(stamps[0], records.host) - stamps[0]
        if n := sum(not first <= stamp + ahead <= last for stamp in stamps):
            yield doubt("outside", file=f"raw/{records.name}", n=n)

    def _check_stretches(self, records: Records) -> Iterator[str]:
        level = str((self.workload.get("load") or {}).get("records", "full"))
        place = f"raw/{records.name}"
        one_in = (records.tables.get("sample") or {}).get("one_in", 1)
        if one_in != _ONE_IN.get(level, 1):
            yield doubt("sample", file=place, found=one_in, wanted=level)
        stretches = sum(row["digest"] for row in records.rows if row["kind"] == STRETCH)
        if stretches and level == "full":
            yield doubt("stretches", file=place, n=stretches)
            return
        now = before = 0
        long: list[int] = []
        for row in records.rows:
            if row["at_ns"] > now:
                before, now = now, row["at_ns"]
            lasted = 1_000_000 * row["partition"] if row["kind"] == STRETCH else 0
            began = row["at_ns"] - lasted
            # An arrival 100 ms after its beginning ended the stretch.
            if lasted > 101_000_000 and before > began + 102_000_000:
                long.append(row["partition"])
        if long:
            yield doubt("long_stretch", file=place, n=len(long), ms=max(long))


def parts_of(
    rate: object, lead: int, measure: tuple[int, int]
) -> list[tuple[int, int, Fraction]] | None:
    """Return begin, length and rate of each part of a load; None for the highest rate.

    A shape repeats from the begin of the measurement. The warm-up has its first rate, and a ramp is
    twenty stairs.
    """
    begin, end = measure
    if not isinstance(rate, list):
        single = _per_second(str(rate))
        return None if single is None else [(0, lead + end - begin, single)]
    stairs: list[tuple[int, Fraction]] = []
    for step in rate:
        length, first = nanoseconds(str(step["for"])), _per_second(str(step["at"])) or Fraction(0)
        if "to" not in step:
            stairs.append((length, first))
            continue
        rise = (_per_second(str(step["to"])) or Fraction(0)) - first
        for k in range(20):
            part = length * (k + 1) // 20 - length * k // 20
            stairs.append((part, first + rise * Fraction(2 * k + 1, 40)))
    found = [(0, lead, stairs[0][1])] if lead else []
    at, whole = lead, lead + end - begin
    while at < whole:
        for length, value in stairs:
            if at < whole:
                found.append((at, min(length, whole - at), value))
            at += length
    return found


def due_times(
    parts: Sequence[tuple[int, int, Fraction]], seed: int, index: int, arrivals: str
) -> Iterator[int]:
    """Yield the due times of a publisher in all parts of a load."""
    for number, (begin, length, rate) in enumerate(parts):
        if rate:
            for at in due(seed, index + (number << 16), rate, arrivals, length):
                yield begin + at


def due(seed: int, index: int, rate: Fraction, arrivals: str, length_ns: int) -> Iterator[int]:
    """Yield the due times of a publisher, from the beginning of the load."""
    place = 1_000_003 * index
    if arrivals == "poisson":
        start, at, drawn = mix(seed ^ 0x7E570002) + place, 0.0, 0
        while True:
            share = (mix((mix(start % 2**64) + drawn) % 2**64) >> 11) / 2**53
            at, drawn = at - _SECOND_NS / float(rate) * log1p(-share), drawn + 1
            if at >= length_ns:
                return
            yield int(at)
    period = max(1, _SECOND_NS * rate.denominator // rate.numerator)
    phase = mix((mix(seed ^ 0x7E570001) + place) % 2**64) % period
    number = 0
    while (at_ns := phase + number * _SECOND_NS * rate.denominator // rate.numerator) < length_ns:
        yield at_ns
        number += 1


def _per_second(text: str) -> Fraction | None:
    if text == "max":
        return None
    number, period = text.split("/")
    of = {"s": 1, "min": 60, "h": 3600}[period.strip()]
    for unit, times in (("k", 1000), ("M", 10**6)):
        if number.strip().endswith(unit):
            return Fraction(number.strip()[:-1].strip()) * times / of
    return Fraction(number.strip()) / of


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
