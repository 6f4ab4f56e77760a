"""Signs of a machine that was short of time: pauses and silence that no fault explains.

No sign excuses a proven loss. Signs leave open the deliveries that were outstanding when a drain
ended in silence: a process without processor time is as silent as a process without deliveries.
Signs leave open too why publications were withheld: a broker takes a neighbour without processor
time for a failed one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from results.rules.terms import NEVER_NS, Fault, doubt
from results.tables.json_files import IntegrityError
from results.tables.logs import Logs, Process
from results.tables.manifest import Run

SECOND_NS = 1_000_000_000
LONGEST_GAP_NS = 5 * SECOND_NS
"""Limit of the time between two samples of a process that takes one sample per second."""
SETTLING_NS = 15 * SECOND_NS
SHORT_OF_CPU = 0.5
MOST_NAMED = 3


def busy_signs(run: Run, logs: Logs) -> Iterator[str]:
    """Yield the signs, at most MOST_NAMED of a kind.

    Raises:
        IntegrityError: a line of a log has no time.
    """
    struck = _Struck(run.faults)
    found = [*_silent_sessions(run, logs, struck), *_gaps(run, logs, struck)]
    waits = run.manifest.get("waited_share") or {}
    found += [
        ("short_of_cpu", doubt("short_of_cpu", who=process, share=share))
        for process, share in sorted(waits.items())
        if share >= SHORT_OF_CPU and not struck.is_ever_struck(process)
    ]
    named: dict[str, int] = {}
    for kind, text in found:
        named[kind] = named.get(kind, 0) + 1
        if named[kind] <= MOST_NAMED:
            yield text


def has_ended_in_silence(run: Run) -> bool:
    """Return True if the drain ended before evidence that everything had arrived."""
    drain = run.manifest.get("drain")
    return isinstance(drain, dict) and drain.get("ended_by") not in (None, "evidence")


@dataclass(frozen=True)
class _Struck:
    """The times of faults, by target."""

    faults: Sequence[Fault]

    def is_ever_struck(self, *names: str) -> bool:
        return self.between(-NEVER_NS, NEVER_NS, *names)

    def between(self, from_ns: int, to_ns: int, *names: str) -> bool:
        """Return True if a fault struck an end, or the link between two ends, in a time."""
        links = {f"{a}{sign}{b}" for a in names for b in names for sign in ("-", "->")}
        parts = {*names, *links, *(f"client:{name}" for name in names)}
        for fault in self.faults:
            if fault.applied_ns is None or parts.isdisjoint(fault.struck):
                continue
            over_ns = NEVER_NS if fault.healed_ns is None else fault.healed_ns + SETTLING_NS
            if fault.applied_ns - SECOND_NS <= to_ns and from_ns <= over_ns:
                return True
        return False


def _silent_sessions(run: Run, logs: Logs, struck: _Struck) -> Iterator[tuple[str, str]]:
    """Yield sessions that ended in silence, from the logs of clients and brokers."""
    for process in logs.processes:
        is_broker = process.role == "broker"
        name = "events.jsonl" if is_broker else "sessions.jsonl"
        ended, self_, other = (
            ("session_lost", None, "peer") if is_broker else ("down", "client", "broker")
        )
        for line in process.lines(name):
            if line.get("event") != ended or line.get("reason") != "silent":
                continue
            here = process.name if self_ is None else str(line.get(self_))
            there = str(line.get(other)).partition(".")[0]
            at_ns = run.to_timeline(_stamp(process, name, line), process.host)
            if struck.between(at_ns, at_ns, here, there):
                continue
            file, s = f"{process.host}/{process.name}/{name}", at_ns / SECOND_NS
            if is_broker:
                text = doubt("silent_broker", file=file, broker=here, peer=there, s=s)
            else:
                text = doubt("silent_client", file=file, client=here, broker=there, s=s)
            yield "silent_broker" if is_broker else "silent_client", text


def _gaps(run: Run, logs: Logs, struck: _Struck) -> Iterator[tuple[str, str]]:
    """Yield gaps between a process's samples of its own statistics."""
    for process in logs.processes:
        before_ns: int | None = None
        for line in process.lines("stats.jsonl"):
            at_ns = run.to_timeline(_stamp(process, "stats.jsonl", line), process.host)
            if (
                before_ns is not None
                and at_ns - before_ns > LONGEST_GAP_NS
                and not struck.between(before_ns, at_ns, process.name)
            ):
                file = f"{process.host}/{process.name}/stats.jsonl"
                gap_ns = at_ns - before_ns
                yield (
                    "no_statistics",
                    doubt(
                        "no_statistics", file=file, who=process.name, gap=gap_ns / SECOND_NS,
                        s=before_ns / SECOND_NS,
                    ),
                )  # fmt: skip
            before_ns = at_ns


def _stamp(process: Process, name: str, line: dict[str, Any]) -> int:
    if type(line.get("t_ns")) is not int:
        raise IntegrityError(f"{process.folder / name}: t_ns = {line.get('t_ns')!r} is no time")
    return int(line["t_ns"])
