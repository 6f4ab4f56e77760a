"""Global options, which may stand before or after the verb."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import ColorChoice, Console
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError
from pubsubctl.project import number_of_forks, unknown_variables

FORKS = "PUBSUBCTL_FORKS"
_HOSTS = "Hosts"
_OUTPUT = "Output"

_FLAGS = {
    *("-n", "--dry-run", "-y", "--yes", "-v", "--verbose", "-q", "--quiet"),
    *("-j", "--json", "--no-progress", "--use-ssh-config"),
}
_WITH_VALUE = {"-i", "--inventory", "-l", "--limit", "-f", "--forks", "--color"}


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(f"pubsubctl {importlib.metadata.version('pubsubctl')}")
        raise typer.Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """Options that every verb has."""

    inventory_file: Annotated[
        str | None,
        typer.Option(
            "--inventory",
            "-i",
            metavar="INV",
            help="Use this inventory: a path or a bare name.",
            autocompletion=names.inventories,
            rich_help_panel=_HOSTS,
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            "-l",
            metavar="SEL",
            help="Select hosts: n01,n[03:08], groups, patterns, !not.",
            autocompletion=names.selectors,
            rich_help_panel=_HOSTS,
        ),
    ] = None
    forks: Annotated[
        int | None,
        typer.Option(
            "--forks",
            "-f",
            metavar="N",
            min=1,
            max=1024,
            help="Operate on N hosts at a time.",
            rich_help_panel=_HOSTS,
        ),
    ] = None
    use_ssh_config: Annotated[
        bool,
        typer.Option(
            "--use-ssh-config",
            help="Complete the inventory from ~/.ssh/config.",
            rich_help_panel=_HOSTS,
        ),
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Print the changes, and make none.")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to questions.")] = False
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            help="Print more. Repeatable.",
            rich_help_panel=_OUTPUT,
        ),
    ] = 0
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_OUTPUT)
    ] = False
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", "-j", help="Print the result as a JSON document.", rich_help_panel=_OUTPUT
        ),
    ] = False
    color: Annotated[
        str,
        typer.Option(
            "--color",
            metavar="auto|always|never",
            help="Use colour.",
            rich_help_panel=_OUTPUT,
            autocompletion=names.choices("auto", "always", "never"),
        ),
    ] = "auto"
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="Print no progress.", rich_help_panel=_OUTPUT)
    ] = False
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False

    def apply(self, call: Invocation) -> None:
        """Set the options of an invocation.

        Raises:
            UserError: --color is unknown, or PUBSUBCTL_FORKS is no number; also for commands that
                operate on no hosts.
        """
        if self.forks is None and (text := os.environ.get(FORKS, "")):
            number_of_forks(text, FORKS)
        if self.color not in ("auto", "always", "never"):
            raise UserError(f"--color = {self.color!r}; one of auto, always, never")
        chosen: ColorChoice = self.color  # type: ignore[assignment]  # checked above
        call.console = Console(
            as_json=self.as_json,
            quiet=self.quiet,
            verbose=self.verbose,
            color=chosen,
            progress=not self.no_progress,
        )
        for problem in unknown_variables(os.environ):
            call.console.warn(problem)
        with suppress(UserError):  # the command reports a wrong setting when it needs it
            call.console.results = call.project.results_folder(None)
        call.inventory_option = self.inventory_file
        call.limit = tuple(self.limit or ())
        call.forks_option = self.forks
        call.dry_run = self.dry_run
        call.yes = self.yes
        call.use_ssh_config = self.use_ssh_config


def split_global_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the global options of a command line, and the remaining words."""
    moved: list[str] = []
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            kept += [argument, *rest]
            break
        name, equals, _ = argument.partition("=")
        if argument == "-f" and kept[:1] == ["logs"]:  # there it is --follow
            kept.append(argument)
        elif argument in _WITH_VALUE and rest:
            moved += [argument, rest.pop(0)]
        elif (
            argument in _FLAGS
            or (equals and name in _WITH_VALUE)
            or (len(argument) > 2 and argument[0] == "-" and set(argument[1:]) <= set("nyvqj"))
        ):
            moved.append(argument)
        else:
            kept.append(argument)
    return moved, kept


def global_options_first(arguments: Sequence[str]) -> list[str]:
    """Return the same command line with the global options moved before the verb."""
    moved, kept = split_global_options(arguments)
    return moved + kept
