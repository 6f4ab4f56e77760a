"""`bundle`: the installed program on hosts behind SSH."""

from typing import Any

import typer

from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation

app = verbs("bundle", "Build, list and remove the program of hosts.")


@app.command("build", cls=GroupedCommand)
def build(context: typer.Context) -> Result:
    """Build the bundle of this program and list the content."""
    from pubsubctl.deployment.bundle import build_bundle
    from pubsubctl.project import xdg_folder

    call = invocation(context)
    bundle = build_bundle(xdg_folder("cache") / "blobs")
    rows = [(blob.name, blob.size_bytes, blob.sha256[:12]) for blob in bundle.blobs]
    return Result(
        document={
            "schema": "pubsubctl/bundle/1",
            "bundle": bundle.sha256,
            "files": [
                {"name": blob.name, "size_bytes": blob.size_bytes, "sha256": blob.sha256}
                for blob in bundle.blobs
            ],
        },
        text=f"bundle {bundle.sha256}\n" + call.console.table(("FILE", "BYTES", "SHA-256"), rows),
    )


@app.command("list", cls=GroupedCommand)
def list_all(context: typer.Context) -> Result:
    """List the installed programs of each host, the used one first."""
    return _on_hosts(context, collect=False)


@app.command("gc", cls=GroupedCommand)
def gc(context: typer.Context) -> Result:
    """Remove programs from hosts that neither we nor brokers use."""
    return _on_hosts(context, collect=True)


def _on_hosts(context: typer.Context, *, collect: bool) -> Result:
    import trio

    from pubsubctl.hosts.connectors.base import Connector
    from pubsubctl.hosts.hosts import Lab

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    found: dict[str, dict[str, Any]] = {}

    async def look(connector: Connector) -> None:
        if collect and not call.dry_run:
            async with connector.lock("bundle gc"):
                found[connector.host.name] = await connector.collect_programs()
        else:
            found[connector.host.name] = await connector.programs()

    async def work() -> None:
        async with lab.open():
            await lab.on_all(look)

    trio.run(work)
    hosts = {row.host.name: found[row.host.name] for row in lab.connectors}
    lines = [
        f"{name}: {', '.join(digest[:12] for digest in row.get('programs', [])) or 'nothing'}"
        + (f"; removed {', '.join(row['removed'])}" if row.get("removed") else "")
        for name, row in hosts.items()
    ]
    return Result(document={"schema": "pubsubctl/bundles/1", "hosts": hosts}, text="\n".join(lines))
