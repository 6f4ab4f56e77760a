"""Real brokers of one logical host in a folder, with a complete clean-up."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
import trio

from bench.run.testbed import BrokerPlace, Testbed
from brokerd.agent.client import AgentClient, open_agent_of
from brokerd.agent.paths import socket_folder
from brokerd.errors import ControlError
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import parameters_on
from brokerd.text import toml_text
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS

HOST = "x1"
DEPLOYMENT = "d1"
REPOSITORY = Path(__file__).parents[2]


@contextmanager
def lab_folder() -> Iterator[Path]:
    """Make a folder with a short path, for a host's root; no process may remain at exit."""
    folder = Path(mkdtemp(prefix="bx-"))
    (folder / "run").mkdir(mode=0o700)
    try:
        yield folder
    finally:
        # Whatever an agent forked has its command line, and that names its root.
        left = [
            process
            for process in psutil.process_iter(["cmdline", "status"])
            if str(folder) in " ".join(process.info["cmdline"] or [])
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]
        _, stayed = psutil.wait_procs(left, PATIENCE_S)
        for process in stayed:
            process.kill()
        shutil.rmtree(folder)
        assert not stayed, f"processes were left behind: {stayed}"


@asynccontextmanager
async def small_testbed(
    folder: Path, topology: Topology, protocol: str, machine: str = "bench.run.machine"
) -> AsyncIterator[Testbed]:
    """Start the brokers of `topology` on this machine with an agent; wait until ready.

    `machine` is the module that the agent is started from. XDG_RUNTIME_DIR must be `folder`/run in
    this process too: the variable determines the folder of sockets.
    """
    root = folder / "root"
    root.mkdir(mode=0o700)
    topology_file = root / "topology.toml"
    topology_file.write_text(toml_text(topology.to_mapping()), encoding="utf-8")
    command = [sys.executable, "-m", machine, "agent", "--root", str(root)]
    command += ["--name", HOST, "--deployment", DEPLOYMENT]
    done = await trio.run_process(
        command, cwd=REPOSITORY, env=os.environ, capture_stderr=True, capture_stdout=True,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    async with open_agent_of(root) as agent:
        try:
            parameters = asdict(parameters_on(topology, protocol))
            addresses = {
                name: f"127.0.0.1:{OWN_PORTS[n]}" for n, name in enumerate(topology.brokers)
            }
            for name in topology.brokers:
                config: dict[str, Any] = {
                    "broker": name,
                    "topology_file": str(topology_file),
                    "protocol": protocol,
                    "deployment_id": DEPLOYMENT,
                    "listen": addresses[name],
                    "addresses": addresses,
                    "state_folder": str(root / "brokers" / name / "state"),
                    "control_socket": str(socket_folder(root) / f"{name}.sock"),
                    "log_folder": str(root / "brokers" / name / "log"),
                    "fault_injection": True,
                }
                await agent.start(name, "broker", config, config["control_socket"])
            await _wait_ready(agent, root, topology.brokers)
            yield Testbed(
                agents={HOST: agent},
                brokers={
                    name: BrokerPlace(HOST, name, address) for name, address in addresses.items()
                },
                topology=topology,
                topology_digest=topology.digest(protocol, parameters),
                protocol=protocol,
                deployment_id=DEPLOYMENT,
                host_roots={HOST: root},
                clients_host=HOST,
                documents={"inventory.toml": 'name = "small"\n', "placement.json": addresses},
            )
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(PATIENCE_S):
                await agent.shutdown()


async def _wait_ready(agent: AgentClient, root: Path, brokers: tuple[str, ...]) -> None:
    """Wait until every broker has all sessions; raise with the reasons if a broker ends."""
    waited_for = list(brokers)
    while waited_for:
        for name, row in (await agent.status())["processes"].items():
            said = root / "brokers" / name / "log" / "stderr.log"
            assert row["state"] == "running", f"{name}: {row}\n{said.read_text()}"
        waited_for = [name for name in waited_for if not await _is_ready(agent, name)]
        await trio.sleep(0.02)


async def _is_ready(agent: AgentClient, name: str) -> bool:
    try:
        status = await agent.broker(name, "status")
    except ControlError as error:
        if error.kind != "busy":
            raise
        return False
    return status["probed"] and set(status["wanted"]) <= set(status["ready"])
