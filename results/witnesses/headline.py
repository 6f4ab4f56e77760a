"""The headline of the manifest, against statistics, online counts and records."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from results.witnesses.folder import MANIFEST, RunFolder, differ
from results.witnesses.rows import Rows

LAST_COUNTERS: Final = ("resent_publications", "duplicates_received")
"""Counters of brokers whose last values a verdict shows."""
_TIMES: Final = {
    "response_us": "deliveries.rec",
    "service_us": "deliveries.rec",
    "acknowledged_us": "acks.rec",
}
"""Distributions of times, with the records that have these times."""
Figure = tuple[str, str, Any, Any]
"""The other file, the key of the headline, the stated and the wanted value."""


def _sum_statistics(folder: RunFolder) -> dict[str, int]:
    """Return the sums of broker counters: ended sessions between brokers, and the last totals."""
    found = dict.fromkeys(("sessions_lost", *LAST_COUNTERS), 0)
    for process in folder.processes:
        lines = process.lines("stats.jsonl")
        counts = [line["broker_sessions_lost"] for line in lines if "broker_sessions_lost" in line]
        steps = pairwise(counts)
        found["sessions_lost"] += sum(max(0, now - before) for before, now in steps)
        for name in LAST_COUNTERS:
            found[name] += lines[-1].get(name, 0) if lines else 0
    return found


def check_headline(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield figures of the headline that contradict other files."""
    headline = folder.manifest.get("headline")
    if headline is None:
        if folder.is_witnessed and not folder.is_simulated and rows.headline is not None:
            yield differ(MANIFEST, "*.rec", "headline", None, rows.headline.published)
        return
    figures = (
        *_list_of_processes(folder, headline),
        *_list_of_records(folder, rows, headline),
        *_list_repeated(folder, headline),
    )
    for other, subject, found, wanted in figures:
        if not is_same(found, wanted):
            yield differ(MANIFEST, other, f"headline.{subject}", found, wanted)


def _list_of_processes(folder: RunFolder, headline: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the figures of the online judges, and of brokers' statistics."""
    totals: dict[str, int] = {}
    for process in folder.processes:
        if process.has("online.json"):
            for kind, n in process.document("online.json").get("totals", {}).items():
                totals[kind] = totals.get(kind, 0) + n
    online = headline.get("online")
    # A load generator without subscribers has nothing to report, and leaves no file. The reports of
    # others arrived, and their files may not have been fetched.
    is_empty = isinstance(online, dict) and not any(online.values())
    if not totals and (is_empty or any(each.is_uncollected for each in folder.processes)):
        totals = online or {}
    yield "online.json", "online", online, totals
    for key, value in _sum_statistics(folder).items():
        if key in headline:
            yield "stats.jsonl", key, headline[key], value


def _list_of_records(
    folder: RunFolder, rows: Rows, headline: Mapping[str, Any]
) -> Iterator[Figure]:
    """Yield the figures that are computed from records of load generators."""
    counted, phase = rows.headline, folder.phase_ns("measure")
    if counted is None or phase is None:
        return
    length_ns = phase[1] - phase[0]
    per_s = counted.delivered * 1e9 / length_ns
    new_per_s = (counted.delivered - counted.earlier) * 1e9 / length_ns
    yield "publications.rec", "published", headline.get("published"), counted.published
    yield "deliveries.rec", "delivered", headline.get("delivered"), counted.delivered
    yield "deliveries.rec", "delivered_per_s", headline.get("delivered_per_s"), per_s
    if "delivered_earlier" in headline:
        earlier = headline["delivered_earlier"]
        yield "publications.rec", "delivered_earlier", earlier, counted.earlier
    if "delivered_new_per_s" in headline:
        stated = headline["delivered_new_per_s"]
        yield "publications.rec", "delivered_new_per_s", stated, new_per_s
    for key, records in _TIMES.items():
        found = getattr(counted, key)
        if found is not None and key in headline:
            yield records, key, headline[key], found


def _list_repeated(folder: RunFolder, headline: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the figures that the manifest has twice."""
    saturated = folder.manifest.get("loadgen_saturated")
    yield MANIFEST, "saturated", headline.get("saturated"), saturated
    if "limited_by" in folder.manifest:
        limited = folder.manifest["limited_by"]
        yield MANIFEST, "limited_by", headline.get("limited_by"), limited


def is_same(one: Any, other: Any) -> bool:
    """Return True if two JSON values are equal in their types, too."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and bool(one == other)
