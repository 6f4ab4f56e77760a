"""How much a delta_tree core keeps of what, when all is quiet."""

from brokerd.simulator.checks.growth import Kept

KEPT = Kept(
    empty=(
        "Client.held",
        "Clients._missing",
        "Clients._reissue",
        "Detector.live",
        "Outlet.parked",
        "Outlet.sent",
        "Outlet.waiting",
        "PartitionTable._ended",
        "PartitionTable._holds",
        "Propagation._blocked",
        "PublicationLog._changed",
        "PublicationLog._unpublished",
        "PublicationQueue._confirmations",
        "PublicationQueue._queue",
        "PublicationQueue._sent[]",
        "RoutedSubscription.answers",
        "RoutedSubscription.replacements",
        "RoutingTable.tagged",
        "RoutingTable.unconfirmed",
        "State._when_durable",
    ),
    paired=(
        "Detector.gone",
        "LocalSubscription.begins_after",
        "LocalSubscription.late",
        "LocalSubscription.start_cut",
        "RoutedSubscription.cut",
        "RoutedSubscription.senders",
        "RoutedSubscription.sent",
        "RoutedSubscription.sent_upstream",
        "RoutedSubscription.source_paths",
        "RoutingTable.known[]",
        "positions",
    ),
)
