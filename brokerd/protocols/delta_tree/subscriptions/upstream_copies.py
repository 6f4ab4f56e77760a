"""Upstream copies: a next hop receives a subscription before matching publications.

A broker that received a subscription past other brokers sends an upstream copy to the next hop
towards home, in front of any publication; the next hop routes by the subscription at once, and
forwards the copy in the same way.

Paper: [DFT11] §V-B lines 445-465.
"""

from brokerd.protocols.delta_tree.broker.state import State, join_paths
from brokerd.protocols.delta_tree.messages import UpstreamCopy
from brokerd.protocols.delta_tree.sessions.sessions import Node, Sessions
from brokerd.protocols.delta_tree.subscriptions.routing_table import (
    RoutedSubscription,
    RoutingTable,
)


class UpstreamCopies:
    """The subscriptions that were sent to next hops."""

    def __init__(self, state: State, sessions: Sessions, table: RoutingTable) -> None:
        self._state = state
        self._sessions = sessions
        self._table = table

    def copy(self, row: RoutedSubscription) -> None:
        """Send a subscription to the next hop towards home, unless the hop has it.

        Paper: [DFT11] §V-B lines 445-465.
        """
        node = self._unaware(row)
        if node is not None:
            self.send(row, node)

    def _unaware(self, row: RoutedSubscription) -> Node | None:
        """Return the next hop towards home if it lacks the subscription."""
        if row.local is not None:
            return None
        node = self._sessions.next_hop(row.path[::-1])
        if node is None or row.subscription in self._table.shared[node.broker]:
            return None
        return node

    def send(self, row: RoutedSubscription, node: Node) -> None:
        """Send a subscription to a peer on the home side, once per session."""
        if row.sent_upstream.get(node.broker) == node.session:
            return
        row.sent_upstream[node.broker] = node.session
        path = join_paths(row.path, node.path)
        self._state.machine.send(
            node.broker, UpstreamCopy(row.subscription, row.predicate, path, ())
        )
