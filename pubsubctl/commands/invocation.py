"""What every verb is given: the console, the project, and the global options."""

from dataclasses import dataclass, field, replace
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
    """One call of pubsubctl.

    Attributes:
        console: where to write.
        inventory_option: as given with --inventory, or None.
        limit: the --limit selectors.
        forks_option: as given with --forks, or None.
        dry_run: only say what would be done.
        yes: do not ask.
        use_ssh_config: let ~/.ssh/config fill in what the inventory leaves open.
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
        """The project around the current folder."""
        if self._project is None:
            self._project = Project(Path.cwd())
        return self._project

    @property
    def forks(self) -> int:
        """How many hosts are worked on at the same time."""
        return self.project.forks(self.forks_option)

    def master(self, option: str | None = None) -> str:
        """Where Spark runs."""
        return self.project.setting("master", option).value

    def inventory(self) -> "Inventory":
        """The inventory that holds."""
        from pubsubctl.inventory.inventory import load_inventory

        inventory = load_inventory(self.project.inventory_file(self.inventory_option))
        if not self.use_ssh_config:
            return inventory
        settings = replace(inventory.ssh, user_config=Path("~/.ssh/config").expanduser())
        return replace(inventory, ssh=settings)

    def hosts(self, inventory: "Inventory") -> "tuple[Host, ...]":
        """The hosts of it that --limit leaves."""
        return inventory.select(self.limit)

    def global_words(self) -> list[str]:
        """The global options that decide what hosts are used, for another call of this program."""
        words = ["--inventory", str(self.project.inventory_file(self.inventory_option).resolve())]
        for selector in self.limit:
            words += ["--limit", selector]
        words += ["--forks", str(self.forks)]
        return [*words, *(["--use-ssh-config"] if self.use_ssh_config else [])]

    def refuse_dry_run(self, verb: str) -> None:
        """For verbs that change nothing, or cannot tell beforehand what they will.

        Raises:
            UserError: --dry-run was given.
        """
        if self.dry_run:
            raise UserError(f"`{verb}` has no --dry-run")


def invocation(context: typer.Context) -> Invocation:
    """The invocation a verb was called in."""
    found = context.obj
    assert isinstance(found, Invocation), found
    return found
