"""Subscriptions of an older copy of a broker's state, until their clients have stated them.

A broker that accepts a loss may have subscriptions that had ended. While the broker did not request
their publications, other brokers sent silence for them, or released them. Such a subscription
would have gaps that no broker detects, so it does not continue: it ends when its client connects
without it, or requests another predicate under its number. A client with memory states it, and
confirms it.

A row has the lineage in which a client has confirmed a subscription. Without it a later crash
would make the subscription doubtful again, and end it under a client without memory.

Paper: none.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerd.model.client_messages import Connect, Subscribe
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.clients.own_subscriptions import Local, OwnClient, OwnSubscription
from brokerd.protocols.parts.event_machine import EventMachine

CONFIRMED: Final = "confirmed"
"""Per subscription, the lineage in which a client has confirmed it, or begun it; see Started."""


class RestoredSubscriptions:
    """The subscriptions that no client has confirmed since the broker's last accepted loss."""

    def __init__(self, machine: EventMachine) -> None:
        self._machine = machine
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
        return revoke_unstated(self._machine, client, message, self._doubtful)

    def list_whole(self, client: OwnClient[OwnSubscription]) -> list[int]:
        """Return the numbers of a client's started subscriptions without a loss or a doubt."""
        return [
            number
            for number, local in client.subscriptions.items()
            if local.is_whole and local not in self._doubtful
        ]

    def is_replaced(self, local: OwnSubscription, message: Subscribe) -> bool:
        """Return True if a client requests another subscription under the number of this one."""
        return local in self._doubtful and local.predicate != message.predicate

    def request(
        self, client: OwnClient[OwnSubscription], local: OwnSubscription, lineage: int
    ) -> "Confirmation":
        """Return the confirmation of a subscription by the present session of its client."""
        self._doubtful[local] = client.session
        changes = (confirmed_subscription(local, lineage),)
        return Confirmation(client, local, client.session, changes)

    def confirm(self, confirmation: "Confirmation") -> bool:
        """Continue a subscription whose confirmation is durable; a whole one is owed no gap.

        Return True if the session that has confirmed the subscription lasts.
        """
        client, local = confirmation.client, confirmation.local
        if local.is_over:
            return False
        self.drop(local)
        if local.is_whole:
            client.lost_positions.pop(local.number, None)
        return client.connected and client.session == confirmation.session

    def drop(self, local: OwnSubscription) -> None:
        """Doubt a subscription no more: it is confirmed, or has ended."""
        self._doubtful.pop(local, None)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A doubtful subscription that a session of its client has requested.

    Attributes:
        changes: the rows that make the confirmation durable.
    """

    client: OwnClient[OwnSubscription]
    local: OwnSubscription
    session: int
    changes: tuple[Change, ...]


def revoke_unstated(
    machine: EventMachine,
    client: OwnClient[Local],
    message: Connect,
    doubtful: Collection[Local],
) -> list[Local]:
    """Return the doubtful subscriptions that a connecting client does not state, and record them.

    A client that connects states all its started subscriptions, and requests the others again.
    """
    stated = [number for number, _ in message.resume]
    over = [
        local
        for number, local in client.subscriptions.items()
        if local in doubtful and number not in stated
    ]
    if over:
        about = {"client": client.name, "subscriptions": len(over)}
        machine.record("subscriptions_revoked", **about)
    return over


def confirmed_subscription(local: OwnSubscription, lineage: int) -> Change:
    """Return the row of a subscription that was confirmed, or created, in a lineage."""
    return Change(CONFIRMED, local.row, lineage)
