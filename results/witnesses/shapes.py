"""The files of a run folder, and the keys of their lines, as processes write them.

No process writes a file or a key that this module does not name, and each process writes all keys
of a line. Other files and keys were added or removed by hand. Values are the business of the other
modules.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from results.rules.terms import doubt
from results.witnesses.folder import FAULT_JOURNAL, FAULTS, JOURNAL, MANIFEST, PLAN, Line, RunFolder

_RECORDS: Final = ("acks", "deliveries", "intents", "positions", "publications")
_LINES: Final = ("absences", "commits", "crashes", "gaps", "sessions", "stats", "subscriptions")
_PROCESS_FILES: Final = frozenset(
    (
        *(f"{name}.rec" for name in _RECORDS),
        *(f"{name}.rec.json" for name in _RECORDS),
        *(f"{name}.jsonl" for name in _LINES),
        *("events.jsonl", "exit.json", "online.json", "setting.json", "stdout.log", "stderr.log"),
    )
)
_DERIVED: Final = ("verdict.json", "report.html", "evidence", "figures", "tables")
"""Files and folders that the judges, figures and pages add to a run."""
_RUN_FILES: Final = frozenset(("SHA256SUMS", "clock.jsonl", JOURNAL, MANIFEST))
_FAULT_FILES: Final = frozenset((FAULTS, FAULT_JOURNAL, PLAN))
_SPECIFICATION: Final = frozenset(
    f"spec/{name}"
    for name in (
        *("workload.toml", "topology.toml", "faults.toml", "inventory.toml"),
        *("changes.toml", "cli.json", "overlay.json", "placement.json", "system.json"),
    )
)

_FAULT: Final = "fault_id step verb target params stage evidence"
_JOURNAL_LINES: Final[Mapping[str, str]] = {
    "specification": "digest promises",
    "phase": "phase at_ns",
    "fault": f"{_FAULT} healed_by host_stamps",
    "processors": "stage seconds",
    "rolling": "stage at_ns",
    "loss_accepted": "broker cause loss signature",
    "clocks_not_sampled": "reason",
    "closed": "process digests",
    "collected": "digests",
    "end": "state reasons manifest",
}
"""Keys of lines of the journal by `what`, without `utc`, `t_ns` and `what`."""

_COUNTED: Final = (
    "absorbed_messages absorbed_publications absorbed_bytes dropped_frames refused_connections "
    "forwarded_since_applied sessions_down limited_messages written_bytes refused_writes "
    "slowed_writes"
)
LEARNED: Final = "learned"
"""The stage of lines of the fault journal that the journal of the controller does not repeat."""
_EVENTS: Final[Mapping[str, str]] = {
    "run_begun": "run_id broker schema ?parameters",
    "run_ended": "run_id counters",
    "loss_accepted": "cause loss signature",
    "state_restoring": "cause",
    "state_restored": "replica rows records",
    "retention_changed": "pubend pubends policy reason gap_age_ns",
    "session_established": "peer session incarnation opened",
    "session_lost": "peer session reason",
    "subscription_started": "client number",
    "fault_applied": "fault_id verb peer direction",
    "fault_counted": f"fault_id {_COUNTED}",
    "fault_healed": f"fault_id verb by {_COUNTED}",
    "partition_new": "number nodes",
    "partition_gone": "number",
    "link_cut": "peer",
    "disk_full": "bytes error",
    "disk_has_room": "after_ns",
    "stopping": "signal",
    "stopped": "",
}
"""Keys of events that a rule reads, without `t_ns` and `event`."""

_FILES: Final[Mapping[str, str]] = {
    "clock.jsonl": "phase host_id ref_host same_clock clock_id t_ns offset_ns drift_ppb "
    "rtt_min_ns err_ns n",
    FAULTS: "fault_id step verb mode target params t_planned_ns t_requested_ns t_applied_ns "
    "t_observed_ns t_heal_requested_ns t_healed_ns t_recovered_ns state healed_by evidence "
    "absorbed_msgs absorbed_bytes host_stamps",
    PLAN: "fault_id step verb target at_ns after delay_ns duration_ns ended_by params",
}
_PROCESS_LINES: Final[Mapping[str, str]] = {
    "sessions.jsonl": "t_ns client broker session event reason",
    "subscriptions.jsonl": "sub_id subscriber broker predicate t_issued_ns t_accepted_ns",
    "crashes.jsonl": "t_ns client moment",
    "absences.jsonl": "subscriber t_left_ns t_back_ns",
    "commits.jsonl": "t_ns sub_id source incarnation first last place",
    "gaps.jsonl": "t_ns sub_id source incarnation first last reason place",
}
_PROCESS_DOCUMENTS: Final[Mapping[str, str]] = {
    "exit.json": "process state pid exit_code exit_signal exit_cause t_start_ns t_exit_ns usage",
    "online.json": "schema run_id lanes totals ?streams",
    "setting.json": "schema process run_id protocol topology_digest deployment_id seed "
    "specification_digest records ?calm ?guarantee ?bars",
}
_USAGE: Final = "user_s system_s peak_rss_bytes"
_LOAD_STATISTICS: Final = (
    "t_ns proc_id offered sent acknowledged rejected backlog open delivered blocked_us skipped "
    "late_p99_us late_max_us saturated cpu_ratio rss_bytes withheld"
)
_LAST_SAMPLE: Final = "private_bytes"
"""The counter that brokers take in some samples only."""

_MANIFEST_KEYS: Final = (
    "schema state run_id experiment started_utc ended_utc protocol promises protocol_words "
    "?parameters ?system seed workload topology topology_digest joined deployment_id transport "
    "broker_nice without_fsync schedule ?rolling labels payload_bytes phases roles python platform "
    "cpu cores tool_version git_commit git_dirty argv specification_digest clock origin_ns drain "
    "disk_bytes loadgen_saturated limited_by waited_share headline reasons"
)
_HEADLINE: Final = (
    "published delivered delivered_per_s delivered_earlier delivered_new_per_s response_us "
    "service_us acknowledged_us limited_by is_load_generator_limit sessions_lost "
    "resent_publications duplicates_received lateness_p99_us saturated online not_healed down "
    "broker_cpu_us_per_message_mean broker_private_bytes_max broker_core_share_mean "
    "ready_after_us ?recovery"
)


def doubts_about_shapes(folder: RunFolder) -> Iterator[str]:
    """Yield files and keys that no process writes, and lines without a key."""
    if not (folder.is_of_processes and folder.is_closed):
        return
    yield from _check_files(folder)
    for name, keys in _FILES.items():
        yield from _check_lines(name, "", keys, folder.lines(name))
    for line in folder.lines(FAULT_JOURNAL):
        more = "" if line.get("stage") == LEARNED else " t_ns healed_by host_stamps"
        yield from _check_lines(FAULT_JOURNAL, str(line.get("stage")), _FAULT + more, [line])
    for line in folder.journal:
        what = str(line.get("what"))
        if what not in _JOURNAL_LINES:
            yield doubt("strange_key", file=JOURNAL, key=what)
            continue
        keys = f"utc t_ns what {_JOURNAL_LINES[what]}"
        yield from _check_lines(JOURNAL, what, keys, [line])
    for process in folder.processes:
        for name, keys in _PROCESS_LINES.items():
            yield from _check_lines(f"{process.place}/{name}", "", keys, process.lines(name))
        for name, keys in _PROCESS_DOCUMENTS.items():
            if process.has(name) and (process.is_load or not folder.is_foreign):
                document = process.document(name)
                yield from _check_lines(f"{process.place}/{name}", "", keys, [document])
                if isinstance(usage := document.get("usage"), Mapping):
                    yield from _check_lines(f"{process.place}/{name}", "usages", _USAGE, [usage])
        yield from _check_events(f"{process.place}/events.jsonl", process.lines("events.jsonl"))
        name, lines = f"{process.place}/stats.jsonl", process.lines("stats.jsonl")
        if process.is_load:
            yield from _check_lines(name, "", _LOAD_STATISTICS, lines)
    yield from _check_statistics(folder)
    yield from _check_manifest(folder)


def _check_files(folder: RunFolder) -> Iterator[str]:
    for path in sorted(folder.path.rglob("*")):
        name = path.relative_to(folder.path).as_posix()
        first, *rest = name.split("/")
        if path.is_dir() or first in _DERIVED:
            continue
        known = name in _RUN_FILES | _FAULT_FILES | _SPECIFICATION
        if first == "raw" and len(rest) == 3:
            client, database, _ = rest[-1].partition(".sqlite")
            is_of_client = bool(database) and client in folder.clients
            known = rest[-1] in _PROCESS_FILES or is_of_client
        if not known:
            yield doubt("strange_file", file=name)


def _check_lines(name: str, what: str, keys: str, lines: Sequence[Line]) -> Iterator[str]:
    """Yield the first line of a file with another key, or without a key."""
    words = keys.split()
    required = {word for word in words if word[0] != "?"}
    known = {word.removeprefix("?") for word in words}
    for line in lines:
        if strange := sorted({*line} - known):
            yield doubt("strange_key", file=name, key=strange[0])
            return
        if lost := sorted(required - {*line}):
            yield doubt("lost_key", file=name, key=lost[0], what=what or "lines")
            return


def _check_events(name: str, events: Sequence[Line]) -> Iterator[str]:
    for line in events:
        event = str(line.get("event"))
        if event in _EVENTS:
            found = [*_check_lines(name, event, f"t_ns event {_EVENTS[event]}", [line])]
            if found:
                yield from found
                return


def _check_statistics(folder: RunFolder) -> Iterator[str]:
    """Yield samples of brokers with other counters than the first sample of all brokers."""
    wanted: set[str] = set()
    of = ""
    for process in folder.processes:
        if process.is_load or process.name not in folder.brokers:
            continue
        name = f"{process.place}/stats.jsonl"
        for line in process.lines("stats.jsonl"):
            found = {*line} - {_LAST_SAMPLE}
            if not wanted:
                wanted, of = found, name
            if differing := sorted(found ^ wanted):
                yield doubt(
                    "disagree", one=name, other=of, what=f"counter {differing[0]}",
                    found=differing[0] in found, wanted=differing[0] in wanted,
                )  # fmt: skip
                return


def _check_manifest(folder: RunFolder) -> Iterator[str]:
    is_whole = folder.manifest.get("state") == "complete"
    keys = _MANIFEST_KEYS if is_whole else " ".join(f"?{key}" for key in _MANIFEST_KEYS.split())
    yield from _check_lines(MANIFEST, "manifests", keys.replace("??", "?"), [folder.manifest])
    if is_whole:
        clock = folder.manifest.get("clock") or {}
        yield from _check_lines(MANIFEST, "clocks", "host_id boot_id clock_ids", [clock])
    headline = folder.manifest.get("headline")
    if isinstance(headline, Mapping):
        yield from _check_lines(MANIFEST, "the headline", _HEADLINE, [headline])
