"""Recovery notifiers: queued messages for the home broker of a subscription.

Notifiers are queued, sent, confirmed and sent again like publications, so no notifier overtakes
the sender's earlier queue; and every broker on the way applies the forwarded notifiers.

Paper: [DFT11] §VIII-A lines 859-900.
"""

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.messages import NOTIFIER, RecoveryNotifier
from brokerd.protocols.delta_tree.partition_table import PartitionTable
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import Entry, Receipt
from brokerd.protocols.delta_tree.regions import Replacement
from brokerd.protocols.delta_tree.routing_table import RoutedSubscription, check_region
from brokerd.protocols.delta_tree.sessions import Sessions
from brokerd.protocols.delta_tree.state import State
from brokerd.protocols.delta_tree.subscriptions import Subscriptions


class Notifiers:
    """The recovery notifiers that one broker makes and forwards."""

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        subscriptions: Subscriptions,
        queue: PublicationQueue,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._partitions = partitions
        self._table = subscriptions.table
        self._unheard = subscriptions.unheard
        self._queue = queue
        self._made = 0
        self._received: dict[SourceId, int] = {}
        subscriptions.unheard.set_notifier(self.notify)

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
        self._add(notifier, [])

    def on_notifier(self, peer: BrokerNumber, message: RecoveryNotifier) -> None:
        """Apply and forward another broker's notifier, and keep the notifier until confirmed."""
        self._check(peer, message)
        source, sequence = message.source, message.sequence
        session = self._sessions.current(peer)
        receipt = Receipt(peer, session, source, sequence, sequence, message.path)
        if sequence <= self._received.get(source, 0):
            self._queue.receive_again(receipt, sequence)
            if receipt.remaining == 0:
                self._queue.confirm(receipt)
        else:
            self._forget_earlier(source)
            self._received[source] = sequence
            replacement = Replacement.of(message)
            if self._state.has_left(message.subscription.home):
                self._queue.confirm(receipt)  # in the name of the departed home
            elif message.subscription.home == self._state.broker:
                entry = self._add(message, [receipt])
                self._unheard.on_notifier(
                    message.subscription, replacement, lambda: self._queue.delivered(entry)
                )
            else:
                self._unheard.on_notifier(message.subscription, replacement, lambda: None)
                self._add(message, [receipt])

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

    def _add(self, notifier: RecoveryNotifier, receipts: list[Receipt]) -> Entry:
        sequence = notifier.sequence
        run = PublicationRun(notifier.source, range(sequence, sequence + 1), (b"",), b"\0", 0, ())
        queue = self._queue
        entry = queue.entry_type(
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
            queue.note_sent(transfer.hop, [transfer])
            self._state.machine.send(transfer.hop, notifier)
        return entry
