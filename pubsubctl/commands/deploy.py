"""`deploy`: make a topology run on the hosts of the inventory."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import PreflightFailed, UserError

if TYPE_CHECKING:
    from brokerd.overlay.topology import Topology
    from pubsubctl.deploying.deployment import Deployment
    from pubsubctl.deploying.placing import Placing
    from pubsubctl.deploying.rolling import Rolled
    from pubsubctl.hosts.hosts import Lab


def deploy(
    context: typer.Context,
    topology: Annotated[
        str,
        typer.Argument(
            help="A path, or the bare name of a file in bench/topologies.",
            autocompletion=names.topologies,
        ),
    ] = "demo",
    protocol: Annotated[
        str | None, typer.Option("--protocol", help="What brokers are to run, not the usual one.")
    ] = None,
    expect_noop: Annotated[
        bool,
        typer.Option("--expect-noop", help="Fail, and change nothing, if there is anything to do."),
    ] = False,
    rolling: Annotated[
        bool,
        typer.Option(
            "--rolling", help="Replace brokers of an older program one after the other, under load."
        ),
    ] = False,
    max_unavailable: Annotated[
        int,
        typer.Option(
            "--max-unavailable",
            metavar="N",
            min=1,
            help="With --rolling: how many at a time; no more than the protocol tolerates.",
        ),
    ] = 1,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help="With --rolling: stop all brokers of an older program, then start them. Needed "
            "where the wire version changes.",
        ),
    ] = False,
    policy: Annotated[
        str | None, typer.Option("--policy", help="spread, pack or pin; see `topology place`.")
    ] = None,
    delta_safe: Annotated[
        bool,
        typer.Option(
            "--safe",
            "--delta-safe",
            help="Refuse a placement in which one machine takes more with it than is tolerated.",
        ),
    ] = False,
    placement: Annotated[
        Path | None,
        typer.Option(
            "--placement", metavar="FILE", help="Placement, as `topology place -o` writes it."
        ),
    ] = None,
    accept_loss: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-loss",
            metavar="BROKER",
            help="Start a broker that lost durable state, and announce what is lost; see "
            "`help restore`. Repeatable.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, help="How long to wait until brokers are ready."
        ),
    ] = 60.0,
) -> Result:
    """Start agents and brokers; done when every session is up."""
    from brokerd.protocols.registry import DEFAULT
    from pubsubctl.console.interruption import Interruption, run_interruptibly
    from pubsubctl.deploying.deploy import deployed, wanted_deployment
    from pubsubctl.deploying.deployment import Deployment
    from pubsubctl.deploying.placing import Placing
    from pubsubctl.deploying.rolling import Rolled, roll
    from pubsubctl.deploying.topologies import load_topology, warn_of_parameters
    from pubsubctl.hosts.hosts import Lab

    if placement is not None and (policy is not None or delta_safe):
        raise UserError("--placement says where brokers go; --policy and --delta-safe ask for it")
    if at_once and not rolling:
        raise UserError("--at-once says how to replace brokers; --rolling asks for it")
    placing = Placing(policy, delta_safe, placement)
    call = invocation(context)
    protocol = protocol or DEFAULT
    wanted_topology = load_topology(call.project.find("topology", topology), protocol)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    warn_of_parameters(call.console, wanted_topology, protocol)
    if call.dry_run or expect_noop:
        return _steps(
            *(lab, wanted_topology, protocol, placing),
            must_be_none=not call.dry_run,
            rolling=rolling,
        )
    purpose = f"deploy {topology}"
    accepted = tuple(accept_loss or ())

    async def work(interruption: Interruption) -> tuple[Deployment, Rolled]:
        with call.console.progress() as progress:
            async with (
                lab.operated(purpose, progress, interruption),
                deployed(
                    lab,
                    replace(
                        await wanted_deployment(lab, wanted_topology, protocol, placing),
                        accept_loss=accepted,
                    ),
                    progress,
                    interruption,
                    purpose=purpose,
                    timeout_s=timeout,
                    may_change=True,
                    upgrades=rolling,
                    at_once=at_once,
                ) as deployment,
            ):
                outdated = deployment.outdated
                if rolling and outdated:
                    with interruption.stoppable():
                        rolled = await roll(
                            deployment,
                            outdated,
                            progress,
                            max_unavailable=max_unavailable,
                            timeout_s=timeout,
                            at_once=at_once,
                            replaces_agents=False,
                        )
                    return deployment, rolled
                for host in outdated:
                    call.console.warn(
                        f"host {host} runs another program than this one; "
                        "`pubsubctl deploy --rolling` replaces it"
                    )
                return deployment, Rolled()

    return _result(
        *run_interruptibly(
            work, call.console, when_not_waiting="`pubsubctl down` stops what was started"
        )
    )


def _steps(
    lab: "Lab",
    topology: "Topology",
    protocol: str,
    placing: "Placing",
    *,
    must_be_none: bool,
    rolling: bool,
) -> Result:
    """Return the plan of a deployment, with the commands; change nothing.

    Raises:
        PreflightFailed: `must_be_none`, and the plan has steps.
    """
    import trio

    from pubsubctl.deploying.deploy import planned, wanted_deployment
    from pubsubctl.deploying.plan import Plan
    from pubsubctl.state import due_upgrades

    async def look() -> tuple[Plan, dict[str, list[str]], dict[str, list[str]]]:
        async with lab.opened():
            wanted = await wanted_deployment(lab, topology, protocol, placing)
            plan = await planned(lab, wanted)
            commands = await lab.commands() if plan.steps else {}
            return plan, commands, await due_upgrades(lab)

    plan, commands, upgrades = trio.run(look)
    notes = [note for rows in upgrades.values() for note in rows]
    if must_be_none and (plan.steps or (rolling and notes)):
        steps = [*map(str, plan.steps), *(notes if rolling else ())]
        raise PreflightFailed(f"--expect-noop, but there are {len(steps)} steps to take", *steps)
    lines = [f"on {host}: {line}" for host, rows in commands.items() for line in rows]
    what = [plan.text()] if plan.steps or not notes else ["nothing to start, but to replace:"]
    return Result(
        document={**plan.to_mapping(), "commands": commands, "outdated": upgrades},
        text="\n".join([*what, *lines, *notes]),
    )


def _result(deployment: "Deployment", rolled: "Rolled") -> Result:
    wanted, identity = deployment.wanted, deployment.identity
    steps = len(deployment.plan.steps) + len(rolled.brokers)
    brokers = len(deployment.brokers)
    hosts = len(wanted.placement.hosts)
    from pubsubctl.deploying.plan import is_not_started
    from pubsubctl.deploying.topologies import parameters_in_words

    parameters = parameters_in_words(wanted.topology, wanted.protocol)
    text = (
        f"deployment {identity}: {wanted.topology.name}, {wanted.protocol}{parameters}, "
        f"{brokers} brokers on "
        f"{hosts} hosts, all sessions up"
    )
    if any(row.core >= 0 for row in wanted.placement.brokers):
        text += ", every pinned one on its core as /proc says"
    if rolled.brokers:
        text += f"; replaced {', '.join(rolled.brokers)}"
    if not steps:
        text = f"nothing to do: {text}"
    text = "\n".join([text, *map(is_not_started, deployment.plan.decommissioned)])
    return Result(
        document={
            "schema": "pubsubctl/deploy/1",
            "deployment_id": identity,
            "changed": bool(steps),
            "replaced": rolled.brokers,
            "decommissioned": [*deployment.plan.decommissioned],
            "topology": wanted.topology.name,
            "protocol": wanted.protocol,
            "digest": wanted.digest,
            "placement": wanted.placement.to_mapping(),
        },
        text=text,
    )
