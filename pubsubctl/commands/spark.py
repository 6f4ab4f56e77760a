"""`spark`: a standalone Spark cluster on the hosts of an inventory."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.commands.options.results import RunsFolder
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from pubsubctl.runs.spark_cluster import Cluster, SparkCluster

app = verbs("spark", "Run a Spark cluster on the hosts, for --master.")


@app.command("up", cls=GroupedCommand)
def up(
    context: typer.Context,
    memory: Annotated[
        str,
        typer.Option(
            "--memory", metavar="SIZE", help="Limit each worker to this memory: 2g, 512m."
        ),
    ] = "1g",
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="Limit each worker to N cores.")
    ] = None,
    results: RunsFolder = None,
) -> Result:
    """Start a master on the first host, and a worker on each.

    Prints the value of --master for `check`, `plot` and `report`. All hosts must share the folder
    of results, and must have this program and its Python at the same paths. Running parts stay.
    """
    if not re.fullmatch(r"[1-9]\d*[mg]", memory):
        raise UserError(f"--memory {memory}: a number with m or g, such as 2g")
    call = invocation(context)
    if call.dry_run:
        inventory = call.inventory()
        names = [host.name for host in call.hosts(inventory)]
        text = f"would start a master on {names[0]}, and a worker on {', '.join(names)}"
        return Result(document={"schema": "pubsubctl/spark/1", "hosts": names}, text=text)

    async def work(cluster: "SparkCluster", progress: Progress) -> "Cluster":
        return await cluster.up(progress, memory, cores)

    found = _carry_out(call, results, work)
    return Result(
        document={"schema": "pubsubctl/spark/1", **found.row()},
        text=f"workers on {', '.join(found.workers)}\n{found.master}",
    )


@app.command("status", cls=GroupedCommand)
def status(context: typer.Context, results: RunsFolder = None) -> Result:
    """Print the master's URL, and the hosts with a worker."""
    call = invocation(context)
    call.refuse_dry_run("spark status")

    async def work(cluster: "SparkCluster", progress: Progress) -> "Cluster":
        return await cluster.status()

    found = _carry_out(call, results, work)
    lines = [found.master or "no master is up"]
    lines += [f"worker on {name}" for name in found.workers]
    lines += [f"no worker on {name}" for name in found.missing]
    return Result(document={"schema": "pubsubctl/spark/1", **found.row()}, text="\n".join(lines))


@app.command("down", cls=GroupedCommand)
def down(context: typer.Context, results: RunsFolder = None) -> Result:
    """Stop the cluster, and remove its files."""
    call = invocation(context)
    call.refuse_dry_run("spark down")

    async def work(cluster: "SparkCluster", progress: Progress) -> "Cluster":
        return await cluster.down()

    found = _carry_out(call, results, work)
    text = "the cluster is down" if found.changed else "there is no cluster"
    return Result(document={"schema": "pubsubctl/spark/1", **found.row()}, text=text)


def _carry_out(
    call: Invocation,
    results: Path | None,
    work: "Callable[[SparkCluster, Progress], Awaitable[Cluster]]",
) -> "Cluster":
    import trio

    from pubsubctl.hosts.hosts import Lab, run_reaching
    from pubsubctl.runs.spark_cluster import SparkCluster

    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    cluster = SparkCluster(lab, call.project.results_folder(results))
    with call.console.progress() as progress:
        return trio.run(run_reaching, lab, lambda: work(cluster, progress))
