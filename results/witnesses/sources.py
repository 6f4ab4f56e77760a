"""The sources of a run: fences and new incarnations.

A publisher sends one fence first and one fence last. Every publication between the fences is owed,
so a fence that is moved inwards hides losses. A publisher begins a new incarnation only in a new
session."""

from collections.abc import Iterator
from itertools import pairwise

from results.rules.terms import doubt
from results.witnesses.folder import RunFolder
from results.witnesses.rows import Rows

_SLACK_NS = 5_000_000
"""A session is logged a moment after its client may use it."""

_SIMULATED_LOOK_NS = 150_000_000
"""A simulation looks that often whether all subscriptions have started."""


def doubts_about_sources(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield differences between publishers' logs and sessions."""
    if folder.manifest.get("state") != "complete":
        return
    by_source: dict[str, list[int]] = {}
    for source, incarnation in sorted(rows.sources):
        by_source.setdefault(source, []).append(incarnation)
    for source, incarnations in by_source.items():
        first, last = incarnations[0], incarnations[-1]
        wanted = [(first, 1), (last, rows.sources[source, last].highest)]
        if folder.is_simulated:
            wanted[0] = _first_simulated(folder, rows, source, first) or wanted[0]
        found = [(i, fence) for i in incarnations for fence in rows.sources[source, i].fences]
        if found != wanted:
            yield doubt(
                "fences", source=source, found=_find_named(found), wanted=_find_named(wanted)
            )
        yield from _check_incarnations(folder, rows, source, incarnations)


def _first_simulated(
    folder: RunFolder, rows: Rows, source: str, incarnation: int
) -> tuple[int, int] | None:
    """The opening fence of a simulated source: sent once all subscriptions have started."""
    accepted = [
        folder.timeline.to_timeline(line["t_accepted_ns"], process.host)
        for process in folder.processes
        for line in process.lines("subscriptions.jsonl")
    ]
    for fence in rows.sources[source, incarnation].fences[:1]:
        sent_ns = rows.sent_ns(source, incarnation, fence)
        if accepted and sent_ns is not None and 0 <= sent_ns - max(accepted) <= _SIMULATED_LOOK_NS:
            return incarnation, fence
    return None


def _check_incarnations(
    folder: RunFolder, rows: Rows, source: str, incarnations: list[int]
) -> Iterator[str]:
    client = rows.client_of.get(source, "")
    sessions = [at for at, event, _ in folder.session_lines.get(client, ()) if event == "up"]
    for before, after in pairwise(incarnations):
        from_ns = rows.sources[source, before].last_ns - _SLACK_NS
        to_ns = rows.sources[source, after].first_ns + _SLACK_NS
        is_explained = any(from_ns <= at_ns <= to_ns for at_ns in sessions)
        if not sessions and not folder.is_witnessed:
            is_explained = any(
                row["target"] in (client, source.rpartition("/")[0]) for row in folder.fault_rows
            )
        if not is_explained:
            yield doubt("new_incarnation", source=source, incarnation=after)


def _find_named(fences: list[tuple[int, int]]) -> str:
    shown = [f"{incarnation}.{number}" for incarnation, number in fences[:4]]
    more = f" and {len(fences) - 4} more" if len(fences) > 4 else ""
    return (", ".join(shown) or "none") + more
