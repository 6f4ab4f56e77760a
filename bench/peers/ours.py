"""The project's brokers under the same load, by the public command."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.peers.system import Figures, PeerFailed

NAME: Final = "pubsubctl"
PROMISE: Final = "exactly once, by content"
KEPT: Final = "homes and positions"
_WORKLOADS: Final = {1: "single", 3: "chain3"}
_LONGEST_S: Final = 300.0
_PORTS: Final = 60
"""A number above the ports of the agents, brokers and clients of three logical hosts."""
_INVENTORY: Final = """\
schema = "pubsubctl/inventory/1"
name = "peers"
[[hosts]]
name = "peer[1:3]"
connector = "local"
groups = ["brokers", "clients"]
[hosts.vars]
cores = "share"
ports = "{}-{}"
"""


def measure(brokers: int, rate: int, measure_s: float) -> Figures:
    """Run the workload for this number of brokers in a row, in a deployment of its own.

    Raises:
        PeerFailed: the command did not complete a run; contains the reason.
    """
    workload = _WORKLOADS[brokers] + ("-paced" if rate else "")
    options = ("--no-check", "--json", "--duration", f"{round(measure_s * 1000)}ms")
    with TemporaryDirectory(prefix="peers-") as folder:
        inventory = Path(folder) / "inventory.toml"
        inventory.write_text(_INVENTORY.format(*free_ports()))
        command = (sys.executable, "-P", "-m", "pubsubctl", "-i", str(inventory), "bench", workload)
        status, output, errors = _carry_out(command + options, _environment(folder))
        if status:
            last_line = errors.strip().split("\n")[-1]
            raise PeerFailed(f"pubsubctl bench {workload}: status {status}: {last_line}")
        return _figures(brokers, rate, json.loads(output))


def free_ports() -> tuple[int, int]:
    """Return the first and last of free consecutive ports, unused by any deployment."""
    for first in range(22_000, 30_000, _PORTS):
        held = []
        try:
            for port in range(first, first + _PORTS):
                held.append(socket.create_server(("127.0.0.1", port)))
            return first, first + _PORTS - 1
        except OSError:
            pass  # a port is in use
        finally:
            for each in held:
                each.close()
    raise PeerFailed(f"no {_PORTS} free ports in a row from 22000 to 29999")


def _carry_out(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command; return status, output and errors. An interrupt lets the command clean up."""
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=_LONGEST_S)
        except BaseException:
            process.terminate()
            process.communicate()
            raise
    return process.returncode, output, errors


def _environment(folder: str) -> dict[str, str]:
    """Return an environment with separate folders, apart from any running deployment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PUBSUBCTL_")}
    runtime = Path(folder) / "run"
    runtime.mkdir(mode=0o700)
    return kept | {
        "XDG_STATE_HOME": f"{folder}/state",
        "XDG_RUNTIME_DIR": str(runtime),
        "PUBSUBCTL_RESULTS": f"{folder}/results",
    }


def _figures(brokers: int, rate: int, found: Mapping[str, Any]) -> Figures:
    by_broker = found["broker_cpu_us_per_message_by_broker"]
    cpu_us = {f"broker {place}": cost for place, cost in enumerate(by_broker.values(), start=1)}
    return Figures(
        system=NAME,
        brokers=brokers,
        rate=rate,
        delivered_per_s=found["delivered_per_s"],
        cpu_us=cpu_us | found["load_cpu_us_per_message_by_process"],
        response_us=found["response_us"],
        service_us=found["service_us"],
        lost=found["online"]["missing"],
        limited_by=found["limited_by"].partition(":")[0],
    )
