"""Stories about faults on real processes: stub brokers below a real agent.

The reports of the brokers are made up; kills, freezes, restarts, leases and exit statuses are real.
"""

import signal
import time
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from brokerd.agent.client import AgentClient
from brokerd.agent.processes import ProcessIdentity
from brokerd.errors import ControlError
from brokerd.overlay.topology import Topology
from fault_injection.apply.backends import DeployedBackend
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.interface import Fault
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.schedule import read_schedule
from fault_injection.schedule.targets import read_target
from tests.fault_injection.test_schedule import HEAD, step
from tests.helpers.agents import Lab, make_lab, run, until
from tests.helpers.patience import PATIENCE_S

TOPOLOGY = Topology.from_mapping(
    {
        "schema": "pubsubctl/topology/1",
        "name": "three",
        "kind": "tree",
        "brokers": ["c1", "c2", "c3"],
        "links": [["c1", "c2"], ["c2", "c3"]],
    },
    "three",
)


BEHIND_NS = 5_000 * 10**9
"""The lag of the hosts behind the injector's own clock."""


def injectors_clock_ns() -> int:
    return time.monotonic_ns() + BEHIND_NS


@dataclass(frozen=True)
class Place:
    host: str
    process: str
    address: str


@dataclass(frozen=True)
class Deployment:
    agents: Mapping[str, AgentClient]
    brokers: Mapping[str, Place]
    topology: Topology
    protocol: str = "delta_tree"
    protected_ports: Sequence[int] = ()


@pytest.fixture
def lab() -> Iterator[Lab]:
    with make_lab() as made:
        made.start_agent()
        yield made


@asynccontextmanager
async def deployed(lab: Lab, **more: Any) -> AsyncIterator[DeployedBackend]:
    """Yield three stub brokers in a row."""
    async with lab.client() as client:
        for number, name in enumerate(TOPOLOGY.brokers):
            peers = [TOPOLOGY.brokers[other] for other in TOPOLOGY.neighbours()[number]]
            await lab.start(client, f"broker-{name}", peers=peers, **more)
        places = {
            name: Place("here", f"broker-{name}", f"127.0.0.1:{26500 + number}")
            for number, name in enumerate(TOPOLOGY.brokers)
        }
        deployment = Deployment({"here": client}, places, TOPOLOGY)
        yield DeployedBackend(deployment, ahead_ns={"here": -BEHIND_NS})


def fault(verb: str, target: str, **more: Any) -> Fault:
    machines = {"here": TOPOLOGY.brokers}
    return Fault(f"f-{verb}", verb, read_target(target, TOPOLOGY, verb, machines), **more)


async def inject(backend: DeployedBackend, text: str) -> tuple[Injection, FaultLog]:
    schedule = read_schedule(tomllib.loads(HEAD + text), "story.toml")
    log = FaultLog()
    injector = Injector(schedule, backend, log, prefix="run1.", clock_ns=injectors_clock_ns)
    return await injector.run(), log


async def identity_of(backend: DeployedBackend, broker: str) -> ProcessIdentity:
    place = backend._deployment.brokers[broker]
    row = (await backend._deployment.agents[place.host].status())["processes"][place.process]
    return ProcessIdentity(row["pid"], row["start_time"])


# ---------------------------------------------------------------- whole schedules


def test_absorb_then_kill_then_restart_on_real_processes(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            before, began_ns = await identity_of(backend, "c2"), injectors_clock_ns()
            injection, log = await inject(
                backend,
                step(id="a", at="50ms", do="absorb", on="c2", for_="300ms")
                + step(id="k", after="a", do="kill", on="c2", expect={"exit_signal": 9})
                + step(id="r", after="k.applied", delay="100ms", do="restart", on="c2"),
            )
            assert injection.problems == ()
            assert injection.not_healed == ()
            assert injection.down == ()
            absorb, kill, restart = injection.rows
            assert absorb["absorbed_msgs"] >= 200
            assert absorb["healed_by"] == "process-death"
            assert absorb["t_healed_ns"] == kill["t_applied_ns"]
            assert '"exit_signal": 9' in kill["evidence"]
            assert f'"pid": {before.pid}' in kill["evidence"]
            assert began_ns <= absorb["t_applied_ns"] < kill["t_applied_ns"]
            assert kill["t_applied_ns"] <= kill["t_observed_ns"] <= injectors_clock_ns()
            own_ns = kill["t_applied_ns"] - BEHIND_NS
            assert kill["host_stamps"]["applied"] == {"here": own_ns}
            assert absorb["host_stamps"]["healed"] == {"here": own_ns}
            assert restart["state"] == "recovered"
            assert await identity_of(backend, "c2") != before
            order = [(line["step"], line["stage"]) for line in log.lines]
            assert order.index(("a", "observed")) < order.index(("k", "requested"))
            assert order.index(("k", "observed")) < order.index(("r", "applied"))

    run(story)


def test_a_cut_link_is_down_at_both_ends_and_recovers(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            injection, _ = await inject(
                backend, step(id="c", at="0s", do="cut", on="c1-c2", for_="200ms")
            )
            assert injection.problems == ()
            (row,) = injection.rows
            assert row["state"] == "recovered"
            assert '"c1": {"ready": []}' in row["evidence"]
            assert '"c2": {"ready": ["c3"]}' in row["evidence"]

    run(story)


def test_an_absorb_without_traffic_is_not_believed(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab, idle=True) as backend:
            injection, _ = await inject(
                backend, step(id="a", at="0s", do="absorb", on="c2", for_="200ms")
            )
            assert injection.rows[0]["state"] == "unknown"
            (problem,) = injection.problems
            assert problem.startswith("a: no effect seen while absorb lasted; only messages")

    run(story)


def test_an_absorb_that_lets_something_out_is_not_believed(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab, leaks=True) as backend:
            injection, _ = await inject(
                backend, step(id="a", at="0s", do="absorb", on="c2", for_="200ms")
            )
            assert injection.rows[0]["state"] == "unknown"

    run(story)


def test_a_broker_killed_by_another_cause_is_not_attributed_to_the_fault(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            identity = await identity_of(backend, "c2")
            identity.signal(signal.SIGKILL)
            await until(lambda: not identity.is_alive())
            injection, _ = await inject(backend, step(id="k", at="0s", do="kill", on="c2"))
            assert injection.rows[0]["state"] == "failed"
            assert "broker-c2 is not running" in injection.problems[0]
            assert injection.down == ()

    run(story)


def test_ctrl_c_during_a_freeze_leaves_no_process_frozen(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            identity = await identity_of(backend, "c2")
            text = step(id="f", at="0s", do="freeze", on="c2", for_="60s")
            schedule = read_schedule(tomllib.loads(HEAD + text), "story.toml")
            injector = Injector(schedule, backend, FaultLog(), clock_ns=injectors_clock_ns)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(injector.run)
                await until(identity.is_stopped)
                nursery.cancel_scope.cancel()
            assert not identity.is_stopped()
            (row,) = injector.outcome().rows
            assert row["healed_by"] == "user"
            assert injector.outcome().not_healed == ()

    run(story)


def test_a_controller_that_dies_leaves_the_freeze_to_its_lease(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            identity = await identity_of(backend, "c2")
            await backend.apply(fault("freeze", "c2"), 2_000_000_000)
            assert identity.is_stopped()
        await until(lambda: not identity.is_stopped())  # our connection is closed by now

    run(story)


# ---------------------------------------------------------------- one fault at a time


@pytest.mark.parametrize(
    "verb,target,parameters",
    [
        ("absorb", "c2", {}),
        ("absorb", "c1-c2", {}),
        ("absorb", "c1->c2", {}),
        ("blackhole", "c2", {}),
        ("blackhole", "c1-c2", {}),
        ("blackhole", "c2->c1", {}),
        ("cut", "c1-c2", {}),
        ("freeze", "c2", {}),
        ("partition", "c1|c2,c3", {}),
        ("partition", "c2", {"mode": "cut"}),
        ("delay", "c1->c2", {"delay_ms": 20}),
        ("delay", "c2", {"delay_ms": 20}),
        ("bandwidth", "c1-c2", {"bytes_per_second": 1_000}),
        ("disk-full", "c2", {"free_bytes": 0}),
        ("slow-fsync", "c2", {"delay_ms": 20}),
        ("cpu-share", "c2", {"share_percent": 40}),
        ("host-loss", "here", {}),
    ],
)
def test_each_lasting_fault_is_verified_as_active_and_as_healed(
    lab: Lab, verb: str, target: str, parameters: dict[str, int | str]
) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            wanted = fault(verb, target, parameters=parameters)
            applied = await backend.apply(wanted, 60_000_000_000)
            assert applied["t_ns"] > 0
            seen = None
            with trio.fail_after(PATIENCE_S):
                while seen is None:
                    seen = await backend.verify_effect(wanted)
            assert await backend.verify_undone(wanted) is None
            await backend.renew(wanted, 50_000_000_000)
            await backend.undo(wanted)
            assert await backend.verify_undone(wanted) == {"gone": True}
            for place in backend._deployment.brokers.values():
                await lab.answers(backend._deployment.agents["here"], place.process)
            assert await backend.verify_recovered(wanted) is not None
            await backend.undo(wanted)  # twice changes nothing
            with pytest.raises(ControlError, match="no lease to renew"):
                await backend.renew(wanted, 50_000_000_000)

    run(story)


def test_a_link_is_broken_at_both_ends_and_one_way_at_the_sending_one(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            agent = backend._deployment.agents["here"]

            async def faults() -> dict[str, list[str]]:
                return {
                    name: (await agent.broker(f"broker-{name}", "status"))["faults"]
                    for name in TOPOLOGY.brokers
                }

            await backend.apply(fault("blackhole", "c1-c2"), 60_000_000_000)
            both = {"c1": ["f-blackhole@c1"], "c2": ["f-blackhole@c2"], "c3": []}
            assert await faults() == both
            await backend.apply(fault("absorb", "c3->c2"), 60_000_000_000)
            assert await faults() == {**both, "c3": ["f-absorb@c3"]}

    run(story)


def test_a_partition_is_applied_at_the_brokers_of_its_sets_only(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            agent = backend._deployment.agents["here"]
            evidence = await backend.apply(fault("partition", "c1|c3"), 60_000_000_000)
            assert set(evidence) == {"c1", "c3", "t_ns", "host_stamps"}
            status = {
                name: await agent.broker(f"broker-{name}", "status") for name in TOPOLOGY.brokers
            }
            assert [len(each["faults"]) for each in status.values()] == [1, 0, 1]
            seen = await backend.verify_effect(fault("partition", "c1|c3"))
            assert seen == {
                "missing": {"c1": ["c3"], "c3": ["c1"]},
                "reached": {"c1": ["c2"], "c3": ["c2"]},
            }, "c2 is in no set: it reaches both"

    run(story)


def test_a_lost_host_recovers_with_its_lease_without_a_request(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            before = [await identity_of(backend, name) for name in TOPOLOGY.brokers]
            wanted = fault("host-loss", "here")
            await backend.apply(wanted, 4_000_000_000)
            seen = await backend.verify_effect(wanted)
            assert seen is not None
            assert {seen[name]["exit_signal"] for name in TOPOLOGY.brokers} == {9}
            assert not any(identity.is_alive() for identity in before)
            agent = backend._deployment.agents["here"]
            for name in TOPOLOGY.brokers:
                with trio.fail_after(PATIENCE_S):
                    while (await agent.status())["processes"][f"broker-{name}"]["pid"] in (
                        None,
                        *(identity.pid for identity in before),
                    ):
                        await trio.sleep(0.01)
            rows = (await agent.status())["faults"]
            with trio.fail_after(PATIENCE_S):  # a broker may be faster than its agent's notes
                while "applied" in {row["state"] for row in rows}:
                    await trio.sleep(0.01)
                    rows = (await agent.status())["faults"]
            assert {(row["state"], row["healed_by"]) for row in rows} == {("healed", "lease")}

    run(story)


def test_a_link_that_nft_cannot_isolate_is_refused_before_any_effect(lab: Lab) -> None:
    async def story() -> None:
        async with deployed(lab) as backend:
            wanted = fault("blackhole", "c1-c2", parameters={"backend": "nft"})
            with pytest.raises(ControlError, match="nft cannot separate c3 from c1"):
                await backend.apply(wanted, 60_000_000_000)
            assert (await backend._deployment.agents["here"].status())["faults"] == []

    run(story)
