"""Failing seeds on the command line: the first seeds with commands, the others by number."""

from collections.abc import Iterator, Sequence
from typing import Final

from brokerd.simulator.search.seed_report import SeedReport
from pubsubctl.errors import PubsubctlError, VerdictInvalid

SHOWN: Final = 20
"""The number of seeds that are shown with the commands that repeat the seeds."""


def further_seeds(wrong: Sequence[SeedReport]) -> Iterator[PubsubctlError]:
    """Yield a line with the number and the seeds of all failures beyond the first `SHOWN`."""
    rest = wrong[SHOWN:]
    if rest:
        seeds = ", ".join(str(report.seed) for report in rest)
        yield VerdictInvalid(f"{len(rest)} further seeds with a violation: {seeds}")
