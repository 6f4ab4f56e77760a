"""The publication queue: entries, sent to next hops, kept until confirmed, sent again.

An entry is done when every home broker of the audience has confirmed and every local client
has acknowledged; a frame is confirmed to the sender when all entries made of the frame are done.

Paper: [DFT11] §VI, Fig. 8 lines 19-27, 784-795.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import PublishAcknowledged
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun, merge_runs, without
from brokerd.protocols.delta_tree.annotations import make_annotations
from brokerd.protocols.delta_tree.messages import PublicationConfirmation, PublicationCopy
from brokerd.protocols.delta_tree.partition_table import PartitionTable
from brokerd.protocols.delta_tree.queue_entries import (
    PLAIN,
    Entry,
    Receipt,
    Route,
    SourceQueue,
    Transfer,
    pack_frames,
)
from brokerd.protocols.delta_tree.routing_table import RoutingTable
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import State
from brokerd.protocols.parts.clients.table import ClientTable
from brokerd.protocols.parts.selection import RunSelection


class PublicationQueue:
    """The publication queue of a broker.

    Attributes:
        annotations: of publications that carry more than their path; None without such.
        entries: entries that are not done, by source.
        confirmations: ranges to confirm at the end of the event, by sender.
        sent: per hop and source, the unconfirmed transfers, in sequence order.
        publications: number of publications in the queue.
        finished: sources with finished publications, if a log acknowledges these; else None.
        limit: number of publications above which the broker writes to its event log.
        is_over_limit: the excess has been written.
        merge_above: number of publications above which staying entries are joined,
        merge_at: once this number has been received.
    """

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        table: RoutingTable,
        clients: ClientTable[Any],
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._partitions = partitions
        self._table = table
        self._sequences = state.sequences
        self._clients = clients
        self.annotations = make_annotations(state, sessions, partitions, table)
        self.entries: dict[SourceId, SourceQueue] = {}
        self.sent: dict[BrokerNumber, dict[SourceId, deque[Transfer]]] = {}
        self._routes: list[Route] = []
        self._routed_homes = 0
        self.confirmations: dict[Peer, list[tuple[SourceId, int, int]]] = {}
        self.finished: dict[SourceId, None] | None = None
        self.publications = 0
        self.limit = self.merge_above = state.parameters.queue_limit
        self.merge_at = 0
        self.is_over_limit = False

    @property
    def routes(self) -> list[Route]:
        """The hops in use; a home broker is behind at most one hop."""
        if len(self._table.paths_home) != self._routed_homes:
            self._routes = self._find_routes()
        return self._routes

    def forget_broker(self, broker: BrokerNumber) -> None:
        """Remove a departed leaf from all destinations and transfers."""
        self.sent.pop(broker, None)
        others = ~(1 << broker)
        for queue in list(self.entries.values()):
            for entry in queue:
                entry.transfers.pop(broker, None)
                for transfer in entry.transfers.values():
                    transfer.destinations &= others
                entry.unsent &= others
                self._end_if_done(entry)

    def payload_bytes(self) -> int:
        """Return the size of the payloads of all publications that are not done."""
        return sum(
            entry.run().payload_bytes() for queue in self.entries.values() for entry in queue
        )

    def has_pending(self, source: SourceId) -> bool:
        """Return True if a publication of the source is not done."""
        return source in self.entries

    def confirmed_through(self, source: SourceId) -> int:
        """Return the number through which all received publications of the source are done."""
        queue = self.entries.get(source)
        return self._sequences.received(source) if queue is None else queue.first_open() - 1

    # ------------------------------------------------------------ entries

    def new_entry(
        self,
        run: PublicationRun,
        selection: RunSelection,
        places: list[int],
        receipt: Receipt,
    ) -> Entry:
        """Queue the publications of a frame that have one audience."""
        first, last, publications = selection.extent(places)
        entry = Entry(
            run.source,
            selection,
            tuple(places),
            run.first,
            first,
            last,
            publications,
            receipt.path,
            [receipt],
        )
        self.add(entry)
        return entry

    def add(self, entry: Entry) -> None:
        """Queue an entry, the newest of its source."""
        if self.annotations is not None:
            self.annotations.annotate(entry)
        for receipt in entry.receipts:
            receipt.remaining += 1
        queue = self.entries.get(entry.source)
        if queue is None:
            queue = self.entries[entry.source] = SourceQueue()
        queue.append(entry)
        self.publications += entry.publications

    def assign(self, entry: Entry, destinations: int) -> list[Transfer]:
        """Return transfers of an entry to the hops of its home brokers; the other homes wait."""
        assigned: list[Transfer] = []
        waiting = 0
        if self.annotations is not None:
            allowed = self.annotations.select_sendable(entry, destinations, self.routes)
            destinations, waiting = allowed, destinations & ~allowed
        for route in self.routes:
            reached = destinations & route.destinations
            if reached:
                destinations &= ~reached
                hop = route.hop
                assert hop not in entry.transfers, f"{entry.source} twice via {route}"
                transfer = Transfer(entry, hop, route.session, reached, entry.first, entry.last)
                entry.transfers[hop] = transfer
                assigned.append(transfer)
        entry.unsent = destinations | waiting
        return assigned

    def record_sent(self, hop: BrokerNumber, transfers: Sequence[Transfer]) -> None:
        """Record the transfers of one run to a hop, ordered by first sequence number."""
        by_source = self.sent.setdefault(hop, {})
        for transfer in sorted(transfers, key=_first):
            of_source = by_source.setdefault(transfer.entry.source, deque())
            disordered = bool(of_source) and of_source[-1].first > transfer.first
            of_source.append(transfer)
            if disordered:  # vectors took an old frame for a new one
                by_source[transfer.entry.source] = deque(sorted(of_source, key=_first))

    def replace_sent(self, hop: BrokerNumber, source: SourceId, transfer: Transfer) -> None:
        """Replace the transfers of a joined entry's parts by its own transfer."""
        sent = self.sent[hop][source]
        start = bisect_left(sent, transfer.first, key=_first)
        count = bisect_right(sent, transfer.last, key=_first) - start
        sent.rotate(-start)
        between = [sent.popleft() for _ in range(count)]
        between = [each for each in between if each.entry.part_of is None]
        sent.extendleft(sorted([*between, transfer], key=_first, reverse=True))
        sent.rotate(start)

    def receive_again(self, receipt: Receipt, last: int) -> None:
        """Add the receipt to the pending entries of repeated publications."""
        queue = self.entries.get(receipt.source)
        for entry in queue.between(receipt.first, last) if queue is not None else ():
            entry.receipts.append(receipt)
            receipt.remaining += 1

    # ------------------------------------------------------------ confirming

    def on_confirmation(self, peer: BrokerNumber, message: PublicationConfirmation) -> None:
        """Record a hop's confirmation of ranges that it received on this session.

        Paper: [DFT11] Fig. 8, lines 19-27.
        """
        for source, first, last in message.ranges:
            if not 1 <= first <= last:
                raise RemoteProtocolError(peer, f"range [{first}, {last}] of {source}")
        sent = self.sent.get(peer, {})
        for source, first, last in message.ranges:
            transfers = sent.get(source)
            if not transfers:
                continue
            kept: list[Transfer] = []
            while transfers and transfers[0].first <= last:
                transfer = transfers.popleft()
                if first <= transfer.first and transfer.last <= last:
                    del transfer.entry.transfers[peer]
                    self._end_if_done(transfer.entry)
                else:
                    self._cut_transfer(transfer, first, last)
                    kept.append(transfer)
            _restore_order(transfers, kept)
            if not transfers:
                del sent[source]
        if self.annotations is not None and self.annotations.propagation.blocks:
            self.reroute()  # publications may have waited for this confirmation

    def _cut_transfer(self, transfer: Transfer, first: int, last: int) -> None:
        """Remove [first, last] from a transfer that also has other publications."""
        left = without(transfer.remainder or transfer.entry.run(), first, last)
        assert left is not None, f"[{first}, {last}] leaves nothing of {transfer}"
        transfer.remainder, transfer.first, transfer.last = left, left.first, left.last

    def delivered(self, entry: Entry) -> None:
        """Record that a delivery to a local client is acknowledged, or no longer owed."""
        while entry.part_of is not None:
            entry = entry.part_of
        entry.deliveries -= 1
        self._end_if_done(entry)

    def finish_deliveries(self, entries: Iterable[Entry]) -> None:
        """Record that all local clients have acknowledged entries."""
        for entry in entries:
            self.delivered(entry)

    def _end_if_done(self, entry: Entry) -> None:
        if entry.transfers or entry.unsent or entry.deliveries:
            return
        queue = self.entries[entry.source]
        queue.end(entry)
        if not queue:
            del self.entries[entry.source]
        if entry.notifier is not None:
            self._partitions.release(entry.notifier.removed)
        self.publications -= entry.publications
        for receipt in entry.receipts:
            receipt.remaining -= 1
            if receipt.remaining == 0:
                self.confirm(receipt)

    def confirm(self, receipt: Receipt) -> None:
        """Queue the confirmation of a frame, if its session is still current.

        A lost confirmation is made again when the sender sends the frame again.
        """
        if not self.has_receiver(receipt):
            return
        peer, source = receipt.peer, receipt.source
        if not isinstance(peer, int) and self.finished is not None:
            self.finished[source] = None
            return
        ranges = self.confirmations.setdefault(peer, [])
        for first, last in receipt.ranges():
            if ranges and ranges[-1][0] == source and ranges[-1][2] + 1 == first:
                ranges[-1] = (source, ranges[-1][1], last)
            else:
                ranges.append((source, first, last))

    def has_receiver(self, receipt: Receipt) -> bool:
        """Return True if a confirmation of the receipt still has a receiver."""
        peer = receipt.peer
        if isinstance(peer, int):
            return self._sessions.current(peer) == receipt.session
        return self.finished is not None or self._clients.session_of(peer) == receipt.session

    def send_confirmations(self) -> None:
        """Send queued confirmations: one message per broker, with adjacent ranges joined."""
        for peer, ranges in self.confirmations.items():
            if isinstance(peer, int):
                self._state.counters["confirmations_sent"] += 1
                self._state.machine.send(peer, PublicationConfirmation(tuple(ranges)))
            else:
                for _, first, last in ranges:
                    self._state.machine.send(peer, PublishAcknowledged(first, last))
        self.confirmations.clear()

    # ------------------------------------------------------------ routing

    def reroute(self) -> None:
        """Send unconfirmed publications with a new route again, in queue order.

        All resent publications leave before newer publications: when the next hop of a destination
        changes, publications reach the new hop in order. A closed session never
        counts as the same route, even to the same broker.

        Paper: [DFT11] Fig. 8, lines 784-795. Deviates: decided per destination.
        """
        self._routes = self._find_routes()
        sends: dict[BrokerNumber, list[Transfer]] = {}
        entries = [entry for queue in self.entries.values() for entry in queue]
        if self.annotations is not None:
            self.annotations.sort(entries)
        for entry, destinations in zip(entries, self._drop_transfers(entries), strict=True):
            if destinations:
                self._reroute_entry(entry, destinations, sends)
            else:
                self._end_if_done(entry)  # its whole audience has left
        for hop, transfers in sends.items():
            self._send_again(hop, transfers)

    def _drop_transfers(self, entries: Sequence[Entry]) -> list[int]:
        """Discard invalid transfers; return, per entry, the home brokers without a transfer."""
        staying = {route.hop: route.session for route in self._routes}
        if self.annotations is not None:
            staying |= self.annotations.propagation.list_staying()
        sessions_used = {
            hop: next(iter(by_source.values()))[0].session
            for hop, by_source in self.sent.items()
            if by_source
        }
        for hop, session in sessions_used.items():
            if staying.get(hop) != session:
                del self.sent[hop]
        unassigned = [self._unassign(entry, staying) for entry in entries]
        if self.annotations is not None:
            self.annotations.propagation.begin(entries, self._routes)
        return unassigned

    def _unassign(self, entry: Entry, staying: dict[BrokerNumber, int]) -> int:
        """Discard an entry's invalid transfers; return its home brokers without a transfer."""
        unassigned = entry.unsent
        for transfer in list(entry.transfers.values()):
            if staying.get(transfer.hop) != transfer.session:
                unassigned |= transfer.destinations
                del entry.transfers[transfer.hop]
        return unassigned

    def _reroute_entry(
        self, entry: Entry, unassigned: int, sends: dict[BrokerNumber, list[Transfer]]
    ) -> None:
        for transfer in self.assign(entry, unassigned):
            sends.setdefault(transfer.hop, []).append(transfer)
        self._end_if_done(entry)

    def _find_routes(self) -> list[Route]:
        """Return the hops in use; a destination is behind at most one hop."""
        self._routed_homes = len(self._table.paths_home)
        destinations: dict[BrokerNumber, int] = {}
        for home, path in self._table.paths_home.items():
            node = self._sessions.next_hop(path)
            if node is not None:
                destinations[node.broker] = destinations.get(node.broker, 0) | 1 << home
        return [
            Route(hop, self._sessions.current(hop), reached)
            for hop, reached in destinations.items()
        ]

    # ------------------------------------------------------------ sending

    def send(self, hop: BrokerNumber, run: PublicationRun, transfers: Sequence[Transfer]) -> None:
        """Send the publications of recorded transfers to a hop."""
        self._state.counters["publications_forwarded"] += len(run)
        onward = transfers[0].entry.path + self._state.neighbourhood.paths[hop][1:]
        extra = PLAIN
        if self.annotations is not None:
            extra = self.annotations.annotation_for(hop, len(run), transfers)
        self._state.machine.send(hop, PublicationCopy(run, onward, extra.vector, extra.tags))

    def _send_again(self, hop: BrokerNumber, transfers: list[Transfer]) -> None:
        """Send entries of any number of frames and sources, every source in sequence order."""
        for of_source in self._group_by_source(transfers):
            of_source.sort(key=_first)
            self.record_sent(hop, of_source)
            if of_source[0].entry.notifier is not None:
                for transfer in of_source:
                    self._state.machine.send(hop, transfer.entry.notifier)
                continue
            for frame in pack_frames(of_source):
                run = merge_runs([transfer.entry.run() for transfer in frame])
                self._state.counters["resent_publications"] += len(run)
                self.send(hop, run, frame)

    def _group_by_source(self, transfers: Iterable[Transfer]) -> Iterable[list[Transfer]]:
        """Return transfers that may leave together, grouped by source."""
        stamped = self.annotations.pack(transfers) if self.annotations is not None else None
        if stamped is not None:
            return stamped
        by_source: dict[SourceId, list[Transfer]] = {}
        for transfer in transfers:
            by_source.setdefault(transfer.entry.source, []).append(transfer)
        return by_source.values()

    # ------------------------------------------------------------ limits

    def watch_limit(self) -> None:
        """Record in the event log that the queue exceeds the limit, once per excess.

        Nothing is dropped or refused: a publisher's window bounds the publications here, since
        nothing is acknowledged before the confirmation.
        """
        limit = self.limit
        if self.publications > limit and not self.is_over_limit:
            self.is_over_limit = True
            self._state.machine.record(
                "queue_over_limit", publications=self.publications, limit=limit
            )
        elif self.is_over_limit and self.publications < limit // 2:
            self.is_over_limit = False


def _restore_order(transfers: deque[Transfer], kept: list[Transfer]) -> None:
    """Add partly confirmed transfers; all stay ordered by first sequence number.

    The rest of a transfer may begin behind another transfer, for the entries of a frame alternate
    if its publications differ in audience.
    """
    if not kept:
        return
    last = max(map(_first, kept))
    while transfers and transfers[0].first < last:
        kept.append(transfers.popleft())
    kept.sort(key=_first)
    transfers.extendleft(reversed(kept))


def _first(transfer: Transfer) -> int:
    return transfer.first
