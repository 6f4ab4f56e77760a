"""Options that select runs, and places for results."""

from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.errors import UserError

_PANEL = "Results"

RUNS_HELP = "Folders, run ids, or `latest`."

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A folder, a run id, or `latest`.", autocompletion=names.runs
    ),
]
Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help=RUNS_HELP, autocompletion=names.runs),
]
RunsFolder = Annotated[
    Path | None,
    typer.Option(
        "--output-dir",
        "-o",
        metavar="DIR",
        rich_help_panel=_PANEL,
        help="Use this folder of runs, not results/runs.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Run Spark there, not here.", rich_help_panel=_PANEL
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="K=V",
        rich_help_panel=_PANEL,
        help="Write a label into the manifest. Repeatable.",
    ),
]
Check = Annotated[
    bool,
    typer.Option("--check/--no-check", help="Judge the run with Spark.", rich_help_panel=_PANEL),
]
KeepHosts = Annotated[bool, typer.Option("--keep-hosts", help="Keep the names of hosts and users.")]

Author = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Name an author for archives. Repeatable."),
]
Publisher = Annotated[str, typer.Option(metavar="NAME", help="Name the publisher for archives.")]


def labels_of(texts: list[str]) -> dict[str, str]:
    """Return the labels of --label.

    Raises:
        UserError: a text is not KEY=VALUE.
    """
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"--label {text}: write KEY=VALUE")
        labels[key] = value
    return labels
