"""`clock check|sample|show`: offsets of the hosts' clocks, with their errors."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.console.console import Console, Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import IntegrityError, UserError, VerdictUnknown

if TYPE_CHECKING:
    from bench.run.clocks import HostClock

app = verbs("clock", "Measure the offsets of the hosts' clocks.")

ROUNDS_HELP = "Query each host N times."
MOST_ROUNDS = 100_000
LEAST_RATIO = 10
"""The ratio to its clocks' error from which a one-way latency is reported."""


@app.command("check", cls=GroupedCommand)
def check(
    context: typer.Context,
    latency: Annotated[
        str | None,
        typer.Option(
            "--latency", metavar="TIME", help="Require that this median can be measured: 1ms."
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=MOST_ROUNDS, help=ROUNDS_HELP)
    ] = 100,
) -> Result:
    """Compute the least one-way latency that can be measured.

    Compares the hosts of the deployment. With --latency: status 3 if a median of that length cannot
    be measured.
    """
    from brokerd.units import parse_latency_ns

    call = invocation(context)
    try:
        wanted_ns = parse_latency_ns(latency) if latency is not None else None
    except ValueError as error:
        raise UserError(f"--latency = {latency!r}: {error}") from None
    rows = _sample(call, rounds)
    least_ns = LEAST_RATIO * max(row["err_ns"] for row in rows)
    text = _table(call.console, rows)
    if least_ns:
        text += f"\n\none-way latencies with a median from {_ms(least_ns)} can be measured"
    else:
        text += "\n\nall hosts have one clock: any one-way latency can be measured"
    document = {"schema": "pubsubctl/clock/1", "hosts": rows, "least_median_ns": least_ns}
    if wanted_ns is not None and least_ns > wanted_ns:
        why = f"a median of {latency} would be uncertain by more than a tenth"
        return Result(document=document, text=text, because=(VerdictUnknown(why),))
    return Result(document=document, text=text)


@app.command("sample", cls=GroupedCommand)
def sample(
    context: typer.Context,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=MOST_ROUNDS, help=ROUNDS_HELP)
    ] = 300,
) -> Result:
    """Measure the clock of every host by this machine's."""
    call = invocation(context)
    clocks = _clocks(call, rounds)[0]
    rows = [
        (
            clock.host,
            _ms(clock.estimate.offset_ns),
            f"±{_ms(clock.estimate.err_ns)}",
            f"{clock.estimate.drift_ppb / 1000:.2f} ppm" if clock.estimate.drift_ppb else "unknown",
            _ms(clock.estimate.rtt_min_ns),
            clock.estimate.n,
            {True: "kept", False: "free", None: "?"}[clock.synchronised],
        )
        for clock in clocks
    ]
    header = ("HOST", "OFFSET", "ERROR", "DRIFT", "QUICKEST", "TRIPS", "WALL CLOCK")
    return Result(
        document={
            "schema": "pubsubctl/clock-sample/1",
            "hosts": [
                {
                    "host": clock.host,
                    "clock_id": clock.clock_id,
                    "synchronised": clock.synchronised,
                    "wall_error_us": clock.wall_error_us,
                    **vars(clock.estimate),
                }
                for clock in clocks
            ],
        },
        text=call.console.table(header, rows),
    )


@app.command("show", cls=GroupedCommand)
def show(
    context: typer.Context,
    run: Annotated[
        str, typer.Argument(help="A folder, a run id, or `latest`.", autocompletion=names.runs)
    ] = "latest",
) -> Result:
    """Print the clock offsets in the records of a run."""
    from bench.run.clocks import CLOCK_FILE
    from pubsubctl.runs.runs import find_one_run
    from results.tables.json_files import read_json_lines

    call = invocation(context)
    folder = find_one_run(call.project, run)
    path = folder / CLOCK_FILE
    if not path.is_file():
        raise UserError(f"run {folder.name}: no record of its hosts' clocks")
    rows = [*read_json_lines(path)]
    document = {"schema": "pubsubctl/clock/1", "run_id": folder.name, "hosts": rows}
    try:
        text = _table(call.console, rows)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise IntegrityError(f"{path}: a line is no comparison of clocks ({why})") from None
    return Result(document=document, text=text)


def _sample(call: Invocation, rounds: int) -> list[dict[str, Any]]:
    from bench.run.clocks import clock_rows

    clocks, reference = _clocks(call, rounds)
    return clock_rows(clocks, reference)


def _clocks(call: Invocation, rounds: int) -> "tuple[list[HostClock], str]":
    """Return the clocks of all hosts of the deployment, and the host with the reference clock."""
    import trio

    from bench.run.clocks import sample
    from pubsubctl.deployment.deployment import nothing_deployed
    from pubsubctl.deployment.newest_record import read_deployment
    from pubsubctl.hosts.hosts import Lab, run_reaching

    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def work() -> "tuple[list[HostClock], str]":
        record = await read_deployment(lab)
        if record is None:
            raise nothing_deployed(inventory)
        reference = record["placement"]["clients_host"]
        used = {reference, *(row["host"] for row in record["placement"]["brokers"])}
        hosts = [c.host.name for c in lab.connectors if c.host.name in used]
        agents = {host: (await lab.hold_agent(host)).value for host in hosts}
        return await sample(agents, rounds=rounds), reference if reference in agents else hosts[0]

    return trio.run(run_reaching, lab, work)


def _table(console: Console, rows: list[dict[str, Any]]) -> str:
    header = ("HOST", "AGAINST", "OFFSET", "ERROR", "DRIFT", "QUICKEST", "TRIPS")
    with_phase = any("phase" in row for row in rows)
    cells = []
    for row in rows:
        known = ("one clock", "", "") if row["same_clock"] else (
            _ms(row["offset_ns"]),
            f"±{_ms(row['err_ns'])}",
            f"{row['drift_ppb'] / 1000:.2f} ppm" if row["drift_ppb"] else "unknown",
        )  # fmt: skip
        line = (row["host_id"], row["ref_host"], *known, _ms(row["rtt_min_ns"]), row["n"])
        cells.append((row["phase"], *line) if with_phase else line)
    return console.table(("WHEN", *header) if with_phase else header, cells)


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f} ms"
