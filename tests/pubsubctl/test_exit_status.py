"""Tests of the exit status of a command that Ctrl-C interrupts."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from bench.run.outcome import RunOutcome
from brokerd.agent.host.server import HostSide
from brokerd.errors import ControlError
from pubsubctl.console.interruption import Interruption
from pubsubctl.errors import HostError, Interrupted, LabDirty, Unreachable
from tests.helpers.patience import PATIENCE_S
from tests.pubsubctl.conftest import Call

ROOT = Path(__file__).parents[2]
INTERRUPTED_IN_EXEC = """
from pubsubctl.commands import app

def run(arguments):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 130

app.run = run
app.main()
"""


def test_an_interrupt_during_an_exec_exits_with_status_130(tmp_path: Path) -> None:
    """Imports execute generated code for named tuples and data classes."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED_IN_EXEC)
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 130


def test_an_interrupt_after_the_end_of_a_run_keeps_it_unjudged(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = project / "run"
    run.mkdir()
    (run / "manifest.json").write_text("{}")

    async def carry_out(
        experiment: Any, lab: Any, progress: Any, interruption: Interruption, purpose: str
    ) -> RunOutcome:
        interruption.stop(signal.SIGINT)
        return RunOutcome(run_directory=run, state="complete")

    monkeypatch.setattr("pubsubctl.runs.experiment.carry_out", carry_out)
    answer = call("bench", "chain3")
    assert (answer.status, answer.out.splitlines()[-1]) == (130, str(run))
    assert answer.err.endswith("error: interrupted\n")
    assert "Spark" not in answer.err


def test_an_interrupt_at_a_terminal_does_not_reach_an_agent_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\ncut -d' ' -f5 /proc/$$/stat >&2\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ControlError, match="the agent did not start") as caught:
        trio.run(HostSide(tmp_path / "root", "n1").start_agent, "deployment")
    assert int(str(caught.value).split()[-1]) != os.getpgrp()


@pytest.mark.parametrize(
    "error, raised",
    [
        (HostError("the agent did not start"), Interrupted),
        (ExceptionGroup("two", [HostError("a"), Unreachable("b")]), Interrupted),
        (LabDirty("a process remains"), LabDirty),
        (ZeroDivisionError("a bug"), ZeroDivisionError),
    ],
)
def test_an_error_after_an_interrupt_is_the_interrupts(
    error: Exception, raised: type[Exception]
) -> None:
    async def main() -> None:
        interruption = Interruption()
        with pytest.raises(type(error)), interruption.stoppable():
            raise error
        with interruption.stoppable():
            interruption.stop(signal.SIGINT)
            raise error

    with pytest.raises(raised):
        trio.run(main)
