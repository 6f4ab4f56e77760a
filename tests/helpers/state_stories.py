"""A chain of three broker processes whose state folders a story copies, restores or removes."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from brokerd.client.client import Client
from brokerd.client.events import GapAnnounced
from brokerd.errors import ControlError
from brokerd.model.operator_acts import ACCEPT_LOSS, OperatorAct
from brokerd.protocols.interface import CoreStatus
from brokerd.runtime.control_socket import open_control
from brokerd.runtime.state_folder import read_loss
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import free_address

BROKERS = ("c1", "c2", "c3")
TOPOLOGY = """
schema = "pubsubctl/topology/2"
name = "chain"
kind = ["tree", "cells", "bipartite", "hierarchy"]
brokers = ["c1", "c2", "c3"]
links = [["c1", "c2"], ["c2", "c3"]]
[tree]
delta = 1
[cells]
bundles = [["c1", "c2"], ["c2", "c3"]]
[bipartite]
proxies = ["c2"]
servers = ["c1"]
edges = ["c3"]
[hierarchy]
links = [["c1", "c2"], ["c2", "c3"]]
[hierarchy.addresses]
c1 = "0.0"
c2 = "0.1"
c3 = "0.2"
[hierarchy.storages]
c1 = 1
[parameters.delta_tree]
publication_log = true
"""


OPERATOR_SECRET = bytes(range(32))
OPERATOR_KEY = (
    Ed25519PrivateKey.from_private_bytes(OPERATOR_SECRET).public_key().public_bytes_raw().hex()
)


def acceptance(folder: Path, broker: str, **changes: Any) -> dict[str, Any]:
    """Return the operator's signed acceptance of the loss that a state folder records.

    Args:
        changes: changes to the acceptance before the signature, and the `secret` of the signature.
    """
    secret = changes.pop("secret", OPERATOR_SECRET)
    values = {"deployment_id": "d1", "act": ACCEPT_LOSS, "target": broker}
    act = OperatorAct(**{**values, "version": read_loss(folder).number, **changes})
    key = Ed25519PrivateKey.from_private_bytes(secret)
    return {"loss": act.version, "signature": key.sign(act.statement()).hex()}


class Chain:
    """Brokers c1, c2 and c3 of one protocol; c1 has the log.

    Attributes:
        addresses: addresses of the brokers.
    """

    def __init__(self, folder: Path, protocol: str) -> None:
        self.folder = folder
        self.protocol = protocol
        (folder / "topology.toml").write_text(TOPOLOGY)
        self.addresses = {name: free_address() for name in BROKERS}
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def state(self, name: str) -> Path:
        """Return the state folder of a broker."""
        return self.folder / name / "state"

    def start(self, *names: str, **changes: Any) -> None:
        """Start brokers, with changes to their configuration for this start.

        With `accept_loss=True` the operator accepts the loss that the state folder records.
        """
        for name in names:
            folder = self.folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            values: dict[str, Any] = {
                "broker": name,
                "topology_file": str(self.folder / "topology.toml"),
                "protocol": self.protocol,
                "deployment_id": "d1",
                "listen": self.addresses[name],
                "state_folder": str(folder / "state"),
                "control_socket": str(folder / "control"),
                "log_folder": str(folder / "log"),
                "operator_key": OPERATOR_KEY,
                **changes,
            }
            act = values.pop("accept_loss", None)
            lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
            lines += ["[addresses]", *(f'{key} = "{at}"' for key, at in self.addresses.items())]
            if act:
                act = acceptance(self.state(name), name) if act is True else act
                lines += ["[accept_loss]", *(f"{key} = {json.dumps(act[key])}" for key in act)]
            (folder / "broker.toml").write_text("\n".join(lines) + "\n")
            with open(folder / "stderr", "w") as stderr:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "brokerd", "--config", str(folder / "broker.toml")],
                    stderr=stderr,
                    text=True,
                )

    def kill(self, name: str) -> None:
        """Crash a broker."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def keep(self, name: str) -> Path:
        """Copy the present state folder of a broker."""
        copy = self.folder / f"{name}.copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.state(name), copy)
        return copy

    def put_back(self, name: str) -> None:
        """Replace the state folder of a broker by the copy."""
        shutil.rmtree(self.state(name))
        shutil.copytree(self.folder / f"{name}.copy", self.state(name))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the event log of a broker."""
        text = (self.folder / name / "log" / "events.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    async def wait_end(self, name: str) -> tuple[int, str]:
        """Wait until a broker has ended; return the status and the output."""
        process = self.processes[name]
        with trio.fail_after(PATIENCE_S):
            while process.poll() is None:
                await trio.sleep(0.02)
        return process.returncode, (self.folder / name / "stderr").read_text()

    async def status(self, name: str) -> dict[str, Any]:
        """Return the status of a running broker, once the broker answers."""
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    async with open_control(self.folder / name / "control") as control:
                        return await control.request("status")
                except ControlError:
                    ended = self.processes[name].poll()
                    assert ended is None, (self.folder / name / "stderr").read_text()
                    await trio.sleep(0.02)

    async def wait_witnessed(self, name: str, by: str) -> None:
        """Wait until a neighbour has the mark of a broker's whole durable state."""
        with trio.fail_after(PATIENCE_S):
            while True:
                durable = (await self.status(name))["written"]
                if (await self.status(by))["witnessed"].get(name) == durable:
                    return
                await trio.sleep(0.02)

    async def wait_ready(self, *names: str) -> None:
        """Wait until brokers have all sessions."""
        with trio.fail_after(PATIENCE_S):
            for name in names:
                while True:
                    core = CoreStatus.from_mapping(await self.status(name))
                    if core.state == "running" and not core.missing:
                        break
                    await trio.sleep(0.02)


@contextmanager
def chain(folder: Path, protocol: str) -> Iterator[Chain]:
    """Run a story on a chain; kill the remaining brokers at the end."""
    found = Chain(folder, protocol)
    try:
        yield found
    finally:
        for process in found.processes.values():
            process.kill()
            process.wait()


async def publish(client: Client, numbers: range) -> None:
    """Publish events with these numbers, and wait until all are acknowledged."""
    with trio.fail_after(PATIENCE_S):
        for number in numbers:
            await client.publish({"n": number, "topic": "t"}, b"x")
        await client.flush()


class Receiver:
    """A subscriber's received numbers and gaps."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.gaps: list[GapAnnounced] = []

    def on_gap(self, gap: GapAnnounced) -> None:
        """Record a gap."""
        self.gaps.append(gap)

    async def until(self, client: Client, number: int) -> None:
        """Receive up to an event, and acknowledge every event."""
        publications = client.publications()
        with trio.fail_after(PATIENCE_S):
            while number not in self.numbers:
                found = (await anext(publications)).attributes["n"]
                assert isinstance(found, int), found
                self.numbers.append(found)
