"""Churn: absences of subscribers by the workload, as recorded by the load generator.

An absence puts the publications that are sent meanwhile at risk, as a client-disconnect does, and
excuses nothing: a subscriber that returns is owed all of these publications, as far as the
guarantee demands.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results.rules.terms import CHURN, Fault, doubt
from results.tables.json_files import IntegrityError
from results.tables.logs import Logs
from results.tables.manifest import Run

ABSENCES_FILE = "absences.jsonl"


def absences_of(run: Run, logs: Logs) -> Iterator[Fault]:
    """Yield each absence, on the run's time line.

    Raises:
        IntegrityError: a line is no absence.
    """
    for process in logs.processes:
        errors = [run.clock_error_ns(process.host, other) for other in run.hosts_of_load]
        known = [error for error in errors if error is not None]
        err_ns = max(known, default=0) if len(known) == len(errors) else None
        for number, line in enumerate(process.lines(ABSENCES_FILE), start=1):
            subscriber = line.get("subscriber")
            stamps = [line.get(name) for name in ("t_left_ns", "t_back_ns")]
            if not isinstance(subscriber, str) or any(type(each) is not int for each in stamps):
                path = process.folder / ABSENCES_FILE
                raise IntegrityError(f"{path}, line {number}: {line} is no absence")
            left_ns, back_ns = (run.to_timeline(int(stamp or 0), process.host) for stamp in stamps)
            yield Fault(
                f"{CHURN}-{process.name}-{number}", CHURN, subscriber, left_ns, left_ns, back_ns,
                (f"client:{subscriber}",), err_ns,
            )  # fmt: skip


def doubts_about_churn(workload: Mapping[str, Any], absences: Sequence[Fault]) -> Iterator[str]:
    """Yield a doubt if the workload requires churn, and no absence happened."""
    if workload.get("churn") and not absences:
        yield doubt("no_churn")
