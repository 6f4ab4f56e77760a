"""`topology gen|show|lint|place|join|leave`: topology files and placements."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokerd.text import counted
from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.console.outputs import text_output, write_output
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from brokerd.overlay.topology import Topology

app = verbs("topology", "Generate, check, print and change topologies.")

FILE_HELP = "A path, or the bare name of a file in bench/topologies."


Kinds = Annotated[
    str | None,
    typer.Option(
        "--kinds",
        metavar="tree,cells",
        help="Lay cells of one broker each over a tree, for protocols of both kinds.",
    ),
]


@app.command("gen", cls=GroupedCommand)
def generate(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            help="chain, tree, star, random, demo; cells; hierarchy, random-hierarchy; bipartite."
        ),
    ],
    brokers: Annotated[
        int | None, typer.Option("--brokers", show_default="7", help="Generate N brokers.")
    ] = None,
    fanout: Annotated[
        int,
        typer.Option(
            "--fanout",
            help="Limit the neighbours of a broker (tree), the brokers below a cell (cells), or "
            "the members of a unit (hierarchy).",
        ),
    ] = 3,
    delta: Annotated[
        int, typer.Option("--delta", help="Tolerate N consecutive failures on a path (trees).")
    ] = 1,
    seed: Annotated[
        int, typer.Option("--seed", help="Draw from this seed (random, random-hierarchy).")
    ] = 1,
    cell_size: Annotated[
        int, typer.Option("--cell-size", help="Put N brokers into an inner cell (cells).")
    ] = 2,
    proxies: Annotated[int, typer.Option("--proxies", help="Generate N proxies (bipartite).")] = 2,
    levels: Annotated[
        int, typer.Option("--levels", help="Draw addresses of N numbers (random-hierarchy).")
    ] = 3,
    kinds: Kinds = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")
    ] = None,
) -> Result:
    """Generate a topology file."""
    from pubsubctl.deployment import topologies

    call = invocation(context)
    measures = topologies.Measures(
        brokers=brokers,
        fanout=fanout,
        delta=delta,
        seed=seed,
        cell_size=cell_size,
        proxies=proxies,
        levels=levels,
    )
    topology = topologies.generate(kind, call.project, measures, kinds)
    return _write_generated(call, topology, output)


def _write_generated(call: Invocation, topology: "Topology", output: Path | None) -> Result:
    """Write a generated topology, with the name of its file; print it without a file.

    Raises:
        UserError: the file exists, and may not be replaced.
        PreflightFailed: the file cannot be written; names it.
    """
    from pubsubctl.deployment import topologies

    output = text_output(output)
    if output is None:
        text = topologies.topology_file(topology)
        return Result(document=topology.to_mapping(), text=text)
    topology = topologies.named_after(topology, output)
    if output.exists() and not output.is_dir() and not call.yes:
        raise UserError(f"{output}: exists already; --yes overwrites it")
    if call.dry_run:
        return Result(document=topology.to_mapping(), text=f"would write {output}")
    write_output(output, topologies.topology_file(topology))
    return Result(
        document={**topology.to_mapping(), "file": str(output)},
        text=f"{output}: {topologies.describe_briefly(topology)}",
    )


@app.command("show", cls=GroupedCommand)
def show(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help=FILE_HELP, autocompletion=names.topologies)],
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg", metavar="FILE", help="Draw a picture, too. With -i, colours show hosts."
        ),
    ] = None,
) -> Result:
    """Print a topology as a tree or a list, with its measures."""
    from pubsubctl.deployment import topologies

    call = invocation(context)
    topology = topologies.load_topology(call.project.find("topology", file))
    facts = topologies.summary(topology)
    text = (
        f"{topologies.drawn(topology, plain=not call.console.unicode)}\n\n"
        f"{topologies.summary_in_words(topology, facts)}"
    )
    if svg is not None:
        if svg.exists() and not call.yes:
            raise UserError(f"{svg}: exists already; --yes overwrites it")
        if not call.dry_run:
            write_output(svg, _picture(call, topology))
        text += f"\n{svg}"
    document = {"schema": "pubsubctl/topology-summary/1", "topology": topology.to_mapping()}
    return Result(document={**document, "summary": facts}, text=text)


@app.command("lint", cls=GroupedCommand)
def lint(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(help=FILE_HELP, autocompletion=names.topologies)],
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol", help="Check for this protocol, too.", autocompletion=names.protocols
        ),
    ] = None,
) -> Result:
    """Check topology files."""
    from pubsubctl.deployment import topologies

    call = invocation(context)
    good: list[str] = []
    problems: list[str] = []
    for name in files:
        try:
            path = call.project.find("topology", name)
            topology = topologies.load_topology(path, protocol)
        except UserError as error:
            problems += error.problems
        else:
            good.append(f"{path}: ok, {topologies.describe_briefly(topology)}")
    return Result(
        document={"schema": "pubsubctl/lint/1", "files": files, "problems": problems},
        text="\n".join(good),
        because=(UserError(*problems),) if problems else (),
    )


@app.command("place", cls=GroupedCommand)
def place(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help=FILE_HELP, autocompletion=names.topologies)],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="spread|pack|pin",
            help="Place brokers in turn, on few hosts with a core each, or with a core each.",
        ),
    ] = "spread",
    delta_safe: Annotated[
        bool,
        typer.Option(
            "--safe",
            "--delta-safe",
            help="Place brokers so that the protocol tolerates the loss of any one machine or "
            "failure domain.",
        ),
    ] = False,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol", help="Place brokers for this protocol.", autocompletion=names.protocols
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the placement to this file."),
    ] = None,
) -> Result:
    """Place brokers: print host, port and core of each."""
    from pubsubctl.deployment import placement_choice, topologies

    call = invocation(context)
    topology = topologies.load_topology(call.project.find("topology", file), protocol)
    inventory = call.inventory()
    hosts = call.hosts(inventory)
    found = placement_choice.judge_placement(
        topology, inventory, hosts, policy, delta_safe=delta_safe, protocol=protocol
    )
    document = {**found.placement.to_mapping(), "topology": topology.name, **found.document()}
    rows = [
        (row.broker, row.host, row.address, "" if row.core < 0 else row.core)
        for row in found.placement.brokers
    ]
    table = call.console.table(("BROKER", "HOST", "ADDRESS", "CORE"), rows)
    text = f"{table}\n\n{found.text()}"
    if output is not None:
        if output.exists() and not call.yes:
            raise UserError(f"{output}: exists already; --yes overwrites it")
        if call.dry_run:
            return Result(document=document, text=f"{text}\nwould write {output}")
        write_output(output, json.dumps(document, indent=1) + "\n")
        text = f"{text}\nwritten to {output}"
    return Result(document=document, text=text)


@app.command("join", cls=GroupedCommand)
def join(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help=FILE_HELP, autocompletion=names.topologies)],
    broker: Annotated[str, typer.Argument(help="The new broker: [a-z0-9-].")],
    at: Annotated[
        list[str],
        typer.Option(
            "--at", metavar="BROKER", help="Link it to this broker. Repeatable in a hierarchy."
        ),
    ],
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="A.B.C",
            help="Give it this address of a hierarchy (0.1.3), not the smallest free one next to "
            "the first --at.",
        ),
    ] = "",
) -> Result:
    """Add a broker to a tree or hierarchy.

    A tree gets a leaf. `deploy` then adds the broker to the deployment.
    """
    from brokerd.overlay.topology import JoinedBroker

    first, *further = at
    joined = JoinedBroker(broker, first, "", address, tuple(further))
    return _change(context, file, lambda topology: topology.with_joined(joined, file))


@app.command("leave", cls=GroupedCommand)
def leave(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help=FILE_HELP, autocompletion=names.topologies)],
    broker: Annotated[
        str,
        typer.Argument(
            help="A leaf of a tree; or a broker of a hierarchy that is no storage, and without "
            "which all units stay connected."
        ),
    ],
) -> Result:
    """Mark a broker as departed.

    `deploy` then stops the broker, once it has no clients and no messages.
    """
    return _change(context, file, lambda topology: topology.without(broker, file))


@app.command("store", cls=GroupedCommand)
def store(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help=FILE_HELP, autocompletion=names.topologies)],
    broker: Annotated[str, typer.Argument(help="A broker of a hierarchy that is no storage.")],
    level: Annotated[
        int,
        typer.Option(
            "--level", help="Store for its unit of this level, below the level of the root."
        ),
    ],
) -> Result:
    """Make a broker of a hierarchy a storage.

    `deploy` then changes the role while brokers run.
    """
    return _change_role(context, file, broker, str(level))


@app.command("retire", cls=GroupedCommand)
def retire(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help=FILE_HELP, autocompletion=names.topologies)],
    broker: Annotated[str, typer.Argument(help="A storage of a hierarchy that is no root.")],
) -> Result:
    """Retire a storage.

    After the next `deploy` the storage accepts no publications, and its subscriptions move.
    """
    return _change_role(context, file, broker, "retired")


def _change_role(context: typer.Context, file: str, broker: str, role: str) -> Result:
    """Write a topology in which a broker has another role.

    Raises:
        UserError: no protocol with such roles could run on the result.
    """
    from brokerd.protocols import registry

    def change(topology: "Topology") -> "Topology":
        changed = topology.with_role(broker, role, file)
        for protocol in registry.protocols_for(topology):
            if registry.definition_of(protocol).promises.roles_may_change:
                registry.check_runs_on(changed, protocol, file)
        return changed

    return _change(context, file, change)


def _picture(call: Invocation, topology: "Topology") -> str:
    """Return the topology as SVG; with an inventory named, placed as by `deploy`."""
    from results.figures.topology import topology_svg

    hosts: dict[str, str] = {}
    domains: dict[str, str] = {}
    if call.inventory_option is not None:
        from brokerd.protocols.registry import protocol_on
        from pubsubctl.deployment.placement import place

        inventory = call.inventory()
        chosen = call.hosts(inventory)
        every_core = range(1, 4096)  # whether there are so many is deploy's business
        known = protocol_on(topology).topology
        placement = place(known, chosen, {host.name: every_core for host in chosen})
        hosts = {row.broker: row.host for row in placement.brokers}
        domains = {host.name: host.failure_domain for host in chosen}
    brokers = topology.present()
    links = [
        (topology.brokers[a], topology.brokers[b])
        for a, others in enumerate(topology.neighbours())
        for b in others
        if a < b
    ]
    return topology_svg(topology.name, brokers, links, hosts, domains)


def _change(context: typer.Context, file: str, change: "Callable[[Topology], Topology]") -> Result:
    from brokerd.errors import ConfigError
    from pubsubctl.deployment import topologies

    call = invocation(context)
    path = call.project.find("topology", file)
    try:
        topology = change(topologies.load_topology(path))
    except ConfigError as error:
        raise UserError(str(error)) from None
    document = {**topology.to_mapping(), "file": str(path)}
    if call.dry_run:
        return Result(document=document, text=f"would change {path}")
    write_output(path, topologies.format_changed_file(path, topology))
    present = len(topology.present())
    return Result(
        document=document,
        text=f"{path}: {counted(present, 'broker')}; `pubsubctl deploy {shlex.quote(file)}` "
        "applies the change",
    )
