"""The best-effort baseline: forwards matching publications and stores none.

Subscriptions are flooded and confirmed, so that no publication is missed without a failure. A
publication is forwarded and forgotten. A publication that a failing link or broker absorbs is lost,
and a publisher that resends after an interruption causes duplicates.

Paper: [GD02] §4.1 (the system Gryphon is compared with).
"""

from collections.abc import Mapping, Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.tree import primary_tree
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.best_effort.routes import Routes
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.parts.forwarding_core import ForwardingCore


class BestEffort(ForwardingCore):
    """A broker that forwards matching publications to neighbours and clients, once."""

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Sequence[BrokerNumber],
        parameters: BestEffortParameters,
        decode_attributes: DecodeAttributes,
    ) -> None:
        super().__init__(broker, neighbours, parameters)
        self._routes = Routes(self, broker, self._neighbours, self.reaches, decode_attributes)
        self.begin(self._routes, self._routes.handlers())

    def count_routing(self) -> Mapping[str, int]:
        """See ForwardingCore."""
        return self._routes.statistics()

    def neighbour_came(self, peer: BrokerNumber) -> None:
        """See ForwardingCore: the neighbour receives all subscriptions."""
        self._routes.offer_all(peer)


def make_core(context: CoreContext) -> BestEffort:
    """Return a broker's core."""
    return BestEffort(
        context.broker,
        primary_tree(context.topology).neighbours(context.broker),
        context.parameters,
        context.decode_attributes,
    )
