"""Failing seeds on the command line: the first ones with their commands, the others by number."""

from collections.abc import Iterator, Sequence
from typing import Final

from brokerd.simulator.search.seed_report import SeedReport
from pubsubctl.errors import PubsubctlError, VerdictInvalid

SHOWN: Final = 20
"""Seeds that are shown with the commands that repeat them."""


def further_seeds(wrong: Sequence[SeedReport]) -> Iterator[PubsubctlError]:
    """Yield one line with the number and the seeds of all failures beyond the first ones."""
    rest = wrong[SHOWN:]
    if rest:
        seeds = ", ".join(str(report.seed) for report in rest)
        yield VerdictInvalid(f"{len(rest)} further seeds with a violation: {seeds}")
