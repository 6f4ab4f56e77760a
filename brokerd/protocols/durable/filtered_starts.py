"""The start of subscriptions where brokers withhold events that no broker below wants.

Events that were withheld before a subscription's predicate arrived at their pubend are silent here.
So a subscription is created once all pubends match their events with the predicate, and once the
streams have passed the ticks behind which they do. Until then nothing of it is on disk, and its
client receives a request to wait. After a restart the predicates of all subscriptions on disk are
in the filter before any neighbour has a session.

Paper: none ([DS03] §4.1 has a starting point in each stream; [GD02] §2 leaves subscriptions that
come and go to others).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from brokerd.model.client_messages import Subscribe
from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.protocols.durable.consolidated_stream import HostedStream
from brokerd.protocols.durable.state import DurableClient, DurableSubscription
from brokerd.protocols.gryphon import BEGINS
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.interface import Change, Commit


@dataclass(slots=True, eq=False)
class PendingStart:
    """A subscription that some pubends lack the predicate of.

    Attributes:
        uncommitted: see DurableClient.
        is_known: all pubends match their events with the predicate, and that is on disk here.
    """

    local: DurableSubscription
    message: Subscribe
    uncommitted: int
    is_known: bool = False


class FilteredStarts:
    """The subscriptions that wait for pubends, and the filter of those that have started.

    Without filters no subscription waits.

    Args:
        hosted: the streams, a live view.

    Attributes:
        pending: the subscriptions that wait, by client and number.
    """

    def __init__(self, gryphon: Gryphon, hosted: Mapping[StreamId, HostedStream]) -> None:
        self._gryphon = gryphon
        self._filter = gryphon.own_filter if gryphon.filters.is_on else None
        self._hosted = hosted
        self.pending: dict[tuple[ClientId, int], PendingStart] = {}

    def recover(self, local: DurableSubscription) -> None:
        """Add the predicate of a subscription that started in an earlier incarnation."""
        if self._filter is not None:
            self._filter.recover(local, ())

    def waits(self, client: DurableClient, message: Subscribe) -> bool:
        """Return True if a requested subscription has to wait; a later request changes nothing.

        A request with another predicate replaces the earlier one.
        """
        key = client.name, message.number
        if self._filter is None:
            return False
        known = self.pending.get(key)
        if known is not None and known.message.predicate == message.predicate:
            # The end of a session drops all of its waiting subscriptions.
            assert known.local.claimed == client.session, f"{known} outlived its session"
            known.local.uncommitted = known.uncommitted = client.uncommitted
            return True
        self.drop(client, message.number)
        local = DurableSubscription(*key, message.predicate, client.session)
        local.uncommitted = client.uncommitted
        pending = self.pending[key] = PendingStart(local, message, client.uncommitted)
        self._filter.add(local, lambda: self._on_known(pending))
        return True

    def count(self, client: ClientId, besides: int) -> int:
        """Return the number of a client's subscriptions that wait, besides one of its numbers."""
        return sum(key[0] == client and key[1] != besides for key in self.pending)

    def waiting(self, client: ClientId, number: int) -> DurableSubscription | None:
        """Return a subscription that waits; its client may request a commit already."""
        pending = self.pending.get((client, number))
        return pending.local if pending is not None else None

    def _on_known(self, pending: PendingStart) -> None:
        """Request the unknown ticks of each stream before its beginning."""
        pending.is_known = True
        for identity, tick in pending.local.begins_after.items():
            self._hosted[identity].stream.subend.expect(tick)
        self._gryphon.look_at_all()

    def take_ready(self) -> Iterator[PendingStart]:
        """Yield the subscriptions that may start, and remove them."""
        for key, pending in list(self.pending.items()):
            begins = pending.local.begins_after.items() if pending.is_known else ()
            if pending.is_known and all(
                self._hosted[identity].position >= tick for identity, tick in begins
            ):
                del self.pending[key]
                pending.local.begins_after.clear()
                yield pending

    def drop(self, client: DurableClient, number: int = 0) -> list[DurableSubscription]:
        """Stop waiting for a subscription of a client, or for all; return these."""
        dropped = []
        for key, pending in list(self.pending.items()):
            if key[0] == client.name and number in (0, key[1]):
                del self.pending[key]
                self.cancel(pending.local)
                dropped.append(pending.local)
        return dropped

    def cancel(self, local: DurableSubscription) -> None:
        """Remove the predicate of a subscription that is not on disk."""
        local.is_over = True
        self.on_ended(local)
        self.release(local)
        self._gryphon.emit(Commit(self.rows_of_end(local), None))

    def rows_of_end(self, local: DurableSubscription) -> tuple[Change, ...]:
        """Return the rows without the beginnings of a subscription, which are not needed later."""
        return (Change(BEGINS, local.row, None),) if self._filter is not None else ()

    def on_ended(self, local: DurableSubscription) -> None:
        """Begin the end of a subscription; `release` follows once it is durable."""
        if self._filter is not None:
            self._filter.on_ended(local)

    def release(self, local: DurableSubscription) -> None:
        """Remove the predicate of a subscription after its durable end."""
        if self._filter is not None:
            self._filter.release(local)

    def retire(self, broker: BrokerNumber) -> None:
        """Remove the pubends of a decommissioned broker from all waits."""
        if self._filter is None:
            return
        for pending in self.pending.values():
            begins = pending.local.begins_after
            for identity in [each for each in begins if each.broker == broker]:
                del begins[identity]
        self._filter.retire(broker)
