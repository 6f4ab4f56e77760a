"""Other releases of this project: runnable copies of the packages with another version."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from brokerd.sessions.messages import WIRE_VERSION

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("bench", "brokerd", "fault_injection", "pubsubctl", "results")
_AGENT: Final = "brokerd/agent/agent.py"
_COMMANDS: Final = "brokerd/runtime/commands.py"
_PROGRAM: Final = "brokerd/runtime/program.py"
_REPORT: Final = '            "program": read_own_program().to_mapping(),\n'

Edit = tuple[str, str, str]
"""A file, its text, and the text of the other release."""

WITHOUT_METRICS: Final[Sequence[Edit]] = (
    (_AGENT, '            "metrics": self._metrics,\n', ""),
    ("pubsubctl/deployment/deploy.py", "                await deployment.set_metrics()\n", ""),
)
"""Edits of the previous release, which lacks the newest command."""
WITHOUT_VERSIONS: Final[Sequence[Edit]] = (
    *WITHOUT_METRICS,
    (_AGENT, '            "hello": self._hello,\n', ""),
    (_AGENT, _REPORT, ""),
    (_COMMANDS, _REPORT, ""),
    (
        "pubsubctl/deployment/deployment.py",
        "    refused = [Age.LATER] if is_upgrade else [Age.EARLIER, Age.LATER]\n",
        "    refused: list[Age] = []\n",
    ),
)
"""Edits of the last release without programs in the reports of agents and brokers."""


def with_commands(version: int, release: str) -> Sequence[Edit]:
    """Return the edits of a release that takes other commands."""
    return (
        (_PROGRAM, "COMMANDS_VERSION: Final = 1\n", f"COMMANDS_VERSION: Final = {version}\n"),
        (_PROGRAM, 'RELEASE: Final = "0.1.0"\n', f'RELEASE: Final = "{release}"\n'),
    )


def with_wire(version: int) -> Sequence[Edit]:
    """Return the edits of a release with another wire version."""
    messages = "brokerd/sessions/messages.py"
    before, after = f"WIRE_VERSION = {WIRE_VERSION}\n", f"WIRE_VERSION = {version}\n"
    return ((messages, before, after),) if version != WIRE_VERSION else ()


def make_release(to: Path, *edits: Edit) -> Path:
    """Copy the packages into a folder, with edits; return the folder.

    Raises:
        AssertionError: a text does not occur exactly once.
    """
    for package in PACKAGES:
        data = ("runs", "samples") if package == "results" else ()
        ignore = shutil.ignore_patterns(*data)  # compiled modules stay valid
        shutil.copytree(ROOT / package, to / package, ignore=ignore)
    for file, text, other in edits:
        path = to / file
        content = path.read_text(encoding="utf-8")
        assert content.count(text) == 1, f"{file} has {content.count(text)} times {text!r}"
        path.write_text(content.replace(text, other), encoding="utf-8")
    return to
