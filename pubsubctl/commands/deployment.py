"""`deploy`, `replace`, `decommission` and `down`: start, mend, reduce and stop a deployment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokerd.text import counted
from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.commands.options.runs import MaxUnavailable, Rolling, Verify
from pubsubctl.commands.options.workload import Protocol
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import HostError, LabDirty, PreflightFailed, Unreachable, UserError

if TYPE_CHECKING:
    from brokerd.overlay.topology import Topology
    from pubsubctl.deployment.deployment import Deployment
    from pubsubctl.deployment.placement_choice import PlacementChoice
    from pubsubctl.deployment.plan import Plan
    from pubsubctl.deployment.updates import RollOutcome
    from pubsubctl.hosts.hosts import Lab

_placement_option = options_in("Placement")
_replacement_option = options_in("Replacement")


ReadyTimeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=1, help="Wait for this time until brokers are ready."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """Options that decide the hosts of brokers."""

    policy: Annotated[
        str | None,
        _placement_option(
            "--policy",
            metavar="spread|pack|pin",
            help="Place brokers by this policy. See `topology place`.",
        ),
    ] = None
    safe: Annotated[
        bool,
        _placement_option(
            "--safe",
            "--delta-safe",
            help="Refuse a placement in which one machine fails more brokers than the protocol "
            "tolerates.",
        ),
    ] = False
    file: Annotated[
        Path | None,
        _placement_option(
            "--placement",
            metavar="FILE",
            help="Place brokers as this file of `topology place -o` has it.",
        ),
    ] = None

    def make_placement(self) -> "PlacementChoice":
        """Return the placement.

        Raises:
            UserError: a file goes with neither a policy nor --safe.
        """
        from pubsubctl.deployment.placement_choice import PlacementChoice

        if self.file is not None and (self.policy is not None or self.safe):
            raise UserError(
                "--placement has the hosts of all brokers; leave out --policy and --safe"
            )
        return PlacementChoice(self.policy, self.safe, self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementOptions:
    """Options that decide how brokers of another program are replaced."""

    rolling: Rolling = False
    max_unavailable: MaxUnavailable = 1
    at_once: Annotated[
        bool,
        _replacement_option(
            "--at-once",
            help="Stop all brokers of an older program, then start them. Requires --rolling. "
            "Needed after a change of the wire version.",
        ),
    ] = False
    accept_loss: Annotated[
        list[str] | None,
        _replacement_option(
            "--accept-loss",
            metavar="BROKER",
            help="Start a broker that lost durable state, and announce the loss. See "
            "`help restore`. Repeatable.",
        ),
    ] = None
    timeout: ReadyTimeout = 60.0


def deploy(
    context: typer.Context,
    placement: PlacementOptions,
    replacement: ReplacementOptions,
    topology: Annotated[
        str,
        typer.Argument(
            help="A path, or the bare name of a file in bench/topologies.",
            autocompletion=names.topologies,
        ),
    ] = "demo",
    protocol: Protocol = None,
    expect_noop: Annotated[
        bool,
        typer.Option("--expect-noop", help="Fail, and change nothing, if there is a step to take."),
    ] = False,
) -> Result:
    """Start agents and brokers, and wait for all sessions."""
    from brokerd.protocols.registry import DEFAULT
    from pubsubctl.deployment.topologies import load_topology, warn_of_parameters
    from pubsubctl.hosts.hosts import Lab

    placing = placement.make_placement()
    if replacement.at_once and not replacement.rolling:
        raise UserError("use --at-once together with --rolling")
    call = invocation(context)
    protocol = protocol or DEFAULT
    wanted_topology = load_topology(call.project.find("topology", topology), protocol)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    warn_of_parameters(call.console, wanted_topology, protocol)
    deployed = (lab, wanted_topology, protocol, placing)
    if call.dry_run or expect_noop:
        return _steps(*deployed, must_be_none=not call.dry_run, rolling=replacement.rolling)
    return _describe_deployed(call, f"deploy {topology}", deployed, replacement)


def _describe_deployed(
    call: Invocation,
    purpose: str,
    deployed: "tuple[Lab, Topology, str, PlacementChoice]",
    replacement: ReplacementOptions,
) -> Result:
    from pubsubctl.console.interruption import Interruption, run_interruptibly
    from pubsubctl.deployment.deploy import choose_deployment, run_deployment
    from pubsubctl.deployment.updates import RollOutcome, roll

    lab = deployed[0]

    async def work(interruption: Interruption) -> "tuple[Deployment, RollOutcome]":
        with call.console.progress() as progress:
            async with lab.operate(purpose, progress, interruption):
                wanted = replace(
                    await choose_deployment(*deployed),
                    accept_loss=tuple(replacement.accept_loss or ()),
                )
                async with run_deployment(
                    *(lab, wanted, progress, interruption),
                    purpose=purpose,
                    timeout_s=replacement.timeout,
                    may_change=True,
                    upgrades=replacement.rolling,
                    at_once=replacement.at_once,
                ) as deployment:
                    outdated = deployment.outdated
                    if not replacement.rolling or not outdated:
                        _warn_of_programs(call, outdated)
                        return deployment, RollOutcome()
                    with interruption.stoppable():
                        rolled = await roll(
                            *(deployment, outdated, progress),
                            max_unavailable=replacement.max_unavailable,
                            timeout_s=replacement.timeout,
                            at_once=replacement.at_once,
                            replaces_agents=False,
                        )
                    return deployment, rolled

    after_signal = "`pubsubctl down` stops the started processes"
    return _result(*run_interruptibly(work, call.console, when_not_waiting=after_signal))


def _warn_of_programs(call: Invocation, outdated: Sequence[str]) -> None:
    for host in outdated:
        call.console.warn(
            f"host {host} runs another program than this one; `pubsubctl deploy --rolling` "
            "replaces it"
        )


def _steps(
    lab: "Lab",
    topology: "Topology",
    protocol: str,
    placing: "PlacementChoice",
    *,
    must_be_none: bool,
    rolling: bool,
) -> Result:
    """Return the plan of a deployment, with the commands; change nothing.

    Raises:
        PreflightFailed: `must_be_none`, and the plan has steps.
    """
    import trio

    from pubsubctl.deployment.deploy import choose_deployment, plan_deployment
    from pubsubctl.deployment.plan import Plan
    from pubsubctl.state import due_upgrades

    async def look() -> tuple[Plan, dict[str, list[str]], dict[str, list[str]]]:
        async with lab.open():
            wanted = await choose_deployment(lab, topology, protocol, placing)
            plan = await plan_deployment(lab, wanted)
            commands = await lab.commands() if plan.steps else {}
            return plan, commands, await due_upgrades(lab)

    plan, commands, upgrades = trio.run(look)
    notes = [note for rows in upgrades.values() for note in rows]
    if must_be_none and (plan.steps or (rolling and notes)):
        steps = [*map(str, plan.steps), *(notes if rolling else ())]
        raise PreflightFailed(f"--expect-noop, but there are steps to take: {len(steps):,}", *steps)
    lines = [f"on {host}: {line}" for host, rows in commands.items() for line in rows]
    text_lines = [plan.text()] if plan.steps or not notes else ["nothing to start, but to replace:"]
    return Result(
        document={**plan.to_mapping(), "commands": commands, "outdated": upgrades},
        text="\n".join([*text_lines, *lines, *notes]),
    )


def _result(deployment: "Deployment", rolled: "RollOutcome") -> Result:
    wanted, identity = deployment.wanted, deployment.identity
    steps = len(deployment.plan.steps) + len(rolled.brokers)
    brokers = len(deployment.brokers)
    hosts = len(wanted.placement.hosts)
    from pubsubctl.deployment.plan import is_not_started
    from pubsubctl.deployment.topologies import parameters_in_words

    parameters = parameters_in_words(wanted.topology, wanted.protocol)
    text = (
        f"deployment {identity}: {wanted.topology.name}, {wanted.protocol}{parameters}, "
        f"{counted(brokers, 'broker')} on {counted(hosts, 'host')}, all sessions up"
    )
    if any(row.core >= 0 for row in wanted.placement.brokers):
        text += ", each pinned broker on its core (verified in /proc)"
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


def replace_broker(
    context: typer.Context,
    broker: Annotated[str, typer.Argument(help="The broker that never returns to its host.")],
    on: Annotated[
        str, typer.Option("--on", metavar="HOST", help="Continue the broker on this host.")
    ],
    timeout: ReadyTimeout = 60.0,
) -> Result:
    """Continue a broker that never returns on another host, from its replicas.

    The broker needs `replicas` of 2 or more. It loses nothing that was acknowledged. All other
    brokers must be up. Clients need its new address. A process of the former host that returns is
    refused by the others. The command is repeatable. See `help restore`.
    """
    from pubsubctl.console.interruption import Interruption, run_interruptibly
    from pubsubctl.deployment.deploy import run_deployment
    from pubsubctl.deployment.replacement import Replacement, find_replacement, record_replacement
    from pubsubctl.hosts.hosts import Lab

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    purpose = f"replace {broker}"

    async def work(interruption: Interruption) -> Replacement:
        with call.console.progress() as progress:
            async with lab.open():
                with interruption.stoppable():
                    lost = await lab.without_unreachable()
                    if call.dry_run:
                        return await find_replacement(lab, broker, on, lost)
                    await lab.install()
                async with lab.lock(purpose):
                    found = await find_replacement(lab, broker, on, lost)
                    await record_replacement(lab, found)
                    running = (lab, found.wanted, progress, interruption)
                    async with run_deployment(
                        *running, purpose=purpose, timeout_s=timeout, may_change=True
                    ):
                        return found

    again = f"`pubsubctl replace {broker} --on {on}` resumes"
    found = run_interruptibly(work, call.console, when_not_waiting=again)
    verb = "would continue" if call.dry_run else "continues"
    return Result(
        document={**found.to_mapping(), "replaced": not call.dry_run},
        text=f"{broker} {verb} on host {on}, at {found.placed.address}",
    )


def decommission(
    context: typer.Context,
    broker: Annotated[str, typer.Argument(help="The broker that never returns.")],
) -> Result:
    """Give up a broker that never returns, with its messages.

    Without --yes, prints the losses, and changes nothing. All other brokers must be up.
    Afterwards `deploy` does not start the broker. If its process returns nevertheless, the other
    brokers refuse it, and it ends. The command is repeatable.
    """
    import trio

    from pubsubctl.deployment import membership
    from pubsubctl.hosts.hosts import Lab

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    does = call.yes and not call.dry_run

    async def work() -> membership.DecommissionCandidate:
        async with lab.open():
            leaving = await membership.collect_departure_reports(lab, broker)
            if leaving.refusals:
                raise PreflightFailed(f"{broker} cannot be decommissioned now", *leaving.refusals)
            if does:
                await membership.decommission(lab, leaving)
            return leaving

    leaving = trio.run(work)
    lines = [f"{broker} is decommissioned already"]
    if not leaving.is_over:
        text = ", ".join(leaving.hosts)
        lines = [f"{broker} is decommissioned; recorded on the disks of {text}"] if does else []
        lines += [f"{'lost' if does else 'would be lost'} with {broker}:"]
        lines += [f"  {loss}" for loss in leaving.losses]
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


def down(
    context: typer.Context,
    verify: Verify = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove the installed program and the folders, too.")
    ] = False,
) -> Result:
    """Stop the deployment, and remove its files."""
    import trio

    from pubsubctl.console.interruption import Interruption, run_interruptibly
    from pubsubctl.deployment.deploy import take_down
    from pubsubctl.deployment.plan import Plan, down_plan
    from pubsubctl.hosts.hosts import Lab, run_reaching

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    if call.dry_run:
        plan = down_plan(trio.run(run_reaching, lab, lab.observe), purge=purge)
        return Result(document=plan.to_mapping(), text=plan.text())

    lost: list[Unreachable] = []

    async def work(interruption: Interruption) -> Plan:
        with call.console.progress() as progress:
            async with lab.open():
                with interruption.stoppable():
                    lost.extend(await lab.without_unreachable())
                    await lab.install(only_if_used=True)
                async with lab.lock("down"):
                    return await take_down(lab, progress, purge=purge, verify=verify)

    after_signal = "`pubsubctl down` removes the rest"
    plan = run_interruptibly(work, call.console, when_not_waiting=after_signal)
    return _describe_stopped(lab, plan, lost, verify=verify, purge=purge)


def _describe_stopped(
    lab: "Lab", plan: "Plan", lost: Sequence[Unreachable], *, verify: bool, purge: bool
) -> Result:
    from pubsubctl.inventory.inventory_model import format_ranges

    stopped = sum(step.verb != "remove" for step in plan.steps)
    text = f"stopped {counted(stopped, 'agent')}" if stopped else "nothing was running"
    kind = LabDirty if verify else HostError
    if verify:
        hosts = format_ranges(connector.host.name for connector in lab.connectors)
        where = f" on {hosts}" if lost else ""
        text += f"; verified: no process, port, socket or file is left{where}"
    if lab.connections is not None and not purge:
        text += "; the program stays installed, --purge removes it"
    return Result(
        document={
            "schema": "pubsubctl/down/1",
            "hosts": [connector.host.name for connector in lab.connectors],
            "steps": plan.to_mapping()["steps"],
            "verified": verify and not lost,
            "purged": purge,
        },
        text=text,
        because=tuple(
            kind(*error.problems, "its processes may still run; repeat `pubsubctl down`")
            for error in lost
        ),
    )
