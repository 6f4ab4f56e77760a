"""Transport security of a deployment: TLS or plaintext, and the certificates of members."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import trio

from brokerd.agent.host.server import SECRETS_FOLDER
from brokerd.errors import ControlError
from brokerd.sessions.messages import CertifiedRole
from pubsubctl.deployment.deployment import nothing_deployed
from pubsubctl.deployment.newest_record import read_records
from pubsubctl.deployment.placement import Placement
from pubsubctl.deployment.plan import ObservedState
from pubsubctl.errors import HostError, PreflightFailed
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.hosts import Lab
from pubsubctl.inventory.inventory import Inventory
from pubsubctl.project import authority_folder

if TYPE_CHECKING:
    from pubsubctl.deployment.authority import IssuedCertificate

PLAINTEXT = "plaintext, loopback only"
WARNING_DAYS = 7
"""The number of days before expiry from which `status` and `doctor` warn."""


async def certificate_of(
    lab: Lab, deployment_id: str, host: str, role: CertifiedRole, name: str
) -> dict[str, str] | None:
    """Issue a certificate for a process and return its files on the host; None without TLS.

    Raises:
        UserError: the authority's files cannot be used.
    """
    if not lab.inventory.uses_tls:
        return None
    paths, _ = await _issue(lab, deployment_id, host, role, name)
    return paths


async def _issue(
    lab: Lab, deployment_id: str, host: str, role: CertifiedRole, name: str
) -> "tuple[dict[str, str], IssuedCertificate]":
    from pubsubctl.deployment.authority import (
        Authority,  # slow to import, and plaintext need not wait
    )

    authority = Authority.of(authority_folder(lab.inventory.name))
    issued = authority.issue(deployment_id, role, name)
    stem = "tls/load" if role == "load" else f"tls/{role}-{name}"
    files = {
        "authority": ("tls/authority.pem", authority.certificate_pem),
        "certificate": (f"{stem}.pem", issued.certificate_pem),
        "key": (f"{stem}.key", issued.key_pem),
    }
    connector = lab.connector(host)
    paths = {
        noun: str(await connector.write_secret(path, content))
        for noun, (path, content) in files.items()
    }
    return paths, issued


async def check_authority(lab: Lab) -> None:
    """Check that this account's authority issued the brokers' certificates.

    Another account, or another state folder, has an authority that no running broker trusts:
    brokers would refuse its certificates, or its certificates would lock out the deploying account.

    Raises:
        PreflightFailed: another authority issued the certificates; names the deploying account.
        UserError: the authority's files cannot be used.
    """
    if not lab.inventory.uses_tls:
        return
    from pubsubctl.deployment.authority import (
        Authority,  # slow to import, and plaintext need not wait
    )

    folder = authority_folder(lab.inventory.name)
    own = Authority.find_in(folder)
    strangers: dict[str, str] = {}

    records = await read_records(lab)
    records.check_complete()

    async def look(connector: Connector) -> None:
        record = records.of(connector.host.name) or {}
        for name, certificate in (await _certificates_on(connector, record)).items():
            if own is None or not own.has_issued(certificate):
                by = f"{record.get('who', 'somebody')}, since {record.get('since', '?')}"
                strangers[name] = f"host {connector.host.name}: deployed by {by}"

    await lab.on_all(look)
    if strangers:
        has = "another authority" if own is not None else "no authority"
        names = sorted(strangers)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise PreflightFailed(
            f"{strangers[names[0]]}: the certificates of {', '.join(names[:3])}{more} are not of "
            f"the authority here ({folder} holds {has})",
            "work from the account that deployed, or `pubsubctl down` and deploy again",
        )


async def renew_certificates(lab: Lab) -> dict[str, datetime]:
    """Issue a new certificate to every running broker; return broker → end of validity.

    No session ends: existing sessions continue, and new connections use the new certificate.

    Raises:
        PreflightFailed: nothing is deployed, the deployment uses plaintext, or the certificates are
            of another operator's authority.
        HostError: a broker does not present the new certificate.
    """
    ends: dict[str, datetime] = {}

    async def renew(connector: Connector) -> None:
        record = records.of(connector.host.name)
        if record is None:
            return
        identity, host = str(record["deployment_id"]), connector.host.name
        async with connector.open_agent() as agent:
            running = (await agent.status())["processes"]
            for row in Placement.from_mapping(record["placement"]).on(host):
                if running.get(row.broker, {}).get("state") != "running":
                    continue
                _, issued = await _issue(lab, identity, host, "broker", row.broker)
                try:
                    shown = await agent.broker(row.broker, "reload_certificate")
                except ControlError as error:
                    raise HostError(f"broker {row.broker}: {error}") from error
                if shown["certificate_sha256"] != issued.sha256:
                    raise HostError(f"broker {row.broker} does not show its new certificate")
                ends[row.broker] = issued.ends

    if not lab.inventory.uses_tls:
        raise PreflightFailed("the deployment uses plaintext on loopback: no certificates")
    await check_authority(lab)
    records = await read_records(lab)
    records.check_complete()
    await lab.on_all(renew)
    if not ends:
        raise nothing_deployed(lab.inventory)
    return ends


async def certificates_end(
    connector: Connector, record: Mapping[str, Any] | None
) -> dict[str, datetime]:
    """Return broker → end of the certificate's validity, for the brokers of a host.

    Args:
        record: of the deployment; None if none is on the host.
    """
    certificates = await _certificates_on(connector, record or {})
    if not certificates:
        return {}
    from cryptography import x509

    return {
        name: x509.load_pem_x509_certificate(certificate).not_valid_after_utc
        for name, certificate in certificates.items()
    }


async def _certificates_on(connector: Connector, record: Mapping[str, Any]) -> dict[str, bytes]:
    """Return broker → certificate, for the brokers of a host with a complete certificate."""
    if not record or record.get("transport", PLAINTEXT) == PLAINTEXT:
        return {}
    from cryptography import x509

    folder = await connector.root() / SECRETS_FOLDER / "tls"
    found = {}
    for row in Placement.from_mapping(record["placement"]).on(connector.host.name):
        try:
            content = (await connector.read_text(folder / f"broker-{row.broker}.pem")).encode()
            x509.load_pem_x509_certificate(content)
        except (HostError, ValueError):
            continue  # not started yet, or being renewed
        found[row.broker] = content
    return found


async def all_certificates_end(lab: Lab) -> dict[str, datetime]:
    """Return broker → end of the certificate's validity, for all reachable hosts."""
    ends: dict[str, datetime] = {}
    limiter = trio.CapacityLimiter(lab.forks)
    records = await read_records(lab)
    records.check_complete()

    async def look(connector: Connector) -> None:
        async with limiter:
            ends.update(await certificates_end(connector, records.of(connector.host.name)))

    await lab.on_all(look)
    return ends


def warn_of_expiry(ends: Mapping[str, datetime]) -> str:
    """Return a warning about certificates that end soon or have ended; "" for none."""
    now = datetime.now(UTC)
    late = sorted(
        (end, name) for name, end in ends.items() if end - now < timedelta(days=WARNING_DAYS)
    )
    if not late:
        return ""
    first = late[0][0]
    names = ", ".join(name for _, name in late[:3])
    names += f" and {len(late) - 3} more" if len(late) > 3 else ""
    are_several = len(late) > 1
    subject = f"the certificate{'s' if are_several else ''} of {names}"
    if first <= now:
        have = "have" if are_several else "has"
        return f"{subject} {have} ended, the first {first:%Y-%m-%d %H:%M} UTC"
    return f"{subject} end{'' if are_several else 's'} soon, the first {first:%Y-%m-%d %H:%M} UTC"


def transport_of(inventory: Inventory) -> str:
    """Return the transport in words, for manifests and records."""
    return "mutual TLS 1.3" if inventory.uses_tls else PLAINTEXT


def check_transport(found: Sequence[ObservedState], inventory: Inventory) -> None:
    """Check that running brokers keep their transport.

    Raises:
        PreflightFailed: the inventory now requires another transport.
    """
    for row in found:
        recorded = (row.deployment or {}).get("transport", transport_of(inventory))
        if recorded != transport_of(inventory):
            raise PreflightFailed(
                f"host {row.host}: the deployment uses {recorded}, and the inventory now "
                f"requires {transport_of(inventory)}",
                "`pubsubctl down` first",
            )
