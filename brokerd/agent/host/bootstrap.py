"""The installer of the program on a host with nothing but Python: look, prepare, verify, install.

Sent as is to `python3 -I - COMMAND ROOT …` on the host, so the script uses the standard library
only and may be run by any Python that can report its version. Every command prints one line of
JSON. Nothing is downloaded: installed files were uploaded, and are installed only if the digests
match.
"""

from __future__ import annotations  # so that an older Python can report its version

import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BLOBS = "blobs"
COMPLETE = "complete"  # in a venv folder: everything is installed in it
VENV = re.compile(r"venv-([0-9a-f]{64})")


class InstallationRefusal(Exception):
    """A refusal: the files are not the expected files; nothing was installed."""


class FileDamage(InstallationRefusal):
    """A file that differs from the uploaded file."""


def look(root: str, *blobs: str) -> dict[str, Any]:
    """Return the state.

    Python, root, cores, environments, missing blobs, processes of this root.
    """
    entries = sorted(os.listdir(root)) if os.path.isdir(root) else []
    venvs = [
        (os.stat(os.path.join(root, name, COMPLETE)).st_mtime, found.group(1))
        for name in entries
        if (found := VENV.fullmatch(name)) and os.path.exists(os.path.join(root, name, COMPLETE))
    ]
    return {
        "python": list(sys.version_info[:3]),
        "machine": platform.machine(),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "core_threads": sorted(
            set(_read_kernel_files("cpu/cpu[0-9]*/topology/thread_siblings_list").values())
        ),
        "numa_nodes": _read_kernel_files("node/node[0-9]*/cpulist"),
        "root": root,
        "entries": [name for name in entries if name != BLOBS and not VENV.fullmatch(name)],
        "exists": os.path.lexists(root),
        "environments": [digest for _, digest in sorted(venvs, reverse=True)],
        "missing": [name for name in blobs if not os.path.lexists(os.path.join(root, BLOBS, name))],
        "processes": _processes(root),
    }


def _read_kernel_files(pattern: str) -> dict[str, str]:
    """Return the text of the kernel's files on processors, by number of the processor or node."""
    found = {}
    for path in glob.glob(f"/sys/devices/system/{pattern}"):
        with open(path, encoding="ascii") as file:
            found[re.findall(r"\d+", path)[0]] = file.read().strip()
    return found


def prepare(root: str) -> dict[str, Any]:
    """Make the folders for the upload."""
    for folder in (root, os.path.join(root, BLOBS)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _check_owner(folder, stat.S_ISDIR)
        os.chmod(folder, 0o700)
    return {}


def verify(root: str, manifest: str) -> dict[str, Any]:
    """Check that all files of a manifest exist and match their digests."""
    _verify(root, manifest)
    return {}


def install(root: str, manifest: str) -> dict[str, Any]:
    """Install a bundle into its own environment, once; a second call waits."""
    venv = os.path.join(root, "venv-" + manifest)
    descriptor = os.open(os.path.join(root, BLOBS), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(venv, COMPLETE)):
            files = _verify(root, manifest)
            if os.path.lexists(venv):  # of one that was cut off
                shutil.rmtree(venv)
            try:
                _install(root, files, venv)
            except BaseException:
                shutil.rmtree(venv, ignore_errors=True)
                raise
    finally:
        os.close(descriptor)
    return {}


def clear(root: str) -> dict[str, Any]:
    """Remove uploaded and installed files, if the root contains nothing else of the program."""
    found = look(root)
    if found["entries"] or found["processes"]:
        raise InstallationRefusal(
            f"{root}: there is more than a program: {', '.join(found['entries'][:5])}"
        )
    if os.path.isdir(root) and not os.path.islink(root):
        shutil.rmtree(root)
    return {}


def _install(root: str, files: dict[str, str], venv: str) -> None:
    _run([sys.executable, "-I", "-m", "venv", "--without-pip", venv])
    wheels = os.path.join(venv, "wheels")
    os.mkdir(wheels, 0o700)
    for name, digest in files.items():
        shutil.copyfile(os.path.join(root, BLOBS, digest), os.path.join(wheels, name))
    pip = next(name for name in files if name.startswith("pip-"))
    python = os.path.join(venv, "bin", "python")
    command = [python, "-I", os.path.join(wheels, pip, "pip"), "--isolated", "install"]
    command += ["--no-index", "--require-hashes", "--only-binary", ":all:", "--no-deps"]
    command += ["--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command += ["--find-links", wheels, "-r", os.path.join(wheels, "requirements.txt")]
    # An installation that is cut off leaves nothing in the machine's own folder for temporary
    # files.
    files_meanwhile = os.path.join(venv, "tmp")
    os.mkdir(files_meanwhile, 0o700)
    _run(command, {**os.environ, "TMPDIR": files_meanwhile})
    shutil.rmtree(files_meanwhile)
    shutil.rmtree(wheels)
    with open(os.path.join(venv, COMPLETE), "w", encoding="utf-8") as file:
        file.write("installed\n")


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment
    )
    if done.returncode != 0:
        output = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise InstallationRefusal(f"{os.path.basename(command[-1])}: {' | '.join(output[-3:])}")


def _verify(root: str, manifest: str) -> dict[str, str]:
    """Return file name → digest for the files of a manifest, all of them hashed."""
    if not re.fullmatch("[0-9a-f]{64}", manifest):
        raise InstallationRefusal(f"{manifest!r} is no bundle")
    content = _hash(root, manifest, keep=True)
    files: dict[str, str] = json.loads(content)["files"]
    for name, digest in files.items():
        if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._+-]{0,199}", name):
            raise InstallationRefusal(f"a file of the bundle is called {name[:80]!r}")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise InstallationRefusal(f"{name}: {digest!r} is no digest")
        _hash(root, digest, keep=False, name=name)
    return files


def _hash(root: str, digest: str, keep: bool, name: str = "the manifest") -> bytes:
    path = os.path.join(root, BLOBS, digest)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise InstallationRefusal(f"{path} ({name}): {error.strerror}") from None
    parts, found = [], hashlib.sha256()
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InstallationRefusal(f"{path} ({name}): not a file")
        while chunk := file.read(1 << 20):
            found.update(chunk)
            if keep:
                parts.append(chunk)
    if found.hexdigest() != digest:
        raise FileDamage(f"{path} ({name}) hashes to {found.hexdigest()}")
    return b"".join(parts)


def _check_owner(path: str, is_kind: Callable[[int], bool]) -> None:
    found = os.lstat(path)
    if not is_kind(found.st_mode) or found.st_uid != os.geteuid():
        raise InstallationRefusal(f"{path}: not ours, or a link")


def _processes(root: str) -> int:
    """Return the number of processes of this root."""
    mark = b"\0".join([b"bench.run.machine", b"agent", b"--root", os.fsencode(root)]) + b"\0"
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    count += mark in file.read()
            except OSError:
                pass  # it has ended, or is not ours
    return count


COMMANDS: dict[str, Callable[..., dict[str, Any]]]
COMMANDS = {"look": look, "prepare": prepare, "verify": verify, "install": install, "clear": clear}


def main(arguments: Sequence[str]) -> None:
    """Carry out one command line."""
    os.umask(0o077)
    root = os.path.realpath(os.path.expanduser(arguments[1]))
    try:
        answer = COMMANDS[arguments[0]](root, *arguments[2:])
    except InstallationRefusal as error:
        answer = {"refused": str(error), "damaged": isinstance(error, FileDamage)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
