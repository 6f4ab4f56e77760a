"""`certificate`: let a program of one's own be a client of what is deployed."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands.invocation import invocation
from pubsubctl.console import Result
from pubsubctl.errors import PreflightFailed, UserError


def certificate(
    context: typer.Context,
    client: Annotated[str, typer.Argument(help="The name it connects under.")],
    output: Annotated[
        Path, typer.Option("--output-dir", "-o", help="The folder that gets the files.")
    ] = Path(),
    days: Annotated[
        int, typer.Option("--days", min=1, max=30, help="How long it is accepted.")
    ] = 30,
) -> Result:
    """Issue a certificate for a client of the deployment that runs.

    Its key is in one of the files: keep it as you would a password.
    """
    import trio

    from pubsubctl.authority import Authority
    from pubsubctl.hosts import Lab, reached
    from pubsubctl.project import authority_folder

    call = invocation(context)
    if not 0 < len(client) <= 64 or not client.replace("-", "").replace("_", "").isalnum():
        raise UserError(f"client {client[:64]!r}: 1 to 64 letters, digits, - and _")
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    found = trio.run(reached, lab, lab.observe)
    deployments = [row.deployment for row in found if row.deployment is not None]
    if not deployments:
        raise PreflightFailed("nothing is deployed; `pubsubctl deploy` first")
    if not inventory.uses_tls:
        raise PreflightFailed(
            "what is deployed talks plaintext on loopback: clients need no certificate"
        )
    authority = Authority.of(authority_folder(inventory.name))
    issued = authority.issue(str(deployments[0]["deployment_id"]), "client", client, days=days)
    files = {
        "authority": (output / "authority.pem", authority.certificate_pem),
        "certificate": (output / f"{client}.pem", issued.certificate_pem),
        "key": (output / f"{client}.key", issued.key_pem),
    }
    if not call.dry_run:
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, content in files.values():
            _write(path, content)
    paths = {what: str(path) for what, (path, _) in files.items()}
    arguments = ", ".join(f"{what}={path!r}" for what, path in paths.items())
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


def _write(path: Path, content: bytes) -> None:
    """Replace a file of ours, or write a new one; for its owner alone."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(fresh, flags, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)
