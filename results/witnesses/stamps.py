"""Events of brokers on the timeline of a run, and how exact their stamps are."""

from results.rules.terms import NEVER_NS
from results.witnesses.folder import Line, ProcessFolder, RunFolder

SLACK_NS = 500_000_000
JITTER_NS = 20_000_000
LAST_NS = 1_500_000_000
"""A broker's last statistics are written when the run ends."""


def list_events(folder: RunFolder, process: ProcessFolder, *names: str) -> list[tuple[int, Line]]:
    """Return the events of a broker with these names, with their times on the timeline."""
    return [
        (folder.timeline.to_timeline(line["t_ns"], process.host), line)
        for line in process.lines("events.jsonl")
        if line.get("event") in names
    ]


def clock_error_ns(folder: RunFolder, host: str) -> int:
    """Return the largest error of a host's stamps on the timeline; NEVER_NS if it is unknown."""
    reference = str((folder.manifest.get("clock") or {}).get("host_id", host))
    error_ns = folder.timeline.error_ns(host, reference)
    return NEVER_NS if error_ns is None else error_ns
