"""Folders of rate searches, from which an interrupted search resumes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.run.outcome import RunOutcome
from bench.run.rate_search import Bounds, Probe, RateSearch
from bench.run.resumable import (
    HOSTS,
    Hosts,
    append_durably,
    begun_before,
    digest_of,
    whole_lines,
)
from bench.run.run_directory import RunDirectory, json_text, new_run_directory, point_latest

KIND: Final = "search"
LEDGER: Final = "probes.jsonl"
SCHEMA: Final = "pubsubctl/search/1"
_RATE_KEPT: Final = "rate"
_WRONG: Final = (
    "missing", "duplicate", "reordered", "wrong_match", "corrupted", "phantom", "fence_missing",
    "withheld_delivered",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tried:
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
        self.tried: list[Tried] = []
        for line in whole_lines(self.path / LEDGER):
            self._take(Tried(**line))

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return self.directory.path

    def note(self, probe: Probe, outcome: RunOutcome, p99_limit_us: float) -> Tried:
        """Record the outcome of a probe. The record is durable on return."""
        tried = Tried(
            rate=probe.rate,
            stage=probe.stage,
            run_id=outcome.run_directory.name,
            why_not=why_not(outcome, p99_limit_us),
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
        (self.path / "search.json").write_text(json_text(summary), encoding="utf-8")
        self.directory.end("complete")
        self.directory.add_to_index({"kind": KIND})
        point_latest(self.path)

    def _take(self, tried: Tried) -> None:
        probe = self.search.next()
        assert probe is not None, f"{tried} was tried when all was known"
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
        ConfigError: the unfinished search was on other hosts.
    """
    whole = {**plan, "bounds": asdict(bounds)}
    digest = digest_of(whole)
    directory = begun_before(runs, name, KIND, digest, hosts)
    if directory is None:
        directory = RunDirectory(new_run_directory(runs, name))
        about = {"kind": KIND, "plan_digest": digest, "protocol": plan.get("protocol")}
        directory.begin(name, about)
        directory.write_spec("plan.json", whole)
        directory.write_spec(HOSTS, hosts)
    return RateFolder(directory, bounds)


def why_not(outcome: RunOutcome, p99_limit_us: float) -> str:
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
        return f"publications piled up: limited by {outcome.limited_by or 'what nobody knows'}"
    p99_us = outcome.response_us.get("p99")
    if p99_us is None:
        return "nothing was delivered"
    if p99_us > p99_limit_us:
        return f"p99 {p99_us / 1000:.1f} ms"
    return ""
