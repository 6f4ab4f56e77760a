"""Partition tags of subscriptions: set while a subscription spreads, and reduced ever after.

A broker that was unreachable at the confirmation of a subscription is tagged, together with
the unreachable brokers behind it. Publications of sources there are withheld until these brokers,
too, route by the subscription. Then the tag is removed, here and at all brokers towards home, and
every stream begins at the cut in the confirmation. `regions.py` has the arithmetic.

Paper: [DFT11] §V-B, §V-C, §VIII-A. Deviates: a tag per unreachable broker; see
`regions.py`.
"""

from collections.abc import Callable

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, SourceId, SubscriptionId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.home_subscriptions import HomeSubscriptions
from brokerd.protocols.delta_tree.messages import (
    NOTIFIER,
    RecoveryNotifier,
    SubscriptionConfirmation,
    Tag,
)
from brokerd.protocols.delta_tree.partition_table import PartitionTable
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import Entry, Receipt
from brokerd.protocols.delta_tree.regions import (
    Region,
    Replacement,
    covers,
    find_covering_tag,
    raise_covered_cut,
    refine,
    region,
    replace_tags,
    replacement_for,
    select_tags_under,
)
from brokerd.protocols.delta_tree.routing_table import (
    RoutedSubscription,
    RoutingTable,
    check_region,
)
from brokerd.protocols.delta_tree.sessions import Node, Sessions
from brokerd.protocols.delta_tree.state import LocalSubscription, Opened, State

AUDIT = "audit"


class Notifiers:
    """The recovery notifiers that one broker makes and forwards."""

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        table: RoutingTable,
        queue: PublicationQueue,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._partitions = partitions
        self._table = table
        self._queue = queue
        self._made = 0
        self._received: dict[SourceId, int] = {}

    def notify(self, row: RoutedSubscription, replacement: Replacement) -> None:
        """Notify the home of a subscription, and all brokers on the way, of a smaller region.

        Paper: [DFT11] §VIII-A lines 859-900.
        """
        self._made += 1
        self._state.counters["notifiers_sent"] += 1
        notifier = RecoveryNotifier(
            SourceId(self._state.broker, NOTIFIER, self._state.incarnation),
            self._made,
            row.path[::-1],
            row.subscription,
            replacement.removed,
            replacement.added,
            replacement.cut,
            replacement.source_paths,
        )
        self.add(notifier, [])

    def receive(self, peer: BrokerNumber, message: RecoveryNotifier) -> Receipt | None:
        """Return the receipt of another broker's notifier; None if it is a repetition.

        Raises:
            RemoteProtocolError: the notifier is impossible; the fault of the peer that sent it.
        """
        self._check(peer, message)
        source, sequence = message.source, message.sequence
        session = self._sessions.current(peer)
        receipt = Receipt(peer, session, source, sequence, sequence, message.path)
        if sequence <= self._received.get(source, 0):
            self._queue.receive_again(receipt, sequence)
            if receipt.remaining == 0:
                self._queue.confirm(receipt)
            return None
        self._forget_earlier(source)
        self._received[source] = sequence
        return receipt

    def _forget_earlier(self, source: SourceId) -> None:
        """Remove numbers of an emitter's earlier incarnations, except with queued notifiers.

        An old notifier that arrives again is applied again, which changes nothing.
        """
        if source in self._received:
            return
        for known in [each for each in self._received if each.broker == source.broker]:
            if known.incarnation < source.incarnation and not self._queue.has_pending(known):
                del self._received[known]

    def _check(self, peer: BrokerNumber, message: RecoveryNotifier) -> None:
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
        if not self._state.has_left(path[-1]):
            self._table.check_home_path(path[path.index(here) :], peer)
        tags = (*message.removed, *message.added)
        check_region(peer, path[::-1], tags, message.cut, message.source_paths)

    def add(self, notifier: RecoveryNotifier, receipts: list[Receipt]) -> Entry:
        """Queue a notifier, and send it to the next hop unless this broker is its home."""
        sequence = notifier.sequence
        run = PublicationRun(notifier.source, range(sequence, sequence + 1), (b"",), b"\0", 0, ())
        queue = self._queue
        entry = Entry(
            notifier.source,
            None,
            (),
            sequence,
            sequence,
            sequence,
            1,
            notifier.path,
            receipts,
            notifier=notifier,
            whole=run,
        )
        queue.add(entry)
        self._partitions.hold(notifier.removed)
        home = notifier.subscription.home
        if home == self._state.broker:
            entry.deliveries = 1
            return entry
        self._table.learn_home(notifier.path[notifier.path.index(self._state.broker) :])
        for transfer in queue.assign(entry, 1 << home):
            queue.record_sent(transfer.hop, [transfer])
            self._state.machine.send(transfer.hop, notifier)
        return entry


class PartitionTags:
    """The tags of all subscriptions that one broker routes by."""

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        table: RoutingTable,
        queue: PublicationQueue,
        home: HomeSubscriptions,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._partitions = partitions
        self._sequences = state.sequences
        self._table = table
        self._queue = queue
        self._home = home
        self._notifiers = Notifiers(state, sessions, partitions, table, queue)

    # ------------------------------------------------------------ tagging

    def make_tag(self, row: RoutedSubscription, node: Node) -> Tag:
        """Return the tag for an unreachable broker and the unreachable brokers behind it.

        Paper: [DFT11] §V-B, V-C.
        """
        assert node.partition, f"{node} is unreachable outside any partition"
        dead_end = len(node.path) - 1 == self._state.neighbourhood.radius
        return Tag(
            row.path + node.path[1:],
            self._state.broker,
            self._state.incarnation,
            node.partition,
            dead_end,
        )

    # ------------------------------------------------------------ reducing

    def on_late_confirmation(
        self, peer: BrokerNumber, row: RoutedSubscription, message: SubscriptionConfirmation
    ) -> None:
        """Reduce the tags after a later confirmation of a peer for all brokers behind it."""
        replacement = replacement_for(row.tags, peer, message, self._state.newcomers)
        if replacement is not None:
            self._replace_and_notify(row, replacement)

    def on_notifier(self, peer: BrokerNumber, message: RecoveryNotifier) -> None:
        """Reduce the tags after another broker's notifier, and forward it.

        At home the notifier is confirmed once the change is durable.

        Paper: [DFT11] §VIII-A lines 859-900.
        """
        receipt = self._notifiers.receive(peer, message)
        if receipt is None:
            return
        subscription = message.subscription
        replacement = Replacement.of(message)
        if self._state.has_left(subscription.home):
            self._queue.confirm(receipt)  # in the name of the departed home
        elif subscription.home == self._state.broker:
            entry = self._notifiers.add(message, [receipt])
            self._apply(subscription, replacement, lambda: self._queue.delivered(entry))
        else:
            self._apply(subscription, replacement, _do_nothing)
            self._notifiers.add(message, [receipt])

    def _apply(
        self, subscription: SubscriptionId, replacement: Replacement, done: Callable[[], None]
    ) -> None:
        """Reduce the tags of a subscription; call `done` when that is durable here."""
        row = self._table.rows.get(subscription)
        if row is None:
            self._state.when_written(done)  # its end may not be on disk yet
        else:
            self._replace(row, self._refine(row, replacement), done)

    def remove_broker(self, broker: BrokerNumber) -> None:
        """Remove the tags of a departed leaf."""
        for row in list(self._table.rows.values()):
            removed = region(tag for tag in row.pending_tags if tag.node == broker)
            if removed:
                self._replace_and_notify(row, Replacement(removed, (), (), ()))

    def _refine(self, row: RoutedSubscription, replacement: Replacement) -> Replacement:
        return refine(replacement, row.replacements, self._state.newcomers)

    def _replace_and_notify(self, row: RoutedSubscription, replacement: Replacement) -> None:
        replacement = self._refine(row, replacement)
        self._replace(row, replacement, _do_nothing)
        if row.local is None:
            self._notifiers.notify(row, replacement)

    def _replace(
        self, row: RoutedSubscription, replacement: Replacement, done: Callable[[], None]
    ) -> None:
        """Reduce tags by a confirmation or a notifier."""
        row.source_paths.update((path[-1], path) for path in replacement.source_paths)
        row.replacements.append(replacement)
        if not row.is_settled:
            for answer in row.answers.values():
                answer.tags, _ = replace_tags(
                    answer.tags, answer.cut, replacement, self._state.newcomers
                )
            done()
            return
        local = row.local
        cut = row.cut if local is None else local.begins_after
        left, touched = replace_tags(row.tags, cut, replacement, self._state.newcomers)
        self._table.set_tags(row, left)
        self._forget_replacements(row)
        if not row.tags:
            self._table.tagged.pop(row.subscription, None)
        if local is None:
            done()
            return
        if not touched:
            # A notifier on another path may have come first, and its change be under way still.
            self._state.when_written(done)
            return
        received = self._sequences.last.items()
        paths = [path[::-1] for path in self._sequences.paths.values()]
        raise_covered_cut(cut, touched, received, paths, self._state.newcomers)
        local.tags = row.tags

        def is_on_disk() -> None:
            self._partitions.release(touched)
            done()

        self._partitions.hold(touched)
        self._home.open_sources(local, self._find_opened(row, local, touched), is_on_disk)

    def _forget_replacements(self, row: RoutedSubscription) -> None:
        """Drop a settled row's replacements, except at or behind the row's tags.

        When the broker of such a tag confirms, the confirmation may still name tags that a notifier
        has removed on a path past the broker. No other message would remove the tags again: the
        notifier was applied.
        """
        row.replacements = [
            replacement
            for replacement in row.replacements
            if any(select_tags_under(replacement.removed, tag.node) for tag in row.tags)
        ]

    def _find_opened(
        self, row: RoutedSubscription, local: LocalSubscription, touched: Region
    ) -> Opened:
        """Return the newly opened sources, with their former partition."""
        opened: Opened = {}
        for source in local.begins_after:
            path = row.source_paths.get(source.broker)
            if path is None and source.broker in self._sequences.paths:
                path = self._sequences.paths[source.broker][::-1]
            if path is None or covers(row.tags, path, self._state.newcomers):
                continue
            tag = find_covering_tag(touched, path, self._state.newcomers)
            if tag is not None:
                opened[source] = tag.partition
        return opened

    # ------------------------------------------------------------ requesting

    def request_confirmation(self, row: RoutedSubscription, node: Node) -> None:
        """Request a new confirmation of a peer; only confirmed tags under the peer stay."""
        row.sent.pop(node.broker, None)
        copy = row.copy_for(node, recovery=True)
        assert copy is not None, f"{row.subscription} was sent to {node.broker}"
        self._state.machine.send(node.broker, copy)

    def audit(self) -> None:
        """Request new confirmations for every tagged part of the tree.

        Repairs the tags that a notifier, lost in two crashes or sent past a broker, has left
        behind.
        """
        for row in list(self._table.tagged.values()):
            for node in self._sessions.usable():
                away = self._state.neighbourhood.direction(node.broker) != row.home_side
                if away and select_tags_under(row.tags, node.broker):
                    self.request_confirmation(row, node)
        self._set_audit()

    def audit_later(self, row: RoutedSubscription) -> None:
        """Include a tagged subscription in audits."""
        self._forget_replacements(row)
        if row.tags:
            self._table.tagged[row.subscription] = row
            self._set_audit()

    def _set_audit(self) -> None:
        key = (AUDIT, -1)
        if self._table.tagged and key not in self._state.deadlines:
            after_ns = self._state.parameters.audit_interval_ns
            self._state.deadlines.set(key, self._state.machine.now_ns + after_ns)


def _do_nothing() -> None:
    """Do nothing."""
