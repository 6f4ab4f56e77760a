"""Signs of a machine that was short of time, from the logs of a run folder."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from results.reference.files import FileRefusal, read_lines
from results.rules.terms import Fault, doubt

_SECOND_NS = 1_000_000_000
_STILL_NS = 5 * _SECOND_NS
_AFTER_NS = 15 * _SECOND_NS
_NAMED = 3
_WAITS = 0.5

Moved = Callable[[int, str], int]


def signs(
    folder: Path, manifest: Mapping[str, Any], faults: Sequence[Fault], moved: Moved
) -> Iterator[str]:
    """Yield the first few signs of every kind.

    Args:
        moved: moves a stamp of a host to the time line.
    """
    times: Counter[str] = Counter()
    everything = [*_silences(folder, faults, moved), *_pauses(folder, faults, moved)]
    for process, share in sorted((manifest.get("waited_share") or {}).items()):
        if share >= _WAITS and not any(_touches(fault, {process}) for fault in faults):
            everything.append(("short_of_cpu", {"who": process, "share": share}))
    for kind, values in everything:
        times[kind] += 1
        if times[kind] <= _NAMED:
            yield doubt(kind, **values)


def _silences(
    folder: Path, faults: Sequence[Fault], moved: Moved
) -> Iterator[tuple[str, dict[str, Any]]]:
    for process in sorted(folder.glob("raw/*/*")):
        is_load = any((process / f"{kind}.rec").exists() for kind in ("publications", "deliveries"))
        path = process / ("sessions.jsonl" if is_load else "events.jsonl")
        for line in read_lines(path):
            if (line.get("event"), line.get("reason")) not in (
                ("down", "silent") if is_load else ("session_lost", "silent"),
            ):
                continue
            a = str(line.get("client")) if is_load else process.name
            b = str(line.get("broker" if is_load else "peer")).split(".")[0]
            at_ns = moved(_time(path, line), process.parent.name)
            if _is_explained(faults, {a, b}, at_ns, at_ns):
                continue
            name = f"{process.parent.name}/{process.name}/{path.name}"
            values = {"file": name, "s": at_ns / _SECOND_NS}
            if is_load:
                yield "silent_client", {**values, "client": a, "broker": b}
            else:
                yield "silent_broker", {**values, "broker": a, "peer": b}


def _pauses(
    folder: Path, faults: Sequence[Fault], moved: Moved
) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob("raw/*/*/stats.jsonl")):
        process = path.parent
        stamps = [moved(_time(path, line), process.parent.name) for line in read_lines(path)]
        for place in range(1, len(stamps)):
            before_ns, after_ns = stamps[place - 1 : place + 1]
            if after_ns - before_ns <= _STILL_NS:
                continue
            if not _is_explained(faults, {process.name}, before_ns, after_ns):
                name = f"{process.parent.name}/{process.name}/{path.name}"
                yield (
                    "no_statistics",
                    {
                        "file": name,
                        "who": process.name,
                        "gap": (after_ns - before_ns) / _SECOND_NS,
                        "s": before_ns / _SECOND_NS,
                    },
                )


def _is_explained(faults: Sequence[Fault], ends: set[str], from_ns: int, to_ns: int) -> bool:
    return any(
        _touches(fault, ends)
        and fault.applied_ns is not None
        and fault.applied_ns <= to_ns + _SECOND_NS
        and (fault.healed_ns is None or fault.healed_ns + _AFTER_NS >= from_ns)
        for fault in faults
    )


def _touches(fault: Fault, ends: set[str]) -> bool:
    """Return True if a fault struck an end, or the link between two ends."""
    if fault.applied_ns is None:
        return False
    between = {f"{a}{sign}{b}" for a in ends for b in ends for sign in ("-", "->")}
    clients = {f"client:{name}" for name in ends}
    return not fault.struck.isdisjoint(ends | between | clients)


def _time(path: Path, line: Mapping[str, Any]) -> int:
    if type(line.get("t_ns")) is not int:
        raise FileRefusal(f"{path}: {dict(line)} has no time")
    return int(line["t_ns"])
