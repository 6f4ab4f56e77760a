"""Marks of the log of a broker, kept by the brokers that it has answered.

State marks (`brokerd.sessions.state_marks`) pass between neighbours, and are lost with the disks of
these. A log mark passes from end to end, in the answers and requests of a protocol. Each start of a
broker with a log is on record in its rows: the random number of the start, and the number of
records that it found. A broker that returns a mark of a start that is not on record, or of records
that a later start did not find, proves that records are lost.

Paper: none; the papers take stable storage as given.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Change

LOG_STARTS: Final = "log_starts"
"""Per incarnation: the number of the start, and the number of records that it found."""

LOG_MARKS: Final = "log_marks"
"""Per broker with a log, its newest mark."""

STARTS_KEPT: Final = 256
"""Starts on record; marks of earlier ones prove nothing."""


class LogMark(NamedTuple):
    """The durable extent of a log at one moment.

    Attributes:
        lineage, incarnation: of the broker with the log.
        start: random number of the incarnation's start.
        records: number of durable records so far.
    """

    lineage: int
    incarnation: int
    start: int
    records: int

    def is_newer(self, known: "LogMark") -> bool:
        """Return True if a mark replaces a known mark of the same broker."""
        if self[:3] == known[:3]:
            return self.records > known.records
        return self[:2] > known[:2]


NO_MARK: Final = LogMark(0, 0, 0, 0)


class _LogStart(NamedTuple):
    start: int
    records: int


class LogStarts:
    """The starts of a broker with a log, and the marks of its log.

    A start number of 0 means that the driver has none: there are no marks.
    """

    def __init__(self) -> None:
        self._starts: dict[int, _LogStart] = {}
        self._present = NO_MARK
        self._is_durable = False

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the starts on record."""
        rows = recovered.get(LOG_STARTS, {})
        self._starts = {int(key): _LogStart(*rows[key]) for key in sorted(rows, key=int)}

    def begin(self, lineage: int, incarnation: int, start: int, records: int) -> list[Change]:
        """Return the changes on disk that record a start; marks wait for `confirm`."""
        if not start:
            return []
        self._starts[incarnation] = _LogStart(start, records)
        self._present = LogMark(lineage, incarnation, start, records)
        changes = [Change(LOG_STARTS, str(incarnation), [start, records])]
        for oldest in [*self._starts][:-STARTS_KEPT]:
            del self._starts[oldest]
            changes.append(Change(LOG_STARTS, str(oldest), None))
        return changes

    @property
    def is_new(self) -> bool:
        """True if the first start on record found no records: the log is new, or a lost disk's."""
        first = next(iter(self._starts.values()), None)
        return first is not None and not first.records

    def confirm(self) -> None:
        """Take the durability of the changes of `begin`."""
        self._is_durable = True

    def mark(self, records: int) -> LogMark:
        """Return the mark of this many durable records."""
        if not (self._is_durable and self._present.incarnation):
            return NO_MARK
        return self._present._replace(records=records)

    def find_loss(self, mark: LogMark) -> str:
        """Return how a mark proves that records are lost here; "" if it proves nothing."""
        present = self._present
        if not mark.incarnation or not present.incarnation or mark.lineage < present.lineage:
            return ""
        if mark.lineage > present.lineage:
            return "the log is older than the loss that was accepted last"
        known = self._starts.get(mark.incarnation)
        if known is None and self._is_forgotten(mark.incarnation):
            return ""
        if known is None or known.start != mark.start:
            return f"incarnation {mark.incarnation} has run with another log, which is missing"
        if mark.incarnation >= present.incarnation:
            return ""
        later = [number for number in self._starts if number > mark.incarnation]
        missing = mark.records - self._starts[min(later)].records
        if missing <= 0:
            return ""
        return (
            f"the last {missing} records of incarnation {mark.incarnation} were on disk, and are "
            "missing"
        )

    def _is_forgotten(self, incarnation: int) -> bool:
        return len(self._starts) == STARTS_KEPT and incarnation < min(self._starts)


class LogWitness:
    """The newest marks of the logs of other brokers.

    The rows are written lazily: a mark that a crash takes proves nothing, and the next answer has a
    newer mark.
    """

    def __init__(self) -> None:
        self._marks: dict[BrokerNumber, LogMark] = {}
        self._unwritten: dict[BrokerNumber, None] = {}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the marks on disk."""
        rows = recovered.get(LOG_MARKS, {})
        self._marks = {int(key): LogMark(*row) for key, row in rows.items()}

    def of(self, broker: BrokerNumber) -> LogMark:
        """Return the newest mark of a broker's log, or NO_MARK."""
        return self._marks.get(broker, NO_MARK)

    def take(self, broker: BrokerNumber, mark: LogMark) -> bool:
        """Keep a newer mark; return True if it is the first one of a start."""
        known = self.of(broker)
        if not mark.is_newer(known):
            return False
        self._marks[broker] = mark
        self._unwritten[broker] = None
        return mark[:3] != known[:3]

    @property
    def has_unwritten(self) -> bool:
        """True if a mark is not on disk."""
        return bool(self._unwritten)

    def take_changes(self) -> list[Change]:
        """Return the rows that have changed since the last call."""
        unwritten, self._unwritten = self._unwritten, {}
        return [Change(LOG_MARKS, str(broker), [*self._marks[broker]]) for broker in unwritten]
