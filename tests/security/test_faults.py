"""Tests of S-CTRL-1: fault commands need a private socket of this user, and permission."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from brokerd.config import BrokerConfig
from brokerd.errors import ControlError
from brokerd.runtime.control_socket import open_control
from brokerd.wire.control import Request, encode_control
from tests.helpers.agents import Lab, make_lab, run
from tests.helpers.memory_broker import MemoryBroker, chain
from tests.helpers.memory_links import MemoryNet
from tests.helpers.message_kinds import all_kinds
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS
from tests.helpers.virtual_time import in_virtual_time

ADDRESS = f"127.0.0.1:{OWN_PORTS[0]}"
APPLY = {
    "fault_id": "f",
    "verb": "absorb",
    "peer": "",
    "direction": "both",
    "lease_ms": 60_000,
}
TOPOLOGY = (
    'schema = "pubsubctl/topology/1"\nname = "one"\nkind = "tree"\nbrokers = ["b0"]\nlinks = []\n'
)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with make_lab() as made:
        yield made


def test_fault_injection_is_disabled_by_default() -> None:
    assert BrokerConfig.__dataclass_fields__["fault_injection"].default is False


def test_no_message_between_brokers_or_from_clients_commands_a_fault() -> None:
    names = [kind.__name__.lower() for kind in all_kinds()]
    assert len(names) > 10
    for word in ("fault", "control", "inject", "command"):
        assert not [name for name in names if word in name]


def test_a_fault_command_over_the_network_is_refused() -> None:
    """The bytes equal a valid command on the private socket, sent first or after a greeting."""

    async def story() -> None:
        net = MemoryNet()
        async with trio.open_nursery() as nursery:
            broker = MemoryBroker(net, chain(1), "b0")
            await nursery.start(broker.run)
            stream = await net.dial("b0")
            await stream.send_all(encode_control(Request(1, "fault_apply", dict(APPLY))))
            with trio.fail_after(PATIENCE_S):
                try:
                    while await stream.receive_some(10_000):
                        pass
                except trio.BrokenResourceError:
                    pass
            assert len(broker.links.faults) == 0
            assert broker.links.session_peers() == []
            nursery.cancel_scope.cancel()

    in_virtual_time(story)


async def answers(path: Path) -> bool:
    """Return true if a process listens at a socket, which exists a moment before."""
    try:
        stream = await trio.open_unix_socket(path)
    except OSError:
        return False
    await stream.aclose()
    return True


@pytest.mark.end_to_end
def test_a_broker_obeys_no_fault_command_unless_it_was_started_for_that(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "topology.toml").write_text(TOPOLOGY)
        sockets = tmp_path / "s"
        sockets.mkdir(mode=0o700)
        config = {
            "broker": "b0",
            "topology_file": str(tmp_path / "topology.toml"),
            "protocol": "delta_tree",
            "deployment_id": "d1",
            "listen": ADDRESS,
            "state_folder": str(tmp_path / "state"),
            "control_socket": str(sockets / "b0"),
            "log_folder": str(tmp_path / "log"),
        }
        lines = [f'{key} = "{value}"' for key, value in config.items()]
        (tmp_path / "b.toml").write_text("\n".join(lines) + f'\n[addresses]\nb0 = "{ADDRESS}"\n')
        command = [sys.executable, "-m", "brokerd", "--config", str(tmp_path / "b.toml")]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(trio.run_process, command)
            try:
                with trio.fail_after(PATIENCE_S):
                    while not await answers(sockets / "b0"):
                        await trio.sleep(0.01)
                mode = os.stat(sockets / "b0").st_mode
                assert stat.S_IMODE(mode) == 0o600
                async with open_control(sockets / "b0") as control:
                    requests: list[tuple[str, dict[str, Any]]] = [
                        ("fault_apply", APPLY),
                        ("fault_heal", {"fault_id": "f"}),
                        ("fault_renew", {"fault_id": "f", "lease_ms": 1_000}),
                    ]
                    for name, arguments in requests:
                        with pytest.raises(ControlError, match="fault_injection = false"):
                            await control.request(name, **arguments)
                    assert (await control.request("status"))["faults"] == []
            finally:
                process.terminate()

    trio.run(story)


def test_an_agent_listens_on_a_private_socket_only(lab: Lab) -> None:
    async def story() -> None:
        agent = lab.start_agent()
        mode = os.stat(lab.socket).st_mode
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
        folder = os.stat(lab.socket.parent)
        assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, os.geteuid())
        async with lab.client() as client:
            await lab.start(client, "b1")
            await client.fault_apply("f", "freeze", "b1", lease_ms=60_000)
            for found in (agent.pid, *(other.pid for other in lab.descendants())):
                assert psutil.Process(found).net_connections("inet") == []

    run(story)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else to try")
def test_another_user_reaches_neither_the_socket_nor_the_folder(lab: Lab) -> None:
    lab.start_agent()
    script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    done = subprocess.run(
        ["/usr/bin/env", "-i", sys.executable, "-S", "-c", script, str(lab.socket)],
        user=65_534,
        group=65_534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "PermissionError" in done.stderr or "Permission denied" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        {"verb": "kill", "process": "1"},
        {"verb": "freeze", "process": "../agent", "lease_ms": 500},
        {"verb": "kill", "process": "agent"},
        {"verb": "kill", "process": ""},
    ],
)
def test_a_fault_reaches_processes_of_its_own_agent_only(
    lab: Lab, arguments: dict[str, Any]
) -> None:
    async def story() -> None:
        lab.start_agent()
        async with lab.client() as client:
            await lab.start(client, "b1")
            with pytest.raises(ControlError, match="no process called"):
                await client.control.request("fault_apply", fault_id="f", **arguments)
            assert (await client.status())["processes"]["b1"]["state"] == "running"

    run(story)
