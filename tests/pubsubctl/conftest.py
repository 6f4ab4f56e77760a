"""Fixtures of a command line with its own project folder, state folder and settings."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pubsubctl.commands.app import run

INVENTORY = """\
schema = "pubsubctl/inventory/1"
name = "test"
[[hosts]]
name = "t[1:2]"
connector = "local"
[hosts.vars]
ports = "23500-23599"
"""


@dataclass(frozen=True)
class Answer:
    """The result of one command line."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return standard output, which must be one JSON document."""
        return json.loads(self.out)


Call = Callable[..., Answer]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the current folder a project with an inventory of two hosts; hide the user's files."""
    folder = tmp_path / "project"
    (folder / "inventories").mkdir(parents=True)
    (folder / "inventories" / "local.toml").write_text(INVENTORY)
    monkeypatch.chdir(folder)
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("INVENTORY", "RESULTS", "FORKS"):
        monkeypatch.delenv(f"PUBSUBCTL_{name}", raising=False)
    for kind in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return folder


@pytest.fixture
def call(project: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs one command line in the project folder."""

    def carry_out(*arguments: str) -> Answer:
        capsys.readouterr()
        status = run(arguments)
        said = capsys.readouterr()
        return Answer(status, said.out, said.err)

    return carry_out
