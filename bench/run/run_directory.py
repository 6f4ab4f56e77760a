"""The folder of one run, with a manifest that describes the folder.

The manifest is the first file written (state "running") and the last file changed. SHA256SUMS then
covers everything. An aborted run has a manifest, too, with the reason. A run without a tree also
has an overlay document, so that it can be judged without the project's code.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from brokerd.files import file_sha256, write_whole
from brokerd.overlay.routes import list_possible_elements
from brokerd.overlay.topology import TREE, Topology
from brokerd.protocols.registry import protocol_on

MANIFEST_SCHEMA = "pubsubctl/manifest/6"
"""Since version 2 the last line of `log.jsonl` repeats the manifest. Since version 3 brokers log
what their faults have absorbed. Since version 4 load generators repeat their settings. Since
version 5 the journal has digests of closed files, and processor times of brokers."""
NOT_JOURNALED = ("argv", "started_utc", "ended_utc")
"""Keys of the manifest that the journal does not repeat; no result depends on their values."""
JOURNAL: Final = "log.jsonl"
_WITH_DIGEST = (".json", ".jsonl", ".log")
RunState = Literal["running", "complete", "partial", "aborted"]

RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
_PROJECT = Path(__file__).parents[2]
# Counting seeds changes it, and no run depends on it.
_LEDGER = "results/reliability.json"


def new_run_directory(runs: Path, experiment: str) -> Path:
    """Return a new, empty run folder `runs`/`experiment`/`run_id`, with `latest` links."""
    path = new_run_folder(runs, experiment)
    point_latest(path)
    return path


def new_run_folder(runs: Path, experiment: str) -> Path:
    """Return a new, empty run folder `runs`/`experiment`/`run_id`."""
    while True:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        run_id = f"{stamp}-{secrets.token_hex(3)}"
        path = runs / experiment / run_id
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path


def point_latest(path: Path) -> None:
    """Point both `latest` links at the folder of this run."""
    experiment = path.parent
    _point(experiment / "latest", path.name)
    _point(experiment.parent / "latest", f"{experiment.name}/{path.name}")


def _point(link: Path, target: str) -> None:
    """Point `link` at `target` atomically; leave a real file in its place alone."""
    if link.exists() and not link.is_symlink():
        return
    temporary = link.with_name(f".{link.name}-{secrets.token_hex(3)}")
    temporary.symlink_to(target)
    temporary.replace(link)


def is_written(path: Path) -> bool:
    """Return True if a process of this machine writes the run in a folder."""
    try:
        with (path / JOURNAL).open("rb") as journal:
            fcntl.flock(journal, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class RunDirectory:
    """The folder of one run, for the only process that writes it.

    Attributes:
        path: the folder; its name is the run id.
        manifest: content of `manifest.json`; call `write_manifest` after a change.
        is_in_use: True if another process of this machine writes the run.
    """

    def __init__(self, path: Path) -> None:
        assert RUN_ID.fullmatch(path.name), f"{path.name} is no run id"
        self.path = path
        self.manifest: dict[str, Any] = {}
        path.mkdir(parents=True, exist_ok=True)
        self._log = (path / JOURNAL).open("a", encoding="utf-8")
        self.is_in_use = False
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # another error on a file system without locks
            self.is_in_use = isinstance(error, BlockingIOError)

    @property
    def run_id(self) -> str:
        """The run id, which is unique among all runs and ascends with time."""
        return self.path.name

    @property
    def journal_bytes(self) -> int:
        return (self.path / JOURNAL).stat().st_size

    def begin(self, experiment: str, about: Mapping[str, Any]) -> None:
        """Write the manifest of a run that has begun."""
        self.manifest = {
            "schema": MANIFEST_SCHEMA,
            "state": "running",
            "run_id": self.run_id,
            "experiment": experiment,
            "started_utc": utc_now(),
            "ended_utc": None,
            **about,
            **machine_facts(),
            **program_facts(),
            "argv": sys.argv,
        }
        self.write_manifest()

    def write_manifest(self) -> None:
        """Replace `manifest.json`."""
        write_whole(self.path / "manifest.json", json_text(self.manifest))

    def write_spec(self, name: str, content: str | Mapping[str, Any] | Sequence[Any]) -> None:
        """Write `spec/<name>`: a text unchanged, any other value as JSON."""
        text = content if isinstance(content, str) else json_text(content)
        (self.path / "spec").mkdir(exist_ok=True)
        write_whole(self.path / "spec" / name, text)

    def close_specification(self) -> None:
        """Record the digest of the final files in `spec/`, in manifest and journal."""
        digest = specification_digest(self.path / "spec")
        self.manifest["specification_digest"] = digest
        self.log("specification", digest=digest, promises=self.manifest.get("promises"))
        self.write_manifest()

    def raw_folder(self, host: str, process: str) -> Path:
        """Return `raw/<host>/<process>/`; create the folder if missing."""
        folder = self.path / "raw" / host / process
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, event: str, **details: Any) -> None:
        """Record an action of the controller in `log.jsonl`, with both clocks."""
        line = {"utc": utc_now(), "t_ns": time.monotonic_ns(), "what": event, **details}
        self._log.write(json.dumps(line, default=str) + "\n")
        self._log.flush()

    def log_collected(self) -> None:
        """Record the digests of all files of processes and faults, as they were collected."""
        files = [*self.path.glob("raw/*/*/*"), *self.path.glob("faults/*")]
        digests = {
            path.relative_to(self.path).as_posix(): file_sha256(path)
            for path in sorted([*files, self.path / "clock.jsonl"])
            if path.suffix in _WITH_DIGEST and path.is_file()
        }
        self.log("collected", digests=digests)

    def end(self, state: RunState, reasons: Sequence[str] = ()) -> None:
        """Close the run: last manifest, checksums of every file, a line in the index."""
        self.manifest.update(state=state, ended_utc=utc_now(), reasons=list(reasons))
        repeated = {key: self.manifest[key] for key in self.manifest if key not in NOT_JOURNALED}
        self.log("end", state=state, reasons=list(reasons), manifest=repeated)
        self._log.close()
        self.write_manifest()
        write_checksums(self.path)

    def leave(self) -> None:
        """Close the journal without an end, for a run that another process may continue."""
        self._log.close()

    def add_to_index(self, headline: Mapping[str, Any]) -> None:
        """Append this run's line to the index of all runs, `index.jsonl`."""
        keys = ("run_id", "experiment", "state", "protocol", "seed", "labels", "started_utc")
        line = {key: self.manifest.get(key) for key in keys}
        append_line(self.path.parents[1] / "index.jsonl", {**line, **headline})


def specification_digest(folder: Path) -> str:
    """Return the SHA-256 of a line per file of a specification, in the order of names.

    A line is the SHA-256 of the content, two blanks and the name.
    """
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    lines = [
        f"{file_sha256(path)}  {name}\n" for name, path in sorted(files.items()) if path.is_file()
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def utc_now() -> str:
    """Return the time of day, for the user."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_text(value: Any) -> str:
    """Return JSON in the layout of a run's files."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a JSON line in one write, so that lines of simultaneous runs do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(value, default=str) + "\n").encode())
    finally:
        os.close(descriptor)


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS over every regular file below `folder`, in the format of sha256sum(1)."""
    seal = folder / "SHA256SUMS"
    lines = [
        f"{file_sha256(path)}  {path.relative_to(folder).as_posix()}"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path != seal
    ]
    write_whole(seal, "".join(f"{line}\n" for line in lines))


@lru_cache(maxsize=1)
def machine_facts() -> dict[str, Any]:
    """Return the facts about the controller's machine that readers of results need."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
    }


@lru_cache(maxsize=1)
def program_facts() -> dict[str, Any]:
    """Return the version of the program, and the commit of its checkout, if any.

    A change of only the ledger of counted seeds does not make the checkout dirty.
    """
    try:
        version = metadata.version("pubsubctl")
    except metadata.PackageNotFoundError:
        version = "unknown"
    commit = _git("rev-parse", "HEAD")
    changes = _git(
        "status", "--porcelain", "--untracked-files=no", "--", ":(top)", f":(top,exclude){_LEDGER}"
    )
    return {
        "tool_version": version,
        "git_commit": commit,
        "git_dirty": None if changes is None else bool(changes),
    }


def run_git(source: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run git on the checkout in a folder; the return code is 1 if there is no git.

    A repository around the folder is another's: a program in a virtual environment is no part of
    the project that holds the environment. The same holds for a repository of a running git hook.
    """
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(source.resolve().parent)}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        environment.pop(name, None)
    try:
        return subprocess.run(
            ["git", "-C", str(source), *arguments],
            capture_output=True, text=True, timeout=120, check=False, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(arguments, 1, "", str(error))


def _git(*arguments: str) -> str | None:
    """Return the output of git for the checkout of this file; None on failure."""
    done = run_git(_PROJECT, *arguments)
    return None if done.returncode else done.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


CHANGES_FILE: Final = "changes.toml"
"""File in `spec` with the topology and its changes at run time, if any broker joined or left."""

OVERLAY_FILE: Final = "overlay.json"
"""File in the run's `spec` folder. Without it, the links of the topology file form a tree."""


def overlay_document(
    topology: Topology, protocol: str, origins: Iterable[str]
) -> dict[str, Any] | None:
    """Return the content of the overlay file; None for a tree, whose links determine all paths.

    Args:
        origins: the brokers of publishers.
    """
    known = protocol_on(topology, protocol)
    if known.topology.kind == TREE:
        return None
    overlay, names = known.topology.overlay(), topology.brokers
    number_of = topology.number_of
    homes = range(len(names))
    return {
        "schema": "pubsubctl/overlay/1",
        "kind": known.topology.kind,
        "links": [[names[a], names[b]] for a, b in overlay.links],
        "known": {name: list(known.possible_peers(name)) for name in names},
        "routes": [
            {"from": origin, "to": names[home], "over": _over(list_possible_elements(route), names)}
            for origin in dict.fromkeys(origins)
            for home in homes
            for route in (overlay.route(number_of(origin), home),)
        ],
    }


def _over(
    passed: tuple[tuple[int, ...], tuple[tuple[int, int], ...]], names: tuple[str, ...]
) -> list[str]:
    brokers, links = passed
    return [*(names[number] for number in brokers), *(f"{names[a]}->{names[b]}" for a, b in links)]
