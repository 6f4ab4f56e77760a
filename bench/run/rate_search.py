"""The search for the highest rate that brokers sustain, and its folder.

The search doubles the rate until a rate fails, halves the bracket until it is narrow, and confirms
both of its ends. No rate fails by a single probe: chance fails a probe in many, and a false failure
at a low rate would end the search far below the limit. All probes of a rate decide together, and
twice the failed rate of the bracket is probed, too. If brokers sustain a rate above a failed rate,
they are not monotone: the search continues above, and reports the failed rates below the result.

The next probe depends only on the probes before. An interrupted search repeats the ledger of its
folder, and continues.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from bench.run.outcome import RunOutcome
from bench.run.run_directory import RunDirectory, json_text, new_run_directory, point_latest
from bench.run.series import (
    HOSTS,
    PLAN,
    Hosts,
    append_durably,
    check_line,
    digest_of,
    find_unfinished,
    read_whole_lines,
)
from brokerd.errors import ConfigError
from brokerd.files import write_whole
from brokerd.text import is_plain_name

SHARES: Final = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05)
"""The knee: shares of the highest rate that passed; that rate itself has been run several times."""
MOST_PROBES: Final = 9
"""A rate that is still undecided after so many probes counts as failed."""
_DIGITS: Final = 3

Stage = Literal["bracket", "bisect", "repeat", "confirm", "knee"]


@dataclass(frozen=True, slots=True)
class Probe:
    """One run of the workload at a rate.

    Attributes:
        rate: of each publisher, per second.
        stage: the purpose of the probe. `repeat` probes a rate again that is not decided.
    """

    rate: float
    stage: Stage


@dataclass(frozen=True, slots=True)
class Bounds:
    """The extent of a search.

    Attributes:
        start: the first rate, per second.
        limit: the highest rate that is probed.
        resolution: the width of a narrow bracket, as a share of its lower end.
        confirmations: the probes that must pass at the highest rate, and fail at the lowest one
            above it.
    """

    start: float
    limit: float
    resolution: float = 0.05
    confirmations: int = 3

    def __post_init__(self) -> None:
        assert 0 < self.start <= self.limit, (self.start, self.limit)
        assert 0 < self.resolution < 1, self.resolution
        assert self.confirmations >= 1, self.confirmations


@dataclass(slots=True)
class Votes:
    """The probes of one rate.

    Attributes:
        passed: probes that passed.
        failed: probes that failed.
    """

    passed: int = 0
    failed: int = 0

    @property
    def has_passed(self) -> bool | None:
        """True if brokers sustain the rate; None while the probes do not decide.

        A success decides, unless as many probes fail. Two failures decide, unless as many probes
        pass.
        """
        if self.passed > self.failed:
            return True
        if self.failed > self.passed and self.failed >= 2:
            return False
        return False if self.passed + self.failed >= MOST_PROBES else None


@dataclass(slots=True)
class RateSearch:
    """A search for the highest sustainable rate.

    Attributes:
        votes: the probes of each rate, without those of the knee.
    """

    bounds: Bounds
    votes: dict[float, Votes] = field(default_factory=dict)
    _drawn: list[float] = field(default_factory=list)

    @property
    def highest(self) -> float | None:
        """The highest rate that passed; None if none did."""
        return max(self._decide(passed=True), default=None)

    @property
    def lowest_failed(self) -> float | None:
        """The lowest rate that failed above the highest that passed; None if none did."""
        highest = self.highest
        failed = self._decide(passed=False)
        return min((rate for rate in failed if highest is None or rate > highest), default=None)

    @property
    def failed_below(self) -> tuple[float, ...]:
        """The rates that failed below the highest that passed; empty for monotone brokers."""
        highest = self.highest
        failed = self._decide(passed=False)
        return tuple(sorted(rate for rate in failed if highest is not None and rate < highest))

    def next(self) -> Probe | None:
        """Return the next probe; None at the end of the search."""
        for rate, votes in self.votes.items():
            if votes.has_passed is None:
                return Probe(rate, "repeat")
        highest, lowest = self.highest, self.lowest_failed
        if lowest is None:
            if highest is None:
                return Probe(_round(self.bounds.start), "bracket")
            if highest < _round(self.bounds.limit):
                return Probe(_round(min(2 * highest, self.bounds.limit)), "bracket")
        elif (above := self._above(highest, lowest)) is not None:
            return Probe(above, "bracket")
        elif highest is None:
            # Even the first rate is too high: search downward to 1/64 of the first rate.
            if lowest <= self.bounds.start / 64:
                return None
            return Probe(_round(lowest / 2), "bracket")
        elif (between := self._choose_between(highest, lowest)) is not None:
            return Probe(between, "bisect")
        assert highest is not None, "nothing passed, and nothing failed"
        if self.votes[highest].passed < self.bounds.confirmations:
            return Probe(highest, "confirm")
        # Chance may have failed the whole bracket, so its upper end is confirmed, too.
        for rate in () if lowest is None else (lowest, max(self._decide(passed=False))):
            if self.votes[rate].failed < self.bounds.confirmations:
                return Probe(rate, "confirm")
        return next(self._knee(highest), None)

    def note(self, probe: Probe, *, has_passed: bool) -> None:
        """Record the result of a probe; one of the knee decides nothing."""
        if probe.stage == "knee":
            self._drawn.append(probe.rate)
            return
        votes = self.votes.setdefault(probe.rate, Votes())
        if has_passed:
            votes.passed += 1
        else:
            votes.failed += 1

    def _decide(self, *, passed: bool) -> Iterator[float]:
        return (rate for rate, votes in self.votes.items() if votes.has_passed is passed)

    def _above(self, highest: float | None, lowest: float) -> float | None:
        """Return twice a rate that failed; None if the bracket is narrower, or ends above it."""
        if highest is not None and lowest < _round(2 * highest):
            return None
        above = _round(min(2 * lowest, self.bounds.limit))
        return above if above > max(self.votes) else None

    def _choose_between(self, highest: float, lowest: float) -> float | None:
        """Return a rate between these two; None if the bracket is narrow."""
        if lowest <= highest * (1 + self.bounds.resolution):
            return None
        middle = _round(math.sqrt(highest * lowest))
        return middle if highest < middle < lowest else None

    def _knee(self, highest: float) -> Iterator[Probe]:
        for share in SHARES:
            rate = _round(share * highest)
            if rate not in self._drawn and rate <= self.bounds.limit:
                yield Probe(rate, "knee")


def _round(rate: float) -> float:
    """Return a rate with three digits, as people read it and a workload states it."""
    digits = _DIGITS - 1 - math.floor(math.log10(rate))
    return round(rate, digits)


KIND: Final = "search"
LEDGER: Final = "probes.jsonl"
SCHEMA: Final = "pubsubctl/search/1"
_RATE_KEPT: Final = "rate"
_WRONG: Final = (
    "missing", "duplicate", "reordered", "wrong_match", "corrupted", "phantom", "fence_missing",
    "withheld_delivered",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TriedRate:
    """A rate that was probed.

    Attributes:
        rate: rate of each publisher, per second.
        stage: purpose of the probe; see `bench.run.rate_search`.
        why_not: reason of a failure; "" after a success.
        limited_by: the busiest process.
    """

    rate: float
    stage: str
    run_id: str
    why_not: str
    p50_us: float
    p99_us: float
    delivered_per_s: float
    cpu_us: float
    limited_by: str


_LINE: Final[Mapping[str, tuple[type, ...]]] = {
    "rate": (int, float),
    "stage": (str,),
    "run_id": (str,),
    "why_not": (str,),
    "p50_us": (int, float),
    "p99_us": (int, float),
    "delivered_per_s": (int, float),
    "cpu_us": (int, float),
    "limited_by": (str,),
}
"""The types of a line of the ledger."""


class RateFolder:
    """The folder of one search, for the only process that carries out the search.

    Attributes:
        directory: the folder.
        search: state of the search.
        tried: every probed rate, in order.
    """

    def __init__(self, directory: RunDirectory, bounds: Bounds) -> None:
        self.directory = directory
        self.search = RateSearch(bounds)
        self.tried: list[TriedRate] = []
        for number, line in enumerate(read_whole_lines(self.path / LEDGER), start=1):
            self._take(self._read_line(line, f"{self.path / LEDGER}, line {number}"))

    @property
    def path(self) -> Path:
        return self.directory.path

    def note(self, probe: Probe, outcome: RunOutcome, p99_limit_us: float) -> TriedRate:
        """Record the outcome of a probe. The record is durable on return."""
        tried = TriedRate(
            rate=probe.rate,
            stage=probe.stage,
            run_id=outcome.run_directory.name,
            why_not=explain_failure(outcome, p99_limit_us),
            p50_us=outcome.response_us.get("p50", 0.0),
            p99_us=outcome.response_us.get("p99", 0.0),
            delivered_per_s=outcome.delivered_per_s,
            cpu_us=outcome.broker_cpu_us_per_message_mean,
            limited_by=outcome.limited_by,
        )
        append_durably(self.path / LEDGER, asdict(tried))
        self._take(tried)
        return tried

    def first_limit(self) -> str:
        """Return the busiest process at the lowest rate that failed; "" if no rate failed."""
        lowest = self.search.lowest_failed
        failed = [tried for tried in self.tried if tried.rate == lowest and tried.why_not]
        return failed[-1].limited_by if failed else ""

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write the summary after the last probe, and seal the folder."""
        assert self.search.next() is None, f"{self.search.next()} was not tried"
        write_whole(self.path / "search.json", json_text(summary))
        self.directory.end("complete")
        self.directory.add_to_index({"kind": KIND})
        point_latest(self.path)

    def _read_line(self, line: Mapping[str, Any], where: str) -> TriedRate:
        """Return a probe of the ledger.

        Raises:
            ConfigError: it is none, or not the next one of this search.
        """
        probe = self.search.next()
        check_line(line, _LINE, where)
        if not is_plain_name(line["run_id"]) or any(
            tried.run_id == line["run_id"] for tried in self.tried
        ):
            raise ConfigError(f"{where}: run_id = {line['run_id']!r}: not the run of this probe")
        tried = TriedRate(**line)
        if probe is None or (probe.rate, probe.stage) != (tried.rate, tried.stage):
            wanted = "no probe" if probe is None else f"{probe.stage} at {probe.rate}/s"
            raise ConfigError(
                f"{where}: {tried.stage} at {tried.rate}/s: the search has {wanted} next; remove "
                "the folder, and search again"
            )
        return tried

    def _take(self, tried: TriedRate) -> None:
        probe = self.search.next()
        assert probe is not None, f"{tried} was tried although the search had ended"
        assert (probe.rate, probe.stage) == (tried.rate, tried.stage), (probe, tried)
        self.search.note(probe, has_passed=not tried.why_not)
        self.tried.append(tried)


def open_search(
    runs: Path, name: str, plan: Mapping[str, Any], bounds: Bounds, *, hosts: Hosts
) -> RateFolder:
    """Return the unfinished search of this plan, or a new search.

    Args:
        runs: folder of run folders.
        name: name of the experiment.
        plan: everything that decides the runs, JSON-ready; the commit must be the same, too.
        hosts: hosts of the search.

    Raises:
        ConfigError: the unfinished search was on other hosts, or its ledger is not of this search.
    """
    whole = {**plan, "bounds": asdict(bounds)}
    digest = digest_of(whole)
    directory = find_unfinished(runs, name, KIND, digest, hosts)
    if directory is None:
        directory = RunDirectory(new_run_directory(runs, name))
        about = {"kind": KIND, "plan_digest": digest, "protocol": plan.get("protocol")}
        directory.begin(name, about)
        directory.write_spec(PLAN, whole)
        directory.write_spec(HOSTS, hosts)
    try:
        return RateFolder(directory, bounds)
    except ConfigError:
        directory.leave()
        raise


def explain_failure(outcome: RunOutcome, p99_limit_us: float) -> str:
    """Return the reason why brokers do not sustain the rate of a run; "" if brokers sustain it.

    Brokers sustain a rate if all owed deliveries arrive, publications are acknowledged as fast as
    they arrive, without a backlog, and the 99th percentile is within the limit.
    """
    if outcome.state != "complete":
        return "; ".join(outcome.reasons) or f"the run is {outcome.state}"
    for name in _WRONG:
        if count := outcome.online.get(name, 0):
            return f"{count:,} {name}"
    if not outcome.limited_by.startswith(_RATE_KEPT):
        return f"publications piled up: limited by {outcome.limited_by or 'an unknown resource'}"
    p99_us = outcome.response_us.get("p99")
    if p99_us is None:
        return "nothing was delivered"
    if p99_us > p99_limit_us:
        return f"p99 {p99_us / 1000:.1f} ms"
    return ""
