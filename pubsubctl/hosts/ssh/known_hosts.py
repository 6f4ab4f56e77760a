"""Host keys of an inventory: one file per inventory, in OpenSSH's format.

Plain and hashed names, patterns, `[host]:port` and the marker `@revoked` are supported; lines of
certificate authorities are ignored. Only `pubsubctl inventory trust` writes the file, and only
appends.
"""

import base64
import binascii
import enum
import fcntl
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brokerd.text import problem_of
from pubsubctl.errors import PreflightFailed, UserError
from pubsubctl.hosts.files import LARGEST_FILE_BYTES, shown

KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",  # of keys; signatures made with SHA-1 go by the same name and are refused
)

_MARKERS = ("@revoked", "@cert-authority")
_HASH = "|1|"


class Standing(enum.Enum):
    """The standing of a host's key in the file."""

    TRUSTED = "trusted"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class HostKey:
    """A public key of a host.

    Attributes:
        blob: the key in wire format.
    """

    key_type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint in the notation of ssh-keygen -l."""
        return fingerprint(self.blob)


@dataclass(frozen=True)
class Judgement:
    """The standing of a key, with the line numbers that determine the standing."""

    standing: Standing
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Entry:
    line: int
    marker: str
    hosts: str
    key: HostKey

    def names(self, token: str) -> bool:
        """Return True if this line names the host with that token."""
        if self.hosts.startswith(_HASH):
            return hmac.compare_digest(_hash(token, _salt(self.hosts)), self.hosts)
        is_named = False
        for pattern in self.hosts.split(","):
            if _matches(pattern.removeprefix("!"), token):
                if pattern.startswith("!"):
                    return False
                is_named = True
        return is_named


class KnownHosts:
    """The content of a known_hosts file."""

    def __init__(self, path: Path, entries: tuple[_Entry, ...]) -> None:
        self.path = path
        self._entries = entries

    @classmethod
    def load(cls, path: Path) -> "KnownHosts":
        """Read a file; a missing file contains no key.

        Raises:
            UserError: a line cannot be read, or others may write the file.
        """
        try:
            with path.open("rb") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IWOTH:
                    raise UserError(f"{path}: all users may write it; chmod 600 {path}")
                content = file.read(LARGEST_FILE_BYTES + 1)
        except FileNotFoundError:
            return cls(path, ())
        except OSError as error:
            raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
        if len(content) > LARGEST_FILE_BYTES:
            raise UserError(f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: {problem_of(error)}") from None
        return cls(path, tuple(_entries(path, text)))

    def judge(self, address: str, port: int, key: HostKey) -> Judgement:
        """Judge a key that a host presented."""
        named = self._lines_about(address, port)
        same = [entry for entry in named if entry.key == key]
        if revoked := [entry.line for entry in same if entry.marker]:
            return Judgement(Standing.REVOKED, tuple(revoked))
        if same:
            return Judgement(Standing.TRUSTED, tuple(entry.line for entry in same))
        if others := tuple(entry.line for entry in named if not entry.marker):
            return Judgement(Standing.CHANGED, others)
        return Judgement(Standing.UNKNOWN)

    def key_types(self, address: str, port: int) -> tuple[str, ...]:
        """Return the key types in the file for a host, in the order of the file."""
        named = self._lines_about(address, port)
        return tuple(dict.fromkeys(entry.key.key_type for entry in named if not entry.marker))

    @property
    def hides_names(self) -> bool:
        """Return True if the names in the file are hashed."""
        return bool(self._entries) and all(e.hosts.startswith(_HASH) for e in self._entries)

    def add(self, address: str, port: int, key: HostKey, comment: str) -> None:
        """Append a line; the existing content stays the same, byte for byte.

        The file is created with mode 0600, which later additions keep.

        Raises:
            PreflightFailed: the file cannot be written, or is a link.
        """
        name = token(address, port)
        if self.hides_names:
            name = _hash(name, os.urandom(20))
        assert comment.isprintable(), comment
        encoded = base64.b64encode(key.blob).decode()
        line = f"{name} {key.key_type} {encoded} {comment}\n".encode()
        try:
            descriptor = os.open(
                self.path,
                os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
        except OSError as error:
            raise PreflightFailed(f"{self.path}: {(error.strerror or '').lower()}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # another operator may trust a host just now
            os.fchmod(descriptor, 0o600)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            written = os.write(descriptor, line)
            if written != len(line):
                os.ftruncate(descriptor, size)
                raise PreflightFailed(f"{self.path}: no space left")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _lines_about(self, address: str, port: int) -> list[_Entry]:
        names = [token(address, port)]
        if port == 22:
            names.append(f"[{address.lower()}]:22")
        return [entry for entry in self._entries if any(entry.names(name) for name in names)]


def token(address: str, port: int) -> str:
    """Return a host's name in the notation of the file."""
    return address.lower() if port == 22 else f"[{address.lower()}]:{port}"


def fingerprint(blob: bytes) -> str:
    """Return `SHA256:` and the hash, in the notation of all SSH tools."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _entries(path: Path, text: str) -> Iterator[_Entry]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if marker and marker not in _MARKERS:
            raise UserError(f"{path}:{number}: unknown marker {shown(marker)}")
        if len(words) < 3:
            raise UserError(f"{path}:{number}: a line has host names, key type and key")
        if marker == "@cert-authority":
            continue
        hosts, key_type, encoded = words[:3]
        try:
            blob = base64.b64decode(encoded, validate=True)
            if hosts.startswith(_HASH):
                _salt(hosts)
        except (ValueError, binascii.Error):
            raise UserError(f"{path}:{number}: not base64") from None
        if blob[4 : 4 + int.from_bytes(blob[:4], "big")] != key_type.encode():
            raise UserError(f"{path}:{number}: the key is not of the type {shown(key_type)}")
        yield _Entry(
            number, marker, hosts.lower() if _HASH not in hosts else hosts, HostKey(key_type, blob)
        )


def _salt(hashed: str) -> bytes:
    return base64.b64decode(hashed.removeprefix(_HASH).partition("|")[0], validate=True)


def _hash(name: str, salt: bytes) -> str:
    # The format prescribes SHA-1, which only hides names here.
    digest = hmac.new(salt, name.encode(), "sha1").digest()
    return f"{_HASH}{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _matches(pattern: str, name: str) -> bool:
    """Return True if a token matches an OpenSSH pattern: only * and ? are special, not brackets."""
    parts = ({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    return re.fullmatch("".join(parts), name) is not None
