"""The bundle for installation on hosts: our code and wheels, as files named by content.

The wheels come from the wheelhouse that `make setup` filled from the locked list; a wheel with a
hash outside the list makes the build fail. Our code becomes one wheel, with equal bytes for equal
sources. A manifest names every file; its hash names the bundle.
"""

import base64
import hashlib
import io
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from brokerd.files import file_sha256, write_whole
from brokerd.runtime.program import host_sources
from pubsubctl.errors import IntegrityError, PreflightFailed

MANIFEST_SCHEMA = "pubsubctl/bundle/1"
DISTRIBUTION = "pubsubctl_host"
VERSION = "1"
LOCK = "host.lock"
WHEELHOUSE = "wheelhouse"

_MODULES = ("__init__", "rules/__init__", "rules/expectation", "rules/terms")
_WHEEL_NAME = re.compile(r"([A-Za-z0-9_.]+)-([A-Za-z0-9_.!+]+)-[^-]+-[^-]+-[^-]+\.whl")
_PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Blob:
    """A file of a bundle: name, SHA-256, and bytes in a local file."""

    name: str
    sha256: str
    path: Path
    size_bytes: int


@dataclass(frozen=True)
class Bundle:
    """The files that are installed on a host.

    Attributes:
        sha256: of the manifest; names the bundle and its environment.
        blobs: all files for the upload, the manifest last.
    """

    sha256: str
    blobs: tuple[Blob, ...]


def build_bundle(cache: Path, wheelhouse: Path | None = None) -> Bundle:
    """Build the bundle of the running code; generated files are kept in `cache`.

    Raises:
        PreflightFailed: there is no wheelhouse.
        IntegrityError: a wheel differs from the locked wheel.
    """
    wheelhouse = wheelhouse or Path(sys.prefix) / WHEELHOUSE
    wheels = list(find_locked_wheels(wheelhouse))
    own_name = f"{DISTRIBUTION}-{VERSION}-py3-none-any.whl"
    own = _cache(cache, own_name, build_own_wheel())
    requirements = "".join(
        f"{name}=={version} \\\n"
        + " \\\n".join(f"    --hash=sha256:{digest}" for digest in sorted(digests))
        + "\n"
        for (name, version), digests in sorted(_group_by_release([*wheels, own]).items())
        if name != "pip"
    )
    blobs = [*wheels, own, _cache(cache, "requirements.txt", requirements.encode())]
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "files": {blob.name: blob.sha256 for blob in sorted(blobs, key=lambda blob: blob.name)},
    }
    text = json.dumps(manifest, indent=1, sort_keys=True).encode()
    last = _cache(cache, "manifest.json", text)
    return Bundle(last.sha256, (*blobs, last))


def find_locked_wheels(wheelhouse: Path) -> Iterator[Blob]:
    """Yield the wheels of a wheelhouse, each hashed and found in the lock.

    Raises:
        PreflightFailed: there is no wheelhouse, or a wheelhouse without pip, from an older lock.
        IntegrityError: a wheel differs from the locked wheel.
    """
    lock = wheelhouse / LOCK
    try:
        locked = set(re.findall(r"sha256:([0-9a-f]{64})", lock.read_text(encoding="ascii")))
        paths = sorted(wheelhouse.glob("*.whl"))
    except OSError:
        paths = []
    if not any(path.name.startswith("pip-") for path in paths):
        raise PreflightFailed(
            f"{wheelhouse}: no wheels for hosts; `make setup` fetches them, once and by hash"
        )
    for path in paths:
        digest = file_sha256(path)
        if digest not in locked:
            raise IntegrityError(
                f"{path}: its SHA-256 {digest} is not in {lock.name}; nothing was installed; "
                f"remove {wheelhouse} and run `make setup`"
            )
        yield Blob(path.name, digest, path, path.stat().st_size)


@lru_cache(maxsize=1)
def build_own_wheel() -> bytes:
    """Return our own code as a wheel: equal bytes for equal sources."""
    members = {
        path.relative_to(_PROJECT).as_posix(): path.read_bytes() for path in _sources(_PROJECT)
    }
    information = f"{DISTRIBUTION}-{VERSION}.dist-info"
    members[f"{information}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {DISTRIBUTION.replace('_', '-')}\nVersion: {VERSION}\n"
    ).encode()
    members[f"{information}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: pubsubctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = f"{information}/RECORD"
    members[record] = (
        "".join(
            f"{name},sha256={_record_hash(content)},{len(content)}\n"
            for name, content in sorted(members.items())
        ).encode()
        + f"{record},,\n".encode()
    )
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(members.items()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # the same on every system
            archive.writestr(entry, content)
    return target.getvalue()


def program_digest() -> str:
    """Return the digest of the running code, for comparison with a deployment's."""
    return hashlib.sha256(build_own_wheel()).hexdigest()


def _sources(project: Path) -> Iterator[Path]:
    yield from host_sources(project)
    for module in _MODULES:
        yield project / "results" / f"{module}.py"


def _group_by_release(blobs: list[Blob]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for blob in blobs:
        release = _WHEEL_NAME.fullmatch(blob.name)
        if release is None:
            raise IntegrityError(f"{blob.path}: {blob.name} is no name of a wheel")
        key = (release[1].replace("_", "-").lower(), release[2])
        found.setdefault(key, []).append(blob.sha256)
    return found


def _cache(cache: Path, name: str, content: bytes) -> Blob:
    """Store the bytes of a blob in the cache; return the blob."""
    digest = hashlib.sha256(content).hexdigest()
    path = cache / digest
    if not path.is_file() or file_sha256(path) != digest:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, content)
    return Blob(name, digest, path, len(content))


def _record_hash(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
