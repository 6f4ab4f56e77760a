"""Fixtures for the real command, in a process of its own, on real brokers of this machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
import pytest

from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS
from tests.helpers.warm_image import start_program

LONGEST_COMMAND_S = 2 * PATIENCE_S
REPOSITORY = Path(__file__).parents[2]
BUSY_MS = 50

INVENTORY = f"""\
schema = "pubsubctl/inventory/1"
name = "e2e"
[[hosts]]
name = "e[1:2]"
connector = "local"
groups = ["brokers", "clients"]
[hosts.vars]
ports = "{OWN_PORTS[0]}-{OWN_PORTS[-1]}"
metrics = "on"
"""
METRICS = {"e1": OWN_PORTS[len(OWN_PORTS) // 2 - 1], "e2": OWN_PORTS[-1]}
"""The metrics ports of the agents of both hosts: the last port of each."""


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@dataclass
class Lab:
    """A project folder, a state folder, and the command line in both."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """Return the folder with the state of the deployment."""
        return self.folder / "state" / "pubsubctl" / "e2e"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command without a wait for its end."""
        command = [sys.executable, "-m", "pubsubctl", *arguments]
        return start_program(
            command,
            cwd=self.folder / "project",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *arguments: str, within_s: float = LONGEST_COMMAND_S) -> Answer:
        """Run a command to its end."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{arguments} took over {within_s:g} s\n{out}\n{err}")
        return Answer(process.returncode, out, err)

    def workload(self, name: str) -> str:
        """Copy a workload into the project folder, for any machine; return the name of the copy.

        The thresholds are removed, because other work of the machine may delay load generators. The
        verdict still counts, and the end of the tests reports the delay.
        """
        text = (REPOSITORY / "bench" / "workloads" / f"{name}.toml").read_text()
        text = re.sub(r"^\[thresholds\]\n.*\n", "", text, flags=re.MULTILINE)
        path = self.folder / "project" / f"{name}.toml"
        path.write_text(f'{text}\n[thresholds]\n"loadgen.lateness_p99" = "< 60s"\n')
        return path.name

    def lateness(self) -> list[str]:
        """Return the runs with late load generators, which shows a busy machine."""
        index = self.folder / "results" / "index.jsonl"
        lines = index.read_text().splitlines() if index.exists() else []
        runs = [row for row in map(json.loads, lines) if row.get("kind") != "series"]
        late_ms = [run["lateness_p99_us"] / 1000 for run in runs if "lateness_p99_us" in run]
        return [f"the machine was busy: load {ms:.0f} ms late" for ms in late_ms if ms > BUSY_MS]

    def processes(self) -> list[psutil.Process]:
        """Return every live process of this lab, found by the root in its command line."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            command = " ".join(process.info["cmdline"] or [])
            alive = process.info["status"] != psutil.STATUS_ZOMBIE
            if "bench.run.machine" in command and str(self.folder) in command and alive:
                found.append(process)
        return found

    def left_behind(self) -> list[str]:
        """Return leftovers that `down --verify` excludes, found independently."""
        found = [str(process) for process in self.processes()]
        if self.state.exists():
            found += [str(path) for path in self.state.rglob("*") if not path.is_dir()]
        found += [str(path) for path in (self.folder / "run").rglob("*")]
        return found


@pytest.fixture
def lab(
    record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> Iterator[Lab]:
    """Yield a lab of two logical hosts; remove the leftovers of a failed test."""
    # Not below pytest's folder: its path is too long for a socket's.
    folder = Path(mkdtemp(prefix="e2e-"))
    (folder / "project" / "inventories").mkdir(parents=True)
    (folder / "project" / "inventories" / "local.toml").write_text(INVENTORY)
    (folder / "run").mkdir(mode=0o700)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PUBSUBCTL_")},
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "PUBSUBCTL_RESULTS": str(folder / "results"),
    }
    lab = Lab(folder, environment)
    try:
        yield lab
    finally:
        for text in lab.lateness():
            record_property("measured", f"{request.node.name}: {text}")
        if lab.processes():
            lab.call("down")
        for process in lab.processes():
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(what: str, condition: Any, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds; otherwise fail with its name.

    Checks use at most a quarter of the time, because other processes need the processor.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > deadline:
            pytest.fail(f"not within {timeout_s:g} s: {what}")
        time.sleep(max(0.05, 3 * (now - began)))
