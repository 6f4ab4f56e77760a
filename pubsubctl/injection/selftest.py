"""`inject --selftest`: apply every verb briefly to a deployment; observe, heal, recover.

A trickle of publications crosses the faulty link, so that faults have messages to hold back. After
a failed verb the test continues; after a fault that is not healed the test ends.
"""

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trio

from brokerd.client.client import Client, connect
from brokerd.config import TlsFiles
from brokerd.model.fault_verbs import VERB_TABLE
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import RunningProtocol, protocol_on
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.schedule import SCHEMA, FaultSchedule, read_schedule
from fault_injection.schedule.targets import check_nft_can_separate
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.deployment.certificates import check_authority
from pubsubctl.deployment.client_access import issue_certificate
from pubsubctl.deployment.deploy import attached
from pubsubctl.deployment.deployment import Deployment
from pubsubctl.deployment.placement import Placement
from pubsubctl.errors import HostError, LabDirty, PubsubctlError
from pubsubctl.hosts.hosts import Lab
from pubsubctl.injection.injection import backend_of, read_running

LEASE: Final = "15s"
CLIENT_WAIT_S: Final = 10.0
_PUBLISH_EVERY_S: Final = 0.01


@dataclass
class Trial:
    """A verb on a target.

    Attributes:
        steps: the steps of the schedule; ids and times are added.
        outcome: works, unavailable (impossible on the machine: see `why`), or fails (see `why`).
    """

    name: str
    steps: tuple[Mapping[str, Any], ...]
    outcome: str = "not tried"
    why: str = ""
    rows: tuple[Mapping[str, Any], ...] = ()
    is_optional: bool = False

    def schedule(self, topology: Topology) -> FaultSchedule:
        """Return the schedule with the steps in sequence."""
        steps: list[dict[str, Any]] = []
        for number, step in enumerate(self.steps):
            before = {"after": f"s{number - 1}.observed"} if number else {"at": "0s"}
            steps.append({"id": f"s{number}", **before, **step})
        limits = {"lease": LEASE, "max_faulty_brokers": len(topology.brokers)}
        document = {"schema": SCHEMA, "name": self.name, "guard": limits, "step": steps}
        return read_schedule(document, "selftest")


@dataclass
class _Findings:
    trials: list[Trial] = field(default_factory=list)
    not_healed: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    has_traffic: bool = False


def trials(known: RunningProtocol, placement: Placement) -> Iterator[Trial]:
    """Yield the trials, on a link to a leaf and on the leaf broker.

    The nft trial uses a target that nftables can distinguish.
    """
    a, b = choose_link(known.topology)
    machine = next(row.host for row in placement.brokers if row.broker == b)
    link = f"{a}-{b}"
    lasting = [
        (verb.name, on, trial.lasts, trial.options)
        for verb in VERB_TABLE.values()
        for trial in verb.trials
        for on in (link if "link" in verb.on else b, f"{a}->{b}")[: 1 + trial.is_one_way]
    ]
    lasting.append(_on_nft(known, placement))
    for verb, on, lasts, options in lasting:
        words = [verb, on, *(str(value) for value in options.values())]
        step = {"do": verb, "on": on, "for": lasts, **options}
        yield Trial(" ".join(words), (step,), is_optional="backend" in options)
    restart = {"do": "restart", "on": b}
    for ending in (each for each in VERB_TABLE.values() if each.backend == "end"):
        if ending.lasts:
            step = {"do": ending.name, "on": machine, "for": "1s"}
            yield Trial(f"{ending.name} {machine}", (step,))
        else:
            yield Trial(f"{ending.name} {b}, restart {b}", ({"do": ending.name, "on": b}, restart))


def _on_nft(
    known: RunningProtocol, placement: Placement
) -> tuple[str, str, str, Mapping[str, Any]]:
    """Return a link that nftables can distinguish from all others; else a whole machine."""
    topology = known.topology
    a, b = choose_link(topology)
    names = topology.brokers
    links = [(a, b), *((names[x], names[y]) for x, y in topology.links)]
    addresses = placement.addresses()
    for x, y in links:
        try:
            check_nft_can_separate([(x, y)], addresses, known.possible_peers)
        except ValueError:
            continue
        return "blackhole", f"{x}-{y}", "4s", {"backend": "nft"}
    machines = placement.machines()
    brokers = next(rows for rows in machines.values() if b in rows)
    if len(brokers) == len(names):
        return "blackhole", f"{a}-{b}", "4s", {"backend": "nft"}  # fails with the reason
    return "partition", ",".join(brokers), "6s", {"mode": "blackhole", "backend": "nft"}


def choose_link(topology: Topology) -> tuple[str, str]:
    """Return the first link to a leaf, the leaf last."""
    near = topology.neighbours()
    x, y = min(topology.links, key=lambda pair: min(len(near[pair[0]]), len(near[pair[1]])))
    if len(near[x]) < len(near[y]):
        x, y = y, x
    return topology.brokers[x], topology.brokers[y]


def selftest_now(call: Invocation) -> Result:
    """Try every verb on the deployment."""
    inventory = call.inventory()
    lab = Lab.of(inventory, inventory.hosts, call.forks)
    findings = _Findings()
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> None:
            async with (
                lab.open(),
                lab.lock("inject --selftest"),
                attached(lab, await read_running(lab)) as deployment,
            ):
                with interruption.stoppable():
                    await check_authority(lab)
                    await _try_all(deployment, findings, progress)

        run_interruptibly(
            work, call.console, when_not_waiting=f"faults heal by themselves within {LEASE}"
        )
    return _result(call, findings)


async def _try_all(deployment: Deployment, findings: _Findings, progress: Progress) -> None:
    backend = await backend_of(deployment)
    topology = backend.running.topology
    findings.trials = list(trials(backend.running, deployment.wanted.placement))
    async with _traffic(deployment) as has_traffic:
        findings.has_traffic = has_traffic
        for number, trial in enumerate(findings.trials, start=1):
            progress.phase(f"selftest {number}/{len(findings.trials)}: {trial.name}")
            prefix = f"selftest-{secrets.token_hex(3)}-"
            log = FaultLog()
            injector = Injector(trial.schedule(topology), backend, log, prefix=prefix)
            try:
                await injector.run()
            finally:
                _judge(trial, injector.outcome(), findings)
            if findings.not_healed or findings.down:
                return


def _judge(trial: Trial, injection: Injection, findings: _Findings) -> None:
    trial.rows = injection.rows
    trial.outcome = "fails" if injection.problems else "works"
    trial.why = "; ".join(injection.problems)
    applied = any(row["t_applied_ns"] for row in injection.rows)
    if trial.is_optional and injection.problems and not applied:
        trial.outcome = "unavailable"
    findings.not_healed = injection.not_healed
    findings.down = injection.down


@asynccontextmanager
async def _traffic(deployment: Deployment) -> AsyncIterator[bool]:
    """Send publications over the chosen link; yield False if no client can connect from here."""
    topology = protocol_on(deployment.wanted.topology, deployment.wanted.protocol).topology
    a, b = choose_link(topology)
    address = {row.broker: row.address for row in deployment.wanted.placement.brokers}
    mark = secrets.token_hex(4)
    names = f"selftest-{mark}-publisher", f"selftest-{mark}-subscriber"
    with TemporaryDirectory(prefix="pubsubctl-selftest-") as folder:
        tls = [_certificate(deployment, Path(folder), name) for name in names]
        session = topology.session_parameters()
        async with (
            connect(
                address[a], names[0], publishes=True, parameters=session, tls=tls[0]
            ) as publisher,
            connect(address[b], names[1], parameters=session, tls=tls[1]) as subscriber,
            trio.open_nursery() as nursery,
        ):
            started = False
            with trio.move_on_after(CLIENT_WAIT_S):
                await publisher.wait_attached()
                await subscriber.wait_attached()
                number = await subscriber.subscribe(f"selftest = '{mark}'")
                started = True
            if started:
                nursery.start_soon(_publish, publisher, mark)
                nursery.start_soon(_take, subscriber)
            try:
                yield started
            finally:
                if started:
                    with trio.CancelScope(shield=True), trio.move_on_after(CLIENT_WAIT_S):
                        await subscriber.unsubscribe(number)
                nursery.cancel_scope.cancel()


async def _publish(publisher: Client, mark: str) -> None:
    while True:
        await publisher.publish({"selftest": mark}, bytes(100))
        await trio.sleep(_PUBLISH_EVERY_S)


async def _take(subscriber: Client) -> None:
    async for _ in subscriber.publications():
        pass


def _certificate(deployment: Deployment, folder: Path, name: str) -> TlsFiles | None:
    inventory = deployment.lab.inventory
    if not inventory.uses_tls:
        return None
    return issue_certificate(inventory, deployment.identity, folder, name)


def _result(call: Invocation, findings: _Findings) -> Result:
    because: list[PubsubctlError] = []
    failed = [f"{t.name}: {t.why}" for t in findings.trials if t.outcome == "fails"]
    if failed:
        because.append(HostError(*failed))
    if findings.not_healed:
        because.append(LabDirty(*(f"{f} may still be in effect" for f in findings.not_healed)))
    rows = [(trial.name, trial.outcome, *_times(trial)) for trial in findings.trials]
    lines = [call.console.table(("TRIED", "OUTCOME", "SEEN AFTER", "HEALED IN", "WELL IN"), rows)]
    lines += [f"{t.name}: {t.why}" for t in findings.trials if t.outcome == "unavailable"]
    lines += [f"{broker} is down; `pubsubctl deploy` starts it" for broker in findings.down]
    if not findings.has_traffic:
        lines.append("no client could connect from here, so absorb and bandwidth had no traffic")
    return Result(
        document={
            "schema": "pubsubctl/inject-selftest/1",
            "trials": [
                {
                    "name": trial.name,
                    "outcome": trial.outcome,
                    "why": trial.why,
                    "faults": [dict(row) for row in trial.rows],
                }
                for trial in findings.trials
            ],
            "has_traffic": findings.has_traffic,
            "not_healed": list(findings.not_healed),
            "down": list(findings.down),
        },
        text="\n".join(lines),
        because=tuple(because),
    )


def _times(trial: Trial) -> tuple[str, str, str]:
    def between(first: str, last: str) -> str:
        for row in trial.rows:
            if row[f"t_{first}_ns"] and row[f"t_{last}_ns"]:
                return f"{(row[f't_{last}_ns'] - row[f't_{first}_ns']) / 1e9:.2f} s"
        return ""

    return (
        between("applied", "observed"),
        between("heal_requested", "healed"),
        between("healed", "recovered"),
    )
