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
from pathlib import Path
from typing import Any

from results.tables.json_files import IntegrityError, ResultsError, read_json, write_json
from results.tables.seals import Seal, file_hashes, verify_seal

MARK = "loaded.json"
MADE_BY_CHECKS = ("coverage", "violations", "verdicts")
"""Tables with the findings of a check; no check reads such a table."""

_KEY = "tables.key"
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


def find_unsealed_derived(folder: Path) -> Path:
    """Return the derived folder of a run whose seal was not verified yet.

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
        told = str(mark.pop("mark", ""))
        return hmac.compare_digest(told, _mark(key, mark)) and mark == {
            **self.about,
            "files": self._files(),
        }

    def clear(self) -> None:
        """Remove all tables."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Mark the tables as complete."""
        said = {**self.about, "files": self._files()}
        key = _key()
        mark = {} if key is None else {"mark": _mark(key, said)}
        write_json(self.folder / MARK, {**said, **mark})

    def _files(self) -> dict[str, str]:
        return {
            name: found
            for name, found in file_hashes(self.folder).items()
            if name.partition("/")[0] not in (MARK, *MADE_BY_CHECKS)
        }


def _mark(key: bytes, said: Mapping[str, Any]) -> str:
    text = json.dumps(said, sort_keys=True).encode()
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
