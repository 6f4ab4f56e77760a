"""The requests of a finer storage to its parent: every predicate of its unit, once.

The parent answers with the epoch after which a predicate begins, when the predicate is registered
up to the root: everything stored there later reaches the interested storages below.

Paper: [GES] §4 (a unit's profile is that of all in it; epochs of profile changes).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerd.model.identity import BrokerNumber
from brokerd.model.predicate import Predicate
from brokerd.protocols.ges_reliable.changes import Changes
from brokerd.protocols.ges_reliable.messages import Begun, Key, Wish
from brokerd.protocols.interface import Change, Commit
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate

PROFILE: Final = "profile"
"""Purpose of the deadline of a repeated request; and per number, a predicate on disk."""


@dataclass(slots=True)
class Asked:
    """A predicate, by its number at the parent; `begins` is None while there is no answer."""

    number: int
    begins: int | None = None


class UnitProfile:
    """All requests of a storage to its parent.

    Args:
        on_begun: called when some predicate has begun.
    """

    def __init__(
        self,
        parent: BrokerNumber,
        machine: EventMachine,
        changes: Changes,
        on_begun: Callable[[], None],
    ) -> None:
        self.changes = changes
        self._parent = parent
        self._machine = machine
        self._on_begun = on_begun
        self._asked: dict[Predicate, Asked] = {}
        self._last = 0

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore and repeat the requests on disk; the later number of two counts."""
        rows = sorted((int(number), row) for number, row in recovered.get(PROFILE, {}).items())
        for number, row in rows:
            predicate = read_predicate(row)
            before = self._asked.pop(predicate, None)
            if before is not None:
                self._end(before)
            self._last = number
            self._asked[predicate] = Asked(number)
        for predicate, asked in self._asked.items():
            self._tell(predicate, asked)

    def begins(self, predicate: Predicate) -> int | None:
        """Return the epoch after which a predicate begins; None without an answer."""
        asked = self._asked.get(predicate)
        return asked.begins if asked is not None else None

    def ask(self, predicate: Predicate) -> None:
        """Request all publications that match a predicate from now on."""
        if predicate in self._asked:
            return
        self._last += 1
        asked = self._asked[predicate] = Asked(self._last)
        row = Change(PROFILE, str(asked.number), predicate_row(predicate))
        self._machine.emit(Commit((row,), None))
        self._tell(predicate, asked)

    def keep(self, wanted: Iterable[Predicate]) -> None:
        """End all requests but these."""
        left = dict.fromkeys(wanted)
        for predicate in [each for each in self._asked if each not in left]:
            self._end(self._asked.pop(predicate))

    def _tell(self, predicate: Predicate, asked: Asked) -> None:
        def begun(answer: Begun) -> None:
            asked.begins = answer.after
            self._on_begun()

        self.changes.tell(self._parent, Wish(Key("", asked.number), 0, predicate), begun)

    def _end(self, asked: Asked) -> None:
        def over(_answer: Begun) -> None:
            self._machine.emit(Commit((Change(PROFILE, str(asked.number), None),), None))

        self.changes.tell(self._parent, Wish(Key("", asked.number), 0, None), over)
