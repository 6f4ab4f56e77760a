"""Records of runs: state, verdict, labels and members, from manifests and from the journal.

`index.jsonl` in the folder of runs is a journal: a run appends a line at its end, and a label or a
removal appends a further line. The manifests decide which runs exist.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from bench.run.run_directory import RUN_ID, is_written
from bench.run.series import KIND as SERIES
from brokerd.text import counted, nearest, parse_json, size_text
from brokerd.units import parse_duration_ns
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.hosts.files import shown
from pubsubctl.project import Project
from pubsubctl.runs.runs import (
    MANIFEST,
    find_runs,
    manifest,
    read_json,
    refuse_archive,
    sibling_run,
    size_bytes_of,
)


def find_member_runs(
    project: Project, names: Sequence[str], results: Path | None = None
) -> list[Path]:
    """Return the folders of several runs, with the runs of a series in place of the series.

    Raises:
        UserError: a series has no run yet.
    """
    return replace_series(find_runs(project, names, results))


def replace_series(folders: Sequence[Path]) -> list[Path]:
    """Return folders of runs, with the runs of a series in place of the series.

    Raises:
        UserError: a series has no run yet.
    """
    found: list[Path] = []
    for folder in folders:
        record = record_of(folder, RunIndex())
        if record.kind == SERIES and not record.members:
            raise UserError(f"{folder}: this series has no run yet")
        if record.state == UNCOLLECTED:
            raise UserError(
                f"{folder}: its records are on its hosts; `pubsubctl results collect "
                f"{folder.name}` fetches them"
            )
        refuse_archive(folder)
        members = [sibling_run(folder, member) for member in record.members]
        found += members or [folder]
    return list(dict.fromkeys(found))


INDEX: Final = "index.jsonl"
DAMAGED: Final = "damaged"
"""The state of a run whose manifest is not JSON."""
UNCOLLECTED: Final = "uncollected"
"""The state of a run that has ended, with records on its hosts; see `bench.run.collection`."""
RUNNING: Final = "running"
INTERRUPTED: Final = "interrupted"
"""The state of a run without an end, whose process has ended."""
_VERDICTS: Final = ("VALID", "INVALID", "UNKNOWN")
CHANGED: Final = "CHANGED"
"""The word for a verdict, or a run, that has changed since the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run, a series or an experiment, as its files describe it.

    Attributes:
        kind: "run", "series", or the kind of an experiment without brokers.
        verdict: VALID, INVALID, UNKNOWN or CHANGED; "" before a check.
        plain_verdict: the verdict of the plain judge; "" without one.
        labels: labels of the manifest, then labels of `results label`.
        members: the run ids of a series.
    """

    folder: Path
    experiment: str
    kind: str
    state: str
    protocol: str
    verdict: str
    started_utc: str
    labels: Mapping[str, str]
    members: Sequence[str] = ()
    plain_verdict: str = ""

    @property
    def run_id(self) -> str:
        return self.folder.name

    def verdict_text(self) -> str:
        """Return the verdict, or the numbers of verdicts of a series; "" before a check."""
        if not self.members:
            return self.verdict
        found = Counter(_verdict_of(self.folder.parent / run) for run in self.members)
        words = (*_VERDICTS, CHANGED, "")
        return ", ".join(f"{found[each]} {each or 'not judged'}" for each in words if found[each])

    def verdict_or_reason(self) -> str:
        """Return the verdict; "not judged" or "none" for a complete run without one.

        The verdict of the plain judge counts until Spark has judged the run.
        """
        found = self.verdict_text()
        if found or self.state != "complete":
            return found
        if self.plain_verdict:
            return f"{self.plain_verdict} (plain judge)"
        from results.papers.experiment_runs import has_verdict

        return "not judged" if self.kind == "run" or has_verdict(self.folder) else "none"

    def row(self) -> dict[str, Any]:
        """Return a mapping for --json."""
        return {
            "run_id": self.run_id,
            "run_directory": str(self.folder),
            "experiment": self.experiment,
            "kind": self.kind,
            "state": self.state,
            "protocol": self.protocol,
            "verdict": self.verdict or None,
            "plain_verdict": self.plain_verdict or None,
            "started_utc": self.started_utc,
            "labels": dict(self.labels),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Conditions on runs; all must hold.

    Attributes:
        labels: KEY=VALUE, or KEY for any value.
        since: an age (7d, 12h) or a date (2026-11-30); None for any.
    """

    experiment: str | None = None
    protocol: str | None = None
    verdict: str | None = None
    labels: Sequence[str] = field(default_factory=tuple)
    since: str | None = None

    def select(self, records: Iterable[RunRecord]) -> list[RunRecord]:
        """Return the records that meet all conditions.

        Raises:
            UserError: `since` or `verdict` is invalid.
        """
        first = _first_utc(self.since)
        verdict = (self.verdict or "").upper()
        if verdict not in ("", "VALID", "INVALID", "UNKNOWN"):
            raise UserError(f"--verdict = {shown(self.verdict)}; one of valid, invalid, unknown")
        return [
            record
            for record in records
            if self.experiment in (None, record.experiment)
            and self.protocol in (None, record.protocol)
            and verdict in ("", record.verdict)
            and record.started_utc >= first
            and all(_has_label(record, label) for label in self.labels)
        ]

    def explain_names(self, records: Sequence[RunRecord]) -> list[str]:
        """Return a sentence for each name that no run has, with the nearest; none without runs."""
        keys = {key for record in records for key in record.labels}
        named = [
            ("--experiment", self.experiment, {record.experiment for record in records}),
            ("--protocol", self.protocol, {record.protocol for record in records} - {""}),
            *(("--label", label.partition("=")[0], keys) for label in self.labels),
        ]
        return [
            f"{option} = {shown(name)}: no run has it{nearest(name, sorted(known))}"
            for option, name, known in named
            if records and name is not None and name not in known
        ]


def records_in(results: Path) -> list[RunRecord]:
    """Return all runs of a folder, the oldest first, damaged runs included."""
    index = RunIndex.read(results)
    folders = (path.parent for path in results.glob(f"*/*/{MANIFEST}"))
    found = [record_in_any_case(folder, index) for folder in folders if _is_run_id(folder.name)]
    return sorted(found, key=lambda record: record.run_id)


def record_in_any_case(folder: Path, index: "RunIndex") -> RunRecord:
    """Return the record of a run folder; a run with a damaged manifest hides no other run."""
    try:
        return record_of(folder, index)
    except IntegrityError:
        return RunRecord(
            folder=folder,
            experiment=folder.parent.name,
            kind="run",
            state=DAMAGED,
            protocol="",
            verdict="",
            started_utc="",
            labels=index.labels.get(folder.name, {}),
        )


def _is_run_id(name: str) -> bool:
    return RUN_ID.fullmatch(name) is not None


def record_of(folder: Path, index: "RunIndex | None" = None) -> RunRecord:
    """Return the record of a run folder.

    Args:
        index: the index of the folder of runs; None reads the index beside the run.

    Raises:
        IntegrityError: the manifest is not JSON.
    """
    about = manifest(folder)
    if index is None:
        index = RunIndex.read(folder.resolve().parent.parent)
    runs = about.get("runs") if about.get("kind") == SERIES else None
    members = [str(each) for row in runs.values() for each in row] if runs else []
    own = about.get("labels") or {}
    return RunRecord(
        folder=folder,
        experiment=str(about.get("experiment", folder.parent.name)),
        kind=str(about.get("kind", "run")),
        state=_state_of(folder, str(about.get("state", ""))),
        protocol=str(about.get("protocol") or ""),
        verdict=_verdict_of(folder),
        started_utc=str(about.get("started_utc", "")),
        labels={**own, **index.labels.get(folder.name, {})},
        members=members,
        plain_verdict=index.plain_verdicts.get(folder.name, ""),
    )


def _state_of(folder: Path, written: str) -> str:
    """Return the state of a run: the one in its manifest, unless its process has ended since."""
    if _has_records_left(folder):
        return UNCOLLECTED
    return INTERRUPTED if written == RUNNING and not is_written(folder) else written


def _has_records_left(folder: Path) -> bool:
    """Return True if a run has ended, and its records stay on its hosts."""
    try:
        return "end" in json.loads((folder / f"{UNCOLLECTED}.json").read_bytes())
    except (OSError, ValueError):
        return False


def facts_of(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the facts about a run, as names and values."""
    about = manifest(record.folder)
    yield "run", record.run_id
    yield "experiment", record.experiment
    if record.kind != "run":
        yield "kind", record.kind
    yield "state", ", ".join([record.state, *map(str, about.get("reasons") or ())])
    verdict = record.verdict_or_reason()
    reasons = {
        "": "none before the end of the run",
        "none": "none; this experiment records no deliveries",
        "not judged": "not judged; `pubsubctl check` judges it",
        CHANGED: "changed since the check, or its run was; `pubsubctl check` judges it again",
    }
    yield "verdict", reasons.get(verdict, verdict)
    if record.verdict and record.kind == "run":
        yield "judged", _judge_of(record.folder)
    for name in ("protocol", "workload", "topology", "schedule", "figure", "seed"):
        if about.get(name) not in (None, ""):
            yield name, str(about[name])
    yield "started", record.started_utc
    yield "ended", str(about.get("ended_utc") or "")
    if record.labels:
        yield "labels", labels_text(record.labels)
    if record.members:
        yield "runs", " ".join(record.members)
    cores = counted(about.get("cores") or 0, "core")
    yield "machine", f"{about.get('cpu')}, {cores}, Python {about.get('python')}"
    commit = str(about.get("git_commit") or "")
    dirty = ", changed" if about.get("git_dirty") else ""
    yield "program", f"{about.get('tool_version')} {commit[:12]}{dirty}"
    yield "command", " ".join(["pubsubctl", *map(str, (about.get("argv") or [""])[1:])])
    yield "size", size_text(size_bytes_of(record.folder))
    yield "folder", str(record.folder)


def _judge_of(folder: Path) -> str:
    """Return the author of a verdict and the files that it was computed from, in words."""
    from results.tables.derived import VerdictMark, find_derived_folder
    from results.tables.json_files import IntegrityError as BrokenSeal
    from results.tables.seals import verify_seal

    try:
        seal = verify_seal(folder)
        derived = find_derived_folder(folder, seal)
    except BrokenSeal as error:
        return f"before a change of its files: {error}"
    if seal.is_there and VerdictMark(derived, seal.digest).holds():
        return "by this program and user, from these files"
    return "by another program or user; `pubsubctl check` judges it again"


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels as K=V, in the order of keys."""
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _verdict_of(folder: Path) -> str:
    """Return the verdict of a run; "" before a check, and for a verdict of another run.

    A verdict that has changed since the check, or whose run has, is CHANGED.
    """
    from results.tables.derived import has_changed_verdict

    try:
        verdict = read_json(folder / "verdict.json")
        run_id = read_json(folder / MANIFEST).get("run_id")
    except (UserError, IntegrityError):
        return ""
    if verdict.get("run_id", run_id) != run_id:
        return ""
    return CHANGED if has_changed_verdict(folder) else str(verdict.get("verdict", "")).upper()


@dataclass(frozen=True, slots=True)
class RunIndex:
    """Facts in the index of a folder of runs that the files of a run lack.

    Attributes:
        labels: labels by run id, without removed labels.
        plain_verdicts: verdicts of the plain judge by run id.
    """

    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    plain_verdicts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, results: Path) -> "RunIndex":
        """Return the index of a folder; lines that nobody wrote so are skipped."""
        labels: dict[str, dict[str, str]] = {}
        verdicts: dict[str, str] = {}
        for row in _rows_of_index(results):
            run_id = str(row.get("run_id", ""))
            if isinstance(row.get("labels"), dict):
                labels.setdefault(run_id, {}).update(row["labels"])
            if row.get("plain_verdict") in _VERDICTS:
                verdicts[run_id] = row["plain_verdict"]
        given = {
            run_id: {key: value for key, value in found.items() if value}
            for run_id, found in labels.items()
        }
        return cls(given, verdicts)


def _rows_of_index(results: Path) -> Iterator[dict[str, Any]]:
    if not (results / INDEX).is_file():
        return
    try:
        lines = (results / INDEX).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _has_label(record: RunRecord, text: str) -> bool:
    key, equals, value = text.partition("=")
    return key in record.labels and (not equals or record.labels[key] == value)


def _first_utc(text: str | None) -> str:
    """Return the start of a period in the notation of manifests; "" for any time."""
    if text is None:
        return ""
    wanted = "an age such as 7d or 12h, or a date such as 2026-11-30"
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        try:
            return date.fromisoformat(text).isoformat()
        except ValueError:
            raise UserError(f"--since {text}: no day of the calendar; {wanted}") from None
    days = re.fullmatch(r"(\d{1,5})d", text)
    try:
        age_s = int(days[1]) * 86_400 if days else parse_duration_ns(text) / 1e9
    except ValueError:
        raise UserError(f"--since {text}: {wanted}") from None
    return (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S")
