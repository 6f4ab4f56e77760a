"""The ledger: the amount of simulation, by commit, with the outcome.

The ledger is a document of plain values. Seeds that are already recorded for a clean commit are not
counted again, because they can only repeat their outcome. A run with uncommitted changes is
replaced by a newer run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.protocol_checks import simulation_of
from brokerd.simulator.search.ablations import CanaryReport, Caught
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.text import counted, format_number

SCHEMA = "pubsubctl/reliability/1"

_MS_PER_HOUR = 3_600_000
_OF_ALL_PROTOCOLS = (
    "simulated_ms",
    "broker_events",
    "published",
    "deliveries",
    "owed",
    "at_risk",
    "seeds_with_links_broken_for_ever",
    "stalled_by_broken_links",
)
_FAULT = "fault_"


@cache
def _sum_counters() -> tuple[str, ...]:
    """Return the counters of reports that the ledger adds up, in the order of its entries."""
    own = [name for protocol in DEFINITIONS for name in simulation_of(protocol).tallied]
    return (*_OF_ALL_PROTOCOLS, *own)


class LedgerError(Exception):
    """A file that is no ledger; names the found content; the user's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """The identity of an entry of the ledger: entries differ in at least one attribute.

    Attributes:
        commit: the commit; "" for none.
        dirty: the code differed from the commit.
        row: row of the campaign; "" for a swarm that draws everything.
        mutants: named bugs of all brokers; such runs are not counted in the totals.
        settings: parameters that no seed drew, as `name=value`.
        profile: requested profile of the protocol; "" for none.
    """

    commit: str
    dirty: bool
    protocol: str
    row: str = ""
    mutants: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    profile: str = ""


def empty_ledger() -> dict[str, Any]:
    return {"schema": SCHEMA, "total": {}, "latest": {}, "entries": [], "mutants": {}}


def check_ledger(document: Any) -> dict[str, Any]:
    """Return the document, if it is a ledger.

    Raises:
        LedgerError: the document is no ledger.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise LedgerError(f"schema = {found!r}; a ledger has {SCHEMA!r}")
    for key, kind in (("entries", list), ("mutants", dict)):
        if not isinstance(document.get(key), kind):
            raise LedgerError(f"{key} = {document.get(key)!r} is no {kind.__name__}")
    return document


def with_runs(
    document: Mapping[str, Any],
    campaign: Campaign,
    reports: Sequence[SeedReport],
    canaries: Sequence[CanaryReport] = (),
) -> dict[str, Any]:
    """Return the ledger with these runs added."""
    entries = [dict(entry) for entry in document["entries"]]
    identity = {
        "commit": campaign.commit,
        "dirty": campaign.dirty,
        "protocol": campaign.protocol,
        "row": campaign.row,
        "mutants": list(campaign.mutants),
        "settings": list(campaign.settings),
        "profile": campaign.profile,
    }
    entry = next((e for e in entries if {"profile": "", **e}.items() >= identity.items()), None)
    if entry is not None and campaign.dirty:
        entries.remove(entry)
        entry = None
    if entry is None:
        entry = {
            **identity,
            "seeds": [],
            "runs": 0,
            **dict.fromkeys(_sum_counters(), 0),
            "faults": {},
            "violations": [],
            "canaries": [],
        }
        entries.append(entry)
    _add_reports(entry, reports)
    known = {canary["seed"] for canary in entry["canaries"]}
    entry["canaries"] = entry["canaries"] + [
        {"seed": c.seed, "mutant": str(c.mutant), "failed_at": c.failed_at, "rule": c.rule}
        for c in canaries
        if c.seed not in known
    ]
    return {
        "schema": SCHEMA,
        "total": _total(entries),
        "latest": {
            "commit": campaign.commit,
            "dirty": campaign.dirty,
            **_total([entry for entry in entries if _is_of(entry, campaign)]),
        },
        "entries": entries,
        "mutants": dict(document["mutants"]),
    }


def with_caught(
    document: Mapping[str, Any], commit: str, caught: Iterable[Caught]
) -> dict[str, Any]:
    """Return the ledger with an updated table bug → first seed that finds a planted bug."""
    table = dict(document["mutants"])
    for one in caught:
        if one.lost:
            continue
        table[one.name] = {
            "commit": commit,
            "first_seed": one.first_seed,
            "rule": one.rule,
            "tried": one.tried,
            "command": one.command,
        }
    return {**document, "mutants": dict(sorted(table.items()))}


def describe_totals(sums: Mapping[str, int]) -> str:
    """Return the totals of `swarm.total` as a line for people."""
    broken, seeds = sums["seeds_with_links_broken_for_ever"], sums["seeds"]
    hours = sums["simulated_ms"] / _MS_PER_HOUR
    return (
        f"{counted(seeds, 'seed')}, {format_number(hours, 3)} simulated hours, "
        f"{counted(sums['faults_landed'], 'fault')} landed, "
        f"{counted(sums['deliveries'], 'delivery')}, {sums['at_risk']:,} at risk, "
        f"{counted(broken, 'seed')} with links broken for ever, "
        f"{counted(sums['violations'], 'violation')}"
    )


def _add_reports(entry: dict[str, Any], reports: Sequence[SeedReport]) -> None:
    known = {seed for first, last in entry["seeds"] for seed in range(first, last + 1)}
    new = [report for report in reports if report.seed not in known]
    for name in _sum_counters():
        entry[name] = entry.get(name, 0) + sum(report.counters.get(name, 0) for report in new)
    faults = dict(entry["faults"])
    for report in new:
        for name, count in report.counters.items():
            if name.startswith(_FAULT):
                kind = name.removeprefix(_FAULT)
                faults[kind] = faults.get(kind, 0) + count
    entry["faults"] = dict(sorted(faults.items()))
    entry["violations"] = entry["violations"] + [
        {"seed": report.seed, "rule": report.rule} for report in new if report.violations
    ]
    entry["seeds"] = _stretches({*known, *(report.seed for report in new)})
    entry["runs"] += len(new)


def _stretches(seeds: Iterable[int]) -> list[list[int]]:
    stretches: list[list[int]] = []
    for seed in sorted(seeds):
        if stretches and stretches[-1][1] + 1 == seed:
            stretches[-1][1] = seed
        else:
            stretches.append([seed, seed])
    return stretches


def _is_of(entry: Mapping[str, Any], campaign: Campaign) -> bool:
    """Return True if an entry was run on the same code."""
    return bool(entry["commit"] == campaign.commit and entry["dirty"] == campaign.dirty)


def _total(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals of all entries without a named bug, for any settings."""
    sound = [entry for entry in entries if not entry["mutants"]]
    faults: dict[str, int] = {}
    for entry in sound:
        for kind, count in entry["faults"].items():
            faults[kind] = faults.get(kind, 0) + count
    canaries = [canary for entry in sound for canary in entry["canaries"]]
    counted = {name: sum(entry.get(name, 0) for entry in sound) for name in _sum_counters()}
    return {
        "runs": sum(entry["runs"] for entry in sound),
        "simulated_hours": round(counted.pop("simulated_ms") / _MS_PER_HOUR, 3),
        **counted,
        "faults_landed": sum(faults.values()),
        "faults": dict(sorted(faults.items())),
        "violations": sum(len(entry["violations"]) for entry in sound),
        "canaries": len(canaries),
        "canaries_failed": sum(canary["failed_at"] >= 0 for canary in canaries),
    }
