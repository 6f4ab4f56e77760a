"""The lines of a load generator about subscriptions: gaps, commits, sessions and absences."""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from results.reference.files import FileRefusal, read_lines
from results.reference.withholding import SessionRow, explained_until_ns
from results.rules.terms import STATE_LOST, Commit, Fault, Gap, Promises

ToTimeline = Callable[[int, str], int]
"""Returns a stamp of a host, moved to the time line of the run."""


def gaps_of(
    process: Path,
    subscription: str,
    places: Sequence[int],
    publishers: Container[str],
    promises: Promises,
    to_timeline: ToTimeline,
) -> list[Gap]:
    """Return the announced gaps of a subscription.

    Args:
        places: places in the file of deliveries, by delivery.
        publishers: the sources of all publishers.
    """
    path, host = process / "gaps.jsonl", process.parent.name
    gaps = [
        Gap(
            *_parse_range(path, line, publishers),
            str(line.get("reason")),
            bisect_left(places, line["place"]),
            to_timeline(_announcement_ns(path, line), host),
        )
        for line in read_lines(path)
        if _is_of(path, line, subscription, "reason", publishers=publishers)
    ]
    may_explain = gaps and promises.absence_gaps
    client = subscription.partition("/")[0]
    sessions = _sessions(process, client, to_timeline) if may_explain else []
    return [
        replace(gap, absent_until_ns=explained_until_ns(gap, sessions, promises)) for gap in gaps
    ]


def commits_of(path: Path, subscription: str, places: Sequence[int]) -> list[Commit]:
    """Return the commits of a subscription.

    Args:
        places: places in the file of deliveries, by delivery.
    """
    return [
        Commit(*_parse_range(path, line), bisect_left(places, line["place"]))
        for line in read_lines(path)
        if _is_of(path, line, subscription)
    ]


def _is_of(
    path: Path,
    line: Mapping[str, Any],
    subscription: str,
    *texts: str,
    publishers: Container[str] | None = None,
) -> bool:
    """Return True if a line belongs to a subscription; refuse any invalid line."""
    if not all(isinstance(line.get(name), str) for name in ("sub_id", "source", *texts)):
        raise FileRefusal(f"{path}: {dict(line)} has not the texts that it needs")
    _parse_range(path, line, publishers)
    return bool(line["sub_id"] == subscription)


def _parse_range(
    path: Path, line: Mapping[str, Any], publishers: Container[str] | None = None
) -> tuple[str, int, int, int]:
    """Return source, incarnation, first and last sequence number.

    Args:
        publishers: all publishers; other sources may be streams that began with a loss.
    """
    values = [line.get(name) for name in ("incarnation", "first", "last", "place")]
    if any(type(value) is not int or value < 0 for value in values):
        raise FileRefusal(f"{path}: {values} are no numbers")
    incarnation, first, last = (int(line[name]) for name in ("incarnation", "first", "last"))
    is_of_stream = publishers is not None and line["source"] not in publishers
    is_loss = is_of_stream and line.get("reason") == STATE_LOST
    most, end = (2**32, 2**63) if is_loss else (2**16, 2**47)
    if incarnation >= most or not 0 < first <= last < end:
        raise FileRefusal(f"{path}: {values} are no publications")
    return str(line["source"]), incarnation, first, last


def _announcement_ns(path: Path, line: Mapping[str, Any]) -> int:
    if type(line.get("t_ns")) is not int:
        raise FileRefusal(f"{path}: {dict(line)} has no time")
    return int(line["t_ns"])


def absences_of(process: Path, err_ns: int | None, to_timeline: ToTimeline) -> Iterator[Fault]:
    """Yield the absences of subscribers by the workload, for a load generator.

    Args:
        err_ns: maximum error between stamps of this host and of other hosts with load.
    """
    host = process.parent.name
    for place, line in enumerate(read_lines(process / "absences.jsonl"), start=1):
        name, left_ns, back_ns = map(line.get, ("subscriber", "t_left_ns", "t_back_ns"))
        if type(name) is not str or type(left_ns) is not int or type(back_ns) is not int:
            raise FileRefusal(f"{process}: {dict(line)} is no absence")
        from_ns, to_ns = to_timeline(left_ns, host), to_timeline(back_ns, host)
        yield Fault(
            f"churn-{process.name}-{place}", "churn", name, from_ns, from_ns, to_ns,
            (f"client:{name}",), err_ns,
        )  # fmt: skip


def _sessions(process: Path, client: str, to_timeline: ToTimeline) -> list[SessionRow]:
    """Return the sessions of a client in the order of time."""
    rows: list[SessionRow] = []
    for line in read_lines(process / "sessions.jsonl"):
        at_ns, broker, session = map(line.get, ("t_ns", "broker", "session"))
        if line.get("client") == client and type(at_ns) is int and type(broker) is str:
            is_up, number = line.get("event") == "up", session if type(session) is int else 0
            rows.append((to_timeline(at_ns, process.parent.name), is_up, broker, number))
    return sorted(rows)
