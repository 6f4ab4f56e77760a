"""Stories about completion in a shell: names of verbs, files, hosts, brokers and runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pubsubctl.commands import app as command_line


def completions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str
) -> list[str]:
    """Return the completions that bash offers after this line."""
    monkeypatch.setenv("_PUBSUBCTL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        command_line.run([])
    assert ended.value.code == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    "line, offered",
    [
        ("pubsubctl in", ["init", "inject", "inventory"]),
        (
            "pubsubctl bench ch",
            ["chain3", "chain3-logged", "chain3-logged-paced", "chain3-paced", "chain3-unseen"],
        ),
        ("pubsubctl inject cu", ["cut", "cut-clients", "cut-link"]),
        ("pubsubctl check la", ["latest"]),
        ("pubsubctl sta", ["status"]),
        ("pubsubctl clock s", ["sample", "show"]),
        ("pubsubctl inventory show t", ["t1", "t2"]),
        ("pubsubctl --limit !", ["!t1", "!t2"]),
        ("pubsubctl -i lo", ["local"]),
        ("pubsubctl inject free", ["freeze", "freeze-below", "freeze-between", "freeze-server"]),
        ("pubsubctl inject host-loss ", ["t1", "t2"]),
        ("pubsubctl inject freeze y", ["y1", "y2"]),
        ("pubsubctl inject cut y1-", ["y1-y2"]),
        ("pubsubctl inject freeze y1 ", []),
        ("pubsubctl logs y", ["y1", "y2"]),
        ("pubsubctl logs ag", ["agent"]),
        ("pubsubctl help cl", ["clients", "clocks"]),
        ("pubsubctl bench demo --set phases.dr", ["phases.drain=", "phases.drain_bound="]),
        ("pubsubctl sweep demo --over pro", ["protocol="]),
        ("pubsubctl compare la", ["latest"]),
        ("pubsubctl compare de", ["demo"]),
        ("pubsubctl report ", ["latest", "20260102T030405Z-0a1b2c"]),
        ("pubsubctl -i broken inventory show t", []),
    ],
)
def test_completion_offers_the_existing_names(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    offered: list[str],
) -> None:
    run_folder = project / "results/runs/demo/20260102T030405Z-0a1b2c"
    run_folder.mkdir(parents=True)
    (run_folder / "manifest.json").write_text("{}")
    (project / "inventories" / "broken.toml").write_text("name = ")
    record = project.parent / "state/pubsubctl/test/t1/deployment.json"
    record.parent.mkdir(parents=True)
    topology = {"brokers": ["y1", "y2"], "links": [["y1", "y2"]]}
    record.write_text(json.dumps({"topology": topology}))
    assert completions(capsys, monkeypatch, line) == offered


def test_completion_loads_no_slow_modules() -> None:
    """Spark, matplotlib, SSH and the event loop are imported by running commands only."""
    heavy = ("pyspark", "matplotlib", "paramiko", "fabric", "numpy", "pandas", "rich.live")
    code = (
        "import os, sys; os.environ.update(_PUBSUBCTL_COMPLETE='complete_bash', "
        "COMP_WORDS='pubsubctl inject free', COMP_CWORD='2')\n"
        "from pubsubctl.commands.app import run\n"
        "try:\n    run([])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr.strip()) == (
        ["freeze", "freeze-below", "freeze-between", "freeze-server"],
        "[]",
    )
