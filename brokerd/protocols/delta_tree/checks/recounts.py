"""Counters of the δ tree with their expected values at rest, and bounds of its state."""

from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import Entry, Receipt, SourceQueue
from brokerd.simulator.checks.growth import ContainerLimits
from brokerd.simulator.checks.recounts import Holdings, Recount


def _count_remaining(receipt: Receipt, holdings: Holdings) -> int:
    return sum(
        sum(each is receipt for each in entry.receipts)
        for queue in holdings.of(SourceQueue)
        for entry in queue
    )


RECOUNTS = (
    Recount(
        PublicationQueue,
        "publications",
        lambda queue: queue.publications,
        lambda queue, _: sum(
            entry.publications for each in queue.entries.values() for entry in each
        ),
    ),
    Recount(SourceQueue, "living", len, lambda queue, _: len([*queue])),
    Recount(
        SourceQueue,
        "frame_firsts",
        lambda queue: queue._frame_firsts,
        lambda queue, _: [entry.frame_first for entry in queue._entries],
    ),
    Recount(
        Entry,
        "deliveries",
        lambda entry: 0 if entry.done or entry.part_of else entry.deliveries,
        lambda entry, holdings: 0 if entry.done or entry.part_of else holdings.parcels_of(entry),
    ),
    Recount(Receipt, "remaining", lambda receipt: receipt.remaining, _count_remaining),
)

KEPT = ContainerLimits(
    empty=(
        "Client.held",
        "Clients._deferred",
        "Detector.live",
        "HomeSubscriptions.pending",
        "Outlet.parked",
        "Outlet.sent",
        "Outlet.waiting",
        "PartitionTable._ended",
        "PartitionTable._holds",
        "Propagation._blocked",
        "PublicationLog._done_since",
        "PublicationLog._found",
        "PublicationLog._living",
        "PublicationLog._unpublished",
        "PublicationLog.changed",
        "PublicationQueue.confirmations",
        "PublicationQueue.entries",
        "PublicationQueue.sent[]",
        "RoutedSubscription.answers",
        "RoutedSubscription.replacements",
        "RoutingTable.tagged",
        "RoutingTable.unconfirmed",
        "State._when_durable",
        "State.missing_publishers",
    ),
    paired=(
        "Detector.ended",
        "LocalSubscription.begins_after",
        "LocalSubscription.late",
        "LocalSubscription.acknowledged",
        "LocalSubscription.start_cut",
        "RoutedSubscription.cut",
        "RoutedSubscription.senders",
        "RoutedSubscription.sent",
        "RoutedSubscription.sent_upstream",
        "RoutedSubscription.source_paths",
        "RoutingTable.shared[]",
        "positions",
    ),
)
