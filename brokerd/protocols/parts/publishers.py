"""Which number each publishing client has at its broker, kept for ever."""

from collections.abc import Mapping

from brokerd.protocols.interface import Change

TABLE = "publishers"


class PublisherNumbers:
    """Client name → the small number that stands for it in a SourceId.

    A number must survive the broker before anybody hears of it, or two clients might publish
    as one source: `get` knows it from `persisted` on.
    """

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._durable: dict[str, int] = {}

    def recover(self, rows: Mapping[str, int]) -> None:
        """Take over what an earlier incarnation had committed."""
        self._given = dict(rows)
        self._durable = dict(rows)

    def get(self, client: str) -> int | None:
        """The client's number; None while it has none that is durable."""
        return self._durable.get(client)

    def name_of(self, number: int) -> str:
        """The client that has this number, which was given to one."""
        return next(name for name, given in self._given.items() if given == number)

    def give(self, client: str) -> Change:
        """Give the client a number; returns what has to be durable before `persisted`."""
        number = self._given.setdefault(client, len(self._given))
        return Change(TABLE, client, number)

    def persisted(self, client: str) -> None:
        """The client's number is durable."""
        self._durable[client] = self._given[client]
