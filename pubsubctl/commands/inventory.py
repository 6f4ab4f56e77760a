"""`inventory list|show|schema|lint`: which hosts there are, and what holds for each."""

import json
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.invocation import invocation
from pubsubctl.console import Result
from pubsubctl.errors import UserError

app = typer.Typer(help="The hosts one may use.")


@app.command("list")
def list_hosts(context: typer.Context) -> Result:
    """List the hosts, as --limit leaves them."""
    call = invocation(context)
    inventory = call.inventory()
    hosts = call.hosts(inventory)
    document = {
        "schema": "pubsubctl/inventory-list/1",
        "inventory": inventory.name,
        "file": str(inventory.path),
        "hosts": [
            {"name": host.name, "groups": list(host.groups), **host.variables()} for host in hosts
        ],
    }
    rows = [
        (
            host.name,
            host.connector,
            host.address or host.bench_address,
            ",".join(host.groups),
            host.variables()["ports"],
            host.cores,
        )
        for host in hosts
    ]
    header = ("HOST", "CONNECTOR", "ADDRESS", "GROUPS", "PORTS", "CORES")
    return Result(document=document, text=call.console.table(header, rows))


@app.command("show")
def show_host(
    context: typer.Context,
    host: Annotated[str, typer.Argument(help="The host's name.", autocompletion=names.hosts)],
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value was written.")
    ] = False,
) -> Result:
    """Show what holds for one host."""
    call = invocation(context)
    inventory = call.inventory()
    found = inventory.host(host)
    values = found.variables()
    document = {
        "schema": "pubsubctl/inventory-host/1",
        "inventory": inventory.name,
        "name": found.name,
        "groups": list(found.groups),
        "variables": values,
        "origins": {name: str(found.origins[name]) for name in values},
    }
    rows = [
        (name, "" if value is None else value, *([found.origins[name]] if origin else []))
        for name, value in values.items()
    ]
    header = ("VARIABLE", "VALUE", *(["ORIGIN"] if origin else []))
    groups = f"{found.name} in {', '.join(found.groups) or 'no group'}"
    return Result(document=document, text=f"{groups}\n{call.console.table(header, rows)}")


@app.command("schema")
def schema(context: typer.Context) -> Result:
    """Print the JSON Schema of inventories, for editors."""
    from pubsubctl.inventory_schema import json_schema

    found = json_schema()
    return Result(
        document={"schema": "pubsubctl/inventory-schema/1", "json_schema": found},
        text=json.dumps(found, indent=2),
    )


@app.command("lint")
def lint(
    context: typer.Context,
    files: Annotated[
        list[str] | None, typer.Argument(help="Inventories; without any, the one that holds.")
    ] = None,
) -> Result:
    """Check inventories; every problem is named."""
    from pubsubctl.inventory import load_inventory

    call = invocation(context)
    paths = (
        [call.project.find("inventory", name) for name in files]
        if files
        else [call.project.inventory_file(call.inventory_option)]
    )
    good: list[str] = []
    problems: list[str] = []
    for path in paths:
        try:
            hosts = load_inventory(path).hosts
        except UserError as error:
            problems += error.problems
        else:
            good.append(f"{path}: ok, {len(hosts)} host{'' if len(hosts) == 1 else 's'}")
    return Result(
        document={
            "schema": "pubsubctl/lint/1",
            "files": [str(path) for path in paths],
            "problems": problems,
        },
        text="\n".join(good),
        because=(UserError(*problems),) if problems else (),
    )
