"""The folder of one run: what is in it, and that it says so itself.

The manifest is the first file written (state "running") and the last one changed; then
SHA256SUMS covers everything. A run that was aborted has a manifest too, and says why.
"""

import hashlib
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

MANIFEST_SCHEMA = "pubsubctl/manifest/2"
"""Since version 2 a folder has every witness of `results.witnesses`, and the last line of
`log.jsonl` repeats the manifest."""
NOT_JOURNALED = ("argv", "started_utc", "ended_utc")
"""Keys of the manifest that the journal does not repeat: nothing rests on them."""
RunState = Literal["running", "complete", "partial", "aborted"]

RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
_PROJECT = Path(__file__).parents[2]
# Counting seeds changes it, and no run depends on it.
_LEDGER = "results/reliability.json"


def new_run_directory(runs: Path, experiment: str) -> Path:
    """A new, empty run folder `runs`/`experiment`/`run_id`, with `latest` links to it."""
    while True:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        run_id = f"{stamp}-{secrets.token_hex(3)}"
        path = runs / experiment / run_id
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        point_latest(path)
        return path


def point_latest(path: Path) -> None:
    """Make both `latest` links lead to this run's folder."""
    experiment = path.parent
    _point(experiment / "latest", path.name)
    _point(experiment.parent / "latest", f"{experiment.name}/{path.name}")


def _point(link: Path, target: str) -> None:
    """Make `link` lead to `target`, in one step; a real file in its place is left alone."""
    if link.exists() and not link.is_symlink():
        return
    temporary = link.with_name(f".{link.name}-{secrets.token_hex(3)}")
    temporary.symlink_to(target)
    temporary.replace(link)


class RunDirectory:
    """One run's folder, for the one process that writes it.

    Attributes:
        path: of the folder; its name is the run id.
        manifest: what `manifest.json` says; call `write_manifest` after a change.
    """

    def __init__(self, path: Path) -> None:
        assert RUN_ID.fullmatch(path.name), f"{path.name} is no run id"
        self.path = path
        self.manifest: dict[str, Any] = {}
        path.mkdir(parents=True, exist_ok=True)
        self._log = (path / "log.jsonl").open("a", encoding="utf-8")

    @property
    def run_id(self) -> str:
        """Unique among all runs, and in time order."""
        return self.path.name

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
        """Write `spec/<name>`: a text as it is, anything else as JSON."""
        text = content if isinstance(content, str) else json_text(content)
        (self.path / "spec").mkdir(exist_ok=True)
        write_whole(self.path / "spec" / name, text)

    def close_specification(self) -> None:
        """Note the digest of all files in `spec/`, in manifest and journal; none changes later."""
        digest = specification_digest(self.path / "spec")
        self.manifest["specification_digest"] = digest
        self.log("specification", digest=digest, promises=self.manifest.get("promises"))
        self.write_manifest()

    def raw_folder(self, host: str, process: str) -> Path:
        """`raw/<host>/<process>/`, made where it is missing."""
        folder = self.path / "raw" / host / process
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def log(self, what: str, **details: Any) -> None:
        """Note what the controller did, in `log.jsonl`, with both clocks."""
        line = {"utc": utc_now(), "t_ns": time.monotonic_ns(), "what": what, **details}
        self._log.write(json.dumps(line, default=str) + "\n")
        self._log.flush()

    def end(self, state: RunState, reasons: Sequence[str] = ()) -> None:
        """Close the run: last manifest, checksums of every file, a line in the index."""
        self.manifest.update(state=state, ended_utc=utc_now(), reasons=list(reasons))
        repeated = {key: self.manifest[key] for key in self.manifest if key not in NOT_JOURNALED}
        self.log("end", state=state, reasons=list(reasons), manifest=repeated)
        self._log.close()
        self.write_manifest()
        write_checksums(self.path)

    def leave(self) -> None:
        """Write nothing more into a run that somebody else may go on with."""
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
    """The time of day, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_text(value: Any) -> str:
    """JSON as files of a run have it."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, never part of it."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line, in one write, so that runs ending together do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(value, default=str) + "\n").encode())
    finally:
        os.close(descriptor)


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS over every regular file below `folder`, as sha256sum(1) reads it."""
    lines = [
        f"{file_sha256(path)}  {path.relative_to(folder).as_posix()}"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != "SHA256SUMS"
    ]
    write_whole(folder / "SHA256SUMS", "".join(f"{line}\n" for line in lines))


def file_sha256(path: Path) -> str:
    """A file's SHA-256 in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@lru_cache(maxsize=1)
def machine_facts() -> dict[str, Any]:
    """What the controller's machine is, as far as a reader of results wants to know."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
    }


@lru_cache(maxsize=1)
def program_facts() -> dict[str, Any]:
    """Which version of the tool ran, and from which commit if it ran from a checkout.

    A ledger that has counted seeds since is no change on top of the commit.
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


def boot_id() -> str:
    """Differs after every boot, so that stamps of different boots are never compared."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _git(*arguments: str) -> str | None:
    """What git says about the checkout this file is in; None where it cannot."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_PROJECT), *arguments],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
