"""State marks of neighbours on this broker's disk, so that a restart of both loses no mark."""

from collections.abc import Mapping
from typing import Any, Final

from brokerd.protocols.interface import Change, Commit
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.disk import Disk
from brokerd.sessions.messages import StateMark
from brokerd.sessions.state_marks import StateLedger, StateWitness
from brokerd.storage.meta_store import VOUCHED, WITNESSED
from brokerd.units import SECOND_NS

WRITE_EVERY_NS: Final = 5 * SECOND_NS


class WitnessRows:
    """The marks of `witness` as rows of this broker, written lazily and rarely.

    The rows also record if a neighbour has vouched for the state folder of this broker.
    """

    def __init__(self, witness: StateWitness, ledger: StateLedger, disk: Disk) -> None:
        self._witness = witness
        self._ledger = ledger
        self._is_vouched = ledger.is_vouched
        self._disk = disk
        self._due_ns = 0

    def recover(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Load the marks that an earlier incarnation has written."""
        for key, row in rows.get(WITNESSED, {}).items():
            if key != VOUCHED:
                self._witness.marks[int(key)] = StateMark(*row)

    def write_all(self) -> None:
        """Write the marks that have changed, before an orderly end."""
        self._due_ns = 0
        self.write_changed()

    def write_changed(self) -> None:
        """Write the marks that have changed, unless the last write was a moment ago."""
        changed, now_ns = self._witness.changed, clock_ns()
        is_news = self._ledger.is_vouched and not self._is_vouched
        if not is_news and (not changed or now_ns < self._due_ns):
            return
        self._due_ns = now_ns + WRITE_EVERY_NS
        marks = self._witness.marks
        rows = [Change(WITNESSED, str(peer), [*marks[peer]]) for peer in changed]
        if is_news:
            self._is_vouched = True
            rows.append(Change(WITNESSED, VOUCHED, True))
        self._witness.changed.clear()
        self._disk.commit(Commit(tuple(rows), None))
