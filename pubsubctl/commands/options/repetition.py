"""Options that repeat runs, and bound their time."""

from typing import Annotated

import typer

_PANEL = "Repetitions"

Instances = Annotated[
    int | None,
    typer.Option(
        "--instances",
        metavar="N",
        min=1,
        rich_help_panel=_PANEL,
        help="Run each point N times. The same command resumes an interrupted series.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        rich_help_panel=_PANEL,
        help="Start no run that would end later: 30min.",
    ),
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(
        "--bound",
        metavar="NUMBER=VALUE",
        rich_help_panel=_PANEL,
        help="Mark points with a mean beyond this bound: latency_p99_ms=500. Repeatable.",
    ),
]
