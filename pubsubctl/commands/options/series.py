"""Options of a series: the number of runs, bounds of their time and numbers, and all runs alike."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pubsubctl.commands.options.cluster import NoTeardown
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.commands.options.results import Check, Labels, labels_of
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from pubsubctl.runs.series import Habits

_OF_SERIES: Final = ("experiment", "point")
_option = options_in("Repetitions")

Instances = Annotated[
    int | None,
    _option(
        "--instances",
        metavar="N",
        min=1,
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

        labels = labels_of(self.labels or [])
        for key in _OF_SERIES:
            if key in labels:
                raise UserError(f"--label {key}={labels[key]}: a series sets this label itself")
        return Habits(labels=labels, check=self.check, teardown=not self.no_teardown)
