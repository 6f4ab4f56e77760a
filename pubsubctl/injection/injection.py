"""`inject` on a running deployment: apply a schedule, observe, and heal at the end."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.run.clocks import compute_lead_ns, sample
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import VERB_TABLE
from brokerd.overlay.topology import Topology
from fault_injection.apply.backends import DeployedBackend
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.plan import PlannedStep, describe_draws
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.deployment.deploy import attached
from pubsubctl.deployment.deployment import Deployment, nothing_deployed
from pubsubctl.deployment.newest_record import read_deployment
from pubsubctl.deployment.placement import Placement
from pubsubctl.deployment.plan import DesiredState
from pubsubctl.errors import HostError, LabDirty, PubsubctlError
from pubsubctl.hosts.hosts import Lab
from pubsubctl.runs.experiment import as_testbed

CLOCK_ROUNDS = 10
_STATES = {"unknown": "not seen"}
"""The displayed states of faults that were applied without an observed effect."""


Settle = Callable[[Topology, Placement, str], FaultSchedule]


def inject_now(call: Invocation, schedule: FaultSchedule, settle: Settle) -> Result:
    """Carry a schedule out, with the present as the origin.

    Args:
        settle: returns the schedule for the present deployment, checked and with drawn targets.
    """
    inventory = call.inventory()
    lab = Lab.of(inventory, inventory.hosts, call.forks)
    with call.console.progress() as progress:
        began_ns: list[int] = []

        def show(line: Mapping[str, Any]) -> None:
            if line["stage"] not in ("planned", "requested", "heal_requested"):
                at_s = (line["t_ns"] - began_ns[0]) / 1e9
                progress.print(f"{at_s:7.2f} s  {line['verb']} {line['target']} {line['stage']}")

        async def work(interruption: Interruption) -> Injection:
            async with lab.open(), lab.lock(f"inject {schedule.name}"):
                wanted = await read_running(lab)
                settled = settle(wanted.topology, wanted.placement, wanted.protocol)
                async with attached(lab, wanted) as deployment:
                    log = FaultLog(announce=show)
                    backend = await backend_of(deployment)
                    prefix = f"inject-{secrets.token_hex(3)}-"
                    progress.phase(f"injecting {schedule.name}")
                    injector = Injector(settled, backend, log, prefix=prefix)
                    if warning := await idle_warning(deployment, injector.steps):
                        call.console.warn(warning)
                    for line in describe_draws(settled):
                        progress.print(line)
                    try:
                        began_ns.append(time.monotonic_ns())
                        with interruption.stoppable():
                            await injector.run(began_ns[0])
                        return injector.outcome()
                    finally:
                        log.close()

        lease_s = schedule.guard.lease / 1e9
        injection = run_interruptibly(
            work, call.console, when_not_waiting=f"faults heal by themselves within {lease_s:g} s"
        )
    return _result(injection, began_ns[0])


async def idle_warning(deployment: Deployment, steps: Sequence[PlannedStep]) -> str:
    """Return a warning if no client sends messages and some faults only show in messages.

    "" if there is nothing to warn about.
    """
    unseen = list(dict.fromkeys(s.verb for s in steps if VERB_TABLE[s.verb].needs_messages))
    if not unseen:
        return ""
    for row in deployment.wanted.placement.brokers:
        try:
            if (await deployment.broker(row.broker, "status"))["clients"]:
                return ""
        except ControlError:
            continue  # a broker that is down has no clients
    return (
        f"no client is connected to any broker: {' and '.join(unseen)} can only be seen by the "
        "messages that pass; run `pubsubctl subscribe true` and `pubsubctl publish … --rate 10/s "
        "--count N` meanwhile, or give the faults to `pubsubctl bench --faults`"
    )


async def backend_of(deployment: Deployment) -> DeployedBackend:
    """Return a backend that injects faults in a deployment and maps host times to our clock."""
    testbed = await as_testbed(deployment)
    return DeployedBackend(
        testbed, compute_lead_ns(await sample(testbed.agents, rounds=CLOCK_ROUNDS))
    )


async def read_running(lab: Lab) -> DesiredState:
    """Return the recorded deployment, as requested at the time of the deployment."""
    record = await read_deployment(lab)
    if record is None:
        raise nothing_deployed(lab.inventory)
    return DesiredState(
        Topology.from_mapping(record["topology"], "deployment.json"),
        record["protocol"],
        record["digest"],
        Placement.from_mapping(record["placement"]),
    )


def _result(injection: Injection, began_ns: int) -> Result:
    """Return the result of an injection.

    Args:
        began_ns: the origin of the displayed times, on the clock of the faults' times.
    """
    because: list[PubsubctlError] = []
    if injection.problems:
        because.append(HostError(*injection.problems))
    if injection.not_healed:
        because.append(
            LabDirty(*(f"{fault} may still be in effect" for fault in injection.not_healed))
        )
    lines = [_line(row, began_ns) for row in injection.rows]
    lines += [f"{broker} is down; `pubsubctl deploy` starts it" for broker in injection.down]
    return Result(
        document={
            "schema": "pubsubctl/inject/1",
            "faults": list(injection.rows),
            "problems": list(injection.problems),
            "not_healed": list(injection.not_healed),
            "down": list(injection.down),
        },
        text="\n".join(lines),
        because=tuple(because),
    )


def _line(row: Mapping[str, Any], began_ns: int) -> str:
    """Return a fault with state, times since the start, and duration."""
    text = f"{_STATES.get(row['state'], row['state']):10} {row['verb']} {row['target']}"
    stages = {
        stage: (row[f"t_{stage}_ns"] - began_ns) / 1e9
        for stage in ("applied", "observed", "healed", "recovered")
        if row.get(f"t_{stage}_ns") is not None
    }
    parts = [f"{stage} {at_s:.2f} s" for stage, at_s in stages.items()]
    if "applied" in stages and "healed" in stages:
        parts.append(f"lasted {stages['healed'] - stages['applied']:.2f} s")
    return f"{text}: {', '.join(parts)}" if parts else text
