"""Broker processes of one topology, started and ended individually, without an agent."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from brokerd.errors import ControlError
from brokerd.overlay.topology import Topology
from brokerd.runtime.control_socket import open_control
from brokerd.text import toml_text
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS
from tests.helpers.warm_image import start_program


class LooseBrokers:
    """Broker processes by name."""

    def __init__(self, folder: Path, topology: Topology, protocol: str, **settings: Any) -> None:
        self.addresses = {
            name: f"127.0.0.1:{OWN_PORTS[place]}" for place, name in enumerate(topology.brokers)
        }
        self.topology_file = folder / "topology.toml"
        self.topology_file.write_text(toml_text(topology.to_mapping()))
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._folder = folder
        self._protocol = protocol
        self._settings: Mapping[str, Any] = settings

    def folder(self, name: str) -> Path:
        """Return the folder of a broker; create a missing folder."""
        found = self._folder / name
        found.mkdir(mode=0o700, exist_ok=True)
        return found

    def start(self, *names: str) -> None:
        """Start brokers."""
        for name in names:
            folder = self.folder(name)
            values = {
                "broker": name,
                "topology_file": str(self.topology_file),
                "protocol": self._protocol,
                "deployment_id": "d1",
                "listen": self.addresses[name],
                "state_folder": str(folder / "state"),
                "control_socket": str(folder / "control"),
                "log_folder": str(folder / "log"),
                **self._settings,
                "addresses": self.addresses,
            }
            (folder / "broker.toml").write_text(toml_text(values))
            command = [sys.executable, "-m", "brokerd", "--config", str(folder / "broker.toml")]
            self.processes[name] = start_program(command, stderr=subprocess.PIPE, text=True)

    def kill(self, name: str) -> None:
        """Kill a broker, and wait for its end."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()

    async def ask(self, name: str, command: str, /, **arguments: Any) -> dict[str, Any]:
        """Return a broker's answer to a control command."""
        async with open_control(self.folder(name) / "control") as control:
            return await control.request(command, **arguments)

    async def status(self, name: str, *ready: str) -> dict[str, Any]:
        """Return a broker's status, once it has sessions with the brokers `ready`."""
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    found = await self.ask(name, "status")
                except ControlError:
                    found = {"ready": [], "sessions": None}
                if found["sessions"] is not None and {*ready} <= {*found["ready"]}:
                    return found
                await trio.sleep(0.02)


@contextmanager
def loose_brokers(
    folder: Path, topology: Topology, protocol: str, **settings: Any
) -> Iterator[LooseBrokers]:
    """Run brokers; kill them at the end."""
    brokers = LooseBrokers(folder, topology, protocol, **settings)
    try:
        yield brokers
    finally:
        for name in [*brokers.processes]:
            brokers.kill(name)
