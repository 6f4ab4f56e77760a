"""The key of an inventory's authority for operators' acts.

The key is stored in the controller's state folder beside the certificate authority, for deployments
over TLS and over plain TCP alike, and never leaves the folder. Brokers are started with the public
half, and verify each act.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from brokerd.model.operator_acts import OperatorAct
from pubsubctl.errors import PreflightFailed, UserError

OPERATOR_KEY_FILE: Final = "operator.key"


class OperatorKey:
    """An Ed25519 key that signs operators' acts.

    Attributes:
        public_hex: the public half, for the start of brokers.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_hex = key.public_key().public_bytes_raw().hex()

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the key in `folder`; generate a key if there is none.

        Raises:
            UserError: the file is damaged, or open to others.
        """
        path = folder / OPERATOR_KEY_FILE
        if not path.exists():
            _make(path)
        return cls.existing(folder)

    @classmethod
    def existing(cls, folder: Path) -> Self:
        """Return the key in `folder`.

        Raises:
            PreflightFailed: there is none: another account has deployed.
            UserError: the file is damaged, or open to others.
        """
        path = folder / OPERATOR_KEY_FILE
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise UserError(f"{path} is open to others; its mode must be 0600")
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except FileNotFoundError:
            raise PreflightFailed(
                f"there is no {path}: only the account that deployed signs commands to brokers",
                "work from that account, or `pubsubctl deploy --rolling` with a key of this one",
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{path} cannot be used: {error}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise UserError(f"{path} is no Ed25519 key")
        return cls(key)

    def sign(self, act: OperatorAct) -> bytes:
        """Return the signature of an act."""
        return self._key.sign(act.statement())


def _make(path: Path) -> None:
    """Write a new key, unless another process has written a key in the meantime."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(new, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
