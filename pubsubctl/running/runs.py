"""Run folders: found by path, run id or `latest`; their manifests and specifications."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brokerd.overlay.topology import nearest
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.hosts.files import shown
from pubsubctl.project import Project

MANIFEST = "manifest.json"
RUNS_SHOWN = 4


def find_run(project: Project, name: str, results: Path | None = None) -> Path:
    """Return the folder of a run.

    Args:
        name: a path, a run id, `latest`, or `EXPERIMENT/latest`.

    Raises:
        UserError: there is no such run; names the nearest.
    """
    folder = project.results_folder(results)
    candidates = [Path(name), folder / name, *folder.glob(f"*/{_literal(name)}")]
    for candidate in candidates:
        if (candidate / MANIFEST).is_file():
            return _short(candidate.resolve())
    for candidate in (Path(name), folder / name):
        if name.strip(".") and candidate.is_dir():
            raise UserError(f"run {shown(name)}: {_no_run(candidate)}")
    if "/" in name:
        raise UserError(f"run {shown(name)}: no such folder or run id")
    known = sorted(path.parent.name for path in folder.glob(f"*/[0-9]*/{MANIFEST}"))
    if name == "latest" or not known:
        raise UserError(f"run {shown(name)}: there are no runs in {folder} yet")
    hint = nearest(name, [*known, "latest"])
    raise UserError(f"run {shown(name)}: no such folder or run id{hint}")


def _no_run(folder: Path) -> str:
    """Return the reason why a folder is no run, with the latest runs in it."""
    found = {
        str(path.parent.relative_to(folder))
        for pattern in (f"[0-9]*/{MANIFEST}", f"*/[0-9]*/{MANIFEST}")
        for path in folder.glob(pattern)
    }
    if not found:
        return f"this folder holds no run: {MANIFEST} is missing"
    latest = sorted(found, key=lambda run: Path(run).name, reverse=True)[:RUNS_SHOWN]
    more = f" and {len(found) - len(latest)} more" if len(found) > len(latest) else ""
    return f"this folder is no run; it holds {', '.join(latest)}{more}"


def find_runs(project: Project, names: Sequence[str], results: Path | None = None) -> list[Path]:
    """Return the folders of several runs without repetition, in the given order."""
    return list(dict.fromkeys(find_run(project, name, results) for name in names))


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
        IntegrityError: the content is not JSON.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; is this a run's folder?") from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise IntegrityError(f"{path}: holds no object")
    return content


def run_beside(run: Path, run_id: object) -> Path:
    """Return the folder of another run of the same experiment.

    Raises:
        IntegrityError: the name leads elsewhere.
    """
    name = str(run_id)
    if not isinstance(run_id, str) or Path(name).name != name or name in ("", ".", ".."):
        raise IntegrityError(f"{run / MANIFEST}: {name[:80]!r} is no name of a run")
    return run.parent / name


def manifest(run: Path) -> Mapping[str, Any]:
    """Return a run's manifest."""
    return read_json(run / MANIFEST)


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
    from bench.spec.spec import read_toml, validated
    from bench.spec.workload_model import Workload
    from brokerd.errors import ConfigError
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
        validated(Workload, values, str(workload))
        if is_ours and topology.is_file():
            read_topology(read_toml(topology), str(topology))
        if (faults := folder / "faults.toml").is_file():
            load_schedule(faults)
    except ConfigError as error:
        raise IntegrityError(str(error)) from None
