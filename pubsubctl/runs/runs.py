"""Run folders: found by path, run id or `latest`, listed, labelled, measured and removed.

`index.jsonl` in the folder of runs is a journal: a run appends a line at its end, and a label or a
removal appends a further line. The manifests decide which runs exist.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from bench.run.run_directory import RUN_ID, append_line, is_written, utc_now
from bench.run.series import KIND as SERIES
from brokerd.text import counted, is_plain_name, nearest, parse_json, problem_of, size_text
from brokerd.units import parse_duration_ns
from pubsubctl.console.console import Console, Progress
from pubsubctl.errors import IntegrityError, PreflightFailed, UserError
from pubsubctl.hosts.files import shown
from pubsubctl.project import Project

MANIFEST = "manifest.json"
ARCHIVED_RUNS: Final = "runs"
"""The folder with the runs of a series in an archive of figures."""
RUNS_SHOWN = 4
_FORMATS: Final = ("json", "yaml", "wide", "name", "table")
"""Values of -o in other programs, where it is the format of the output."""


def existing_runs(project: Project, results: Path | None) -> Path:
    """Return the folder of runs; a folder that the user names must exist.

    Raises:
        UserError: it does not.
    """
    folder = project.results_folder(results)
    if results is not None and not folder.is_dir():
        hint = "; --json prints the result as JSON" if str(results) in _FORMATS else ""
        raise UserError(f"--output-dir {folder}: no such folder of runs{hint}")
    return folder


def find_run(project: Project, name: str, results: Path | None = None) -> Path:
    """Return the folder of a run.

    Args:
        name: a path, a run id, `latest`, or `EXPERIMENT/latest`.

    Raises:
        UserError: there is no such run; names the nearest.
        IntegrityError: the manifest of the run is no regular file.
    """
    folder = project.results_folder(results)
    ids = folder.glob(f"*/{_literal(name)}") if is_plain_name(name) else ()
    candidates = [Path(name), folder / name, *ids]
    for candidate in candidates:
        if (candidate / MANIFEST).is_file():
            return _short(candidate.resolve())
        if os.path.lexists(candidate / MANIFEST):
            raise IntegrityError(f"{candidate / MANIFEST}: no regular file")
    for candidate in (Path(name), folder / name):
        if name and candidate.is_dir():
            raise UserError(f"run {shown(name)}: {_explain_no_run(candidate)}")
        if candidate.is_file():
            raise UserError(f"run {shown(name)}: this is a file, and no folder of a run")
    if "/" in name:
        raise UserError(f"run {shown(name)}: no such folder or run id")
    if other := project.kind_of_name(name):
        raise UserError(f"run {shown(name)}: no run, but the name of a file of kind {other}")
    existing_runs(project, results)
    known = sorted(path.parent.name for path in folder.glob(f"*/[0-9]*/{MANIFEST}"))
    if name == "latest" or not known:
        raise UserError(f"run {shown(name)}: there are no runs in {folder} yet")
    hint = nearest(name, [*known, "latest"])
    raise UserError(f"run {shown(name)}: no such folder or run id{hint}")


def find_one_run(project: Project, name: str, results: Path | None = None) -> Path:
    """Return the folder of a run that is no series; see `find_run`.

    Raises:
        UserError: there is no such run, or it is a series; names the runs of the series.
    """
    folder = find_run(project, name, results)
    members = [
        run for of_point in (manifest(folder).get("runs") or {}).values() for run in of_point
    ]
    if not members:
        return folder
    more = f" and {len(members) - RUNS_SHOWN:,} more" if len(members) > RUNS_SHOWN else ""
    raise UserError(
        f"{folder}: this is a series; name one of its runs: {', '.join(members[:RUNS_SHOWN])}{more}"
    )


def _explain_no_run(folder: Path) -> str:
    """Return the reason why a folder is no run, with the latest runs in it."""
    found = {
        str(path.parent.relative_to(folder))
        for pattern in (f"*/{MANIFEST}", f"*/*/{MANIFEST}", f"*/*/*/{MANIFEST}")
        for path in folder.glob(pattern)
        if not path.parent.is_symlink()
    }
    if not found:
        return f"this folder holds no run: {MANIFEST} is missing"
    latest = sorted(found, key=lambda run: Path(run).name, reverse=True)[:RUNS_SHOWN]
    more = f" and {len(found) - len(latest)} more" if len(found) > len(latest) else ""
    return f"this folder is no run; it holds {', '.join(latest)}{more}"


def find_runs(project: Project, names: Sequence[str], results: Path | None = None) -> list[Path]:
    """Return the folders of several runs without repetition, in the given order."""
    return list(dict.fromkeys(find_run(project, name, results) for name in names))


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
        record = record_of(folder, _Index())
        if record.kind == SERIES and not record.members:
            raise UserError(f"{folder}: this series has no run yet")
        if record.state == UNCOLLECTED:
            raise UserError(
                f"{folder}: its records are on its hosts; `pubsubctl results collect "
                f"{folder.name}` fetches them"
            )
        refuse_archive(folder)
        members = [run_beside(folder, member) for member in record.members]
        found += members or [folder]
    return list(dict.fromkeys(found))


def refuse_archive(folder: Path) -> None:
    """Refuse an unpacked archive of a series, which has no logs of its runs.

    Raises:
        UserError: the folder is such an archive; names what it has, and the command for new runs.
    """
    about = manifest(folder)
    if about.get("kind") != SERIES or not (folder / ARCHIVED_RUNS).is_dir():
        return
    figures = [*map(str, about.get("figures") or ())]
    maker = f"; `pubsubctl experiment {figures[0]}` makes new runs" if figures else ""
    raise UserError(
        f"{folder}: this is the archive of a series: it has the numbers of the figures and the "
        f"verdicts of the runs, but not their logs. `pubsubctl claims list` judges by it{maker}"
    )


def latest_of_figure(project: Project, figure: str, results: Path | None = None) -> Path:
    """Return the latest run of a figure's experiment; the latest of any if there is none.

    Raises:
        UserError: there is no run yet.
    """
    own = f"{figure.replace('.', '-')}/latest"
    has_own = (project.results_folder(results) / own / MANIFEST).is_file()
    return find_run(project, own if has_own else "latest", results)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file of a run.

    Raises:
        UserError: the file is missing.
        IntegrityError: the content is not JSON, or a folder has the name.
    """
    if path.exists() and not path.is_file():
        kind = "a folder, and no file" if path.is_dir() else "no regular file"
        raise IntegrityError(f"{path}: {kind}")
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise IntegrityError(f"{path}: the file is empty")
        content = parse_json(text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; is this a run's folder?") from None
    except OSError as error:
        raise IntegrityError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise IntegrityError(f"{path}: {problem_of(error)}") from None
    if not isinstance(content, dict):
        raise IntegrityError(f"{path}: holds no object")
    return content


def run_beside(run: Path, run_id: object) -> Path:
    """Return the folder of another run of the same experiment.

    Raises:
        IntegrityError: the name leads elsewhere.
    """
    name = str(run_id)
    if not is_plain_name(run_id):
        raise IntegrityError(f"{run / MANIFEST}: {name[:80]!r} is no name of a run")
    return run.parent / name


def manifest(run: Path) -> Mapping[str, Any]:
    """Return the manifest of a run or a series.

    Raises:
        UserError: there is none.
        IntegrityError: it is not JSON, or a value has another type; names key and value.
    """
    from results.tables.json_files import problem_of_manifest

    found = read_json(run / MANIFEST)
    if problem := problem_of_manifest(found):
        raise IntegrityError(f"{run / MANIFEST}: {problem}")
    return found


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name) or "[]"


def _short(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def check_specification(run: Path) -> None:
    """Check workload, topology and fault schedule of a run against the schemas.

    An unknown protocol is left aside, with the parameters of that protocol: the run may be of
    another program, or of servers of another system.

    Raises:
        IntegrityError: a value is invalid; names file, key, value and the nearest valid value.
    """
    from bench.spec.spec import read_toml, validate
    from bench.spec.workload_model import Workload
    from brokerd.errors import ConfigError
    from brokerd.overlay.topology import without_departed
    from brokerd.protocols.registry import DEFAULT, definition_of, read_topology
    from fault_injection.schedule.schedule import load_schedule

    folder = run / "spec"
    workload, topology = folder / "workload.toml", folder / "topology.toml"
    if not workload.is_file():
        return
    try:
        values: dict[str, Any] = read_toml(workload)
        is_ours = True
        if isinstance(protocol := values.get("protocol"), str):
            try:
                definition_of(protocol)
            except ConfigError:
                is_ours = False
                values["protocol"] = DEFAULT
        validate(Workload, values, str(workload))
        if is_ours and topology.is_file():
            read_topology(without_departed(read_toml(topology)), str(topology))
        if (faults := folder / "faults.toml").is_file():
            load_schedule(faults)
    except ConfigError as error:
        raise IntegrityError(str(error)) from None


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
_LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_VALUE: Final = 200


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
        """The run id."""
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


@dataclass(frozen=True, slots=True)
class Removal:
    """Runs to remove, with their size."""

    records: Sequence[RunRecord]
    size_bytes: int


def records_in(results: Path) -> list[RunRecord]:
    """Return all runs of a folder, the oldest first, damaged runs included."""
    index = _Index.read(results)
    folders = (path.parent for path in results.glob(f"*/*/{MANIFEST}"))
    found = [_record_in_any_case(folder, index) for folder in folders if _is_run_id(folder.name)]
    return sorted(found, key=lambda record: record.run_id)


def _record_in_any_case(folder: Path, index: "_Index") -> RunRecord:
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


def record_of(folder: Path, index: "_Index | None" = None) -> RunRecord:
    """Return the record of a run folder.

    Args:
        index: the index of the folder of runs; None reads the index beside the run.

    Raises:
        IntegrityError: the manifest is not JSON.
    """
    about = manifest(folder)
    if index is None:
        index = _Index.read(folder.resolve().parent.parent)
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


PAGE: Final = "index.html"
MOST_RUNS: Final = 200
"""Runs on the page; the folder of runs may have many more."""


def write_run_index(results: Path) -> tuple[Path, int]:
    """Write the page over the runs of a folder; return its path and the number of all runs.

    Raises:
        PreflightFailed: the page cannot be written.
        IntegrityError: the manifest of a run is not JSON.
    """
    from results.report.index_page import IndexEntry, write_index

    records = records_in(results)
    verdicts = {record.run_id: record.verdict for record in records}

    def entry_of(record: RunRecord) -> IndexEntry:
        return IndexEntry(
            folder=record.folder,
            experiment=record.experiment,
            kind=record.kind,
            state=record.state,
            protocol=record.protocol,
            verdict=record.verdict,
            started_utc=record.started_utc,
            labels=record.labels,
            members={member: verdicts.get(member, "") for member in record.members},
            plain_verdict=record.plain_verdict,
        )

    page = results / PAGE
    shown = records[-MOST_RUNS:]
    try:
        write_index([*map(entry_of, shown)], page, len(records) - len(shown))
    except OSError as error:
        raise PreflightFailed(f"{page}: {(error.strerror or str(error)).lower()}") from None
    return page, len(records)


def refresh_run_index(runs: Iterable[Path], progress: Progress | Console) -> None:
    """Write the pages over the folders of these runs again; a failure is reported, and no error.

    A run outside of a folder of runs, such as a sample, has no page.
    """
    folders = {run.resolve().parents[1] for run in runs if len(run.resolve().parents) > 1}
    for folder in sorted(folders):
        if not (folder / INDEX).is_file():
            continue
        try:
            write_run_index(folder)
        except (PreflightFailed, IntegrityError) as error:
            progress.print(f"the page over all runs was not written: {error}")


def label_runs(folders: Sequence[Path], texts: Sequence[str]) -> dict[str, str]:
    """Label runs, and return the labels. An empty value removes a label.

    Raises:
        UserError: a text is not KEY=VALUE, or a run is in no folder of runs.
        PreflightFailed: the folder of runs cannot be written.
    """
    for folder in folders:
        if not RUN_ID.fullmatch(folder.resolve().name):
            raise UserError(
                f"{folder}: not in a folder of runs, such as results/runs; only runs there have "
                "labels beside them"
            )
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not _LABEL.fullmatch(key) or len(value) > _MOST_VALUE:
            raise UserError(
                f"label {shown(text)}: write KEY=VALUE; a key has letters, digits, _ . -, and a "
                f"value at most {_MOST_VALUE} characters"
            )
        labels[key] = value
    for folder in folders:
        _append(
            folder.resolve().parent.parent,
            {"run_id": folder.name, "labels": labels, "utc": utc_now()},
        )
    return labels


def removal_of(results: Path, folders: Sequence[Path], *, force: bool) -> Removal:
    """Return the removal of runs.

    Args:
        force: also remove runs without an end.

    Raises:
        UserError: a folder is outside of the folder of runs, a run has no end, or a series that
            remains needs a run.
    """
    chosen = {folder.resolve() for folder in folders}
    records = []
    for folder in folders:
        if folder.resolve().parents[1] != results.resolve() or not RUN_ID.fullmatch(folder.name):
            raise UserError(f"{folder}: `results remove` removes runs of {results} only")
        record = _record_in_any_case(folder, _Index())
        if record.state == UNCOLLECTED and not force:
            raise UserError(
                f"{folder}: its records are on its hosts; `pubsubctl results collect "
                f"{folder.name}` fetches them, --force removes the run"
            )
        if record.state in (RUNNING, INTERRUPTED) and not force:
            reason = "it runs" if record.state == RUNNING else "it was interrupted"
            raise UserError(f"{folder}: this run has no end: {reason}; --force removes it")
        records.append(record)
    names = {record.run_id for record in records}
    for other in records_in(results):
        needed = names.intersection(other.members)
        if needed and other.folder.resolve() not in chosen:
            raise UserError(
                f"series {other.folder} needs {min(needed)}; remove the series, too, or neither"
            )
    return Removal(records, sum(size_bytes_of(record.folder) for record in records))


def remove(removal: Removal) -> None:
    """Remove run folders, and point `latest` at the newest remaining runs."""
    for record in removal.records:
        folder = record.folder
        results = folder.resolve().parents[1]
        hidden = folder.with_name(f".removed-{folder.name}")
        folder.rename(hidden)
        _append(results, {"run_id": record.run_id, "removed": True, "utc": utc_now()})
        shutil.rmtree(hidden)
        _repair_latest(folder.parent)
        _repair_latest(results)


def size_bytes_of(folder: Path) -> int:
    """Return the size of all files below a folder."""
    paths = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_size for path in paths)


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
    """Return who made the verdict of a run from which files, in words."""
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
class _Index:
    """Facts in the index of a folder of runs that the files of a run lack.

    Attributes:
        labels: labels by run id, without removed labels.
        plain_verdicts: verdicts of the plain judge by run id.
    """

    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    plain_verdicts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, results: Path) -> "_Index":
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


def note_plain_verdict(run: Path, verdict: str) -> None:
    """Record the verdict of the plain judge on a run whose folder has no other verdict yet.

    Raises:
        PreflightFailed: the folder of runs cannot be written.
    """
    _append(run.resolve().parents[1], {"run_id": run.name, "plain_verdict": verdict})


def _append(results: Path, row: Mapping[str, Any]) -> None:
    path = results / INDEX
    try:
        append_line(path, row)
    except OSError as error:
        raise PreflightFailed(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _repair_latest(folder: Path) -> None:
    """Point a dangling `latest` at the newest run below a folder; remove it without a run."""
    link = folder / "latest"
    if not link.is_symlink() or link.exists():
        return
    runs = [path.parent for path in folder.glob(f"*/{MANIFEST}")]
    runs += [path.parent for path in folder.glob(f"*/*/{MANIFEST}")]
    runs = [path for path in runs if RUN_ID.fullmatch(path.name)]
    link.unlink()
    if runs:
        newest = max(runs, key=lambda path: path.name)
        link.symlink_to(newest.relative_to(folder))
    elif not any(folder.iterdir()):
        folder.rmdir()


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
