"""Certificates for tests: an authority in a folder, and files that brokers and clients read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from brokerd.config import TlsFiles
from brokerd.runtime.tls import TlsCredentials
from brokerd.sessions.messages import CertifiedRole
from pubsubctl.deployment.authority import Authority


class Certificates:
    """An authority and whatever it issues, below one folder."""

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
        """Files of a new certificate.

        Args:
            trust: whose authority it trusts, if not the one that issued it.
            days_ago: when it was issued.
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
        """The same, read."""
        return TlsCredentials(self.files(role, name))
