"""Routing by a subscription after all confirmations from behind (`accept` "late"), with cuts.

A broker that does not route by a subscription yet may confirm matching publications, so every
broker on the way raises the cut to the publications that have passed the broker (`cut` "full").

Paper: [DFT11] §V lines 388-391, Fig. 5. Deviates: the paper has no cut.
"""

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.partitions.gates import Cut, raise_cut
from brokerd.protocols.delta_tree.sessions.sessions import Node
from brokerd.protocols.delta_tree.subscriptions.propagation import Subscriptions
from brokerd.protocols.delta_tree.subscriptions.recovery import Recovery
from brokerd.protocols.delta_tree.subscriptions.routing_table import RoutedSubscription
from brokerd.protocols.delta_tree.subscriptions.upstream_copies import UpstreamCopies


class FullCut(Subscriptions):
    """Subscriptions with cuts that include the numbers of every broker on the way."""

    def _cut_from_here(self, row: RoutedSubscription) -> Cut:
        cut = super()._cut_from_here(row)
        self._raise_to_received(row, cut)
        return cut

    def _raise_to_received(self, row: RoutedSubscription, cut: Cut) -> None:
        """Raise a cut to the publications received here, of sources not on the home's side."""
        for source, sequence in self._sequences.all_received().items():
            path = self._sequences.paths[source.broker]
            if len(path) == 1 or path[-2] != row.home_side:
                raise_cut(cut, ((source, sequence),))
                row.source_paths[source.broker] = row.path + path[-2::-1]


class LateUpstreamCopies(UpstreamCopies):
    """Upstream copies for brokers that do not route by all subscriptions in their table."""

    def _unaware(self, row: RoutedSubscription) -> Node | None:
        node = super()._unaware(row) if row.accepted else None
        return None if node is None or self._can_accept(row, node.broker) else node

    def _can_accept(self, row: RoutedSubscription, sender: BrokerNumber) -> bool:
        """Return True if a sender of a subscription will route by it before the start.

        A broker that a broker nearer to the home bypassed may wait forever, and no broker waits for
        it.
        """
        place = row.path.index(sender)
        return sender in row.senders and not any(
            row.path.index(other) < place for other in row.senders
        )


class LateAcceptance(Subscriptions):
    """Subscriptions that a broker routes by once it can confirm them."""

    upstream_copies = LateUpstreamCopies

    def _route_by(self, peer: BrokerNumber, row: RoutedSubscription) -> None:
        if peer == row.subscription.home:
            self.table.shared[peer].add(row.subscription)

    def _confirm(self, row: RoutedSubscription) -> None:
        if not row.accepted and self.table.rows.get(row.subscription) is row:
            self.table.accept(row)
            self._upstream.copy(row)
        super()._confirm(row)


class LateAcceptanceWithFullCut(LateAcceptance, FullCut):
    """The paper's acceptance, with the cut that it needs."""


class LateRecovery(Recovery):
    """The recovery of a broker that does not route by all subscriptions in its table."""

    def end_if_complete(self, *, log_is_read: bool) -> bool:
        """End the recovery once the broker routes by all of its subscriptions, too."""
        rows = self._subscriptions.table.unconfirmed.values()
        routes_by_all = all(row.accepted for row in rows)
        return routes_by_all and super().end_if_complete(log_is_read=log_is_read)


def subscriptions_for(parameters: DeltaTreeParameters) -> type[Subscriptions]:
    """Return the class of subscriptions for `accept` and `cut`."""
    return {
        ("early", "src"): Subscriptions,
        ("early", "full"): FullCut,
        ("late", "src"): LateAcceptance,
        ("late", "full"): LateAcceptanceWithFullCut,
    }[parameters.accept, parameters.cut]


def recovery_for(parameters: DeltaTreeParameters) -> type[Recovery]:
    """Return the class of recovery for `accept`."""
    return LateRecovery if parameters.accept == "late" else Recovery
