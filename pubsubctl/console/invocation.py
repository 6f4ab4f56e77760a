"""The invocation of a command: console, project, global options; and the pages of the manual."""

from dataclasses import dataclass, field, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pubsubctl.console.console import Console
from pubsubctl.errors import UserError
from pubsubctl.project import Project

if TYPE_CHECKING:
    from pubsubctl.inventory.inventory import Host, Inventory


@dataclass
class Invocation:
    """An invocation of `pubsubctl` with the global options.

    Attributes:
        console: output streams of the call.
        inventory_option: the value of --inventory, or None.
        limit: the --limit selectors.
        forks_option: the value of --forks, or None.
        dry_run: print the changes, and make none.
        yes: ask no questions.
        use_ssh_config: complete hosts of the inventory from ~/.ssh/config.
        arguments: the command line, for the record of a run.
    """

    console: Console = field(default_factory=Console)
    inventory_option: str | None = None
    limit: tuple[str, ...] = ()
    forks_option: int | None = None
    dry_run: bool = False
    yes: bool = False
    use_ssh_config: bool = False
    arguments: tuple[str, ...] = ()
    _project: Project | None = None

    @property
    def project(self) -> Project:
        """Return the project around the current folder."""
        if self._project is None:
            self._project = Project(Path.cwd())
        return self._project

    @property
    def forks(self) -> int:
        """Return the number of hosts that are operated at the same time."""
        return self.project.forks(self.forks_option)

    def master(self, option: str | None = None) -> str:
        """Return the URL of the Spark master."""
        return self.project.find_setting("master", option).value

    def inventory(self) -> "Inventory":
        """Return the inventory of this call.

        Raises:
            UserError: the inventory is missing or invalid.
        """
        from pubsubctl.inventory.inventory import load_inventory

        inventory = load_inventory(self.project.inventory_file(self.inventory_option))
        if not self.use_ssh_config:
            return inventory
        settings = replace(inventory.ssh, user_config=Path("~/.ssh/config").expanduser())
        return replace(inventory, ssh=settings)

    def hosts(self, inventory: "Inventory") -> "tuple[Host, ...]":
        """Return the hosts of an inventory that --limit selects."""
        return inventory.select(self.limit)

    def global_words(self) -> list[str]:
        """Return the global options that select hosts, for another call of this program."""
        words = ["--inventory", str(self.project.inventory_file(self.inventory_option).resolve())]
        for selector in self.limit:
            words += ["--limit", selector]
        words += ["--forks", str(self.forks)]
        return [*words, *(["--use-ssh-config"] if self.use_ssh_config else [])]

    def refuse_dry_run(self, verb: str) -> None:
        """Refuse --dry-run for a verb that cannot predict its changes, or makes none.

        Raises:
            UserError: --dry-run was given.
        """
        if self.dry_run:
            raise UserError(f"`{verb}` has no --dry-run")


def invocation(context: typer.Context) -> Invocation:
    found = context.obj
    assert isinstance(found, Invocation), found
    return found


def topic_files() -> dict[str, Traversable]:
    """Return the pages by topic, in order."""
    folder = resources.files("pubsubctl").joinpath("help")
    found = sorted(folder.iterdir(), key=lambda path: path.name)
    return {path.name.removesuffix(".md"): path for path in found if path.name.endswith(".md")}
