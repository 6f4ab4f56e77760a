"""`retention list` and `set`: the policies of early release of the deployment's streams."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands.options.grouping import GroupedCommand, verbs
from pubsubctl.commands.subscriptions import command_brokers, query_brokers
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import HostError, PreflightFailed, UserError

if TYPE_CHECKING:
    from pubsubctl.hosts.hosts import Lab

app = verbs("retention", "List and change policies of early release.")

TOPOLOGY = "topology"
"""The word for the policy that the topology states."""

_HEAD = ("STREAM", "POLICY", "TOPOLOGY", "EVENTS", "RETAINED", "OLDEST")


@app.command("list", cls=GroupedCommand)
def list_all(context: typer.Context) -> Result:
    """List the policy of each stream of `durable`.

    A stream is a broker and the number of a pubend. POLICY is in force, TOPOLOGY is the policy in
    the topology file. EVENTS, RETAINED and OLDEST describe the retained publications.
    """
    import trio

    from pubsubctl.hosts.hosts import Lab, run_reaching

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def look() -> tuple[list[dict[str, Any]], list[str]]:
        return await collect(lab)

    rows, silent = trio.run(run_reaching, lab, look)
    return Result(
        document={"schema": "pubsubctl/retention/1", "streams": rows},
        text=describe(call, rows),
        because=tuple(HostError(text) for text in silent),
    )


@app.command("set", cls=GroupedCommand)
def set_policy(
    context: typer.Context,
    stream: Annotated[
        str,
        typer.Argument(
            metavar="STREAM", help="A stream, such as p1.0, or a broker with all its streams."
        ),
    ],
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="age=DURATION, bytes=SIZE, both with a comma, never, or topology.",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Release retained publications beyond the policy.")
    ] = False,
) -> Result:
    """Change the policy of early release of a stream.

    Beyond the age or the bytes, publications are released, and absent subscribers receive a gap. A
    policy that releases retained publications at once needs --force. A longer policy does not
    bring back released publications. Without --yes, prints the streams, and changes nothing. The
    policy outlasts restarts of the broker; `topology` ends the policy.
    """
    import trio

    from pubsubctl.hosts.hosts import Lab

    wanted = read_policy(policy)
    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    does = call.yes and not call.dry_run

    async def work() -> list[dict[str, Any]]:
        async with lab.open():
            rows, silent = await collect(lab, wanted)
            if silent:
                raise PreflightFailed(*silent)
            found = select_streams(rows, stream)
            if does:
                await set_at_brokers(lab, found, wanted, force=force)
            return found

    rows = trio.run(work)
    is_left = not does and not call.dry_run
    noun = "stream" if len(rows) == 1 else "streams"
    done = f"\n{len(rows)} {noun}: {wanted or 'as in the topology'}" * does
    early = sum(row["early"] for row in rows)
    warned = f"\n{early} retained publications are beyond it" * bool(early and not does)
    return Result(
        document={"schema": "pubsubctl/retention-set/1", "set": does, "streams": rows},
        text=describe(call, rows) + warned + done,
        because=(UserError("nothing was done; with --yes it is"),) if is_left else (),
    )


def read_policy(text: str) -> str:
    """Return the shortest text of a policy; "" for the topology's.

    Raises:
        UserError: the text states no policy.
    """
    from brokerd.errors import ConfigError
    from brokerd.model.retention_policy import RetentionPolicy

    if text == TOPOLOGY:
        return ""
    try:
        return str(RetentionPolicy.parse(text, "POLICY"))
    except ConfigError as error:
        raise UserError(f"{error}, or {TOPOLOGY}") from None


def select_streams(rows: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the listed streams of a broker, or one stream.

    Raises:
        UserError: no broker or stream has this name.
    """
    from brokerd.overlay.topology import nearest

    rows = [*rows]
    found = [row for row in rows if name in (row["stream"], row["broker"])]
    if not found:
        names = [*dict.fromkeys(row["broker"] for row in rows), *(row["stream"] for row in rows)]
        raise UserError(f"no stream {name[:100]!r}{nearest(name, names)}")
    return found


async def collect(lab: "Lab", policy: str = "") -> tuple[list[dict[str, Any]], list[str]]:
    """Return the policies of all streams, and the reasons of brokers that list none.

    Args:
        policy: the policy whose excess publications are counted; "": the policy in force.

    Raises:
        PreflightFailed: nothing is deployed.
    """
    arguments = {"policy": policy} if policy else {}
    answers, silent = await query_brokers(lab, "retention", arguments, "policies")
    rows = [{**row, "broker": broker} for broker, answer in answers for row in answer["retention"]]
    return sorted(rows, key=lambda row: str(row["stream"])), silent


async def set_at_brokers(
    lab: "Lab", rows: Iterable[dict[str, Any]], policy: str, *, force: bool
) -> None:
    """Change the policy of streams at their brokers.

    Raises:
        HostError: a broker has not changed the policy.
    """
    arguments = [
        (row["broker"], {"pubend": row["pubend"], "policy": policy, "force": force}) for row in rows
    ]
    failed = await command_brokers(lab, "set_retention", arguments)
    if failed:
        raise HostError(*(f"{broker}: {error}" for broker, error in failed))


def describe(call: Invocation, rows: Iterable[dict[str, Any]]) -> str:
    """Return the table of policies, or a sentence without one."""
    from pubsubctl.console.waits import describe_s

    cells = [
        (
            row["stream"],
            row["policy"],
            row["topology"] if row["topology"] != row["policy"] else "",
            f"{row['events']:,}",
            f"{row['bytes'] / 1e3:,.1f} kB",
            describe_s(row["oldest_ms"] / 1_000) if row["events"] else "",
        )
        for row in rows
    ]
    return call.console.table(_HEAD, cells) if cells else "no streams"
