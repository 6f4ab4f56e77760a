"""`subscriptions list` and `end`: the durable subscriptions of the deployment."""

from collections.abc import Iterable, Sequence
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

_HEAD = (
    *("CLIENT", "NUMBER", "BROKER", "MODE", "AWAY", "BEHIND", "EVENTS", "RETAINED"),
    *("HOLDS BACK", "PREDICATE"),
)
_RETAINED_HEAD = ("STREAM", "EVENTS", "RETAINED", "HELD BACK BY")
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
    is farthest behind. EVENTS counts the publications that the subscription lacks; `+` stands for
    further ones, matched at another broker. RETAINED is the size of all that publishers' brokers
    retain behind its position. HOLDS BACK names the streams that are not released because of this
    subscription. A second table has all streams, and the cause that holds back each release.
    """
    import trio

    from pubsubctl.hosts.hosts import Lab, run_reaching

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def look() -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
        found, silent = await collect(lab)
        retained, later = await collect_retained(lab, found)
        return found, retained, sorted({*silent, *later})

    found, retained, silent = trio.run(run_reaching, lab, look)
    add_retained(found, retained)
    rows = sorted(
        (row for row in found if client in (None, row["client"])),
        key=lambda row: (-_most_behind(row), row["client"], row["number"], row["broker"]),
    )
    return Result(
        document={
            "schema": "pubsubctl/subscriptions/1",
            "subscriptions": rows,
            "streams": retained,
        },
        text=describe(call, rows) + describe_retained(call, retained),
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
    arguments = [
        (row["broker"], {"client": row["client"], "number": row["number"], "force": force})
        for row in rows
    ]
    failed = await command_brokers(lab, "end_subscription", arguments)
    if failed:
        raise HostError(*(f"{broker} has not ended it: {error}" for broker, error in failed))


async def command_brokers(
    lab: "Lab", command: str, arguments: Sequence[tuple[str, dict[str, Any]]]
) -> list[tuple[str, str]]:
    """Send a command to brokers; return the brokers that refused it, with their reasons.

    Args:
        arguments: of the command, with the broker of each.
    """
    from brokerd.errors import ControlError
    from pubsubctl.deployment.newest_record import read_deployment

    record = await read_deployment(lab)
    placed = record["placement"]["brokers"] if record is not None else ()
    hosts = {row["broker"]: row["host"] for row in placed}
    failed: list[tuple[str, str]] = []

    async def command_on(connector: "Connector") -> None:
        name = connector.host.name
        for broker, values in [each for each in arguments if hosts.get(each[0]) == name]:
            try:
                async with connector.open_agent() as agent:
                    await agent.broker(broker, command, values)
            except (ControlError, Unreachable) as error:
                failed.append((broker, str(error)))

    await lab.on_all(command_on)
    return sorted(failed)


async def collect(lab: "Lab") -> tuple[list[dict[str, Any]], list[str]]:
    """Return the subscriptions at all brokers, and the reasons of brokers that list none.

    Raises:
        PreflightFailed: nothing is deployed.
    """
    answers, silent = await query_brokers(lab, "subscriptions", {})
    rows = [
        {**row, "broker": broker} for broker, answer in answers for row in answer["subscriptions"]
    ]
    return rows, silent


async def collect_retained(
    lab: "Lab", rows: Iterable[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the streams with retained events, and the reasons of brokers without an answer.

    Args:
        rows: the subscriptions, with their acknowledged ticks.
    """
    after: dict[str, list[int]] = {}
    for row in rows:
        for stream, tick in row["acknowledged"].items():
            after.setdefault(stream, []).append(tick)
    answers, silent = await query_brokers(lab, "retained", {"after": after})
    found = [{**each} for _, answer in answers for each in answer["retained"] if each["events"]]
    return sorted(found, key=lambda each: str(each["stream"])), silent


def add_retained(rows: Iterable[dict[str, Any]], retained: Iterable[dict[str, Any]]) -> None:
    """Add the retained bytes of each subscription, and the cause that holds back each release.

    A release is held back by the subscriptions with the lowest acknowledged tick. Without one, by
    holds for moving subscriptions, or else by the brokers with the lowest report.
    """
    rows = [*rows]
    streams = {each["stream"]: each for each in retained}
    for row in rows:
        row["retained_bytes"] = {}
        for stream, tick in row["acknowledged"].items():
            weights = {place: size for place, _, size in streams.get(stream, {}).get("after", ())}
            if tick in weights:
                row["retained_bytes"][stream] = weights[tick]
    for stream, each in streams.items():
        holders = [
            (row["acknowledged"][stream], f"{row['client']}/{row['number']} at {row['broker']}")
            for row in rows
            if stream in row["acknowledged"] and stream in row["holds"]
        ]
        lowest = min((tick for tick, _ in holders), default=0)
        names = sorted({name for tick, name in holders if tick == lowest})
        moved = [f"{client}/{number}, which has moved" for client, number in each.pop("moved")]
        brokers, _ = each.pop("brokers"), each.pop("after")
        each["held_by"] = names or moved or [f"broker {name}" for name in brokers]


async def query_brokers(
    lab: "Lab", command: str, arguments: dict[str, Any], subject: str = "subscriptions"
) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Return the answers of all brokers, and the reasons of brokers without an answer.

    Args:
        subject: what the brokers list, for the reasons.

    Raises:
        PreflightFailed: nothing is deployed.
    """
    from brokerd.errors import ControlError
    from pubsubctl.deployment.newest_record import read_deployment
    from pubsubctl.deployment.plan import list_decommissioned

    record = await read_deployment(lab)
    if record is None:
        raise PreflightFailed("nothing is deployed; `pubsubctl deploy` first")
    decommissioned = list_decommissioned(record)
    placed = record["placement"]["brokers"]
    hosts = {row["broker"]: row["host"] for row in placed if row["broker"] not in decommissioned}
    found: list[tuple[str, dict[str, Any]]] = []
    silent: dict[str, list[str]] = {}

    async def query(connector: "Connector") -> None:
        for broker in [name for name, host in hosts.items() if host == connector.host.name]:
            try:
                async with connector.open_agent() as agent:
                    found.append((broker, await agent.broker(broker, command, arguments)))
            except (ControlError, Unreachable) as error:
                silent.setdefault(str(error), []).append(broker)

    await lab.on_all(query)
    lines = [describe_silence(sorted(of), reason, subject) for reason, of in silent.items()]
    return found, sorted(lines)


def describe_silence(brokers: list[str], reason: str, subject: str = "subscriptions") -> str:
    """Return the reason why brokers list nothing, in one line for all."""
    verb = "lists" if len(brokers) == 1 else "list"
    return f"{', '.join(brokers)} {verb} no {subject}: {reason}"


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
            _count_behind(row),
            _size(sum(row["retained_bytes"].values())) if row.get("retained_bytes") else "",
            _cut(", ".join(row["holds"])),
            _cut(row["predicate"]),
        )
        for row in rows
    ]
    return call.console.table(_HEAD, cells) if cells else "no subscriptions"


def describe_retained(call: Invocation, streams: Iterable[dict[str, Any]]) -> str:
    """Return the table of streams with retained events; empty without one."""
    cells = [
        (each["stream"], each["events"], _size(each["bytes"]), _cut(", ".join(each["held_by"])))
        for each in streams
    ]
    return "\n\n" + call.console.table(_RETAINED_HEAD, cells) if cells else ""


def _count_behind(row: dict[str, Any]) -> str:
    counts = row["behind_events"].values()
    known = sum(each for each in counts if each is not None)
    return f"{known:,}{'+' * (None in counts)}" if counts else ""


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e3:,.1f} kB"


def _most_behind(row: dict[str, Any]) -> int:
    return max(row["behind_ms"].values(), default=0)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
