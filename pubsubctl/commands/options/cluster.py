"""Options for a deployment: replacement of brokers, and clients of the command line."""

from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.errors import UserError

_option = options_in("Cluster")

Rolling = Annotated[bool, _option("--rolling", help="Replace all brokers, one after the other.")]
MaxUnavailable = Annotated[
    int,
    _option(
        "--max-unavailable",
        metavar="N",
        min=1,
        help="Replace N brokers at a time. Requires --rolling.",
    ),
]
Roles = Annotated[
    list[str] | None,
    _option(
        "--role",
        metavar="BROKER=ROLE",
        help="Change the role of a broker during the run: b11=1 for a storage, b11=retired. "
        "Repeatable.",
    ),
]
NoTeardown = Annotated[bool, _option("--no-teardown", help="Keep the brokers of this run running.")]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="Look again afterwards. Exit with status 7 if anything is left."),
]
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
    str | None, typer.Option("--name", metavar="NAME", help="The name of the client. A new name.")
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
        raise UserError(f"{option} = {text!r}: {error}") from None
    if duration_ns <= 0:
        raise UserError(f"{option} {text}: more than 0")
    return duration_ns / 1e9
