"""The folder of files derived from a run, and the trust in files found there.

Derived files are stored beside the run, or, if the run's folder is read-only (a reviewer's mounted
data), below $XDG_CACHE_HOME in a folder named after the run's seal. Tables are only a cache: tables
that this user did not make from the same files, or that have changed since, are made again. A mark
with a key that never leaves this user's cache proves the origin of tables.
"""

import hashlib
import hmac
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from results.tables.json_files import IntegrityError, ResultsError, read_json, write_json
from results.tables.seals import Seal, digest_of_seal, file_hashes, list_seal, verify_seal

MARK = "loaded.json"
JUDGED = "judged.json"
"""The mark of a verdict, beside the tables."""
VERDICT = "verdict.json"
EVIDENCE = "evidence"
MADE_BY_CHECKS = ("coverage", "violations", "verdicts")
"""Tables with the findings of a check; no check reads such a table."""

_KEY = "tables.key"
_ROOT = Path(__file__).resolve().parents[2]
_JUDGES = ("results", "bench", "brokerd", "fault_injection")
_KEY_BYTES = 32


def cache_folder() -> Path:
    """Return our folder below $XDG_CACHE_HOME, with access for this user only.

    Raises:
        ResultsError: the folder cannot be made.
    """
    value = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(value) if value.startswith("/") else Path.home() / ".cache"
        folder = base / "pubsubctl"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except (OSError, RuntimeError) as error:
        raise ResultsError(f"no cache folder: {error}; name one in XDG_CACHE_HOME") from None
    return folder


def is_writable(folder: Path) -> bool:
    """Return True if files can be created in a folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def find_derived_folder(folder: Path, seal: Seal) -> Path:
    """Return the folder of a run's tables, verdict, evidence, figures and report.

    Raises:
        ResultsError: the run's folder is read-only, and there is no cache either.
    """
    if is_writable(folder):
        return folder
    ours = cache_folder() / "runs" / seal.digest
    ours.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ours


def read_verdict(path: Path, run_id: str) -> dict[str, Any]:
    """Return the verdict in a file.

    Raises:
        IntegrityError: it is of another run.
    """
    verdict = read_json(path)
    if (of := verdict.get("run_id", run_id)) != run_id:
        raise IntegrityError(f"{path}: run_id = {of!r}: manifest.json is of run {run_id}")
    return verdict


def read_counts(path: Path, run_id: str) -> dict[str, Any]:
    """Return the verdict in a file, with counts, exercise and recoveries.

    Raises:
        IntegrityError: it is of another run, or holds a value that no verdict has; names the key.
    """
    verdict = read_verdict(path, run_id)
    counts: Any = verdict.get("counts")
    exercised: Any = verdict.get("exercised")
    rows: Any = verdict.get("recoveries")
    is_whole = isinstance(counts, dict) and isinstance(exercised, dict) and isinstance(rows, list)
    if not is_whole or not all(isinstance(row, dict) for row in rows):
        raise IntegrityError(f"{path}: counts, exercised or recoveries: not those of a verdict")
    found = {f"counts.{key}": counts.get(key) for key in ("owed", "delivered")}
    found["exercised.resent_publications"] = exercised.get("resent_publications")
    for place, row in enumerate(rows):
        found[f"recoveries[{place}].at_risk"] = row.get("at_risk")
        after_ns = row.get("recovered_after_ns")
        # Negative if the last of the deliveries arrived before the fault ended.
        if after_ns is not None and type(after_ns) is not int:
            key = f"recoveries[{place}].recovered_after_ns"
            raise IntegrityError(f"{path}: {key} = {after_ns!r}: no whole number")
    wrong = [(key, value) for key, value in found.items() if not _is_count(value)]
    if wrong:
        raise IntegrityError(f"{path}: {wrong[0][0]} = {wrong[0][1]!r}: no count")
    if counts["delivered"] > counts["owed"]:
        raise IntegrityError(f"{path}: counts.delivered = {counts['delivered']}: more than owed")
    return verdict


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def find_unsealed_derived(folder: Path) -> Path:
    """Return the derived folder of a run before its seal is verified.

    Raises:
        IntegrityError: the folder is read-only, and its files differ from its seal.
    """
    return folder if is_writable(folder) else find_derived_folder(folder, verify_seal(folder))


@dataclass(frozen=True)
class Tables:
    """The tables of a run.

    Attributes:
        folder: the folder of all tables.
        about: the sources and the rules of the tables.
    """

    folder: Path
    about: Mapping[str, Any]

    def is_ours(self) -> bool:
        """Return True if this user made the tables from exactly these sources."""
        path = self.folder / MARK
        key = _key()
        if key is None or not path.is_file():
            return False
        try:
            mark = read_json(path)
        except IntegrityError:
            return False
        stated = str(mark.pop("mark", ""))
        return hmac.compare_digest(stated, _mark(key, mark)) and mark == {
            **self.about,
            "files": self._files(),
        }

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Mark the tables as complete."""
        stated = {**self.about, "files": self._files()}
        key = _key()
        mark = {} if key is None else {"mark": _mark(key, stated)}
        write_json(self.folder / MARK, {**stated, **mark})

    def _files(self) -> dict[str, str]:
        return {
            name: found
            for name, found in file_hashes(self.folder).items()
            if name.partition("/")[0] not in (MARK, JUDGED, *MADE_BY_CHECKS)
        }


@dataclass(frozen=True)
class VerdictMark:
    """The proof that this user's present program made the verdict of a run from its files.

    Attributes:
        derived: the folder of the verdict.
        run: the digest of the run's files.
    """

    derived: Path
    run: str

    def write(self) -> None:
        """Mark the verdict in the folder as made now; no mark without a key."""
        if (key := _key()) is not None:
            stated = self._document()
            write_json(self.derived / "tables" / JUDGED, {**stated, "mark": _mark(key, stated)})

    def holds(self) -> bool:
        """Return True if verdict, evidence and run are those of the mark, and so is the program."""
        if not (self.derived / VERDICT).is_file():
            return False
        return _read_mark(self.derived) == self._document()

    def _document(self) -> dict[str, Any]:
        evidence = file_hashes(self.derived / EVIDENCE)
        files = {f"{EVIDENCE}/{name}": digest for name, digest in evidence.items()}
        for table in MADE_BY_CHECKS:
            found = file_hashes(self.derived / "tables" / table)
            files |= {f"tables/{table}/{name}": digest for name, digest in found.items()}
        verdict = self.derived / VERDICT
        files[VERDICT] = hashlib.sha256(verdict.read_bytes()).hexdigest()
        return {"run": self.run, "program": program_digest(), "files": files}


def has_changed_verdict(folder: Path) -> bool:
    """Return True if a verdict is not the one that was sealed, or its run was sealed anew since.

    Reads neither records nor logs. A verdict that another user's program made has no mark here, and
    only its line in the seal counts.
    """
    path = folder / VERDICT
    if not path.is_file():
        return False
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    listed = list_seal(folder)
    if listed.get(VERDICT, digest) != digest:
        return True
    mark = _read_mark(folder)
    if not mark:
        return False
    if mark["files"].get(VERDICT) != digest:
        return True
    return bool(listed) and mark["run"] != digest_of_seal(listed)


def _read_mark(derived: Path) -> dict[str, Any]:
    """Return the mark of a verdict; {} without one, and for a mark of another user."""
    path, key = derived / "tables" / JUDGED, _key()
    if key is None or not path.is_file():
        return {}
    try:
        mark = read_json(path)
    except IntegrityError:
        return {}
    stated = str(mark.pop("mark", ""))
    return mark if hmac.compare_digest(stated, _mark(key, mark)) else {}


@cache
def program_digest() -> str:
    """Return SHA-256 of the sources that decide a verdict: the judges, and the code they share."""
    found = hashlib.sha256()
    for package in _JUDGES:
        folders = [path.parent for path in (_ROOT / package).glob("*/__init__.py")]
        paths = [path for folder in folders for path in folder.rglob("*.py")]
        for path in sorted([*(_ROOT / package).glob("*.py"), *paths]):
            found.update(f"{path.relative_to(_ROOT).as_posix()}\n".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _mark(key: bytes, stated: Mapping[str, Any]) -> str:
    text = json.dumps(stated, sort_keys=True).encode()
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _key() -> bytes | None:
    """Return this user's key; None if no key can be stored, so that no table is trusted."""
    try:
        path = cache_folder() / _KEY
        if not path.exists():
            _write_key(path)
        key = path.read_bytes()
    except (OSError, ResultsError):
        return None
    return key if len(key) == _KEY_BYTES else None


def _write_key(path: Path) -> None:
    temporary = path.with_name(f".{_KEY}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(secrets.token_bytes(_KEY_BYTES))
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process was quicker, and its key is as good
    finally:
        temporary.unlink()
