"""Certificates for tests: an authority in a folder, and files for brokers and clients."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from brokerd.config import TlsFiles
from brokerd.runtime.tls import TlsCredentials
from brokerd.sessions.messages import CertifiedRole
from pubsubctl.deployment.authority import Authority


class Certificates:
    """An authority and the certificates from it, below a folder."""

    def __init__(self, folder: Path, name: str = "authority", deployment: str = "d") -> None:
        self.authority = Authority.of(folder / name)
        self.deployment = deployment
        self._folder = folder / name

    def files(
        self,
        role: CertifiedRole,
        name: str,
        *,
        deployment: str | None = None,
        trust: "Certificates | None" = None,
        days_ago: float = 0,
    ) -> TlsFiles:
        """Issue a certificate and return its files.

        Args:
            trust: the authority to trust, if not the issuer.
            days_ago: age of the certificate.
        """
        now = datetime.now(UTC) - timedelta(days=days_ago)
        issued = self.authority.issue(deployment or self.deployment, role, name, now=now)
        stem = f"{role}-{name}-{deployment or ''}{days_ago:g}-{id(trust)}"
        certificate, key = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        trusted = self._folder / f"{stem}.trusted"
        certificate.write_bytes(issued.certificate_pem)
        key.touch(mode=0o600)
        key.write_bytes(issued.key_pem)
        trusted.write_bytes((trust or self).authority.certificate_pem)
        return TlsFiles(str(trusted), str(certificate), str(key))

    def credentials(self, role: CertifiedRole, name: str) -> TlsCredentials:
        """Issue a certificate and return the loaded credentials."""
        return TlsCredentials(self.files(role, name))
