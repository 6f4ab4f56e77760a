"""Tests of single fields of a run folder: each has a witness, or a reason to have none."""

import hashlib
import json
import shutil
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

from bench.run.run_directory import NOT_JOURNALED
from results.reference.files import FileRefusal
from results.reference.history_reader import judge_folder, read_history
from results.reference.rule import check
from results.tables.manifest import read_run
from results.tables.seals import seal
from results.witnesses import RunFolder as WitnessFolder
from results.witnesses.process_ends import doubts_about_closing
from tests.helpers.false_witnesses import (
    journal_change,
)
from tests.helpers.forged_folders import RunFolder
from tests.helpers.mutations import sample_mutations
from tests.results.test_false_witnesses import HONEST

# --- Every field ----------------------------------------------------------------------------

NOTHING_RESTS_ON: dict[str, str] = {
    # Order and repetition of lines that are read by name.
    "clock.jsonl: order": "lines are read by host and phase",
    "clock.jsonl: row": "a line that stands twice says the same twice",
    "faults/faults.jsonl: order": "faults are read by name and time",
    "faults/log.jsonl: order": "stages are read by name and time",
    "faults/plan.jsonl: order": "faults are read by name",
    "log.jsonl: order": "lines are read by what they say",
    "log.jsonl: row": "a phase that stands twice began at one time",
    "raw/sessions.jsonl: order": "sessions are read by time",
    "raw/subscriptions.jsonl: order": "subscriptions are read by name",
    "raw/events.jsonl: order": "events are read by time",
    "raw/events.jsonl: row": "events but those of sessions are for people",
    "raw/stats.jsonl: order": "of load generators that count nothing yet",
    "raw/stats.jsonl: row": "a sample less of figures that are drawn from many",
    # Times and measures for people, and of figures about machines.
    "clock.jsonl: rtt_min_ns": "how an offset was found; err_ns counts",
    "clock.jsonl: n": "how an offset was found; err_ns counts",
    "log.jsonl: utc": "the time of day, for people",
    "log.jsonl: t_ns": "when a line was written; at_ns and the faults' times count",
    "manifest.json: started_utc": "the time of day, for people",
    "manifest.json: ended_utc": "the time of day, for people",
    "manifest.json: argv": "what was typed, for people",
    "spec/cli.json": "what was typed, for people; the specification counts",
    "spec/cli.json: overrides": "what was typed, for people",
    "spec/cli.json: file": "what was typed, for people",
    "raw/exit.json: pid": "for people",
    "raw/exit.json: usage": "for people",
    "raw/exit.json: usage.user_s": "for people",
    "raw/exit.json: usage.system_s": "for people",
    "raw/exit.json: usage.peak_rss_bytes": "for people",
    "raw/exit.json: state": "how a process ended is in its cause and its signal",
    "raw/exit.json: exit_code": "of a process that a signal ended",
    "raw/exit.json: t_start_ns": "a bound only: before all records, and after the run began",
    "raw/exit.json: t_exit_ns": "a bound only: after all records",
    "raw/sessions.jsonl: t_ns": "a bound only, where the broker was stopped by a fault",
    "raw/sessions.jsonl: reason": "for people",
    # What brokers saw of each other, which is drawn and judged by no rule.
    "raw/events.jsonl: t_ns": "drawn; sessions of clients are compared",
    "raw/events.jsonl: session": "for people",
    "raw/events.jsonl: incarnation": "for people",
    "raw/events.jsonl: opened": "for people",
    "raw/events.jsonl: reason": "for people",
    "raw/events.jsonl: number": "for people",
    "raw/events.jsonl: nodes": "for people",
    "raw/events.jsonl: direction": "for people",
    "raw/events.jsonl: client": "a bound only, of when a subscription was accepted",
    "raw/events.jsonl: peer": "of sessions between brokers: drawn, and counted",
    "raw/events.jsonl: absorbed_publications": "a bound only, of what a fault log may say",
    "raw/events.jsonl: absorbed_bytes": "a bound only, of what a fault log may say",
    "raw/events.jsonl: absorbed_messages": "for people; publications and bytes are compared",
    "raw/events.jsonl: dropped_frames": "for people",
    "raw/events.jsonl: refused_connections": "for people",
    "raw/events.jsonl: forwarded_since_applied": "for people; the evidence of the fault has it",
    "raw/events.jsonl: sessions_down": "for people",
    "raw/events.jsonl: limited_messages": "for people",
    "raw/events.jsonl: written_bytes": "for people",
    "raw/events.jsonl: refused_writes": "for people",
    "raw/events.jsonl: slowed_writes": "for people",
    # Where brokers ran.
    "spec/placement.json": "the manifest's roles have it; only the loss of a machine needs it",
    "spec/placement.json: brokers": "the same",
    "spec/placement.json: schema": "nothing reads it",
    "spec/placement.json: clients_host": "the manifest's clock has it",
    "spec/placement.json: brokers.ip": "where brokers listened",
    "spec/placement.json: brokers.port": "where brokers listened",
    "spec/placement.json: brokers.core": "where brokers ran",
    "spec/placement.json: failure_domains": "for people",
    "spec/placement.json: failure_domains.local1": "for people",
    "spec/placement.json: failure_domains.local2": "for people",
    "spec/placement.json: failure_domains.local3": "for people",
    # Words and settings that nothing reads.
    "faults/faults.jsonl: mode": "params has it",
    "faults/plan.jsonl: ended_by": "the fault log says what ended a fault",
    "raw/online.json: schema": "nothing reads it",
    "raw/deliveries.rec.json: tables.partitions": "nothing was withheld",
    "raw/deliveries.rec.json: tables.streams": "no positions were logged",
}
"""Fields, by file, without influence on a verdict or its numbers, with the reasons."""

COUNTERS_THAT_ARE_DRAWN = (
    *("confirmations_sent", "messages_ignored", "publications_withheld", "notifiers_sent"),
    *("dedupe_disagreements", "legitimacy_held", "legitimacy_violating", "legitimacy_violated"),
    *("unsubscriptions_sent", "tags_missing", "tags_extra", "queue_publications", "queue_bytes"),
    *("subscriptions", "subscriptions_tagged", "partitions", "matching_hits", "matching_misses"),
    *("sessions_active", "sessions_ready", "relayed_sessions_established", "messages_relayed"),
    *("sessions_relayed", "sessions_established", "sessions_lost", "broker_sessions_lost"),
    *("connections_refused", "outbox_overflows", "slow_consumers", "publishers_slowed"),
    *("outbox_bytes", "rss_bytes", "private_bytes", "cpu_s", "cpu_ratio", "t_ns"),
    *("publications_received", "publications_forwarded", "publications_delivered"),
    *("duplicates_received", "resent_publications", "backlog", "open", "blocked_us", "skipped"),
    *("offered", "late_p99_us", "late_max_us", "saturated", "withheld", "proc_id"),
    *("sent", "acknowledged", "rejected", "delivered"),
)
"""Columns of `stats.jsonl` that figures draw, one sample a second.

Only a last sample that a verdict shows, or that counts the rows of records, is compared.
"""


def survivors(folder: Path, but: Container[str], is_drawn: Callable[[str], bool]) -> Iterator[str]:
    """Yield the kinds of drawn changes, except `but`, that leave a folder VALID.

    The journal has the digests of the changed files, as if the run had closed them so.
    """
    shutil.copytree(HONEST, folder)
    for mutation in sample_mutations(HONEST):
        if mutation.kind in but or not is_drawn(mutation.name):
            continue
        path = folder / mutation.file
        before, journal = path.read_bytes(), (folder / "log.jsonl").read_bytes()
        path.unlink() if mutation.content is None else path.write_text(mutation.content)
        if mutation.file != "log.jsonl":
            _renew_digest(folder / "log.jsonl", before, path)
        seal(folder)
        try:
            history = read_history(folder)
            if not history.doubts and check(history).verdict == "VALID":
                yield mutation.kind
        except FileRefusal:
            pass
        (folder / "log.jsonl").write_bytes(journal)
        path.write_bytes(before)


def _renew_digest(journal: Path, before: bytes, path: Path) -> None:
    """Replace the digest of one file in the journal by its present digest."""
    now = path.read_bytes() if path.is_file() else b""
    digests = [hashlib.sha256(content).hexdigest() for content in (before, now)]
    journal.write_text(journal.read_text().replace(*digests))


def test_every_field_of_every_small_file_has_a_witness_or_a_reason(
    tmp_path: Path, is_drawn: Callable[[str], bool]
) -> None:
    drawn = {f"raw/stats.jsonl: {name}" for name in COUNTERS_THAT_ARE_DRAWN}
    assert {*survivors(tmp_path / "run", drawn | NOTHING_RESTS_ON.keys(), is_drawn)} == set()


def test_a_file_that_was_changed_after_it_was_closed_has_another_digest(tmp_path: Path) -> None:
    folder = shutil.copytree(HONEST, tmp_path / "run")
    run = read_run(HONEST)
    for mutation in sample_mutations(HONEST):
        if not mutation.file.startswith(("raw/", "faults/", "clock.jsonl")):
            continue
        path = folder / mutation.file
        before = path.read_bytes()
        path.unlink() if mutation.content is None else path.write_text(mutation.content)
        assert next(doubts_about_closing(WitnessFolder(folder, run)), None), mutation.name
        path.write_bytes(before)
    assert [*doubts_about_closing(WitnessFolder(folder, run))] == []


# --- Fields of the manifest and the journal -------------------------------------------------

ONE_PROCESS_KNOWS: dict[str, str] = {
    "experiment": "a name",
    "labels": "of the user",
    "protocol_words": "for people",
    "transport": "how brokers were reached; no rule reads it",
    "broker_nice": "of the machine; no rule reads it",
    "python": "of the machine; runs are compared by it",
    "platform": "of the machine; runs are compared by it",
    "cpu": "of the machine; runs are compared by it",
    "cores": "of the machine; runs are compared by it",
    "tool_version": "of the program; runs are compared by it",
    "git_commit": "of the program; runs are compared by it",
    "git_dirty": "of the program; runs are compared by it",
    "disk_bytes": "measured once, when the run was over",
    "waited_share": "a sign of a busy machine, which turns nothing into VALID",
    "headline.ready_after_us": "measured once, before the run",
}
"""Fields of the manifest with the controller as only witness, which also writes the journal."""

_WHOLE = ("roles", "parameters", "promises", "protocol_words", "disk_bytes", "waited_share")


def leaves(document: dict[str, Any], way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths to fields; some fields are changed as a whole."""
    for key, value in document.items():
        if isinstance(value, dict) and value and not way and key not in _WHOLE:
            yield from leaves(value, (key,))
        else:
            yield *way, key


def another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value * 3 + 7
        case str():
            return value + "x"
        case list():
            return [*value, "x"]
        case dict():
            return {**value, "x": 1}
        case _:
            return 1


def test_a_field_changed_in_manifest_and_journal_has_a_third_witness_or_a_reason(
    tmp_path: Path,
) -> None:
    manifest = json.loads((HONEST / "manifest.json").read_text())
    found = set()
    for number, way in enumerate(leaves(manifest)):
        if way[0] in NOT_JOURNALED:
            continue
        folder = shutil.copytree(HONEST, tmp_path / str(number))

        def change(document: dict[str, Any], way: tuple[str, ...] = way) -> None:
            for key in way[:-1]:
                document = document[key]
            document[way[-1]] = another(document[way[-1]])

        journal_change(change)(RunFolder(folder))
        seal(folder)
        try:
            if judge_folder(folder).verdict == "VALID":
                found.add(".".join(way))
        except FileRefusal:
            pass
        shutil.rmtree(folder)
    assert found == ONE_PROCESS_KNOWS.keys()
