"""Rows of record files, against each other.

A fence is sent at the time for which it was intended. A delivery names no partition; only a notice
does. Numbers are reserved in blocks. A publication has one place in one stream, for each of its
subscribers, and the places of a source rise with its numbers.
"""

from collections.abc import Iterator

from brokerd.protocols.interface import LOSS_ACCEPTED
from results.rules.terms import STREAMS
from results.witnesses.folder import ProcessFolder, RunFolder, differ
from results.witnesses.promises import promises_of
from results.witnesses.rows import Rows

_CLOSED_ALIKE = (("publications", "acks", "intents"), ("deliveries", "positions"))
"""Layouts with the same string tables."""


def doubts_about_records(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield rows that other rows of the same run contradict."""
    if not folder.is_of_processes:
        return
    for process in folder.processes:
        yield from _check_rows(process, rows)
        if folder.is_closed:
            yield from _check_tables(process)
    if not folder.is_foreign:
        yield from _check_places(folder, rows)


def _check_rows(process: ProcessFolder, rows: Rows) -> Iterator[str]:
    for layout, subject, counts in (
        ("publications", "fences with another intended time", rows.shifted_fences),
        ("deliveries", "deliveries that name a partition", rows.partitioned),
        ("intents", "reservations of less than a block", rows.short_intents),
    ):
        if n := counts.get(process.place):
            name = f"{process.place}/{layout}.rec"
            yield differ(name, name, subject, n, 0)


def _check_tables(process: ProcessFolder) -> Iterator[str]:
    """Yield record files with other names than a file that the same load generator closed."""
    for layouts in _CLOSED_ALIKE:
        files = [f"{name}.rec.json" for name in layouts if process.has(f"{name}.rec.json")]
        tables = {name: process.document(name).get("tables") for name in files}
        for name in files[1:]:
            if tables[name] != tables[files[0]]:
                one, other = f"{process.place}/{name}", f"{process.place}/{files[0]}"
                yield differ(one, other, "tables", "others", "these")


def _check_places(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield wrong places of a run whose order the judges do not judge by places.

    A broker that accepted a loss may place a publication again. Each storage of a hierarchy has a
    stream with places of its own.
    """
    guarantee = folder.workload.get("guarantee") or {}
    order = guarantee.get("order", "promised")
    if order == "promised":
        order = promises_of(folder.workload, folder.topology).order
    is_lost = any(
        line.get("event") == LOSS_ACCEPTED
        for process in folder.processes
        for line in process.lines("events.jsonl")
    )
    if rows.displaced and order not in STREAMS and not is_lost:
        yield differ("positions.rec", "deliveries.rec", "wrong places", rows.displaced, 0)
    if rows.scattered and folder.overlay_kind != "hierarchy" and not is_lost:
        yield differ("positions.rec", "deliveries.rec", "further streams", rows.scattered, 0)
    for process in folder.processes:
        tables = process.document("positions.rec.json").get("tables") or {}
        used = rows.streams.get(process.place, {})
        if unused := [name for name in tables.get("streams") or () if name not in used]:
            name = f"{process.place}/positions.rec"
            yield differ(f"{name}.json", name, "streams", unused[:4], "no place in them")
