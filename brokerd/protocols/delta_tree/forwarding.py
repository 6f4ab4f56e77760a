"""Arriving publications: matched once, queued for other brokers, delivered to local clients.

All steps work on runs. One received frame is matched once per distinct attribute blob; the
publications with the same audience become one queue entry.

Paper: [DFT11] §VI, Fig. 8 lines 1-18.
"""

from collections.abc import Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Gap
from brokerd.model.identity import BrokerNumber, ClientId, PartitionId
from brokerd.model.losses import STATE_LOST, has_marker, is_stream_marker, lost_range
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.annotations import check_annotation
from brokerd.protocols.delta_tree.entry_merge import EntryMerge
from brokerd.protocols.delta_tree.fast_path import FastPath
from brokerd.protocols.delta_tree.home_subscriptions import WithholdingWindows
from brokerd.protocols.delta_tree.messages import NOTIFIER, PublicationCopy, Tag
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import Annotation, Entry, Receipt, Transfer
from brokerd.protocols.delta_tree.regions import find_covering_tag
from brokerd.protocols.delta_tree.routing_table import Audience, RoutingTable
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import LocalSubscription, Phase, State
from brokerd.protocols.delta_tree.vectors import LONGEST_SPAN
from brokerd.protocols.parts.selection import (
    RunSelection,
    match_run,
    places_by_result,
    results_of_part,
)


class Publications:
    """The receipt of publications at a broker.

    Attributes:
        queue: publications until all of their audience has confirmed.
        windows: of the local clients.
        fast_path: the fast path for publications without a new decision; None if frames carry
            more than their path.
        merge: reduces the memory of publications that stay; None likewise.
    """

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        table: RoutingTable,
        queue: PublicationQueue,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._table = table
        self._sequences = state.sequences
        self._annotations = queue.annotations
        self.queue = queue
        self.windows: WithholdingWindows = WithholdingWindows(state)
        self.fast_path: FastPath | None = None
        self.merge: EntryMerge | None = None
        if queue.annotations is None:
            self.fast_path = FastPath(state, sessions, table, queue, self.windows)
            self.merge = EntryMerge(queue, self.windows, state.counters)

    # ------------------------------------------------------------ receiving

    def on_copy(self, peer: BrokerNumber, message: PublicationCopy) -> None:
        """Receive publications from another broker."""
        run, path = message.run, message.path
        own = run.source.broker == self._state.broker or run.source.publisher == NOTIFIER
        if own or path[:1] != (run.source.broker,):
            raise RemoteProtocolError(peer, f"{run.source} does not arrive along {path[:20]}")
        self._state.check_path(path, peer)
        if peer not in path[:-1]:
            raise RemoteProtocolError(peer, f"is not between {run.source} and here")
        check_annotation(self._state, peer, message)
        session = self._sessions.current(peer)
        receipt = Receipt(peer, session, run.source, run.first, run.last, path)
        if self._annotations is not None:
            receipt.annotation = Annotation(message.vector, message.tags)
        self._receive(run, receipt)

    def publish(self, run: PublicationRun, client: ClientId, session: int) -> None:
        """Receive publications of a local client.

        Raises:
            RemoteProtocolError: an attribute blob is malformed.
        """
        path = (self._state.broker,)
        self._receive(run, Receipt(client, session, run.source, run.first, run.last, path))

    def _receive(self, run: PublicationRun, receipt: Receipt) -> None:
        """Queue publications, forward them, and record the receipt for the confirmation.

        Raises:
            RemoteProtocolError: an attribute blob is malformed.

        Paper: [DFT11] §VI lines 622-630, Fig. 8 lines 1-18.
        """
        sender = receipt.peer
        if self._annotations is not None and run.last - run.first >= LONGEST_SPAN:
            raise RemoteProtocolError(sender, f"{run.source} from {run.first} to {run.last}")
        audiences = match_run(self._table.memo, run, sender)
        if run.first < 1:
            raise RemoteProtocolError(sender, f"{run.source} from {run.first} to {run.last}")
        self._state.counters["publications_received"] += len(run)
        if self._annotations is None:
            received = self._sequences.received(run.source)
        else:
            received = self._annotations.last_duplicate(run, receipt)
        fresh: PublicationRun | None = run
        if run.first <= received:
            self.queue.receive_again(receipt, min(run.last, received))
            fresh = run.after(received)
            self._state.counters["duplicates_received"] += len(run) - (len(fresh) if fresh else 0)
        if fresh is not None:
            self._sequences.receive(fresh.source, fresh.last, receipt.path)
            if self._annotations is not None:
                self._annotations.accept(fresh, receipt)
            audiences = results_of_part(fresh, run, audiences)
            for part in self._cut_at_starts(fresh, audiences):
                self._queue_up(part, results_of_part(part, fresh, audiences), receipt)
        if receipt.remaining == 0:
            self.queue.confirm(receipt)

    def _cut_at_starts(
        self, run: PublicationRun, audiences: Sequence[Audience]
    ) -> list[PublicationRun]:
        """Return the run, cut at the beginnings of local subscriptions' streams in it."""
        source, first, last = run.source, run.first, run.last
        beginnings: list[int] = []
        for audience in dict.fromkeys(audiences):
            for local in audience.local:
                begins_after = local.begins_after.get(source, 0)
                if first <= begins_after < last:
                    beginnings.append(begins_after)
        parts: list[PublicationRun] = []
        rest: PublicationRun | None = run
        for beginning in sorted(beginnings):
            if rest is not None and (part := rest.select_through(beginning)) is not None:
                parts.append(part)
                rest = rest.after(beginning)
        if rest is not None:
            parts.append(rest)
        return parts

    def _queue_up(
        self,
        run: PublicationRun,
        audiences: Sequence[Audience],
        receipt: Receipt,
    ) -> None:
        """Make queue entries, an entry per audience, and send the entries.

        The audience of a publication is decided here, once, and later subscriptions must not
        change the audience. Otherwise a later publication might reach a home broker before an
        earlier publication.
        """
        queue = self.queue
        behind_sender = 0
        if isinstance(receipt.peer, int):
            behind_sender = self._table.homes_behind(
                self._state.neighbourhood.direction(receipt.peer)
            )
        places_by_audience = places_by_result(audiences)
        selection = RunSelection(run)
        made: list[Entry] = []
        sends: dict[BrokerNumber, tuple[list[int], list[Transfer]]] = {}
        deliveries: dict[ClientId, list[tuple[list[int], tuple[LocalSubscription, ...], Entry]]]
        deliveries = {}
        notices: dict[LocalSubscription, tuple[PartitionId, list[int], list[Entry]]] = {}
        for audience, places in places_by_audience.items():
            destinations = audience.homes & ~behind_sender
            by_client, withheld = self._local_audience(audience, run, receipt)
            if not destinations and not by_client and not withheld:
                continue
            entry = queue.new_entry(run, selection, places, receipt)
            made.append(entry)
            if by_client or withheld:
                entry.clients = (*by_client, *[local.client for local, _ in withheld])
                entry.serial = self.windows.serial
            for transfer in queue.assign(entry, destinations):
                places_sent, transfers = sends.setdefault(transfer.hop, ([], []))
                places_sent.extend(places)
                transfers.append(transfer)
            for client, subscriptions in by_client.items():
                deliveries.setdefault(client, []).append((places, subscriptions, entry))
            for local, partition in withheld:
                _, places_withheld, entries = notices.setdefault(local, (partition, [], []))
                places_withheld.extend(places)
                entries.append(entry)
        for hop, (places, transfers) in sends.items():
            queue.record_sent(hop, transfers)
            queue.send(hop, selection.select(sorted(places)), transfers)
        for client, parts in deliveries.items():
            self._deliver(client, selection, len(audiences), parts)
        for local, (partition, places, entries) in notices.items():
            for entry in entries:
                entry.deliveries += 1
            part = selection.select(sorted(places))
            self._state.counters["publications_withheld"] += len(part)
            self.windows.withhold(local, part, partition, tuple(entries))
        if len(places_by_audience) > 1:
            # A slow receiver of one part must not keep the parts of all others.
            for entry in made:
                entry.release_frame()

    def _local_audience(
        self, audience: Audience, run: PublicationRun, receipt: Receipt
    ) -> tuple[
        dict[ClientId, tuple[LocalSubscription, ...]], list[tuple[LocalSubscription, PartitionId]]
    ]:
        """Return the local subscriptions that receive the run, by client, and the withheld ones.

        Paper: [DFT11] §VI lines 663-675 (safety check). Deviates: a cut per source in place
        of a test per publication; the source is looked for on its own path, not in tags that
        the publication gathered.
        """
        found: dict[ClientId, tuple[LocalSubscription, ...]] = {}
        withheld: list[tuple[LocalSubscription, PartitionId]] = []
        if not audience.local:
            return found, withheld
        for local in audience.local:
            begun = local.phase is Phase.STARTING or local.phase is Phase.STARTED
            if not begun or local.begins_after.get(run.source, 0) >= run.first:
                continue
            tag = self._find_withholding_tag(local, receipt) if local.tags else None
            if tag is not None:
                withheld.append((local, tag.partition))
            else:
                found[local.client] = (*found.get(local.client, ()), local)
        return found, withheld

    def _find_withholding_tag(self, local: LocalSubscription, receipt: Receipt) -> Tag | None:
        """Return the tag for which a frame is withheld from a subscription, if any.

        Paper: [DFT11] §VI lines 663-675.
        """
        covered = find_covering_tag(local.tags, receipt.path[::-1], self._state.newcomers)
        if self._annotations is None:
            return covered
        return self._annotations.find_withholding_tag(local, receipt, covered)

    def _deliver(
        self,
        client: ClientId,
        selection: RunSelection,
        table_length: int,
        parts: list[tuple[list[int], tuple[LocalSubscription, ...], Entry]],
    ) -> None:
        """Queue a client's part of a run: in order, a single copy of every publication."""
        entries = tuple(entry for _, _, entry in parts)
        subscriptions = parts[0][1]
        if all(part[1] == subscriptions for part in parts):
            places = sorted(place for part in parts for place in part[0])
            pieces = [(subscriptions, selection.select(places))]
        else:
            wanted: list[tuple[LocalSubscription, ...]] = [()] * table_length
            for those, subscriptions, _ in parts:
                for place in those:
                    wanted[place] = subscriptions
            pieces = [piece for piece in selection.stretches(wanted) if piece[0]]
        if has_marker(pieces[0][1]):
            pieces = [((each,), run) for subscriptions, run in pieces for each in subscriptions]
        for entry in entries:
            entry.deliveries += len(pieces)
        for subscriptions, run in pieces:
            gap = _find_later_gap(run, subscriptions[0])
            self.windows.deliver(client, run, subscriptions, entries, gap)


def _find_later_gap(run: PublicationRun, local: LocalSubscription) -> Gap | None:
    """Return the gap to send for a loss marker that also names publications before the start.

    A subscription may have started between the loss and the return of the publisher.
    """
    begins_after = local.begins_after.get(run.source, 0)
    if not begins_after or len(run) > 1 or not has_marker(run) or is_stream_marker(run.source):
        return None
    source, first, last = lost_range(run)
    return Gap((local.number,), source, max(first, begins_after + 1), last, STATE_LOST)
