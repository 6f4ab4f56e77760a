"""What the checks of single steps need to know of a simulated broker, whoever drives it."""

from collections.abc import Mapping
from typing import Any, Protocol

from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import DeliveryProtocol


class EndView(Protocol):
    """One end of one session instance.

    Attributes:
        number: of the session, at this end.
        incarnation: of the broker or client whose end it is.
        other: the far end.
    """

    @property
    def number(self) -> int: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def other(self) -> "EndView": ...


class BrokerView(Protocol):
    """One broker: its core while it is alive, and its established sessions by peer."""

    @property
    def number(self) -> BrokerNumber: ...

    @property
    def name(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def core(self) -> DeliveryProtocol: ...

    @property
    def protocol(self) -> DeliveryProtocol: ...

    def session_with(self, peer: Peer) -> int: ...

    def on_disk(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def ends(self) -> Mapping[Peer, EndView]: ...
