"""What a delivery protocol is to everybody else: one definition, registered once.

Whatever two protocols differ in and somebody else must know stands here, and nobody asks a
protocol's name. Bringing a protocol means a folder beside this file with a definition in it, and
one line in `registry`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.model.message_kind import MessageKind
from brokerd.model.predicate import Attributes
from brokerd.overlay.tree import Neighbourhood
from brokerd.protocols.interface import DeliveryProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What holds within the failures that a protocol tolerates.

    Attributes:
        exactly_once: each publication that matches reaches each subscriber once, in the order of
            its publisher, without a gap; without, some are lost when something fails.
        members_may_change: brokers may join and leave meanwhile.
        bypasses: publications go past brokers that have failed, so others do not wait for them.
    """

    exactly_once: bool
    members_may_change: bool
    bypasses: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreContext:
    """Where a core is, and what it is told.

    Attributes:
        neighbourhood: the broker's surroundings.
        parameters: of its protocol.
        decode_attributes: reads an attribute blob; raises ValueError when it is malformed.
    """

    broker: BrokerNumber
    neighbourhood: Neighbourhood
    parameters: Any
    decode_attributes: Callable[[bytes], Attributes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolDefinition:
    """A delivery protocol.

    Attributes:
        name: in files, commands and logs.
        messages: that its brokers send each other; their numbers are its own.
        make_core: one broker's core; its first event is Started.
    """

    name: str
    messages: tuple[MessageKind, ...]
    promises: Promises
    make_core: Callable[[CoreContext], DeliveryProtocol]
