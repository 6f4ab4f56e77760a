"""Options for a deployment: topology, protocol and replacement of brokers."""

from typing import Annotated

import typer

_PANEL = "Cluster"

Rolling = Annotated[
    bool,
    typer.Option(
        "--rolling", help="Replace all brokers, one after the other.", rich_help_panel=_PANEL
    ),
]
MaxUnavailable = Annotated[
    int,
    typer.Option(
        "--max-unavailable",
        metavar="N",
        min=1,
        rich_help_panel=_PANEL,
        help="Replace N brokers at a time. Requires --rolling.",
    ),
]
Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="BROKER=ROLE",
        rich_help_panel=_PANEL,
        help="Change the role of a broker during the run: b11=1 for a storage, b11=retired. "
        "Repeatable.",
    ),
]
NoTeardown = Annotated[
    bool,
    typer.Option(
        "--no-teardown", help="Keep the brokers of this run running.", rich_help_panel=_PANEL
    ),
]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Look again afterwards. Exit with status 7 if anything is left."),
]
