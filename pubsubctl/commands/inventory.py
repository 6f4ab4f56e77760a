"""`inventory list|show|facts|schema|lint|import|trust`: hosts and their properties."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerd.text import format_number, nearest
from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.console.console import Console, Result
from pubsubctl.console.invocation import invocation
from pubsubctl.console.outputs import text_output, write_output
from pubsubctl.errors import PubsubctlError, UserError
from pubsubctl.hosts.files import shown

if TYPE_CHECKING:
    from pubsubctl.hosts.ssh.fabric_connection import Hop
    from pubsubctl.hosts.ssh.known_hosts import HostKey
    from pubsubctl.hosts.ssh.trust import Approval

app = verbs("inventory", "List, check and import the hosts of inventories.")


@app.command("list", cls=GroupedCommand)
def list_hosts(context: typer.Context) -> Result:
    """List the hosts that --limit selects."""
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


@app.command("show", cls=GroupedCommand)
def show_host(
    context: typer.Context,
    host: Annotated[str, typer.Argument(help="The host's name.", autocompletion=names.hosts)],
    origin: Annotated[
        bool, typer.Option("--origin", help="Print the origin of each value, too.")
    ] = False,
) -> Result:
    """Print the values of a host."""
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


@app.command("facts", cls=GroupedCommand)
def facts(
    context: typer.Context,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Query all hosts again, not only new ones.")
    ] = False,
) -> Result:
    """Print the machines of the hosts, from a cache.

    The first call queries the hosts and fills the cache.
    """
    from pubsubctl.doctor.host_facts import cached_facts, gather_host_facts

    call = invocation(context)
    inventory = call.inventory()
    hosts = call.hosts(inventory)
    known = cached_facts(inventory)
    stale = [host for host in hosts if refresh or host.name not in known]
    problems: list[PubsubctlError] = []
    if stale:
        with call.console.progress() as progress:
            progress.phase(f"looking at {len(stale)} host{'' if len(stale) == 1 else 's'}")
            looks = gather_host_facts(inventory, stale, call.forks, only_machines=True)
        problems = [look.problem for look in looks if look.problem is not None]
        known = cached_facts(inventory)
    found = [(host.name, known[host.name]) for host in hosts if host.name in known]
    header = ("HOST", "CPU", "CORES", "MEMORY", "DISK FREE", "FSYNC", "PYTHON", "KERNEL", "TAKEN")
    rows = [(name, *_facts_row(row.facts), row.taken_utc) for name, row in found]
    return Result(
        document={
            "schema": "pubsubctl/inventory-facts/1",
            "inventory": inventory.name,
            "hosts": [
                {"name": name, "taken_utc": row.taken_utc, "facts": dict(row.facts)}
                for name, row in found
            ],
        },
        text=call.console.table(header, rows),
        because=tuple(problems),
    )


def _facts_row(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the facts about a host that fit into a line; a cache may contain anything."""
    fsync = facts.get("fsync_ns")
    python = facts.get("python")
    return (
        str(facts.get("cpu_model") or "?"),
        str(len(facts["cores"]) if isinstance(facts.get("cores"), list) else "?"),
        _gib(facts.get("memory_bytes")),
        _gib(facts.get("disk_free_bytes")),
        f"{format_number(fsync[len(fsync) // 2] / 1e6, 2)} ms"
        if isinstance(fsync, list) and fsync
        else "?",
        ".".join(map(str, python)) if isinstance(python, list) else "?",
        str(facts.get("kernel") or "?"),
    )


def _gib(size: object) -> str:
    return f"{size / 2**30:.1f} GiB" if isinstance(size, int) else "?"


@app.command("schema", cls=GroupedCommand)
def schema(context: typer.Context) -> Result:
    """Print the JSON Schema of inventories, for editors."""
    from pubsubctl.inventory.inventory_schema import json_schema

    found = json_schema()
    return Result(
        document={"schema": "pubsubctl/inventory-schema/1", "json_schema": found},
        text=json.dumps(found, indent=2),
    )


@app.command("lint", cls=GroupedCommand)
def lint(
    context: typer.Context,
    files: Annotated[
        list[str] | None, typer.Argument(help="Inventories. The one in use if none is named.")
    ] = None,
) -> Result:
    """Check inventories, and print every problem."""
    from pubsubctl.inventory.inventory import load_inventory

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


SourceFormat = Annotated[
    str,
    typer.Argument(
        help="The format of SRC: ansible or ssh-config.",
        autocompletion=names.choices("ansible", "ssh-config"),
    ),
]


@app.command("import", cls=GroupedCommand)
def import_inventory(
    context: typer.Context,
    kind: SourceFormat,
    source: Annotated[Path, typer.Argument(metavar="SRC", help="The file of the other tool.")],
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name the inventory, not after the file."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")
    ] = None,
    skip_unusable: Annotated[
        bool,
        typer.Option(
            "--skip-unusable", help="Leave out entries that cannot be taken over, and list them."
        ),
    ] = False,
) -> Result:
    """Convert the inventory of another tool.

    Reads the file as data: runs no program, and looks up no name.
    """
    from pubsubctl.inventory.importers.ansible import read_ansible
    from pubsubctl.inventory.importers.findings import inventory_text, make_host_name, read_source
    from pubsubctl.inventory.importers.ssh_config import read_ssh_config

    call = invocation(context)
    readers = {"ansible": read_ansible, "ssh-config": read_ssh_config}
    if kind not in readers:
        raise UserError(f"inventory import {shown(kind)}: no such kind{nearest(kind, [*readers])}")
    found = readers[kind](read_source(source), source)
    output = text_output(output)
    called = name or make_host_name(output.stem if output else source.stem)
    text = inventory_text(found, called, source, skip_unusable=skip_unusable)
    for note in found.notes:
        call.console.warn(note)
    for entry in found.unusable:
        call.console.warn(f"left out: {entry}")
    document = {
        "schema": "pubsubctl/inventory-import/1",
        "source": str(source),
        "hosts": [host.name for host in found.hosts],
        "gateways": list(found.gateways_in_use()),
        "notes": found.notes,
        "left_out": [{"entry": entry.entry, "reason": entry.reason} for entry in found.unusable],
        "toml": text,
    }
    if output is None:
        return Result(document=document, text=text)
    if output.exists() and not call.yes:
        raise UserError(f"{output}: exists already; --yes overwrites it")
    count = f"{len(found.hosts)} host{'' if len(found.hosts) == 1 else 's'}"
    if found.unusable:
        left_out = len({entry.entry for entry in found.unusable})
        count += f", {left_out} entr{'y' if left_out == 1 else 'ies'} left out"
    if call.dry_run:
        return Result(document=document, text=f"would write {output}: {count}")
    write_output(output, text)
    text = f"{output}: {count}; next: `pubsubctl -i {output} inventory trust all`"
    return Result(document={**document, "file": str(output)}, text=text)


@app.command("trust", cls=GroupedCommand)
def trust(
    context: typer.Context,
    hosts: Annotated[
        list[str],
        typer.Argument(
            metavar="HOST...", help="Hosts, groups, patterns, gateways.", autocompletion=names.hosts
        ),
    ],
    fingerprint: Annotated[
        list[str] | None,
        typer.Option("--fingerprint", metavar="SHA256:...", help="Approve this key. Repeatable."),
    ] = None,
) -> Result:
    """Print the keys of hosts and gateways, and store approved keys."""
    from pubsubctl.console.interruption import Interruption, run_interruptibly
    from pubsubctl.hosts.ssh.trust import Approval, Met, meet, select_hosts

    call = invocation(context)
    inventory = call.inventory()
    hops = select_hosts(inventory, hosts)
    wanted = tuple(fingerprint or ())
    for text in wanted:
        if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", text):
            raise UserError(f"--fingerprint {text}: expected SHA256: and 43 characters")
    approve: Approval | None = None
    if not wanted and not call.dry_run:
        if not sys.stdin.isatty():
            raise UserError(
                "no terminal: approve keys with --fingerprint SHA256:...; `--dry-run` prints them"
            )
        approve = _make_approval(call.console)
    approved = () if call.dry_run else wanted

    async def work(interruption: Interruption) -> list[Met]:
        with interruption.stoppable():
            return await meet(inventory, hops, fingerprints=approved, approve=approve)
        raise AssertionError("the block returns or raises")

    met = run_interruptibly(work, call.console, when_not_waiting="approved keys are stored")
    rows = [
        (row["name"], row["kind"], row["key_type"], row["fingerprint"], row["state"])
        for row in (machine.to_mapping() for machine in met)
    ]
    return Result(
        document={
            "schema": "pubsubctl/inventory-trust/1",
            "known_hosts": str(inventory.known_hosts),
            "machines": [machine.to_mapping() for machine in met],
        },
        text=call.console.table(("NAME", "KIND", "KEY", "FINGERPRINT", "STATE"), rows),
    )


def _make_approval(console: Console) -> "Approval":
    import trio

    async def approve(hop: "Hop", key: "HostKey") -> bool:
        console.warn(
            f"{hop.name} ({hop.address}, port {hop.port}) shows the {key.key_type} key\n"
            f"    {key.fingerprint}\n"
            "compare it with the key of its administrator, or of `ssh-keygen -lf` on its console"
        )
        sys.stderr.write("is it the same? type yes or no: ")
        sys.stderr.flush()
        answered: str = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        return answered.strip() == "yes"

    return approve
