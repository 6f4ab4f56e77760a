"""`certificate`: issue a client certificate for the user's program; renew brokers' certificates."""

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokerd.text import counted
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.console.outputs import written
from pubsubctl.errors import PreflightFailed

if TYPE_CHECKING:
    from pubsubctl.deployment.plan import ObservedState
    from pubsubctl.inventory.inventory import Inventory

RENEW = "renew"


def certificate(
    context: typer.Context,
    client: Annotated[str, typer.Argument(help="The client's name, or `renew`.")],
    output: Annotated[
        Path, typer.Option("--output-dir", "-o", metavar="DIR", help="Write to this folder.")
    ] = Path(),
    days: Annotated[
        int,
        typer.Option("--days", min=1, max=30, metavar="N", help="Limit the certificate to N days."),
    ] = 30,
) -> Result:
    """Issue a certificate for a client of the deployment.

    One of the files is the client's key: protect it like a password. `certificate renew` issues new
    certificates for all running brokers, for 30 days. Issue those of your clients again yourself.
    """
    import trio

    from pubsubctl.deployment.certificates import check_authority
    from pubsubctl.deployment.client_access import check_client_name
    from pubsubctl.deployment.deployment import nothing_deployed
    from pubsubctl.hosts.hosts import Lab, run_reaching

    call = invocation(context)
    check_client_name(client)
    inventory = call.inventory()
    if client == RENEW:
        return _renew(call, inventory)
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def look() -> "list[ObservedState]":
        found = await lab.observe()
        await check_authority(lab)
        return found

    found = trio.run(run_reaching, lab, look)
    deployments = [row.deployment for row in found if row.deployment is not None]
    if not deployments:
        raise nothing_deployed(inventory)
    if not inventory.uses_tls:
        raise PreflightFailed(
            "the deployment uses plaintext on loopback: clients need no certificate"
        )
    identity = str(deployments[0]["deployment_id"])
    return _issue(call, inventory, identity, client, output, days)


def _issue(
    call: Invocation, inventory: "Inventory", identity: str, client: str, output: Path, days: int
) -> Result:
    from pubsubctl.deployment.authority import Authority
    from pubsubctl.project import authority_folder

    authority = Authority.of(authority_folder(inventory.name))
    issued = authority.issue(identity, "client", client, days=days)
    files = {
        "authority": (output / "authority.pem", authority.certificate_pem),
        "certificate": (output / f"{client}.pem", issued.certificate_pem),
        "key": (output / f"{client}.key", issued.key_pem),
    }
    if not call.dry_run:
        with written(output):
            output.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path, content in files.values():
                _write(path, content)
    paths = {name: str(path) for name, (path, _) in files.items()}
    arguments = ", ".join(f"{name}={path!r}" for name, path in paths.items())
    return Result(
        document={
            "schema": "pubsubctl/certificate/1",
            "client": client,
            "ends": issued.ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
            **paths,
        },
        text=(
            f"client {client}, until {issued.ends:%Y-%m-%d %H:%M} UTC:\n"
            f"  connect(address, {client!r}, tls=TlsFiles({arguments}))"
        ),
    )


def _renew(call: Invocation, inventory: "Inventory") -> Result:
    import trio

    from pubsubctl.deployment.certificates import renew_certificates
    from pubsubctl.hosts.hosts import Lab

    call.refuse_dry_run("certificate renew")
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def work() -> dict[str, datetime]:
        async with lab.open(), lab.lock("certificate renew"):
            return await renew_certificates(lab)

    ends = trio.run(work)
    first = min(ends.values())
    return Result(
        document={
            "schema": "pubsubctl/certificates/1",
            "ends": {name: f"{end:%Y-%m-%dT%H:%M:%SZ}" for name, end in sorted(ends.items())},
        },
        text=f"new certificates at {counted(len(ends), 'broker')}, until "
        f"{first:%Y-%m-%d %H:%M} UTC",
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file with owner-only access, replacing a file of ours."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(fresh, flags, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)
