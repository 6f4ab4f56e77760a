"""Owed deliveries in the δ tree while links stay broken forever, and exempt brokers.

A source at P reaches a subscription at S if the walk of next hops from P reaches S: every broker
hands over to the first broker on the path to S with a possible session, at most δ + 1 links
away. Nothing is owed if a broker on the walk has no broker to hand over to. That is the
paper's own limit: activity is one-sided, so a broker next to a broken link may receive publications
without a way to forward.

Relayed sessions remove the one-sidedness. A broken link counts as whole for the walk if
both ends certainly get a session through a third broker: both request sessions through δ
brokers within δ + 1 links of both, if there are enough, in an unspecified choice. So the session
is certain when fewer than δ of the possible relays have a broken link with either end. With at most
δ links broken that is always so, in a tree of δ + 2 brokers or more: all is owed then, starts
included, and no broker is exempt.

Without relays, brokers are exempt that had not recovered yet when a link of the tree broke:
the only complete broker may have a session with an exempt broker that is not active at the other
end. Nothing is owed from publishers, or to subscriptions, at exempt brokers.

Paper: [DFT11] §II (one-sided activity), §VI lines 646-652 (next hop).
"""

from collections.abc import Iterable

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.routes import Link
from brokerd.overlay.tree import tree_of
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.protocol_checks import Reach


class DeltaTreeReach(Reach):
    """See Reach."""

    def __init__(
        self,
        graph: OverlayGraph,
        parameters: DeltaTreeParameters,
        broken: Iterable[Link],
        removed: Iterable[BrokerNumber] = (),
    ) -> None:
        super().__init__(graph, parameters, broken, removed)
        self._tree = tree_of(graph)
        self._radius = graph.topology.delta + 1
        self._assisted = parameters.assist == "on"
        self.lets_nobody_off = all(
            self._tree.distance(a, b) > 1 or self._is_bridged(a, b) for a, b in self._broken
        )

    def _find(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        path = self._tree.path(source, home)
        while len(path) > 1:
            for place, broker in enumerate(path[1 : self._radius + 1], 1):
                if self._is_open(path[0], broker) or self._is_bridged(path[0], broker):
                    path = path[place:]
                    break
                if self._assisted and self._relays(path[0], broker)[0]:
                    return False  # they may meet or not
            else:
                return False
        return True

    def _is_open(self, a: BrokerNumber, b: BrokerNumber) -> bool:
        return (min(a, b), max(a, b)) not in self._broken

    def _is_bridged(self, a: BrokerNumber, b: BrokerNumber) -> bool:
        """Return True if two brokers with a broken link certainly meet through a third one."""
        if not self._assisted:
            return False
        able, unable = self._relays(a, b)
        return able > 0 and unable < self._radius - 1

    def _relays(self, a: BrokerNumber, b: BrokerNumber) -> tuple[int, int]:
        """Return the number of brokers near both that can relay, and of the others."""
        near_b = self._tree.ball(b, self._radius)
        both = [c for c in self._tree.ball(a, self._radius) if c in near_b and c != b]
        able = sum(self._is_open(a, c) and self._is_open(c, b) for c in both)
        return able, len(both) - able
