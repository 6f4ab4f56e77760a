"""The authorities of an inventory: one certifies brokers and clients, one signs operators' acts.

The certificate authority is stored in the controller's state folder, and its key never leaves the
folder. Members of a deployment get short-lived leaf certificates with an identity as defined by
`brokerd.sessions.messages`; a broker's certificate serves both ends of a link, all others only the
dialling end.

The key for operators' acts is stored in the controller's state folder beside the certificate
authority, for deployments over TLS and over plain TCP alike, and never leaves the folder. Brokers
are started with the public half, and verify each act.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from brokerd.files import sync_folder
from brokerd.model.operator_acts import OperatorAct
from brokerd.sessions.messages import CertifiedRole, Identity
from pubsubctl.errors import PreflightFailed, UserError

LEAF_DAYS: Final = 30
AUTHORITY_DAYS: Final = 3_650
CLOCK_ALLOWANCE: Final = timedelta(days=1)
"""The tolerated lag of a host's clock behind the controller's, a wrong time zone included."""

CERTIFICATE_FILE: Final = "authority.pem"
KEY_FILE: Final = "authority.key"


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate with its key, for a member of a deployment.

    Attributes:
        certificate_pem, key_pem: file contents.
        ends: the end of validity.
        sha256: of the certificate.
    """

    certificate_pem: bytes
    key_pem: bytes
    ends: datetime

    @property
    def sha256(self) -> str:
        return (
            x509.load_pem_x509_certificate(self.certificate_pem).fingerprint(hashes.SHA256()).hex()
        )


class Authority:
    """An issuer of certificates.

    Attributes:
        certificate_pem: the root certificate, trusted by all members.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
        self._certificate = certificate
        self._key = key

    @classmethod
    def of(cls, folder: Path, *, now: datetime | None = None) -> "Authority":
        """Return the authority with files in `folder`, created if missing.

        Raises:
            UserError: its files are damaged, or open to others.
        """
        return cls.find_in(folder) or cls._make_in(folder, now or datetime.now(UTC))

    @classmethod
    def find_in(cls, folder: Path) -> "Authority | None":
        """Return the authority with files in `folder`; None if there is none yet.

        Raises:
            UserError: its files are damaged, or open to others.
        """
        if not (folder / CERTIFICATE_FILE).exists():
            return None
        key_file = folder / KEY_FILE
        try:
            certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE_FILE).read_bytes())
            if stat.S_IMODE(key_file.stat().st_mode) & 0o077:
                raise UserError(
                    f"{key_file} is open to others; its mode must be 0600 (`chmod 600`)"
                )
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{folder}: the authority's files cannot be used: {error}; take the deployment "
                "down and remove the folder, and a new authority is made"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or (
            key.public_key() != certificate.public_key()
        ):
            raise UserError(f"{key_file} is not the key of {folder / CERTIFICATE_FILE}")
        return cls(certificate, key)

    @classmethod
    def _make_in(cls, folder: Path, now: datetime) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pubsubctl authority")])
        public = key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_ALLOWANCE)
            .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, hashes.SHA256())
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The certificate last: an existing certificate implies a key; a lone key is a failed
        # attempt.
        (folder / KEY_FILE).unlink(missing_ok=True)
        _write_new(folder / KEY_FILE, _private_pem(key))
        _write_new(folder / CERTIFICATE_FILE, certificate.public_bytes(serialization.Encoding.PEM))
        return cls(certificate, key)

    def issue(
        self,
        deployment_id: str,
        role: CertifiedRole,
        name: str,
        *,
        days: float = LEAF_DAYS,
        now: datetime | None = None,
    ) -> IssuedCertificate:
        """Issue a certificate for a member of a deployment, with a new key."""
        assert 0 < days <= LEAF_DAYS, f"a certificate for {days} days; at most {LEAF_DAYS}"
        now = now or datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role == "broker":
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        uri = x509.UniformResourceIdentifier(Identity(deployment_id, role, name).uri)
        ends = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_ALLOWANCE)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([uri]), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=True)
            .add_extension(_usage(certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return IssuedCertificate(
            certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key), ends
        )

    def has_issued(self, certificate_pem: bytes) -> bool:
        """Return True if this authority issued the certificate."""
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_new(path: Path, content: bytes) -> None:
    """Write a new file with owner-only access; fail if the file exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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
        return cls.find_in(folder)

    @classmethod
    def find_in(cls, folder: Path) -> Self:
        """Return the key in `folder`.

        Raises:
            PreflightFailed: there is none: another account has deployed.
            UserError: the file is damaged, or open to others.
        """
        path = folder / OPERATOR_KEY_FILE
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise UserError(f"{path} is open to others; its mode must be 0600 (`chmod 600`)")
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
    sync_folder(path.parent)
