"""The access brokers that a server waits for after it lost which topics they follow.

Access brokers know what their clients follow, so none of that is lost for ever. A server that lost
state releases no publication until each access broker has stated its topics again, once per loss.

Paper: none; [MP22] takes stable storage as given.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Change

RESTATED: Final = "restated"
"""Per access broker, the lineage in which it has stated its topics again."""


class Restatements:
    """The access brokers that have to state again what they follow.

    Args:
        homes: all brokers, which are access brokers of their clients.
    """

    def __init__(self, homes: Collection[BrokerNumber]) -> None:
        self._homes = tuple(homes)
        self._lineage = 0
        self._restated: dict[BrokerNumber, int] = {}
        self._awaited: dict[BrokerNumber, None] = {}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the statements of an earlier incarnation."""
        rows = recovered.get(RESTATED, {})
        self._restated = {int(key): lineage for key, lineage in rows.items()}

    def begin(self, lineage: int) -> None:
        """Wait for all access brokers that have stated nothing since the loss."""
        self._lineage = lineage
        waiting = (home for home in self._homes if self._restated.get(home) != lineage)
        self._awaited = dict.fromkeys(waiting)

    @property
    def are_awaited(self) -> bool:
        """Return True while an access broker has not stated its topics again."""
        return bool(self._awaited)

    def is_awaited(self, home: BrokerNumber) -> bool:
        """Return True if an access broker has not stated its topics again."""
        return home in self._awaited

    def list_awaited(self) -> list[BrokerNumber]:
        """Return the access brokers that have not stated their topics again."""
        return [*self._awaited]

    def take(self, home: BrokerNumber) -> Change:
        """Record that an access broker has stated its topics; return the change on disk."""
        del self._awaited[home]
        self._restated[home] = self._lineage
        return Change(RESTATED, str(home), self._lineage)

    def drop(self, home: BrokerNumber) -> None:
        """Remove a decommissioned broker."""
        self._awaited.pop(home, None)

    def aftermath(self) -> Sequence[str]:
        """Return the brokers that are waited for, in words."""
        if not self._awaited:
            return ()
        return (f"{len(self._awaited)} brokers have not stated their topics since a loss",)
