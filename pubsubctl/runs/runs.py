"""Run folders: found by path, run id or `latest`, and read with checks."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.run.series import KIND as SERIES
from brokerd.text import is_plain_name, nearest, parse_json, problem_of
from pubsubctl.errors import IntegrityError, UserError
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
    found = (path.parent.name for path in folder.glob(f"*/[0-9]*/{MANIFEST}"))
    known = sorted(found, reverse=True)
    if name == "latest" or not known:
        raise UserError(f"run {shown(name)}: there are no runs in {folder} yet")
    hint = nearest(name, ["latest", *known])
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


def sibling_run(run: Path, run_id: object) -> Path:
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
    from bench.spec.spec import read_toml
    from bench.spec.validation import validate
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


def size_bytes_of(folder: Path) -> int:
    """Return the size of all files below a folder."""
    paths = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_size for path in paths)
