"""The delivery protocols by name."""

from collections.abc import Callable, Mapping
from typing import Final

from brokerd.config import PROTOCOLS, DeltaTreeParameters, Mutant
from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber
from brokerd.model.predicate import Attributes
from brokerd.overlay.primary_tree import Neighbourhood
from brokerd.protocols.best_effort.core import BestEffort
from brokerd.protocols.delta_tree.assist import AssistedDeltaTree
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.interface import DeliveryProtocol

_CORES: Final[Mapping[str, type[DeliveryProtocol]]] = {
    "best_effort": BestEffort,
    "delta_tree": DeltaTree,
}


def members_may_change(name: str) -> bool:
    """Whether brokers may join and leave while the protocol called `name` runs."""
    return _CORES[name].members_may_change


def make_protocol(
    name: str,
    broker: BrokerNumber,
    neighbourhood: Neighbourhood,
    parameters: DeltaTreeParameters,
    decode_attributes: Callable[[bytes], Attributes],
    mutants: frozenset[Mutant] = frozenset(),
) -> DeliveryProtocol:
    """One broker's core of the protocol called `name`; its first event is Started.

    Args:
        neighbourhood: the broker's surroundings with radius delta + 1.
        decode_attributes: reads an attribute blob; raises ValueError when it is malformed.

    Raises:
        ConfigError: no protocol is called so.
    """
    if name == "delta_tree":
        core = DeltaTree(broker, neighbourhood, parameters, decode_attributes, mutants)
        if parameters.assist == "on":
            return AssistedDeltaTree(core, parameters, mutants)
        return core
    if name == "best_effort":
        return BestEffort(broker, neighbourhood, parameters, decode_attributes, mutants)
    raise ConfigError(f"protocol = {name!r}; one of {', '.join(PROTOCOLS)}")
