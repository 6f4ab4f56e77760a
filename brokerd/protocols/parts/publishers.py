"""The publisher table of a broker: the number and the incarnation of each publishing client.

A publisher is identified by a `SourceId`. The broker gives the number once per client name and the
incarnation once per counter of publications, and it commits both before the client can publish.
A process that starts counting again therefore never publishes as a source that has been used.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from brokerd.model.client_messages import Connect
from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.losses import LINEAGE_BITS
from brokerd.protocols.interface import Change

TABLE: Final = "publishers"

_AFTER_NUMBER_ONLY: Final = 1 << 16
"""The incarnation assumed for a row without one: older releases recorded the number only."""


class _Publisher(NamedTuple):
    """A row of the publisher table.

    Attributes:
        number: of the client at this broker; never given to another client.
        incarnation: the latest that the broker gave to the client.
        requested: the incarnation that the client requested when this one was given.
        instance: of the client library that requested it.
    """

    number: int
    incarnation: int
    requested: int
    instance: bytes

    def answers(self, message: Connect) -> bool:
        """Return whether the row is the broker's answer to this very request."""
        identity = (message.incarnation, message.instance)
        return bool(message.instance) and identity == (self.requested, self.instance)


class PublisherTable:
    """The publishers of one broker.

    A row must survive the broker before the client receives its source, or two counters might
    publish as one source: callers commit the change that `assign_source` returns first.

    Args:
        pubends: the number of pubends of the broker; the remainder of a publisher's number is its
            pubend. 0: publishers have no pubends.
    """

    def __init__(self, broker: BrokerNumber, pubends: int = 0) -> None:
        self._broker = broker
        self._pubends = pubends
        self._rows: dict[ClientId, _Publisher] = {}
        self._lineage = 0

    def recover(self, rows: Mapping[ClientId, Any], lineage: int = 0) -> None:
        """Restore the rows that an earlier incarnation of the broker committed.

        Args:
            lineage: see Started. After a loss, new numbers begin at the lineage, beyond the numbers
                in rows that may be lost, and so do new incarnations of earlier numbers.
        """
        self._lineage = lineage
        for name, row in rows.items():
            read = (row, _AFTER_NUMBER_ONLY, 0, b"") if isinstance(row, int) else row
            self._rows[name] = _Publisher(*read)

    def name_of(self, number: int) -> ClientId:
        """Return the client with this number; a client must have the number."""
        return next(name for name, row in self._rows.items() if row.number == number)

    def objection_to(self, client: ClientId, message: Connect) -> str:
        """Return the reason against a client's request to publish; empty without one.

        A client that continues must be recorded here under its source. An incarnation that the
        caller chose must not have been given before, except in answer to the same request.
        """
        known = self._rows.get(client)
        if message.source is not None:
            if message.source.broker != self._broker:
                return f"publisher {client!r} is {message.source}, a source of another broker"
            if not self._can_continue(known, message.source):
                return (
                    f"publisher {client!r} continues as {message.source}, which this broker has no "
                    "record of: its state was lost or replaced"
                )
            return ""
        if (
            message.exact_incarnation
            and known is not None
            and message.incarnation <= known.incarnation
            and not known.answers(message)
        ):
            return (
                f"incarnation {message.incarnation} of publisher {client!r} has been used here, "
                f"the latest is {known.incarnation}: connect without an incarnation, or with "
                f"{known.incarnation + 1}"
            )
        return ""

    def objection_to_pubend(self, client: ClientId, message: Connect) -> str:
        """Return the reason against the pubend that a client requests; empty without one."""
        wanted, pubends = message.pubend, self._pubends
        if wanted is None:
            return ""
        if not pubends:
            return f"publisher {client!r} requests pubend {wanted}, and this protocol has none"
        if wanted >= pubends:
            return f"publisher {client!r} requests pubend {wanted}; 0 to {pubends - 1}"
        known = self._rows.get(client)
        number = known.number if known is not None else wanted
        if message.source is not None and message.source.broker == self._broker:
            number = message.source.publisher
        if number % pubends != wanted:
            return (
                f"publisher {client!r} requests pubend {wanted}, and stays at {number % pubends}, "
                f"where it has published: request {number % pubends}, or take another name"
            )
        return ""

    def assign_source(self, client: ClientId, message: Connect) -> tuple[SourceId, Change]:
        """Return a source for a client, and the change to commit before the client receives it.

        The same request of the same instance gets the same source. Every other request gets an
        incarnation that this client name has never had here.
        """
        known = self._rows.get(client)
        if known is None:
            number = self._next_number(message.pubend)
            incarnation = max(message.incarnation, self._least_incarnation(number))
            row = _Publisher(number, incarnation, message.incarnation, message.instance)
        elif known.answers(message):
            row = known
        else:
            least = self._least_incarnation(known.number)
            incarnation = max(known.incarnation + 1, message.incarnation, least)
            row = _Publisher(known.number, incarnation, message.incarnation, message.instance)
        self._rows[client] = row
        source = SourceId(self._broker, row.number, row.incarnation)
        return source, Change(TABLE, client, tuple(row))

    def restore(self, client: ClientId, source: SourceId) -> Change | None:
        """Return the change that records a source after the loss of its row.

        None if the source is recorded, or of another broker, whose numbers are its own.
        """
        if source.broker != self._broker:
            return None
        known = self._rows.get(client)
        if known is not None and known.incarnation >= source.incarnation:
            return None
        row = _Publisher(source.publisher, source.incarnation, 0, b"")
        self._rows[client] = row
        return Change(TABLE, client, tuple(row))

    def _can_continue(self, known: _Publisher | None, source: SourceId) -> bool:
        """Return whether a source is recorded for its client, or its row may have been lost."""
        if known is None:
            is_free = all(row.number != source.publisher for row in self._rows.values())
            return is_free and self._may_be_lost(source)
        if known.number != source.publisher:
            return False
        return known.incarnation >= source.incarnation or self._may_be_lost(source)

    def _may_be_lost(self, source: SourceId) -> bool:
        """Return whether the row of a source may be one that this broker has lost."""
        return source.incarnation < self._least_incarnation(source.publisher)

    def _least_incarnation(self, number: int) -> int:
        """Return the least incarnation of a new source of a publisher.

        A number that was given since the last loss is in no row that was lost, so its incarnations
        need not begin at the lineage: load generators record an incarnation in 16 bits.
        """
        return self._lineage if number < self._lineage << LINEAGE_BITS else 0

    def _next_number(self, pubend: int | None) -> int:
        """Return a number that was given to no client, not even in a row that was lost.

        Args:
            pubend: the remainder of the number; None for any.
        """
        base = self._lineage << LINEAGE_BITS
        number = max([base, *(row.number + 1 for row in self._rows.values())])
        return number if pubend is None else number + (pubend - number) % self._pubends
