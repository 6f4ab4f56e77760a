"""`decommission`: make all other brokers continue without a broker that never returns."""

from typing import Annotated

import typer

from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import PreflightFailed, UserError


def decommission(
    context: typer.Context,
    broker: Annotated[str, typer.Argument(help="The broker that never comes back.")],
) -> Result:
    """Give up a broker that is down for good, so that nothing is kept for it any more.

    Without --yes only what is lost by it is said. All other brokers must be up. `deploy` does not
    start the broker any more; when it comes back all the same, it is told so, and ends: its
    clients have to go elsewhere. Once more does no harm.
    """
    import trio

    from pubsubctl.deploying import decommissioning
    from pubsubctl.hosts.hosts import Lab

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    does = call.yes and not call.dry_run

    async def work() -> decommissioning.Leaving:
        async with lab.opened():
            leaving = await decommissioning.look_at_leaving(lab, broker)
            if leaving.refusals:
                raise PreflightFailed(f"{broker} cannot be given up now", *leaving.refusals)
            if does:
                await decommissioning.decommission(lab, leaving)
            return leaving

    leaving = trio.run(work)
    lines = [f"{broker} is given up already"]
    if not leaving.is_over:
        told = ", ".join(leaving.hosts)
        lines = [f"{broker} is given up, on the disks of {told}"] if does else []
        lines += [f"{'lost' if does else 'would be lost'} with {broker}:"]
        lines += [f"  {what}" for what in leaving.losses]
    is_left = not does and not call.dry_run and not leaving.is_over
    because = (UserError("nothing was done; with --yes it is"),) if is_left else ()
    return Result(
        document={
            "schema": "pubsubctl/decommission/1",
            "broker": broker,
            "decommissioned": does or leaving.is_over,
            "losses": [*leaving.losses] if not leaving.is_over else [],
        },
        text="\n".join(lines),
        because=because,
    )
