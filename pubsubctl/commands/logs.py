"""`logs`: what brokers and agents wrote."""

import re
from typing import Annotated

import typer

from pubsubctl.commands.invocation import invocation
from pubsubctl.console import Result
from pubsubctl.errors import PreflightFailed, UserError


def logs(
    context: typer.Context,
    brokers: Annotated[
        list[str] | None, typer.Argument(metavar="[BROKER...]", help="All without any.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="RE", help="Only lines that match.")
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", metavar="N", min=1, help="At most so many of each file.")
    ] = 100,
) -> Result:
    """Print the end of the logs of brokers."""
    import trio

    from pubsubctl.deploy import placed_broker
    from pubsubctl.hosts import Lab, reached
    from pubsubctl.placement import Placement
    from pubsubctl.state import log_lines

    call = invocation(context)
    try:
        pattern = re.compile(grep or "")
    except re.error as error:
        raise UserError(f"--grep = {grep!r}: {error}") from None
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def work() -> list[tuple[str, str, str]]:
        for connector in lab.connectors:
            if (record := await connector.read_deployment()) is not None:
                placement = Placement.from_mapping(record["placement"])
                break
        else:
            raise PreflightFailed("nothing is deployed, so there are no logs")
        chosen = [placed_broker(placement, name) for name in brokers or []] or placement.brokers
        return [
            row
            for placed in chosen
            if any(connector.host.name == placed.host for connector in lab.connectors)
            for row in await log_lines(lab.connector(placed.host), placed.broker, lines)
            if pattern.search(row[2])
        ]

    found = trio.run(reached, lab, work)
    return Result(
        document={
            "schema": "pubsubctl/logs/1",
            "lines": [{"broker": row[0], "file": row[1], "line": row[2]} for row in found],
        },
        text="\n".join(f"{broker} {file} | {line}" for broker, file, line in found),
    )
