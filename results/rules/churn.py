"""Churn: when the workload kept which subscriber away, as its load generator wrote that down.

An absence puts at risk what is sent meanwhile to that subscriber, as a client-disconnect does, and
excuses nothing: whoever comes back is owed all of it, as far as the guarantee says.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results.rules.terms import CHURN, Fault, doubt
from results.tables.json_files import IntegrityError
from results.tables.logs import Logs
from results.tables.manifest import Run

ABSENCES_FILE = "absences.jsonl"


def absences_of(run: Run, logs: Logs) -> Iterator[Fault]:
    """Each absence, on the run's time line.

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
            left_ns, back_ns = (run.moved(int(stamp or 0), process.host) for stamp in stamps)
            yield Fault(
                f"{CHURN}-{process.name}-{number}", CHURN, subscriber, left_ns, left_ns, back_ns,
                (f"client:{subscriber}",), err_ns,
            )  # fmt: skip


def doubts_about_churn(workload: Mapping[str, Any], absences: Sequence[Fault]) -> Iterator[str]:
    """That the workload wants churn, and there was none."""
    if workload.get("churn") and not absences:
        yield doubt("no_churn")
