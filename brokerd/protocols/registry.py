"""The delivery protocols that there are: the one place that knows them by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.model.predicate import Attributes
from brokerd.overlay.topology import nearest
from brokerd.overlay.tree import Neighbourhood
from brokerd.protocols.best_effort.definition import BEST_EFFORT
from brokerd.protocols.definition import CoreContext, ProtocolDefinition
from brokerd.protocols.delta_tree.definition import DELTA_TREE
from brokerd.protocols.interface import DeliveryProtocol

FIRST_MESSAGE_NUMBER: Final = 32
"""Below are what brokers and clients say whatever the protocol."""


def registered(definitions: Iterable[ProtocolDefinition]) -> Mapping[str, ProtocolDefinition]:
    """The definitions by name, in the order given.

    Raises:
        ImportError: two have the same name, or two messages the same number, or a number is not
            for protocols; names both.
    """
    found: dict[str, ProtocolDefinition] = {}
    numbers: dict[int, str] = {}
    for definition in definitions:
        if definition.name in found:
            modules = [each.make_core.__module__ for each in (found[definition.name], definition)]
            raise ImportError(
                f"two protocols are called {definition.name!r}: {' and '.join(modules)}"
            )
        found[definition.name] = definition
        for kind in definition.messages:
            name = f"{definition.name}: {kind.type.__name__}"
            if kind.number < FIRST_MESSAGE_NUMBER:
                raise ImportError(f"{name} has the number {kind.number}, which no protocol may")
            if kind.number in numbers:
                raise ImportError(f"{numbers[kind.number]} and {name} both have {kind.number}")
            numbers[kind.number] = name
    return found


DEFINITIONS: Final = registered((BEST_EFFORT, DELTA_TREE))
"""By name."""


def definition_of(protocol: str) -> ProtocolDefinition:
    """The protocol called so.

    Raises:
        ConfigError: none is; names the nearest that is.
    """
    if protocol not in DEFINITIONS:
        raise ConfigError(f"protocol = {protocol!r}{nearest(protocol, [*DEFINITIONS])}")
    return DEFINITIONS[protocol]


def make_protocol(
    name: str,
    broker: BrokerNumber,
    neighbourhood: Neighbourhood,
    parameters: Any,
    decode_attributes: Callable[[bytes], Attributes],
) -> DeliveryProtocol:
    """One broker's core of the protocol called `name`; its first event is Started.

    Args:
        neighbourhood: the broker's surroundings with radius delta + 1.
        decode_attributes: reads an attribute blob; raises ValueError when it is malformed.

    Raises:
        ConfigError: no protocol is called so.
    """
    context = CoreContext(
        broker=broker,
        neighbourhood=neighbourhood,
        parameters=parameters,
        decode_attributes=decode_attributes,
    )
    return definition_of(name).make_core(context)
