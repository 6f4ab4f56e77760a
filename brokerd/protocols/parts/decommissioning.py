"""The decommission of brokers: the other brokers release all state held for a removed broker.

A broker that is down holds back releases for its subscriptions, without a limit of time. The
operator announces that a broker is removed permanently. From then on all other brokers continue
without the removed broker, and hold nothing for it. The act is durable before the act has effects.
Every broker announces the act to the neighbours, so a broker that was down is notified after a
restart. A decommissioned broker that restarts is notified, too, and ends.

The deployment's authority signs the act, and the signature travels with the act: a broker verifies
the signature first, whether the act arrives from the operator or from a neighbour. A neighbour
cannot make a signature.

Paper: none ([DS03] §3 has T_d and T_r wait for all; [MP22] §4 a queue for each subscriber).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.model.operator_acts import DECOMMISSION, NO_AUTHORITY, OperatorAuthority
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.interface import BrokerDecommissioned, Change, Shutdown
from brokerd.protocols.parts.event_machine import Durability, MessageHandler

DECOMMISSIONED: Final = "decommissioned"
"""The table of decommissioned brokers."""


Signed = tuple[BrokerNumber, bytes]
"""A decommissioned broker, and the authority's signature of the act."""


class DecommissionMessage(Protocol):
    """A protocol's message that announces decommissions; a broker that is named ends."""

    @property
    def decommissions(self) -> tuple[Signed, ...]:
        """The brokers with the signatures of the acts."""


@dataclass(frozen=True, slots=True)
class DecommissionAuthority:
    """The authority over decommissions, as a core uses it.

    Attributes:
        authority: of the deployment.
        names: of the deployment's brokers, by number, as signatures name them.
    """

    authority: OperatorAuthority
    names: Sequence[str]

    @classmethod
    def of(cls, context: CoreContext) -> Self:
        """Return the authority of a core's deployment."""
        return cls(context.authority, context.topology.brokers)

    def has_signed(self, broker: BrokerNumber, signature: bytes) -> bool:
        """Return True if the authority has signed the decommission of a broker."""
        if not 0 <= broker < len(self.names):
            return False
        return self.authority.has_signed(DECOMMISSION, self.names[broker], 0, signature)


NOBODY: Final = DecommissionAuthority(NO_AUTHORITY, ())


class Decommissioning:
    """The decommissions on this broker's disk.

    Args:
        kind: of the message that announces decommissions; made of the brokers and signatures.
        authority: signs decommissions.
        neighbours: receive the announcements.
        has_session: returns whether a neighbour has a session.
        may_leave: returns whether the others can continue without a broker.
        leave: releases all state held for a broker.

    Attributes:
        decommissioned: the signatures of acts that are on disk here, by broker.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        kind: Callable[[tuple[Signed, ...]], DecommissionMessage],
        authority: DecommissionAuthority,
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
        self._authority = authority
        self._neighbours = neighbours
        self._has_session = has_session
        self._may_leave = may_leave
        self._leave = leave
        self.decommissioned: dict[BrokerNumber, bytes] = {}

    def __contains__(self, broker: object) -> bool:
        """Return True if a broker is decommissioned, and the act is on disk here."""
        return broker in self.decommissioned

    def __iter__(self) -> Iterator[BrokerNumber]:
        return iter(self.decommissioned)

    def handlers(self) -> dict[type, MessageHandler]:
        kind: Any = self._kind
        return {kind: self._on_message}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the decommissions of an earlier incarnation."""
        for key, signature in recovered.get(DECOMMISSIONED, {}).items():
            # A row of a version without signatures is `True`: it holds here, and is not announced.
            self._take(int(key), signature if isinstance(signature, bytes) else b"")

    def on_event(self, event: BrokerDecommissioned) -> None:
        """Record an operator's act; the driver has verified the signature."""
        if event.broker not in self.decommissioned:
            assert self._authority.has_signed(event.broker, event.signature), f"unsigned: {event}"
        self._decommission(event.broker, event.signature)

    def _decommission(self, broker: BrokerNumber, signature: bytes) -> None:
        if broker == self._broker:
            self._machine.record("decommissioned")
            self._machine.emit(
                Shutdown(
                    "this broker was decommissioned: the others released the state of "
                    "its subscriptions, so it cannot continue; it can join a new deployment"
                )
            )
        elif broker not in self.decommissioned:
            row = Change(DECOMMISSIONED, str(broker), signature)
            self._disk.commit((row,), lambda: self._on_kept(broker, signature))

    def on_session(self, peer: BrokerNumber) -> None:
        """Announce all signed decommissions to a neighbour with a new session."""
        signed = tuple(each for each in self.decommissioned.items() if each[1])
        if signed:
            self._machine.send(peer, self._kind(signed))

    def _on_kept(self, broker: BrokerNumber, signature: bytes) -> None:
        if broker in self.decommissioned:
            return
        self._take(broker, signature)
        for peer in self._neighbours:
            if self._has_session(peer):
                self.on_session(peer)

    def _take(self, broker: BrokerNumber, signature: bytes) -> None:
        self.decommissioned[broker] = signature
        self._leave(broker)

    def _on_message(self, peer: BrokerNumber, message: DecommissionMessage) -> None:
        for broker, signature in message.decommissions:
            if broker == peer or not self._may_leave(broker):
                raise RemoteProtocolError(peer, f"broker {broker} cannot be decommissioned")
            if broker not in self.decommissioned and not self._authority.has_signed(
                broker, signature
            ):
                raise RemoteProtocolError(
                    peer, f"the deployment's authority has not signed a decommission of {broker}"
                )
        signed = dict(message.decommissions)
        if self._broker in signed:
            self._decommission(self._broker, signed[self._broker])
            return
        for broker, signature in signed.items():
            self._decommission(broker, signature)
