"""Tests of the exit status of a command that Ctrl-C interrupts."""

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.patience import PATIENCE_S

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
