"""Where what is made from a run goes, and whether what lies there is what we made.

Beside the run itself, or where nobody may write there (a reviewer's mounted data), in a folder of
our own below $XDG_CACHE_HOME that is called after the run's seal. Tables are only a cache: those
that this user did not make from these very files, or that have changed since, are made anew. That
is known by a mark with a key that never leaves this user's cache.
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
"""Tables that say what a check has found; no check reads them."""

_KEY = "tables.key"
_KEY_BYTES = 32


def cache_folder() -> Path:
    """Our folder below $XDG_CACHE_HOME; nobody else may look into it.

    Raises:
        ResultsError: there can be none.
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
    """Whether files may be made in a folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def derived_folder(folder: Path, seal: Seal) -> Path:
    """Where the tables, verdict, evidence, figures and report of a run are, or are to be.

    Raises:
        ResultsError: the run's folder is read-only, and there is no cache either.
    """
    if is_writable(folder):
        return folder
    ours = cache_folder() / "runs" / seal.digest
    ours.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ours


def derived_of(folder: Path) -> Path:
    """The same for a folder whose files nobody has looked at yet.

    Raises:
        IntegrityError: the folder is read-only, and its files are not what its seal says.
    """
    return folder if is_writable(folder) else derived_folder(folder, verify_seal(folder))


@dataclass(frozen=True)
class Tables:
    """The tables of one run.

    Attributes:
        folder: of them all.
        about: what they are made of, and by which rules.
    """

    folder: Path
    about: Mapping[str, Any]

    def are_ours(self) -> bool:
        """Whether they are there as this user made them, from just that."""
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
        """Away with what is there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """All are there."""
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
    """This user's key; None where none can be kept, so that no table is trusted."""
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
