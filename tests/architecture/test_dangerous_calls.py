"""Tests of dangerous calls: nothing executes data, or trusts an unknown host."""

from pathlib import Path

import pytest

from tests.architecture.layers import OURS
from tests.architecture.small_trees import ROOT, complain, plant
from tests.helpers.architecture import (
    find_dangers,
    read_modules,
)

# Modules that pickle in memory only, for themselves: no data from a file or a peer is read.
_EXPLORATION = "brokerd/simulator/search/exploration"


IN_MEMORY = (
    (f"{_EXPLORATION}/fingerprint.py", "pickle is imported"),
    (f"{_EXPLORATION}/snapshots.py", "pickle is imported"),
)


def test_nothing_executes_data_or_trusts_an_unknown_host() -> None:
    found = find_dangers(read_modules(ROOT, (*OURS, "tests")))
    complain([each for each in found if (each.path, each.what) not in IN_MEMORY])


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "exec('x = 1')",
        "import pickle",
        "from pickle import loads",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "client.set_missing_host_key_policy(paramiko.AutoAddPolicy())",
        "from paramiko import AutoAddPolicy",
        "command = [sys.executable, '-m', module]",
    ],
)
def test_a_danger_is_found(tmp_path: Path, source: str) -> None:
    assert len(find_dangers(read_modules(plant(tmp_path, {"top.x": source}), ["top"]))) == 1


def test_harmless_calls_that_resemble_dangers_are_accepted(tmp_path: Path) -> None:
    source = "model.eval()\nsubprocess.run(['ls'], shell=False)\nclient.exec_command('ls')\n"
    assert find_dangers(read_modules(plant(tmp_path, {"top.x": source}), ["top"])) == []
