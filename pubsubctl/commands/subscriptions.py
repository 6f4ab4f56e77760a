"""`subscriptions list`: the durable subscriptions of the deployment."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import HostError, PreflightFailed, Unreachable

if TYPE_CHECKING:
    from pubsubctl.hosts.connectors.base import Connector
    from pubsubctl.hosts.hosts import Lab

app = verbs("subscriptions", "Look at the subscriptions that brokers keep for absent clients.")

_HEAD = ("CLIENT", "NUMBER", "BROKER", "MODE", "AWAY", "BEHIND", "HOLDS BACK", "PREDICATE")
_MOST_CHARACTERS = 60
"""The longest text of a predicate or of streams in the table; a document has all of it."""


@app.command("list", cls=GroupedCommand)
def list_all(
    context: typer.Context,
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="Only those of this client.")
    ] = None,
) -> Result:
    """List the subscriptions of `durable`, farthest behind first.

    BEHIND is the time from the last acknowledged publication to the newest one, of the stream that
    is farthest behind. HOLDS BACK names the streams that the broker releases no further because of
    this subscription.
    """
    import trio

    from pubsubctl.hosts.hosts import Lab, run_reaching

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def look() -> tuple[list[dict[str, Any]], list[str]]:
        return await collect(lab)

    found, silent = trio.run(run_reaching, lab, look)
    rows = sorted(
        (row for row in found if client in (None, row["client"])),
        key=lambda row: (-_most_behind(row), row["client"], row["number"], row["broker"]),
    )
    return Result(
        document={"schema": "pubsubctl/subscriptions/1", "subscriptions": rows},
        text=describe(call, rows),
        because=tuple(HostError(text) for text in silent),
    )


async def collect(lab: "Lab") -> tuple[list[dict[str, Any]], list[str]]:
    """Return the subscriptions at all brokers, and the reasons of brokers that list none.

    Raises:
        PreflightFailed: nothing is deployed.
    """
    from brokerd.errors import ControlError
    from pubsubctl.state import read_deployment

    record = await read_deployment(lab)
    if record is None:
        raise PreflightFailed("nothing is deployed; `pubsubctl deploy` first")
    found: list[dict[str, Any]] = []
    silent: list[str] = []

    async def ask(connector: "Connector") -> None:
        placed = record["placement"]["brokers"]
        for broker in [row["broker"] for row in placed if row["host"] == connector.host.name]:
            try:
                async with connector.open_agent() as agent:
                    answer = await agent.broker(broker, "subscriptions")
            except (ControlError, Unreachable) as error:
                silent.append(f"{broker} lists no subscriptions: {error}")
                continue
            found.extend({**row, "broker": broker} for row in answer["subscriptions"])

    await lab.on_all(ask)
    return found, sorted(silent)


def describe(call: Invocation, rows: Iterable[dict[str, Any]]) -> str:
    """Return the table of subscriptions, or a sentence without one."""
    from pubsubctl.console.waits import describe_s

    def words(ms: int | None) -> str:
        return "" if ms is None else describe_s(ms / 1_000)

    cells = [
        (
            row["client"],
            row["number"],
            row["broker"],
            row["mode"],
            words(row["away_ms"]),
            words(_most_behind(row)),
            _cut(", ".join(row["holds"])),
            _cut(row["predicate"]),
        )
        for row in rows
    ]
    return call.console.table(_HEAD, cells) if cells else "no subscriptions"


def _most_behind(row: dict[str, Any]) -> int:
    return max(row["behind_ms"].values(), default=0)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
