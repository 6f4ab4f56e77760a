"""Brokers that never come back: nobody waits for what they have not acknowledged any more.

A broker that is down holds everything back for its subscriptions, however long. Whoever runs the
brokers says that one is gone for good; from then on all others do without it, and have nothing
held for it. That is on disk before it counts, and each broker tells its neighbours, so that
whoever was down then learns of it later. When the broker comes back all the same it is told so,
and ends.

Paper: none ([DS03] §3 has T_d and T_r wait for all; [MP22] §4 a queue for each subscriber).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import BrokerDecommissioned, Change, Shutdown
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler

DECOMMISSIONED: Final = "decommissioned"
"""The brokers that are gone for good."""


class SaysDecommissioned(Protocol):
    """A protocol's message: these brokers are gone for good, and whoever is among them ends."""

    @property
    def brokers(self) -> tuple[BrokerNumber, ...]:
        """Which."""


class Decommissioning:
    """Who is gone for good, as far as it is known here.

    Args:
        kind: of the message that says it; made of the brokers.
        neighbours: who may be told.
        has_session: whether a neighbour has a session.
        may_leave: whether the others can go on without a broker.
        leave: does without a broker from now on.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        kind: Callable[[tuple[BrokerNumber, ...]], SaysDecommissioned],
        neighbours: Sequence[BrokerNumber],
        *,
        has_session: Callable[[BrokerNumber], bool],
        may_leave: Callable[[BrokerNumber], bool],
        leave: Callable[[BrokerNumber], None],
    ) -> None:
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._kind = kind
        self._neighbours = neighbours
        self._has_session = has_session
        self._may_leave = may_leave
        self._leave = leave
        self._gone: dict[BrokerNumber, None] = {}

    def __contains__(self, broker: object) -> bool:
        """Whether a broker is gone, and that is on disk here."""
        return broker in self._gone

    def __iter__(self) -> Iterator[BrokerNumber]:
        return iter(self._gone)

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes which message of a neighbour."""
        kind: Any = self._kind
        return {kind: self._on_message}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Do without those of which an earlier incarnation knew."""
        for key in recovered.get(DECOMMISSIONED, {}):
            self._take(int(key))

    def on_event(self, event: BrokerDecommissioned) -> None:
        """Whoever runs the brokers says it."""
        self._decommission(event.broker)

    def _decommission(self, broker: BrokerNumber) -> None:
        if broker == self._broker:
            self._machine.record("decommissioned")
            self._machine.emit(
                Shutdown(
                    "this broker was decommissioned: the others have let go of what they kept for "
                    "its subscriptions, so it cannot go on; a new deployment takes it in again"
                )
            )
        elif broker not in self._gone:
            row = Change(DECOMMISSIONED, str(broker), True)
            self._disk.commit((row,), lambda: self._on_kept(broker))

    def met(self, peer: BrokerNumber) -> None:
        """A neighbour has a session that may not know."""
        if self._gone:
            self._machine.send(peer, self._kind((*self._gone,)))

    def _on_kept(self, broker: BrokerNumber) -> None:
        if broker in self._gone:
            return
        self._take(broker)
        for peer in self._neighbours:
            if self._has_session(peer):
                self.met(peer)

    def _take(self, broker: BrokerNumber) -> None:
        self._gone[broker] = None
        self._leave(broker)

    def _on_message(self, peer: BrokerNumber, message: SaysDecommissioned) -> None:
        for broker in message.brokers:
            if broker == peer or not self._may_leave(broker):
                raise RemoteProtocolError(peer, f"broker {broker} cannot be decommissioned")
        if self._broker in message.brokers:
            self._decommission(self._broker)
            return
        for broker in message.brokers:
            self._decommission(broker)
