"""Absences of subscribers: those of the workload (churn), and gaps that a protocol promises.

An absence by the workload puts the publications that are sent meanwhile at risk, as a
client-disconnect does, and excuses nothing: a subscriber that returns is owed all of these
publications, as far as the guarantee demands.

A broker ends the subscriptions of a client that is absent for `client_linger_ns`, and keeps nothing
for them from then on. The absence counts at one broker: a session with another broker does not end
it. The gap may have the publications up to the end of the subscriptions, and up to the first
session after that; of any age. The sessions are from the load generator's log, on the clock of the
gap's announcement.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from results.rules.terms import CHURN, NEVER_NS, Fault, Gap, Promises, doubt
from results.tables.json_files import IntegrityError
from results.tables.logs import Logs
from results.tables.manifest import Run

SESSION_SLACK_NS = 1_000_000_000
"""The broker and the client see the end of a session no further apart: a suspicion, and more."""

Gaps = Mapping[tuple[str, str], Sequence[Gap]]


class _Absence(NamedTuple):
    """The time without a session with one broker, and the first session with any broker in it."""

    left_ns: int
    back_ns: int
    resumed_ns: int


class _Line(NamedTuple):
    at_ns: int
    is_up: bool
    broker: str
    session: int


def with_absences(gaps: Gaps, run: Run, logs: Logs) -> Gaps:
    """Return the gaps, each with the latest time that an absence explains; see `Gap`."""
    promises = run.promises
    if not promises.absence_gaps:
        return gaps
    clients = {pair[0].partition("/")[0] for pair in gaps}
    absences = {name: [*_absences(lines)] for name, lines in _lines(run, logs, clients).items()}
    return {
        pair: [
            replace(
                gap,
                absent_until_ns=_explained_until_ns(gap, promises, absences.get(_client(pair), ())),
            )
            for gap in of_pair
        ]
        for pair, of_pair in gaps.items()
    }


def _client(pair: tuple[str, str]) -> str:
    return pair[0].partition("/")[0]


def _lines(run: Run, logs: Logs, clients: set[str]) -> dict[str, list[_Line]]:
    """Return the session lines of some clients, in the order of time."""
    found: dict[str, list[_Line]] = {}
    for process in logs.processes:
        for line in process.lines("sessions.jsonl"):
            name, at_ns, broker = line.get("client"), line.get("t_ns"), line.get("broker")
            if name in clients and type(at_ns) is int and isinstance(broker, str):
                moved_ns, session = run.to_timeline(at_ns, process.host), line.get("session")
                number = session if type(session) is int else 0
                is_up = line.get("event") == "up"
                found.setdefault(str(name), []).append(_Line(moved_ns, is_up, broker, number))
    return {name: sorted(lines) for name, lines in found.items()}


def _absences(lines: Sequence[_Line]) -> Iterator[_Absence]:
    """Yield the absences of a client from each broker at which it had a session."""
    is_open: dict[int, str] = {}
    for place, line in enumerate(lines):
        if line.is_up:
            is_open[line.session] = line.broker
            continue
        is_open.pop(line.session, None)
        if line.broker in is_open.values():
            continue
        ups = [later for later in lines[place + 1 :] if later.is_up]
        back_ns = next((up.at_ns for up in ups if up.broker == line.broker), NEVER_NS)
        resumed_ns = ups[0].at_ns if ups else NEVER_NS
        yield _Absence(line.at_ns, back_ns, line.at_ns if is_open else resumed_ns)


def _explained_until_ns(gap: Gap, promises: Promises, absences: Sequence[_Absence]) -> int | None:
    """Return the latest time of a publication that an absence before a gap explains; None: none."""
    if gap.reason not in promises.absence_gaps:
        return None
    least_ns = promises.absence_ns - SESSION_SLACK_NS
    until_ns = [
        max(absence.left_ns + promises.absence_ns, absence.resumed_ns) + SESSION_SLACK_NS
        for absence in absences
        if absence.back_ns - absence.left_ns >= least_ns
        and gap.received_ns - absence.left_ns >= least_ns
    ]
    return min(max(until_ns), gap.received_ns) if until_ns else None


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
