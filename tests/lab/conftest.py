"""Fixtures for the real command against real SSH servers, in namespaces of this machine."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp

import psutil
import pytest

from tests.end_to_end.conftest import Answer
from tests.helpers.warm_image import start_program

LONGEST_COMMAND_S = 600
ENDING_S = 5
"""The time for a helper over SSH to end; much less than a lease."""
SHORT = 3
USUAL_SEED = 1
NAMESPACES = Path("/run/netns")
INTERFACES = Path("/sys/class/net")

Chosen = Callable[[Sequence[str]], list[str]]


@dataclass
class Controller:
    """A project folder, a state folder, and the command line in both.

    Attributes:
        name: the name of the controller's lab, unique on this machine.
    """

    folder: Path
    name: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def lab_folder(self) -> Path:
        return self.folder / "state" / "pubsubctl" / "labs" / self.name

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command without a wait for its end."""
        return start_program(
            [sys.executable, "-m", "pubsubctl", *arguments],
            cwd=self.folder / "project",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *arguments: str) -> Answer:
        """Run a command to its end."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=LONGEST_COMMAND_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{arguments} took over {LONGEST_COMMAND_S} s\n{out}\n{err}")
        return Answer(process.returncode, out, err)

    def lab(self, verb: str, *arguments: str) -> Answer:
        """Run `lab VERB --name` of this controller's lab."""
        return self.call("lab", verb, "--name", self.name, *arguments)

    def machines(self) -> dict[str, str]:
        """Return the addresses by machine."""
        rows = self.lab("status", "-j").document["machines"]
        return {row["name"]: row["address"] for row in rows}

    def processes(self) -> list[psutil.Process]:
        """Return every live process with a mounted folder of the lab."""
        found = []
        for process in psutil.process_iter():
            try:
                mounts = Path(f"/proc/{process.pid}/mountinfo").read_text()
                # The source of a bind mount is named from the root of its file system.
                if f"{self.lab_folder}/machines/" in mounts and process.status() != "zombie":
                    found.append(process)
            except (OSError, psutil.NoSuchProcess):
                continue
        return found

    def running(self) -> list[psutil.Process]:
        """Return agents, brokers, load generators and helpers on the machines."""
        return [process for process in self.processes() if _is_ours(process)]

    def left_behind(self) -> list[str]:
        """Return leftovers on the machines that `down --verify` excludes, found independently.

        Helpers of the search may still be about to end.
        """
        _, alive = psutil.wait_procs(self.running(), ENDING_S)
        found = [str(process) for process in alive]
        for machine in (self.lab_folder / "machines").iterdir():
            found += [str(path) for path in (machine / "tmp").rglob("*")]
            state = machine / "home" / ".local" / "share" / "pubsubctl"
            root = state / f"psl-{self.name}" / machine.name
            if root.is_dir():
                found += [
                    str(path)
                    for entry in root.iterdir()
                    if entry.name != "blobs" and not entry.name.startswith("venv-")
                    for path in (entry, *entry.rglob("*"))
                    if not path.is_dir()
                ]
        return found

    def traces(self) -> list[str]:
        """Return leftovers that `lab down` excludes, found independently."""
        found = [str(process) for process in self.processes()]
        found += [str(path) for path in NAMESPACES.glob(f"psl-{self.name}*")]
        found += [str(path) for path in INTERFACES.glob(f"psl-{self.name}*")]
        state = self.folder / "state" / "pubsubctl"
        return found + [str(path) for path in state.rglob("*")]


def _is_ours(process: psutil.Process) -> bool:
    try:
        return "bench.run.machine" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def lab_seed(config: pytest.Config) -> int:
    """Return the same seed on every run, so that failures are reproducible; long runs draw."""
    drawn = random.randrange(10**6) if config.getoption("--lab-long") else USUAL_SEED
    return config.getoption("--lab-seed") or drawn


def make_controller(name: str) -> Controller:
    """Return a new controller; the caller removes its folder."""
    folder = Path(mkdtemp(prefix="lab-"))
    (folder / "project").mkdir()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PUBSUBCTL_")},
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "PUBSUBCTL_RESULTS": str(folder / "results"),
    }
    return Controller(folder, name, environment)


@pytest.fixture
def controller() -> Iterator[Controller]:
    """Yield a controller without a lab; remove the leftovers of a failed test."""
    made = make_controller(f"t{os.getpid():x}")
    try:
        yield made
    finally:
        if made.traces():
            made.lab("down")
        shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Controller]:
    """Yield three hosts for all tests without lasting changes; check for leftovers at the end."""
    made = make_controller(f"s{os.getpid():x}")
    try:
        answer = made.lab("up", "--hosts", "3")
        assert answer.status == 0, answer.err
        yield made
        answer = made.lab("down")
        assert answer.status == 0, answer.err
        assert made.traces() == []
    finally:
        if made.traces():
            made.lab("down")
        shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture
def lab(shared_lab: Controller) -> Iterator[Controller]:
    """Yield the shared hosts, with `-i` set; remove the leftovers of a test."""
    made = replace(
        shared_lab, environment={**shared_lab.environment, "PUBSUBCTL_INVENTORY": shared_lab.name}
    )
    yield made
    if made.left_behind():
        made.lab("on", *made.machines())
        made.call("down")
        for process in made.running():
            process.kill()


@pytest.fixture
def chosen(request: pytest.FixtureRequest) -> Chosen:
    """Return a draw of three things by a printed seed; `make lab-long` takes all of the things."""
    seed = lab_seed(request.config)

    def choose(things: Sequence[str]) -> list[str]:
        if request.config.getoption("--lab-long"):
            return list(things)
        line = f"{request.node.name}: moments by --lab-seed {seed}"
        request.node.user_properties.append(("measured", line))
        return random.Random(seed).sample(things, min(SHORT, len(things)))

    return choose
