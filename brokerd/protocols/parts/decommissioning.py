"""Brokers that never come back: nobody waits for what they have not acknowledged any more.

A broker that is down holds everything back for its subscriptions, however long. Whoever runs the
brokers says that one is gone for good; from then on all others do without it, and have nothing
held for it. That is on disk before it counts, and each broker tells its neighbours, so that
whoever was down then learns of it later. When the broker comes back all the same it is told so,
and ends.

The deployment's authority signs the act, and the signature travels with it: a broker verifies the
signature before it acts, whether the act arrives from its operator or from a neighbour. A neighbour
cannot make one.

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
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler

DECOMMISSIONED: Final = "decommissioned"
"""The brokers that are gone for good."""


Signed = tuple[BrokerNumber, bytes]
"""A decommissioned broker, and the authority's signature of the act."""


class SaysDecommissioned(Protocol):
    """A protocol's message: these brokers are gone for good, and whoever is among them ends."""

    @property
    def decommissions(self) -> tuple[Signed, ...]:
        """The brokers with the signatures of the acts."""


@dataclass(frozen=True, slots=True)
class DecommissionAuthority:
    """The authority over decommissions, as a core sees it.

    Attributes:
        authority: of the deployment.
        names: of its brokers, by number, as signatures name them.
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
    """Who is gone for good, as far as it is known here.

    Args:
        kind: of the message that says it; made of the brokers and signatures.
        authority: signs decommissions.
        neighbours: who may be told.
        has_session: whether a neighbour has a session.
        may_leave: whether the others can go on without a broker.
        leave: does without a broker from now on.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        kind: Callable[[tuple[Signed, ...]], SaysDecommissioned],
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
        self._gone: dict[BrokerNumber, bytes] = {}

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
        for key, signature in recovered.get(DECOMMISSIONED, {}).items():
            # A row of a version without signatures is `True`: it holds here, and is not announced.
            self._take(int(key), signature if isinstance(signature, bytes) else b"")

    def on_event(self, event: BrokerDecommissioned) -> None:
        """Record an operator's act, whose signature the driver has verified."""
        if event.broker not in self._gone:
            assert self._authority.has_signed(event.broker, event.signature), f"unsigned: {event}"
        self._decommission(event.broker, event.signature)

    def _decommission(self, broker: BrokerNumber, signature: bytes) -> None:
        if broker == self._broker:
            self._machine.record("decommissioned")
            self._machine.emit(
                Shutdown(
                    "this broker was decommissioned: the others have let go of what they kept for "
                    "its subscriptions, so it cannot go on; a new deployment takes it in again"
                )
            )
        elif broker not in self._gone:
            row = Change(DECOMMISSIONED, str(broker), signature)
            self._disk.commit((row,), lambda: self._on_kept(broker, signature))

    def met(self, peer: BrokerNumber) -> None:
        """A neighbour has a session that may not know."""
        signed = tuple(each for each in self._gone.items() if each[1])
        if signed:
            self._machine.send(peer, self._kind(signed))

    def _on_kept(self, broker: BrokerNumber, signature: bytes) -> None:
        if broker in self._gone:
            return
        self._take(broker, signature)
        for peer in self._neighbours:
            if self._has_session(peer):
                self.met(peer)

    def _take(self, broker: BrokerNumber, signature: bytes) -> None:
        self._gone[broker] = signature
        self._leave(broker)

    def _on_message(self, peer: BrokerNumber, message: SaysDecommissioned) -> None:
        for broker, signature in message.decommissions:
            if broker == peer or not self._may_leave(broker):
                raise RemoteProtocolError(peer, f"broker {broker} cannot be decommissioned")
            if broker not in self._gone and not self._authority.has_signed(broker, signature):
                raise RemoteProtocolError(
                    peer, f"the deployment's authority has not signed a decommission of {broker}"
                )
        signed = dict(message.decommissions)
        if self._broker in signed:
            self._decommission(self._broker, signed[self._broker])
            return
        for broker, signature in signed.items():
            self._decommission(broker, signature)
