"""Tables of lies: changes of all files of one author in a recorded run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.forged_folders import RunFolder
from tests.helpers.settled_runs import settle

Change = Callable[[RunFolder], bool | None]
"""Returns False if the lie does not apply to a run."""


@dataclass(frozen=True)
class ConsistentLie:
    """One lie.

    Attributes:
        family: the author of the changed files.
        says: a piece of the doubt that must name the lie; "" if no file can contradict the lie.
        trust: a piece of the line of `on_trust` that covers a lie without a doubt.
    """

    name: str
    family: str
    change: Change
    says: str = ""
    trust: str = ""


def add_lie(
    lies: dict[str, ConsistentLie],
    name: str,
    family: str,
    change: Change,
    says: str = "",
    trust: str = "",
) -> None:
    """Add a lie to a table."""
    assert name not in lies, name
    lies[name] = ConsistentLie(name, family, change, says, trust)


def tell(folder: Path, lie: ConsistentLie) -> bool:
    """Apply a lie to a run folder; return False if the lie does not apply to the run."""
    run = RunFolder(folder)
    if lie.change(run) is False:
        return False
    settle(run)
    return True
