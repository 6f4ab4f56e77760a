"""Options of runs: replacement of brokers, clients, the number of runs, and their bounds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.commands.options.results import LABELS_OF_SERIES, Check, Labels, labels_of
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from pubsubctl.runs.series import Habits

_cluster_option = options_in("Cluster")

Rolling = Annotated[
    bool, _cluster_option("--rolling", help="Replace all brokers, one after the other.")
]
MaxUnavailable = Annotated[
    int,
    _cluster_option(
        "--max-unavailable",
        metavar="N",
        min=1,
        help="Replace N brokers at a time. Requires --rolling.",
    ),
]
Roles = Annotated[
    list[str] | None,
    _cluster_option(
        "--role",
        metavar="BROKER=ROLE",
        help="Change the role of a broker during the run: b11=1 for a storage, b11=retired. "
        "Repeatable.",
    ),
]
NoTeardown = Annotated[
    bool, _cluster_option("--no-teardown", help="Keep the brokers of this run running.")
]
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
        show_default="the first that answers",
        help="Connect to this broker.",
        autocompletion=names.brokers,
    ),
]
ClientName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", show_default="a new name", help="Name the client."),
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


_option = options_in("Repetitions")
MOST_INSTANCES = 1_000

Instances = Annotated[
    int | None,
    _option(
        "--instances",
        metavar="N",
        min=1,
        max=MOST_INSTANCES,
        help="Run each point N times. The same command resumes an interrupted series.",
    ),
]
Budget = Annotated[
    str | None,
    _option("--budget", metavar="TIME", help="Start no run that would end later: 30min."),
]
Bounds = Annotated[
    list[str] | None,
    _option(
        "--bound",
        metavar="NUMBER=VALUE",
        help="Mark points with a mean beyond this bound: latency_p99_ms=500. Repeatable.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesOptions:
    """Options that apply to each run of a series; with no_teardown, the last brokers stay."""

    labels: Labels = None
    check: Check = True
    no_teardown: NoTeardown = False

    def list_given(self) -> list[str]:
        """Return the options that differ from their defaults."""
        found = {
            "--label": bool(self.labels),
            "--no-check": not self.check,
            "--no-teardown": self.no_teardown,
        }
        return [option for option, is_given in found.items() if is_given]

    def habits(self) -> "Habits":
        """Return the settings of the runs.

        Raises:
            UserError: a label that the series sets itself, or one that is not KEY=VALUE.
        """
        from pubsubctl.runs.series import Habits

        labels = labels_of(self.labels, taken=LABELS_OF_SERIES)
        return Habits(labels=labels, check=self.check, teardown=not self.no_teardown)
