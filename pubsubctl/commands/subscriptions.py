"""`subscriptions list` and `end`: the durable subscriptions of the deployment."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import HostError, PreflightFailed, Unreachable, UserError

if TYPE_CHECKING:
    from pubsubctl.hosts.connectors.base import Connector
    from pubsubctl.hosts.hosts import Lab

app = verbs("subscriptions", "List and end the subscriptions that brokers keep.")

_HEAD = ("CLIENT", "NUMBER", "BROKER", "MODE", "AWAY", "BEHIND", "HOLDS BACK", "PREDICATE")
_MOST_CHARACTERS = 60
"""The longest text of a predicate or of streams in the table; a document has all of it."""


@app.command("list", cls=GroupedCommand)
def list_all(
    context: typer.Context,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="List the subscriptions of this client."),
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


@app.command("end", cls=GroupedCommand)
def end(
    context: typer.Context,
    client: Annotated[str, typer.Argument(help="The client's name.")],
    number: Annotated[int, typer.Argument(help="The subscription's number at the client.")],
    force: Annotated[
        bool, typer.Option("--force", help="End it although its client is connected.")
    ] = False,
) -> Result:
    """End a subscription, and release the publications that it lacks.

    Without --yes, prints the subscription, and changes nothing. All brokers that have the
    subscription end it. A client that returns with its position resumes there, with a gap.
    """
    import trio

    from pubsubctl.hosts.hosts import Lab

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    does = call.yes and not call.dry_run

    async def work() -> list[dict[str, Any]]:
        async with lab.open():
            rows, silent = await collect(lab)
            if silent:
                raise PreflightFailed(*silent)
            found = [row for row in rows if (row["client"], row["number"]) == (client, number)]
            if not found:
                raise UserError(f"no broker has subscription {number} of {client[:100]!r}")
            connected = [row["broker"] for row in found if row["away_ms"] is None]
            if connected and not force:
                raise UserError(f"{client} is connected to {connected[0]}: --force ends it anyway")
            if does:
                await end_at_brokers(lab, found, force=force)
            return found

    rows = trio.run(work)
    done = f"subscription {number} of {client} is ended"
    is_left = not does and not call.dry_run
    return Result(
        document={"schema": "pubsubctl/subscription-end/1", "ended": does, "subscriptions": rows},
        text=describe(call, rows) + f"\n{done}" * does,
        because=(UserError("nothing was done; with --yes it is"),) if is_left else (),
    )


async def end_at_brokers(lab: "Lab", rows: Iterable[dict[str, Any]], *, force: bool) -> None:
    """End a subscription at all brokers that have listed it.

    Raises:
        HostError: a broker has not ended it.
    """
    from brokerd.errors import ControlError
    from pubsubctl.state import read_deployment

    record = await read_deployment(lab)
    placed = record["placement"]["brokers"] if record is not None else ()
    hosts = {row["broker"]: row["host"] for row in placed}
    failed: list[str] = []

    async def end_on(connector: "Connector") -> None:
        for row in [row for row in rows if hosts.get(row["broker"]) == connector.host.name]:
            arguments = {"client": row["client"], "number": row["number"], "force": force}
            try:
                async with connector.open_agent() as agent:
                    await agent.broker(row["broker"], "end_subscription", arguments)
            except (ControlError, Unreachable) as error:
                failed.append(f"{row['broker']} has not ended it: {error}")

    await lab.on_all(end_on)
    if failed:
        raise HostError(*sorted(failed))


async def collect(lab: "Lab") -> tuple[list[dict[str, Any]], list[str]]:
    """Return the subscriptions at all brokers, and the reasons of brokers that list none.

    Raises:
        PreflightFailed: nothing is deployed.
    """
    from brokerd.errors import ControlError
    from pubsubctl.deployment.plan import list_decommissioned
    from pubsubctl.state import read_deployment

    record = await read_deployment(lab)
    if record is None:
        raise PreflightFailed("nothing is deployed; `pubsubctl deploy` first")
    gone = list_decommissioned(record)
    placed = record["placement"]["brokers"]
    hosts = {row["broker"]: row["host"] for row in placed if row["broker"] not in gone}
    found: list[dict[str, Any]] = []
    silent: list[str] = []

    async def ask(connector: "Connector") -> None:
        for broker in [name for name, host in hosts.items() if host == connector.host.name]:
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
