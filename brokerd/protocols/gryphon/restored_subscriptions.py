"""Subscriptions of an older copy of a broker's state, until their clients have stated them.

A broker that accepts a loss may have subscriptions that had ended. While they were absent from the
broker's filter, other brokers sent silence for their events. Such a subscription would have gaps
that no broker detects, so it does not continue: it ends when its client connects without it, or
requests another predicate under its number. A client with memory states it, and confirms it.

A row has the lineage in which a client has confirmed a subscription. Without it a later crash
would make the subscription doubtful again, and end it under a client without memory.

Paper: none; [GD02] assumes stable storage.
"""

from collections.abc import Mapping
from typing import Any

from brokerd.model.client_messages import Connect, Subscribe
from brokerd.protocols.gryphon.state import CONFIRMED
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.own_subscriptions import OwnClient, OwnSubscription


class RestoredSubscriptions:
    """The subscriptions that no client has confirmed since the broker's last accepted loss."""

    def __init__(self) -> None:
        self._doubtful: dict[OwnSubscription, int] = {}

    def recover(
        self, local: OwnSubscription, recovered: Mapping[str, Mapping[str, Any]], lineage: int
    ) -> None:
        """Restore a subscription on disk.

        Args:
            lineage: see Started.
        """
        if recovered.get(CONFIRMED, {}).get(local.row, 0) != lineage:
            self._doubtful[local] = 0

    def is_doubtful(self, local: OwnSubscription) -> bool:
        """Return True if no client has confirmed the subscription."""
        return local in self._doubtful

    def is_requested(self, local: OwnSubscription, session: int) -> bool:
        """Return True if the confirmation by a client's session is not durable yet."""
        return self._doubtful.get(local, 0) == session > 0

    def list_unstated(
        self, client: OwnClient[OwnSubscription], message: Connect
    ) -> list[OwnSubscription]:
        """Return the doubtful subscriptions that a connecting client does not state."""
        stated = [number for number, _ in message.resume]
        return [
            local
            for number, local in client.subscriptions.items()
            if local in self._doubtful and number not in stated
        ]

    def is_replaced(self, local: OwnSubscription, message: Subscribe) -> bool:
        """Return True if a client requests another subscription under the number of this one."""
        return local in self._doubtful and local.predicate != message.predicate

    def request(self, local: OwnSubscription, session: int, lineage: int) -> Change:
        """Return the row of a subscription that a client confirms."""
        self._doubtful[local] = session
        return confirmed_subscription(local, lineage)

    def drop(self, local: OwnSubscription) -> None:
        """Doubt a subscription no more: it is confirmed, or has ended."""
        self._doubtful.pop(local, None)


def confirmed_subscription(local: OwnSubscription, lineage: int) -> Change:
    """Return the row of a subscription that was confirmed, or created, in a lineage."""
    return Change(CONFIRMED, local.row, lineage)
