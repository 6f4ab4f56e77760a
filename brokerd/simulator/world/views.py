"""Views of a simulated broker for the checks of single steps, independent of its driver."""

from collections.abc import Mapping
from typing import Any, Protocol

from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import DeliveryProtocol


class EndView(Protocol):
    """One end of one session instance.

    Attributes:
        number: number of the session at this end.
        incarnation: incarnation of the broker or client at this end.
        other: the far end.
    """

    @property
    def number(self) -> int: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def other(self) -> "EndView": ...


class BrokerView(Protocol):
    """A broker: the core while the broker is alive, and established sessions by peer."""

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

    def rows_of(self, table: str) -> Mapping[str, Any]: ...

    @property
    def ends(self) -> Mapping[Peer, EndView]: ...
