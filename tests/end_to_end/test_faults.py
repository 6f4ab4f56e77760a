"""Stories about faults on real brokers: schedules take effect, and the δ tree loses nothing."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio

from bench.run.testbed import BrokerPlace, Testbed
from brokerd.agent.client import AgentClient, open_agent
from brokerd.agent.paths import AgentPaths
from brokerd.agent.processes import ProcessIdentity
from brokerd.agent.watchdog import read_identity
from brokerd.client.client import Client, connect
from brokerd.errors import ControlError
from brokerd.overlay.topology import Topology
from brokerd.runtime.control_socket import open_control
from brokerd.text import toml_text
from brokerd.units import SECOND_NS
from fault_injection.apply.backends import DeployedBackend
from fault_injection.apply.injector import Injection, Injector
from fault_injection.apply.log import FaultLog
from fault_injection.schedule.schedule import read_schedule
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS

pytestmark = pytest.mark.end_to_end

REPOSITORY = Path(__file__).parents[2]
TOPOLOGY = Topology.from_mapping(
    {
        "schema": "pubsubctl/topology/1",
        "name": "four",
        "kind": "tree",
        "brokers": ["c1", "c2", "c3", "c4"],
        "links": [["c1", "c2"], ["c2", "c3"], ["c2", "c4"]],
    },
    "four",
)

NAMES = TOPOLOGY.brokers


@dataclass
class Host:
    """A root with an agent of real brokers."""

    root: Path
    socket: str

    def address(self, broker: str) -> str:
        return f"127.0.0.1:{OWN_PORTS[TOPOLOGY.number_of(broker)]}"

    def config(self, broker: str) -> dict[str, Any]:
        return {
            "broker": broker,
            "topology_file": str(self.root / "topology.toml"),
            "protocol": "delta_tree",
            "deployment_id": "d1",
            "listen": self.address(broker),
            "addresses": {name: self.address(name) for name in TOPOLOGY.brokers},
            "state_folder": str(self.root / "brokers" / broker / "state"),
            "control_socket": str(Path(self.socket).parent / f"{broker}.sock"),
            "log_folder": str(self.root / "brokers" / broker / "log"),
            "fault_injection": True,
        }


@pytest.fixture
def host() -> Iterator[Host]:
    """Yield an agent, started as on any machine; clean up afterwards."""
    with TemporaryDirectory(prefix="rb-") as folder:
        root = Path(folder) / "host"
        command = [sys.executable, "-m", "bench.run.machine", "agent"]
        arguments = ["--root", str(root), "--name", "here", "--deployment", "d1"]
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        started = subprocess.run(
            command + arguments, cwd=REPOSITORY, env=environment, capture_output=True, check=False
        )
        assert started.returncode == 0, started.stderr
        announced = json.loads(started.stdout)
        agent = ProcessIdentity.of(announced["pid"])
        (root / "topology.toml").write_text(toml_text(TOPOLOGY.to_mapping()))
        try:
            yield Host(root, announced["socket"])
        finally:
            agent.signal(9)
            for file in AgentPaths(root).processes.glob("*.json"):
                if (identity := read_identity(file)) is not None:
                    identity.signal(9)


@asynccontextmanager
async def deployed(host: Host) -> AsyncIterator[Testbed]:
    """Yield running brokers with all of their sessions; stop the brokers in order at the end."""
    async with open_agent(host.socket) as agent:
        for broker in TOPOLOGY.brokers:
            config = host.config(broker)
            await agent.start(broker, "broker", config, config["control_socket"])
        testbed = Testbed(
            agents={"here": agent},
            brokers={b: BrokerPlace("here", b, host.address(b)) for b in TOPOLOGY.brokers},
            topology=TOPOLOGY,
            topology_digest="",
            protocol="delta_tree",
            deployment_id="d1",
            host_roots={"here": host.root},
            clients_host="here",
        )
        with trio.fail_after(PATIENCE_S):
            for broker in TOPOLOGY.brokers:
                while not await is_ready(testbed, broker):
                    await trio.sleep(0.02)
        yield testbed
        rows = (await agent.shutdown())["processes"]
        assert {row["exit_code"] for row in rows.values()} == {0}, errors_of(host)


async def is_ready(testbed: Testbed, broker: str) -> bool:
    try:
        status = await testbed.broker_command(broker, "status")
    except ControlError as error:
        if error.kind != "busy":
            raise
        return False
    return status["probed"] and set(status["wanted"]) <= set(status["ready"])


def errors_of(host: Host) -> str:
    return "\n".join(file.read_text()[-2000:] for file in host.root.rglob("stderr.log"))


async def inject(testbed: Testbed, steps: str) -> Injection:
    head = 'schema = "pubsubctl/faults/1"\nname = "story"\n'
    schedule = read_schedule(tomllib.loads(head + steps), "story.toml")
    return await Injector(schedule, DeployedBackend(testbed), FaultLog(), prefix="run.").run()


async def publish_until_cancelled(client: Client, sent: list[int]) -> None:
    while True:
        sent.append(await client.publish({"topic": "oil"}, b"x" * 100))
        await trio.sleep(0.005)


async def collect(client: Client, received: list[int]) -> None:
    async for publication in client.publications():
        received.append(publication.sequence)


def play(host: Host, steps: str) -> Injection:
    """Publish from c1 to subscribers at c3 and c4 while the schedule runs."""

    async def story() -> Injection:
        sent: list[int] = []
        received: dict[str, list[int]] = {"c3": [], "c4": []}
        async with (
            deployed(host) as testbed,
            trio.open_nursery() as nursery,
            connect(host.address("c3"), "sub-c3") as at_c3,
            connect(host.address("c4"), "sub-c4") as at_c4,
            connect(host.address("c1"), "pub", publishes=True) as publisher,
        ):
            for subscriber in (at_c3, at_c4):
                await subscriber.subscribe("topic = 'oil'")
            nursery.start_soon(collect, at_c3, received["c3"])
            nursery.start_soon(collect, at_c4, received["c4"])
            async with trio.open_nursery() as publishing:
                publishing.start_soon(publish_until_cancelled, publisher, sent)
                injection = await inject(testbed, steps)
                publishing.cancel_scope.cancel()
            with trio.fail_after(PATIENCE_S):
                await publisher.flush()
                while any(len(each) < len(sent) for each in received.values()):
                    await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
        expected = list(range(1, len(sent) + 1))
        assert received == {"c3": expected, "c4": expected}
        return injection

    async def bounded() -> Injection:
        with trio.fail_after(2 * PATIENCE_S):
            return await story()

    return trio.run(bounded)


def test_absorb_then_kill_then_restart_loses_nothing(host: Host) -> None:
    injection = play(
        host,
        """
        [[step]]
        id = "absorb"
        at = "300ms"
        do = "absorb"
        on = "c2"
        for = "700ms"
        [[step]]
        id = "kill"
        after = "absorb"
        do = "kill"
        on = "c2"
        expect = { exit_signal = 9, within = "60s" }
        [[step]]
        id = "restart"
        after = "kill.applied"
        delay = "1s"
        do = "restart"
        on = "c2"
        await = { within = "200s" }
        """,
    )
    assert injection.problems == ()
    absorb = injection.rows[0]
    assert absorb["absorbed_msgs"] > 0
    assert absorb["healed_by"] == "process-death"
    assert [row["state"] for row in injection.rows] == ["healed", "recovered", "recovered"]


def test_each_fault_lands_is_healed_and_loses_nothing(host: Host) -> None:
    faults = {
        "cut-link": ("cut", "c2-c3"),
        "cut-broker": ("cut", "c2"),
        "freeze": ("freeze", "c2"),
        "blackhole": ("blackhole", "c2-c3"),
        "blackhole-one-way": ("blackhole", "c2->c3"),
        "absorb": ("absorb", "c2"),
        "absorb-link": ("absorb", "c2-c3"),
        "send-omission": ("send-omission", "c2"),
    }
    steps, before = "", ""
    for name, (verb, target) in faults.items():
        steps += f"""
        [[step]]
        id = "{name}"
        {f'after = "{before}.recovered"' if before else 'at = "200ms"'}
        do = "{verb}"
        on = "{target}"
        for = "1500ms"
        await = {{ within = "200s" }}
        """
        before = name
    injection = play(host, steps)
    assert injection.problems == ()
    for row in injection.rows:
        assert (row["state"], row["healed_by"]) == ("recovered", "schedule"), row


def test_each_newer_fault_lands_is_healed_and_loses_nothing(host: Host) -> None:
    faults = {
        "partition": 'do = "partition"\non = "c3|c1,c2,c4"\nfor = "4s"',
        "partition-cut": 'do = "partition"\non = "c4"\nmode = "cut"\nfor = "2s"',
        "delay": 'do = "delay"\non = "c2-c3"\nlatency = "150ms"\nfor = "1500ms"',
        "delay-one-way": 'do = "delay"\non = "c2->c3"\nlatency = "150ms"\nfor = "1500ms"',
        "bandwidth": 'do = "bandwidth"\non = "c2-c4"\nbytes_per_second = 60000\nfor = "1500ms"',
        "disk-full": 'do = "disk-full"\non = "c1"\nfor = "1500ms"',
        "slow-fsync": 'do = "slow-fsync"\non = "c1"\nlatency = "200ms"\nfor = "1500ms"',
        "cpu-share": 'do = "cpu-share"\non = "c2"\nshare = "40%"\nfor = "1500ms"',
    }
    steps, before = "[guard]\nmax_faulty_brokers = 3\n", ""
    for name, keys in faults.items():
        after = f'after = "{before}.recovered"' if before else 'at = "200ms"'
        steps += f'[[step]]\nid = "{name}"\n{after}\n{keys}\nawait = {{ within = "200s" }}\n'
        before = name
    injection = play(host, steps)
    assert injection.problems == ()
    for row in injection.rows:
        assert (row["state"], row["healed_by"]) == ("recovered", "schedule"), row


def test_a_lost_host_recovers_with_all_its_brokers(host: Host) -> None:
    """The clients publish nothing meanwhile, because all of their brokers are down."""
    waiting = {"all": {"cold_start_after_ns": SECOND_NS}}  # nobody is left to recover from
    text = toml_text({**TOPOLOGY.to_mapping(), "parameters": waiting})
    (host.root / "topology.toml").write_text(text)

    async def story() -> None:
        async with deployed(host) as testbed:
            before = {name: await testbed.broker_command(name, "status") for name in NAMES}
            injection = await inject(
                testbed,
                """
                [guard]
                max_faulty_brokers = 4
                [[step]]
                id = "lost"
                at = "0s"
                do = "host-loss"
                on = "here"
                for = "500ms"
                await = { within = "200s" }
                """,
            )
            assert injection.problems == ()
            assert injection.rows[0]["state"] == "recovered"
            for name in NAMES:
                after = await testbed.broker_command(name, "status")
                assert after["pid"] != before[name]["pid"]
                assert after["incarnation"] == before[name]["incarnation"] + 1

    trio.run(story)


def test_faults_heal_by_their_leases_without_a_controller(host: Host) -> None:
    """Only the lease heals the agent's fault and the broker's own; no heal or renewal arrives."""

    async def story() -> None:
        async with deployed(host) as testbed:
            agent: AgentClient = testbed.agents["here"]
            await agent.fault_apply("f", "freeze", "c3", lease_ms=500)
            await agent.fault_apply("c", "cut", "c2", peer="c4", lease_ms=500)
            with trio.fail_after(PATIENCE_S):
                while not all([await is_ready(testbed, broker) for broker in ("c2", "c3", "c4")]):
                    await trio.sleep(0.05)
            with trio.fail_after(PATIENCE_S):  # a broker may be faster than its agent's notes
                while "applied" in {row["state"] for row in (await agent.status())["faults"]}:
                    await trio.sleep(0.05)
            assert {row["healed_by"] for row in (await agent.status())["faults"]} == {"lease"}

    trio.run(story)


def test_brokers_of_an_agent_that_is_killed_heal_themselves(host: Host) -> None:
    """All lasting verbs that need no agent are applied at once; then the agent is killed."""
    faults: list[tuple[str, str, str, dict[str, Any]]] = [
        ("blackhole", "c2", "c3", {}),
        ("cut", "c2", "c4", {}),
        ("partition", "c1", "", {"peers": ["c2"], "mode": "cut"}),
        ("delay", "c2", "c1", {"delay_ms": 100}),
        ("bandwidth", "c4", "", {"bytes_per_second": 1_000}),
        ("absorb", "c4", "", {}),
        ("send-omission", "c1", "", {}),
        ("disk-full", "c1", "", {}),
        ("slow-fsync", "c2", "", {"delay_ms": 100}),
        ("freeze", "c3", "", {}),
    ]

    async def is_healed(broker: str) -> bool:
        with trio.move_on_after(3):
            try:
                async with open_control(host.config(broker)["control_socket"]) as control:
                    status = await control.request("status")
                    return not status["faults"] and set(status["wanted"]) <= set(status["ready"])
            except ControlError:
                pass
        return False

    async def story() -> None:
        async with open_agent(host.socket) as agent:
            for broker in NAMES:
                config = host.config(broker)
                await agent.start(broker, "broker", config, config["control_socket"])
            with trio.fail_after(PATIENCE_S):
                while not all([await is_healed(broker) for broker in NAMES]):
                    await trio.sleep(0.05)
            for verb, broker, peer, parameters in faults:
                await agent.fault_apply(
                    verb, verb, broker, peer=peer, lease_ms=20_000, parameters=parameters
                )
            status = await agent.status()
            frozen = status["processes"]["c3"]
            assert frozen["frozen"]
            os.kill(status["pid"], 9)
        assert not await is_healed("c1")
        with trio.fail_after(PATIENCE_S):
            while not all([await is_healed(broker) for broker in NAMES]):
                await trio.sleep(0.05)
        assert not ProcessIdentity(frozen["pid"], frozen["start_time"]).is_stopped()

    trio.run(story)
