"""What a finer storage asks of its parent: each predicate that is wanted in its unit, once.

The parent answers behind which epoch it begins, when that is registered up to the root: all that
is stored there later comes down to whoever wants it.

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
"""Purpose of the deadline at which a parent is told again; and per number, a predicate on disk."""


@dataclass(slots=True)
class Asked:
    """A predicate, by its number at the parent; `begins` is None while there is no answer."""

    number: int
    begins: int | None = None


class UnitProfile:
    """All that one storage asks.

    Args:
        on_begun: some predicate has begun.
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
        """Take over what is on disk, and ask for it again; the later number of two counts."""
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
        """The epoch behind which a predicate begins; None while the parent has not said."""
        asked = self._asked.get(predicate)
        return asked.begins if asked is not None else None

    def ask(self, predicate: Predicate) -> None:
        """Have the parent give what matches a predicate from now on."""
        if predicate in self._asked:
            return
        self._last += 1
        asked = self._asked[predicate] = Asked(self._last)
        row = Change(PROFILE, str(asked.number), predicate_row(predicate))
        self._machine.emit(Commit((row,), None))
        self._tell(predicate, asked)

    def keep(self, wanted: Iterable[Predicate]) -> None:
        """Ask for these only from now on."""
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
