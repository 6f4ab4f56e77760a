"""A search for the highest rate, in a folder that survives whoever makes it."""

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
    """One rate that was tried.

    Attributes:
        rate: of each publisher, per second.
        stage: what for; see `bench.run.rate_search`.
        why_not: why it did not pass; "" where it did.
        limited_by: what was busiest.
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
    """One search, for the one process that carries it out.

    Attributes:
        directory: its folder.
        search: how far it has come.
        tried: every rate that was tried, in order.
    """

    def __init__(self, directory: RunDirectory, bounds: Bounds) -> None:
        self.directory = directory
        self.search = RateSearch(bounds)
        self.tried: list[Tried] = []
        for line in whole_lines(self.path / LEDGER):
            self._take(Tried(**line))

    @property
    def path(self) -> Path:
        """Of its folder."""
        return self.directory.path

    def note(self, probe: Probe, outcome: RunOutcome, p99_limit_us: float) -> Tried:
        """A rate was tried: what came of it is on disk when this returns."""
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
        """Return what was busiest at the lowest rate that failed; empty if none failed."""
        lowest = self.search.lowest_failed
        failed = [tried for tried in self.tried if tried.rate == lowest and tried.why_not]
        return failed[-1].limited_by if failed else ""

    def close(self, summary: Mapping[str, Any]) -> None:
        """All is known: write what it came to, and seal the folder."""
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
    """The search of this plan that was begun and not finished, or a new one.

    Args:
        runs: where run folders lie.
        name: of the experiment.
        plan: all that decides what is run, JSON-ready; with it the commit must be the same.
        hosts: it is run on.

    Raises:
        ConfigError: the search that was begun was on other hosts.
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
    """Why brokers do not bear the rate of a run; "" where they do.

    They do where everything that was owed came, what was published was acknowledged as fast as it
    came, so that nothing piled up, and one in a hundred took no longer than the limit.
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
