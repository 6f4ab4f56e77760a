"""The identity of the running program: release, wire version, commands, and exact content.

Agents and brokers report the program to the controller. Brokers of two wire versions cannot have
sessions with each other. A controller does not operate an agent with other commands than its own.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import brokerd
from brokerd.sessions.messages import WIRE_VERSION

RELEASE: Final = "0.1.0"
"""As in pyproject.toml."""
COMMANDS_VERSION: Final = 1
"""Raised whenever a command of agents, or of the processes they start, is added or changed."""
UNVERSIONED_WIRE_VERSION: Final = 27
"""Wire version of the last release before agents and brokers reported a program."""

PACKAGES: Final = ("bench", "brokerd", "fault_injection")
NOT_ON_HOSTS: Final = re.compile(
    r"bench/(papers/.*|components\.py)"
    r"|brokerd/(simulator/.*|protocols/\w+/checks/.*)"
)
"""Sources of these packages that only the simulator or the controller needs."""
_SHOWN_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    Attributes:
        release: such as "0.1.0".
        wire_version: version of messages between brokers and clients.
        commands_version: version of commands to agents and to the processes that agents start.
        digest: SHA-256 of the sources on hosts, in hex digits.
    """

    release: str
    wire_version: int
    commands_version: int
    digest: str

    def __str__(self) -> str:
        return f"{self.release} (wire version {self.wire_version}, {self.digest[:_SHOWN_DIGITS]})"

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: object) -> Self | None:
        """Return a reported program; None if the value is no program, as from an older release."""
        if not isinstance(values, Mapping):
            return None
        release, digest = values.get("release"), values.get("digest")
        wire, commands = values.get("wire_version"), values.get("commands_version")
        if not isinstance(release, str) or not isinstance(digest, str):
            return None
        if type(wire) is not int or type(commands) is not int:
            return None
        return cls(release[:40], wire, commands, digest[:64])


@cache
def read_own_program() -> Program:
    """Return the program of this process, read once; an agent reads it before it forks."""
    return Program(RELEASE, WIRE_VERSION, COMMANDS_VERSION, _digest())


def host_sources(folder: Path) -> Iterator[Path]:
    """Yield the sources of `PACKAGES` in a folder that are installed on hosts, in a fixed order."""
    for package in PACKAGES:
        for path in sorted((folder / package).rglob("*.py")):
            inside = path.relative_to(folder).as_posix()
            if not NOT_ON_HOSTS.fullmatch(inside) and "__pycache__" not in inside:
                yield path


def _digest() -> str:
    folder = Path(brokerd.__file__).parents[1]
    found = hashlib.sha256()
    for path in host_sources(folder):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()
