"""Tests of signals to a command's whole process group during Spark jobs."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers.descendants import descendants
from tests.helpers.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "results" / "samples" / "delta-tree-crash"

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.sampled
@pytest.mark.parametrize("phase", ["starting Spark", "checking"])
@pytest.mark.parametrize(
    "sent, status, said",
    [(signal.SIGINT, 130, "error: interrupted"), (signal.SIGTERM, 143, "error: terminated")],
)
def test_a_signal_to_the_whole_group_ends_a_check_in_a_sentence_and_java_with_it(
    tmp_path: Path, phase: str, sent: signal.Signals, status: int, said: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(SAMPLE, run)
    process = subprocess.Popen(
        [sys.executable, "-m", "pubsubctl", "check", str(run)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any(line.startswith(phase) for line in lines)
    java: list[psutil.Process] = []
    while not java:
        java = descendants(process.pid, "java")
        assert process.poll() is None
    os.killpg(process.pid, sent)
    with process.stderr:
        told = process.stderr.read()
    assert process.wait(PATIENCE_S) == status, told
    assert told.splitlines()[-1] == said
    assert "Traceback" not in told
    assert "Exception" not in told
    gone, alive = psutil.wait_procs(java, PATIENCE_S)
    assert gone
    assert not alive
    assert not list(tmp_path.glob("pubsubctl-spark-*"))
