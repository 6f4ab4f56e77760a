"""Options of commands that are a client of the deployment."""

from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.errors import UserError

Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="BROKER",
        help="Connect to this broker. The first that answers.",
        autocompletion=names.brokers,
    ),
]
ClientName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="The name of the client. A new name."),
]


def seconds_of(option: str, text: str) -> float:
    """Return the seconds of a duration.

    Raises:
        UserError: the text is no duration, or 0.
    """
    from brokerd.units import parse_duration_ns

    try:
        duration_ns = parse_duration_ns(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
    if duration_ns <= 0:
        raise UserError(f"{option} {text}: more than 0")
    return duration_ns / 1e9
