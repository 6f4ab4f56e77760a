"""How brokers and clients of a deployment talk, and the certificates they need for it."""

from collections.abc import Sequence

from brokerd.sessions.identity import CertifiedRole
from pubsubctl.errors import PreflightFailed
from pubsubctl.hosts import Lab
from pubsubctl.inventory import Inventory
from pubsubctl.plan import Observed
from pubsubctl.project import authority_folder


async def certificate_of(
    lab: Lab, deployment_id: str, host: str, role: CertifiedRole, name: str
) -> dict[str, str] | None:
    """Where a new certificate is on its host, for a process there; None where there is no TLS.

    Raises:
        UserError: the authority's files cannot be used.
    """
    if not lab.inventory.uses_tls:
        return None
    from pubsubctl.authority import Authority  # slow to import, and plaintext need not wait

    authority = Authority.of(authority_folder(lab.inventory.name))
    issued = authority.issue(deployment_id, role, name)
    stem = "tls/load" if role == "load" else f"tls/{role}-{name}"
    files = {
        "authority": ("tls/authority.pem", authority.certificate_pem),
        "certificate": (f"{stem}.pem", issued.certificate_pem),
        "key": (f"{stem}.key", issued.key_pem),
    }
    connector = lab.connector(host)
    return {
        what: str(await connector.write_secret(path, content))
        for what, (path, content) in files.items()
    }


def transport_of(inventory: Inventory) -> str:
    """How brokers and clients talk, in words for manifests and records."""
    return "mutual TLS 1.3" if inventory.uses_tls else "plaintext, loopback only"


def check_transport(found: Sequence[Observed], inventory: Inventory) -> None:
    """Brokers that run already do not change how they talk.

    Raises:
        PreflightFailed: the inventory says otherwise now.
    """
    for row in found:
        recorded = (row.deployment or {}).get("transport", transport_of(inventory))
        if recorded != transport_of(inventory):
            raise PreflightFailed(
                f"host {row.host}: what is deployed talks {recorded}, and the inventory now asks "
                f"for {transport_of(inventory)}",
                "`pubsubctl down` first",
            )
