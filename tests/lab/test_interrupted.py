"""Stories about killed or interrupted controllers: the hosts are clean within the lease.

`make lab-long` kills at 20 moments and records a row for each.
"""

import random
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pubsubctl.deployment.deploy import LEASE_MS
from pubsubctl.deployment.start import FIRST_LEASE_MS
from tests.end_to_end.conftest import Answer, wait_until
from tests.end_to_end.test_bench import SCHEDULE, WORKLOAD
from tests.helpers.patience import PATIENCE_S
from tests.lab.conftest import Controller, lab_seed
from tests.lab.kills_table import Kill, kills_table

pytestmark = pytest.mark.lab

KILLS = 20
TABLE = Path(__file__).parents[2] / "results" / "lab_kills.md"
LEASE_S = LEASE_MS / 1000
# Machines of this size may be busy with something else; a lease that did not end is far beyond.
SLACK_S = 120.0


@dataclass(frozen=True)
class Moment:
    """A command with a moment to kill the command.

    Attributes:
        place: from 0, the start of the command, to 1, its usual end.
    """

    verb: str
    place: float


def moments(seed: int, count: int) -> list[Moment]:
    """Return `count` moments, of every verb in turn; equal seeds give equal moments."""
    drawn = random.Random(seed)
    verbs = ("deploy", "bench", "inject")
    return [Moment(verbs[turn % 3], round(drawn.random(), 3)) for turn in range(count)]


COMMANDS = {
    "deploy": ("deploy", "chain3"),
    "bench": ("bench", "broken.toml", "--faults", "crash.toml", "--no-check"),
    "inject": ("inject", "freeze", "c2", "--for", "5s"),
}


def brokers_and_faults(lab: Controller) -> tuple[set[str], list[object]]:
    """Return the states of all brokers, and the faults in effect."""
    document = lab.call("status", "-j").document
    return {row["state"] for row in document.get("brokers", [])}, document.get("faults", [])


def clean_by_lease(lab: Controller, verb: str) -> bool:
    """Return true if the work of the killed command has ended by lease."""
    if verb == "bench":
        return not lab.running()
    states, faults = brokers_and_faults(lab)
    return verb == "deploy" or (states == {"running"} and not faults)


def down(lab: Controller) -> Answer:
    """Run `down --verify` once the killed operator's lock is free."""
    answers: list[Answer] = []

    def is_free() -> bool:
        answers.append(lab.call("down", "--verify"))
        return answers[-1].status != 4

    wait_until("the killed operator's lock is free", is_free, LEASE_S + SLACK_S)
    return answers[-1]


def usual_duration_s(lab: Controller, verb: str, seen: dict[str, float]) -> float:
    """Return the duration of an undisturbed command, measured at the first call."""
    if verb not in seen:
        if verb == "inject":
            assert lab.call(*COMMANDS["deploy"]).status == 0
        started = time.monotonic()
        answer = lab.call(*COMMANDS[verb])
        assert answer.status == 0, answer.err
        seen[verb] = time.monotonic() - started
        assert down(lab).status == 0
    return seen[verb]


def kill(lab: Controller, moment: Moment, duration_s: float) -> Kill:
    """Kill a command; return the time, its last line, and its exit status."""
    if moment.verb == "inject":
        assert lab.call(*COMMANDS["deploy"]).status == 0
    process = lab.start(*COMMANDS[moment.verb])
    started = time.monotonic()
    try:
        process.wait(timeout=moment.place * duration_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    after_s = time.monotonic() - started
    _, err = process.communicate()
    said = (err.strip().splitlines() or ["nothing"])[-1].strip()
    return Kill(moment.verb, after_s, said, process.returncode)


@pytest.mark.sampled
def test_a_killed_controller_leaves_nothing_beyond_its_lease(
    lab: Controller, request: pytest.FixtureRequest
) -> None:
    (lab.folder / "project" / "broken.toml").write_text(WORKLOAD)
    (lab.folder / "project" / "crash.toml").write_text(SCHEDULE)
    options = request.config
    is_long = options.getoption("--lab-long")
    seed = lab_seed(options)
    chosen = moments(seed, KILLS if is_long else 3)
    said = f"controllers killed at moments of --lab-seed {seed}"
    request.node.user_properties.append(("measured", said))
    kills: list[Kill] = []
    durations: dict[str, float] = {}
    usual = {"deploy": 4.0, "bench": 14.0, "inject": 8.0}  # for three, a guess is good enough
    for number, moment in enumerate(chosen, start=1):
        duration_s = (
            usual_duration_s(lab, moment.verb, durations) if is_long else usual[moment.verb]
        )
        killed = kill(lab, moment, duration_s)
        killed_at = time.monotonic()
        what = f"{moment.verb} killed after {killed.after_s:.2f} s (`{killed.said}`), seed {seed}"
        wait_until(
            f"clean by its lease: {what}",
            lambda verb=moment.verb: clean_by_lease(lab, verb),  # type: ignore[misc]
            FIRST_LEASE_MS / 1000 + SLACK_S,
        )
        healed_s = time.monotonic() - killed_at
        answer = down(lab)
        assert answer.status == 0, f"{what}: {answer.err}"
        assert lab.left_behind() == [], what
        kills.append(replace(killed, healed_s=healed_s))
        request.node.user_properties.append(("measured", kills[-1].row(number)))
        if is_long:
            TABLE.write_text(
                kills_table(
                    seed,
                    kills,
                    first_lease_s=FIRST_LEASE_MS / 1000,
                    lease_s=LEASE_S,
                    slack_s=SLACK_S,
                ),
                encoding="utf-8",
            )
    assert len(kills) == len(chosen)


@pytest.mark.sampled
@pytest.mark.parametrize("step", ["starting agents", "starting brokers", "waiting for sessions"])
def test_ctrl_c_at_a_step_of_deploy_leaves_nothing(lab: Controller, step: str) -> None:
    status, err = _interrupted_when(lab, COMMANDS["deploy"], step)
    assert status == 130, err
    assert "stopping in order" in err
    assert lab.left_behind() == []


@pytest.mark.sampled
def test_ctrl_c_at_any_step_of_inject_heals(lab: Controller) -> None:
    assert lab.call(*COMMANDS["deploy"]).status == 0
    inject = ("inject", "freeze", "c2", "--for", "60s")
    for step in ("injecting", "applied", "observed"):
        status, err = _interrupted_when(lab, inject, step)
        assert status == 130, f"{step}: {err}"
        assert brokers_and_faults(lab)[1] == [], step
        wait_until("all brokers run", lambda: brokers_and_faults(lab)[0] == {"running"})
    assert lab.call("down", "--verify").status == 0
    assert lab.left_behind() == []


def _interrupted_when(lab: Controller, command: tuple[str, ...], step: str) -> tuple[int, str]:
    """Interrupt a command once its output reports this step."""
    process = lab.start(*command)
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if step in line:
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=PATIENCE_S)
    return process.returncode, "".join(said) + rest
