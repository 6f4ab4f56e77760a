"""The publication queue: match once, send to next hops, keep until confirmed, send again.

Everything works on runs. One received frame is matched once per distinct attribute blob; the
publications with the same audience become one queue entry. An entry is done when every home
broker of its audience has confirmed and every local client has acknowledged it; a frame is
confirmed to its sender when all entries made of it are done.

Paper: [DFT11] §VI, Fig. 8.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from brokerd.config import Mutant
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import PublishAcknowledged
from brokerd.model.identity import BrokerNumber, ClientId, PartitionId, Peer, SourceId
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.delta_tree.deliveries import DeliveryWindows, without
from brokerd.protocols.delta_tree.duplicates import (
    LONGEST_SPAN,
    DuplicateDetection,
    SourceSequences,
    check_vector,
)
from brokerd.protocols.delta_tree.entries import (
    Entry,
    Receipt,
    Route,
    SourceQueue,
    Transfer,
    pack_frames,
)
from brokerd.protocols.delta_tree.gates import Replacement
from brokerd.protocols.delta_tree.messages import (
    PublicationConfirmation,
    PublicationCopy,
    RecoveryNotifier,
    SequenceVector,
    Tag,
)
from brokerd.protocols.delta_tree.partitions import PartitionTable
from brokerd.protocols.delta_tree.propagation import Propagation, pack_stamped
from brokerd.protocols.delta_tree.regions import covering
from brokerd.protocols.delta_tree.sessions import Reach, Sessions
from brokerd.protocols.delta_tree.state import Path, State
from brokerd.protocols.delta_tree.subscriptions import (
    Audience,
    LocalSubscription,
    Phase,
    RoutedSubscription,
    Subscriptions,
    check_region,
)
from brokerd.protocols.delta_tree.tagging import PublicationTags, Tagging, joined, withheld_by
from brokerd.protocols.selection import RunSelection, match_run

NOTIFIER = 1 << 32
"""The publisher number of recovery notifiers; no publisher has it."""


class Publications:
    """The publication queue of one broker."""

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        subscriptions: Subscriptions,
        sequences: SourceSequences,
        duplicates: DuplicateDetection,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._sequences = sequences
        self._duplicates = duplicates
        self._propagation = Propagation(state, sessions)
        self._tagging = Tagging(state, partitions, subscriptions.tags_and_places)
        self._tags = state.parameters.tag_eval == "pt"
        self._stamped = state.parameters.carries_vectors
        self._careful = self._propagation.careful
        self.windows: DeliveryWindows[Entry] = DeliveryWindows(state, self._delivered)
        self._queue: dict[SourceId, SourceQueue] = {}
        self._sent: dict[BrokerNumber, dict[SourceId, deque[Transfer]]] = {}
        self._routes: list[Route] = []
        self._routed_homes = 0
        self._confirmations: dict[Peer, list[tuple[SourceId, int, int]]] = {}
        self._client_sessions: dict[ClientId, int] = {}
        self._on_logged_done: Callable[[SourceId], None] | None = None
        self.publications = 0
        self._over_limit = False
        self._notifiers_made = 0
        self._notifiers_received: dict[SourceId, int] = {}

    def acknowledge_by(self, on_done: Callable[[SourceId], None]) -> None:
        """Leave acknowledging to a publication log, which is told whenever something is done."""
        self._on_logged_done = on_done

    def forget_hop(self, broker: BrokerNumber) -> None:
        """A leaf has left the tree: what was for it is for nobody."""
        self._sent.pop(broker, None)
        for queue in list(self._queue.values()):
            for entry in queue:
                transfer = entry.transfers.pop(broker, None)
                if transfer is not None or entry.unsent >> broker & 1:
                    entry.unsent &= ~(1 << broker)
                    self._end_if_done(entry)

    def client_session(self, client: ClientId, session: int) -> None:
        """The session of a client, 0 when it has none."""
        self._client_sessions[client] = session

    def payload_bytes(self) -> int:
        """The size of the payloads of all publications that are not done."""
        return sum(entry.run().payload_bytes() for queue in self._queue.values() for entry in queue)

    def pending(self, source: SourceId) -> bool:
        """Whether any publication of the source is not done."""
        return source in self._queue

    def done_through(self, source: SourceId) -> int:
        """All publications of the source up to this number that were received are done."""
        queue = self._queue.get(source)
        return self._sequences.received(source) if queue is None else queue.done_below() - 1

    # ------------------------------------------------------------ receiving

    def on_copy(self, peer: BrokerNumber, message: PublicationCopy) -> None:
        """Publications from another broker."""
        run, path = message.run, message.path
        own = run.source.broker == self._state.broker or run.source.publisher == NOTIFIER
        if own or path[:1] != (run.source.broker,):
            raise RemoteProtocolError(peer, f"{run.source} does not come along {path[:20]}")
        self._state.check_path(path, peer)
        if peer not in path[:-1]:
            raise RemoteProtocolError(peer, f"is not between {run.source} and here")
        if self._stamped or message.vector is not None:
            check_vector(self._state, peer, run, path, message.vector)
        self._tagging.check(peer, message.tags, path)
        session = self._sessions.current(peer)
        self.receive(run, path, peer, session, message.vector, message.tags)

    def receive(
        self,
        run: PublicationRun,
        path: Path,
        sender: Peer,
        session: int,
        vector: SequenceVector | None = None,
        tags: PublicationTags = (),
    ) -> None:
        """Queue publications, send them on, and remember who wants them confirmed.

        Raises:
            RemoteProtocolError: an attribute blob is malformed.

        Paper: [DFT11] §VI lines 622-630, Fig. 8 lines 1-18.
        """
        audiences = match_run(self._subscriptions.memo, run, sender)
        if run.first < 1 or (self._stamped and run.last - run.first >= LONGEST_SPAN):
            raise RemoteProtocolError(sender, f"{run.source} from {run.first} to {run.last}")
        self._state.counters["publications_received"] += len(run)
        receipt = Receipt(sender, session, run.source, run.first, run.last)
        received = self._duplicates.old_until(run, path, vector)
        fresh: PublicationRun | None = run
        if run.first <= received:
            self._receive_again(receipt, min(run.last, received))
            fresh = run.after(received)
            self._state.counters["duplicates_received"] += len(run) - (len(fresh) if fresh else 0)
            if fresh is not None:
                audiences = match_run(self._subscriptions.memo, fresh, sender)
        if fresh is not None:
            self._sequences.receive(run.source, fresh.last, path)
            stamps = self._duplicates.accept(fresh, vector) if self._stamped else None
            if self._tags:
                tags = self._tagging.tagged(tags, path)
            for part in self._where_streams_begin(fresh, audiences):
                if part is not fresh:
                    audiences = match_run(self._subscriptions.memo, part, sender)
                self._queue_up(part, audiences, path, receipt, stamps, tags)
        if Mutant.CONFIRM_COVERS_PENDING in self._state.mutants:
            receipt.remaining = min(receipt.remaining, 1)
        if receipt.remaining == 0 or Mutant.CONFIRM_ON_RECEIPT in self._state.mutants:
            self._confirm(receipt)

    def _receive_again(self, receipt: Receipt, last: int) -> None:
        """Let the receipt wait for what is still pending of publications that came before."""
        queue = self._queue.get(receipt.source)
        for entry in queue.between(receipt.first, last) if queue is not None else ():
            entry.receipts.append(receipt)
            receipt.remaining += 1

    def _where_streams_begin(
        self, run: PublicationRun, audiences: Sequence[Audience]
    ) -> list[PublicationRun]:
        """The run, cut where the stream of a local subscription begins within it."""
        source, first, last = run.source, run.first, run.last
        beginnings: list[int] = []
        for audience in audiences:
            for local in audience.local:
                begins_after = local.begins_after.get(source, 0)
                if first <= begins_after < last:
                    beginnings.append(begins_after)
        parts: list[PublicationRun] = []
        rest: PublicationRun | None = run
        for beginning in sorted(beginnings):
            if rest is not None and (part := rest.up_to(beginning)) is not None:
                parts.append(part)
                rest = rest.after(beginning)
        if rest is not None:
            parts.append(rest)
        return parts

    def _queue_up(
        self,
        run: PublicationRun,
        audiences: Sequence[Audience],
        path: Path,
        receipt: Receipt,
        vector: SequenceVector | None,
        tags: PublicationTags,
    ) -> None:
        """Make queue entries, one per audience, and send them.

        Whom a publication is for is decided here, once: what is subscribed later must not
        change it, or a later publication might reach a home broker before an earlier one.
        """
        if len(self._subscriptions.paths_home) != self._routed_homes:
            self._routes = self._find_routes()
        behind_sender = 0
        if isinstance(receipt.peer, int):
            behind_sender = self._subscriptions.homes_behind(
                self._state.neighbourhood.direction(receipt.peer)
            )
        places_by_audience: dict[Audience, list[int]] = {}
        for place, audience in enumerate(audiences):
            places_by_audience.setdefault(audience, []).append(place)
        selection = RunSelection(run)
        sends: dict[BrokerNumber, tuple[list[int], list[Transfer]]] = {}
        deliveries: dict[ClientId, list[tuple[list[int], tuple[LocalSubscription, ...], Entry]]]
        deliveries = {}
        notices: dict[LocalSubscription, tuple[PartitionId, list[int], list[Entry]]] = {}
        for audience, places in places_by_audience.items():
            destinations = audience.homes & ~behind_sender
            by_client, withheld = self._local_audience(audience, run, path, tags)
            if not destinations and not by_client and not withheld:
                continue
            entry = self._new_entry(run, selection, places, path, receipt)
            entry.vector = vector
            entry.tags = tags
            for route in self._routes:
                reached = destinations & route.destinations
                if reached and (not self._careful or self._propagation.may_go(entry, route)):
                    destinations &= ~reached
                    transfer = self._new_transfer(entry, route, reached)
                    places_sent, transfers = sends.setdefault(route.hop, ([], []))
                    places_sent.extend(places)
                    transfers.append(transfer)
            entry.unsent = destinations
            for client, subscriptions in by_client.items():
                deliveries.setdefault(client, []).append((places, subscriptions, entry))
            for local, partition in withheld:
                _, places_withheld, entries = notices.setdefault(local, (partition, [], []))
                places_withheld.extend(places)
                entries.append(entry)
        for hop, (places, transfers) in sends.items():
            self._note_sent(hop, transfers)
            self._send(hop, selection.having(sorted(places)), path, vector, tags)
        for client, parts in deliveries.items():
            self._deliver(client, selection, len(audiences), parts)
        for local, (partition, places, entries) in notices.items():
            for entry in entries:
                entry.deliveries += 1
            part = selection.having(sorted(places))
            self._state.counters["publications_withheld"] += len(part)
            self.windows.withhold(local, part, partition, tuple(entries))

    def _local_audience(
        self, audience: Audience, run: PublicationRun, path: Path, tags: PublicationTags
    ) -> tuple[
        dict[ClientId, tuple[LocalSubscription, ...]], list[tuple[LocalSubscription, PartitionId]]
    ]:
        """The local subscriptions that get the run, by client, and those it is withheld from.

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
            tag = self._withholding(local, path, tags) if local.tags else None
            if tag is not None:
                withheld.append((local, tag.partition))
            else:
                found[local.client] = (*found.get(local.client, ()), local)
        return found, withheld

    def _withholding(
        self, local: LocalSubscription, path: Path, tags: PublicationTags
    ) -> Tag | None:
        """The tag of a subscription for which it does not get what comes along a path.

        Paper: [DFT11] §VI lines 663-675.
        """
        covered = covering(local.tags, path[::-1])
        if not self._tags:
            return covered
        withheld = withheld_by(local.tags, tags)
        if (covered is None) != (withheld is None):
            missing = withheld is None
            self._state.counters["tags_missing" if missing else "tags_extra"] += 1
            self._state.machine.record(
                "missing_tag" if missing else "extra_tag",
                client=local.client,
                number=local.number,
                path=list(path),
            )
        return withheld

    def _deliver(
        self,
        client: ClientId,
        selection: RunSelection,
        table_length: int,
        parts: list[tuple[list[int], tuple[LocalSubscription, ...], Entry]],
    ) -> None:
        """Queue for one client what it gets of one run: in order, one copy of each."""
        entries = tuple(entry for _, _, entry in parts)
        subscriptions = parts[0][1]
        if all(part[1] == subscriptions for part in parts):
            places = sorted(place for part in parts for place in part[0])
            pieces = [(subscriptions, selection.having(places))]
        else:
            wanted: list[tuple[LocalSubscription, ...]] = [()] * table_length
            for those, subscriptions, _ in parts:
                for place in those:
                    wanted[place] = subscriptions
            pieces = [piece for piece in selection.stretches(wanted) if piece[0]]
        for entry in entries:
            entry.deliveries += len(pieces)
        for subscriptions, run in pieces:
            self.windows.deliver(client, run, subscriptions, entries)

    # ------------------------------------------------------------ recovery notifiers

    def notify(self, row: RoutedSubscription, replacement: Replacement) -> None:
        """Tell the home of a subscription, and all on the way, that a region has shrunk.

        Paper: [DFT11] §VIII-A lines 859-900.
        """
        self._notifiers_made += 1
        self._state.counters["notifiers_sent"] += 1
        notifier = RecoveryNotifier(
            SourceId(self._state.broker, NOTIFIER, self._state.incarnation),
            self._notifiers_made,
            row.path[::-1],
            row.subscription,
            replacement.removed,
            replacement.added,
            replacement.cut,
            replacement.source_paths,
        )
        self._queue_notifier(notifier, [])

    def on_notifier(self, peer: BrokerNumber, message: RecoveryNotifier) -> None:
        """A notifier from another broker: apply it, pass it on, keep it until it is home."""
        self._check_notifier(peer, message)
        source, sequence = message.source, message.sequence
        receipt = Receipt(peer, self._sessions.current(peer), source, sequence, sequence)
        if sequence <= self._notifiers_received.get(source, 0):
            self._receive_again(receipt, sequence)
        else:
            self._notifiers_received[source] = sequence
            replacement = Replacement.of(message)
            if message.subscription.home == self._state.broker:
                entry = self._queue_notifier(message, [receipt])
                self._subscriptions.on_notifier(
                    message.subscription, replacement, lambda: self._delivered(entry)
                )
            else:
                self._subscriptions.on_notifier(message.subscription, replacement, lambda: None)
                self._queue_notifier(message, [receipt])
        if receipt.remaining == 0:
            self._confirm(receipt)

    def _check_notifier(self, peer: BrokerNumber, message: RecoveryNotifier) -> None:
        path, here = message.path, self._state.broker
        if here not in path[1:] or peer not in path[: path.index(here)]:
            raise RemoteProtocolError(peer, f"a notifier along {path[:20]}")
        self._state.check_path(path[: path.index(here) + 1], peer)
        source = message.source
        if (
            source.publisher != NOTIFIER
            or source.broker != path[0]
            or message.sequence < 1
            or path[-1] != message.subscription.home
        ):
            raise RemoteProtocolError(peer, f"notifier {message.sequence} of {source}")
        self._subscriptions.check_home_path(path[path.index(here) :], peer)
        tags = (*message.removed, *message.added)
        check_region(peer, path[::-1], tags, message.cut, message.source_paths)

    def _queue_notifier(self, notifier: RecoveryNotifier, receipts: list[Receipt]) -> Entry:
        sequence = notifier.sequence
        run = PublicationRun(notifier.source, range(sequence, sequence + 1), (b"",), b"\0", 0, ())
        entry = Entry(
            notifier.source,
            RunSelection(run),
            (0,),
            sequence,
            sequence,
            sequence,
            1,
            notifier.path,
            receipts,
            notifier=notifier,
        )
        if self._stamped:
            entry.vector = self._duplicates.accept(run, None)
        self._add_entry(entry)
        self._partitions.hold(notifier.removed)
        home = notifier.subscription.home
        if home == self._state.broker:
            entry.deliveries = 1
            return entry
        self._subscriptions.learn_home(notifier.path[notifier.path.index(self._state.broker) :])
        if len(self._subscriptions.paths_home) != self._routed_homes:
            self._routes = self._find_routes()
        entry.unsent = 1 << home
        for route in self._routes:
            if route.destinations & entry.unsent and self._propagation.may_go(entry, route):
                entry.unsent = 0
                transfer = self._new_transfer(entry, route, 1 << home)
                self._note_sent(route.hop, [transfer])
                self._state.machine.send(route.hop, notifier)
        return entry

    # ------------------------------------------------------------ confirming

    def on_confirmation(self, peer: BrokerNumber, message: PublicationConfirmation) -> None:
        """A hop is done with what it received on this session in the given ranges.

        Paper: [DFT11] Fig. 8, lines 19-27.
        """
        for source, first, last in message.ranges:
            if not 1 <= first <= last:
                raise RemoteProtocolError(peer, f"range [{first}, {last}] of {source}")
        sent = self._sent.get(peer, {})
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
            transfers.extendleft(reversed(kept))
            if not transfers:
                del sent[source]
        if self._careful and self._propagation.blocks:
            self.reroute()

    def _cut_transfer(self, transfer: Transfer, first: int, last: int) -> None:
        """Take [first, last], which is not all of it, out of a transfer."""
        left = without(transfer.left or transfer.entry.run(), first, last)
        assert left is not None, f"[{first}, {last}] leaves nothing of {transfer}"
        transfer.left, transfer.first, transfer.last = left, left.first, left.last

    def _delivered(self, entry: Entry) -> None:
        entry.deliveries -= 1
        self._end_if_done(entry)

    def _end_if_done(self, entry: Entry) -> None:
        if entry.transfers or entry.unsent or entry.deliveries:
            return
        queue = self._queue[entry.source]
        queue.end(entry)
        if not queue:
            del self._queue[entry.source]
        if entry.notifier is not None:
            self._partitions.release(entry.notifier.removed)
        self.publications -= entry.publications
        for receipt in entry.receipts:
            receipt.remaining -= 1
            if receipt.remaining == 0:
                self._confirm(receipt)

    def _confirm(self, receipt: Receipt) -> None:
        """Note that a frame is to be confirmed, if the session it came on still is there.

        A confirmation that nobody hears is made again when the sender sends the frame again.
        """
        peer = receipt.peer
        if isinstance(peer, int):
            session = self._sessions.current(peer)
        elif self._on_logged_done is not None:
            self._on_logged_done(receipt.source)
            return
        else:
            session = self._client_sessions.get(peer, 0)
        if session != receipt.session:
            return
        ranges = self._confirmations.setdefault(peer, [])
        if ranges and ranges[-1][0] == receipt.source and ranges[-1][2] + 1 == receipt.first:
            ranges[-1] = (receipt.source, ranges[-1][1], receipt.last)
        else:
            ranges.append((receipt.source, receipt.first, receipt.last))

    def send_confirmations(self) -> None:
        """Send what was noted: one message per broker, ranges joined where they touch."""
        for peer, ranges in self._confirmations.items():
            if isinstance(peer, int):
                self._state.counters["confirmations_sent"] += 1
                self._state.machine.send(peer, PublicationConfirmation(tuple(ranges)))
            else:
                for _, first, last in ranges:
                    self._state.machine.send(peer, PublishAcknowledged(first, last))
        self._confirmations.clear()

    # ------------------------------------------------------------ routing

    def reroute(self) -> None:
        """Send again, in queue order, whatever is unconfirmed and has another way now.

        All of it goes out before anything newer: whenever the next hop of a destination
        changes, its publications reach the new hop in order. A session that is over never
        counts as the same way, even to the same broker.

        Paper: [DFT11] Fig. 8, lines 784-795. Deviates: decided per destination.
        """
        self._routes = self._find_routes()
        riding = self._propagation.riding(self._routes)
        sessions_used = {
            hop: next(iter(by_source.values()))[0].session
            for hop, by_source in self._sent.items()
            if by_source
        }
        for hop, session in sessions_used.items():
            if riding.get(hop) != session:
                del self._sent[hop]
        sends: dict[BrokerNumber, list[Transfer]] = {}
        entries = [entry for queue in self._queue.values() for entry in queue]
        if self._stamped:
            entries.sort(key=lambda entry: entry.order)
        homeless = [self._homeless(entry, riding) for entry in entries]
        self._propagation.begin(entries, self._routes)
        for entry, destinations in zip(entries, homeless, strict=True):
            if destinations:
                self._reroute_entry(entry, destinations, sends)
        for hop, transfers in sends.items():
            self._send_again(hop, transfers)

    def _homeless(self, entry: Entry, riding: dict[BrokerNumber, int]) -> int:
        """Take back what was sent where it cannot stay; the home brokers that wait for it."""
        homeless = entry.unsent
        for transfer in list(entry.transfers.values()):
            if not self._propagation.stays(transfer, riding):
                homeless |= transfer.destinations
                del entry.transfers[transfer.hop]
        return homeless

    def _reroute_entry(
        self, entry: Entry, homeless: int, sends: dict[BrokerNumber, list[Transfer]]
    ) -> None:
        for route in self._routes:
            reached = homeless & route.destinations
            if reached and (not self._careful or self._propagation.may_go(entry, route)):
                homeless &= ~reached
                assert route.hop not in entry.transfers, f"{entry.source} twice via {route}"
                transfer = self._new_transfer(entry, route, reached)
                sends.setdefault(route.hop, []).append(transfer)
        if Mutant.DROP_UNREACHABLE_DESTINATIONS in self._state.mutants:
            homeless &= ~self._unreachable()
        entry.unsent = homeless
        self._end_if_done(entry)

    def _find_routes(self) -> list[Route]:
        """The hops in use; each destination is behind at most one of them."""
        self._routed_homes = len(self._subscriptions.paths_home)
        destinations: dict[BrokerNumber, int] = {}
        for home, path in self._subscriptions.paths_home.items():
            node = self._sessions.next_hop(path)
            if node is not None:
                destinations[node.broker] = destinations.get(node.broker, 0) | 1 << home
        return [
            Route(hop, self._sessions.current(hop), reached)
            for hop, reached in destinations.items()
        ]

    def _unreachable(self) -> int:
        found = 0
        for node in self._sessions.nodes.values():
            if node.reach is Reach.UNREACHABLE:
                found |= 1 << node.broker
        return found

    # ------------------------------------------------------------ sending

    def _new_entry(
        self,
        run: PublicationRun,
        selection: RunSelection,
        places: list[int],
        path: Path,
        receipt: Receipt,
    ) -> Entry:
        first, last, publications = selection.extent(places)
        entry = Entry(
            run.source,
            selection,
            tuple(places),
            run.first,
            first,
            last,
            publications,
            path,
            [receipt],
        )
        self._add_entry(entry)
        return entry

    def _add_entry(self, entry: Entry) -> None:
        for receipt in entry.receipts:
            receipt.remaining += 1
        queue = self._queue.get(entry.source)
        if queue is None:
            queue = self._queue[entry.source] = SourceQueue()
        queue.append(entry)
        self.publications += entry.publications

    def _new_transfer(self, entry: Entry, route: Route, destinations: int) -> Transfer:
        transfer = Transfer(entry, route.hop, route.session, destinations, entry.first, entry.last)
        entry.transfers[route.hop] = transfer
        return transfer

    def _note_sent(self, hop: BrokerNumber, transfers: Sequence[Transfer]) -> None:
        """Remember what of one run was sent to a hop, ordered by first sequence."""
        by_source = self._sent.setdefault(hop, {})
        for transfer in sorted(transfers, key=_first):
            of_source = by_source.setdefault(transfer.entry.source, deque())
            disordered = bool(of_source) and of_source[-1].first > transfer.first
            of_source.append(transfer)
            if disordered:  # vectors took an old frame for a new one
                by_source[transfer.entry.source] = deque(sorted(of_source, key=_first))

    def _send(
        self,
        hop: BrokerNumber,
        run: PublicationRun,
        path: Path,
        vector: SequenceVector | None,
        tags: PublicationTags,
    ) -> None:
        self._state.counters["publications_forwarded"] += len(run)
        onward = path + self._state.neighbourhood.paths[hop][1:]
        if vector is not None:
            vector = self._propagation.vector_for(vector, hop, len(run))
        self._state.machine.send(hop, PublicationCopy(run, onward, vector, tags))

    def _send_again(self, hop: BrokerNumber, transfers: list[Transfer]) -> None:
        """Send entries of any number of frames and sources, each source in sequence order."""
        if Mutant.NO_RESEND_ON_ACTIVATION in self._state.mutants:
            self._note_sent(hop, transfers)
            return
        groups: Iterable[list[Transfer]]
        if self._stamped:
            groups = pack_stamped(transfers)
        else:
            by_source: dict[SourceId, list[Transfer]] = {}
            for transfer in transfers:
                by_source.setdefault(transfer.entry.source, []).append(transfer)
            groups = by_source.values()
        for of_source in groups:
            of_source.sort(key=_first)
            self._note_sent(hop, of_source)
            if of_source[0].entry.notifier is not None:
                for transfer in of_source:
                    self._state.machine.send(hop, transfer.entry.notifier)
                continue
            frames = list(pack_frames(of_source))
            if Mutant.RESEND_AFTER_NEWER in self._state.mutants:
                frames = [[transfer] for transfer in reversed(of_source)]
            for frame in frames:
                run = merge_runs([transfer.entry.run() for transfer in frame])
                self._state.counters["resent_publications"] += len(run)
                tags = joined([transfer.entry.tags for transfer in frame])
                self._send(hop, run, frame[0].entry.path, frame[0].entry.vector, tags)

    # ------------------------------------------------------------ limits

    def watch_limit(self) -> None:
        """Put it on record when the queue grows over its limit, once each time.

        Nothing is dropped or refused: a publisher's window bounds what it has in here, for
        nothing is acknowledged before it is confirmed.
        """
        limit = self._state.parameters.queue_limit
        if self.publications > limit and not self._over_limit:
            self._over_limit = True
            self._state.machine.record(
                "queue_over_limit", publications=self.publications, limit=limit
            )
        elif self._over_limit and self.publications < limit // 2:
            self._over_limit = False


def _first(transfer: Transfer) -> int:
    return transfer.first
