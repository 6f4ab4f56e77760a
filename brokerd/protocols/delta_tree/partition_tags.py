"""Partition tags of subscriptions: set while a subscription spreads, and reduced ever after.

A broker that was unreachable at the confirmation of a subscription is tagged, together with
the unreachable brokers behind it. Publications of sources there are withheld until these brokers,
too, route by the subscription. Then the tag is removed, here and at all brokers towards home, and
every stream begins at the cut in the confirmation. `regions.py` has the arithmetic.

Paper: [DFT11] §V-B, §V-C, §VIII-A. Deviates: a tag per unreachable broker; see
`regions.py`.
"""

from collections.abc import Callable

from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.protocols.delta_tree.messages import SubscriptionConfirmation, Tag
from brokerd.protocols.delta_tree.partition_table import PartitionTable
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
from brokerd.protocols.delta_tree.routing_table import RoutedSubscription, RoutingTable
from brokerd.protocols.delta_tree.sessions import Node, Sessions
from brokerd.protocols.delta_tree.state import LocalSubscription, Opened, SourceSequences, State

AUDIT = "audit"


class ClosedSources:
    """The tags of all subscriptions that one broker routes by."""

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        sequences: SourceSequences,
        table: RoutingTable,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._partitions = partitions
        self._sequences = sequences
        self._table = table
        self._on_opened_at_home: Callable[[LocalSubscription, Opened, Callable[[], None]], None]
        self._tell_home: Callable[[RoutedSubscription, Replacement], None]
        self._ask: Callable[[RoutedSubscription, Node], None]

    def connect(
        self,
        *,
        on_opened_at_home: Callable[[LocalSubscription, Opened, Callable[[], None]], None],
        ask: Callable[[RoutedSubscription, Node], None],
    ) -> None:
        """Set the receiver of opened sources, and the request for a new confirmation."""
        self._on_opened_at_home = on_opened_at_home
        self._ask = ask

    def set_notifier(self, tell: Callable[[RoutedSubscription, Replacement], None]) -> None:
        """Set the function that notifies another broker's subscription of opened sources."""
        self._tell_home = tell

    # ------------------------------------------------------------ tagging

    def tag(self, row: RoutedSubscription, node: Node) -> Tag:
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

    # ------------------------------------------------------------ hearing more

    def on_late_confirmation(
        self, peer: BrokerNumber, row: RoutedSubscription, message: SubscriptionConfirmation
    ) -> None:
        """Reduce the tags after a later confirmation of a peer for all brokers behind it."""
        replacement = replacement_for(row.tags, peer, message, self._state.newcomers)
        if replacement is not None:
            self._replace_and_tell(row, replacement)

    def on_notifier(
        self, subscription: SubscriptionId, replacement: Replacement, done: Callable[[], None]
    ) -> None:
        """Reduce the tags after a notifier; call `done` when that is durable here.

        Paper: [DFT11] §VIII-A lines 859-900.
        """
        row = self._table.rows.get(subscription)
        if row is None:
            self._state.when_written(done)  # its end may not be on disk yet
        else:
            self._replace(row, self._refine(row, replacement), done)

    def remove_broker(self, broker: BrokerNumber) -> None:
        """Remove the tags of a departed leaf."""
        for row in list(self._table.rows.values()):
            gone = region(tag for tag in row.unheard if tag.node == broker)
            if gone:
                self._replace_and_tell(row, Replacement(gone, (), (), ()))

    def _refine(self, row: RoutedSubscription, replacement: Replacement) -> Replacement:
        return refine(replacement, row.replacements, self._state.newcomers)

    def _replace_and_tell(self, row: RoutedSubscription, replacement: Replacement) -> None:
        replacement = self._refine(row, replacement)
        self._replace(row, replacement, _do_nothing)
        if row.local is None:
            self._tell_home(row, replacement)

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
        received = self._sequences.all_received().items()
        paths = [path[::-1] for path in self._sequences.paths.values()]
        raise_covered_cut(cut, touched, received, paths, self._state.newcomers)
        local.tags = row.tags

        def is_on_disk() -> None:
            self._partitions.release(touched)
            done()

        self._partitions.hold(touched)
        self._on_opened_at_home(local, self._find_opened(row, local, touched), is_on_disk)

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

    # ------------------------------------------------------------ asking

    def ask_about(self, row: RoutedSubscription, node: Node) -> None:
        """Request a new confirmation of a peer; only confirmed tags under the peer stay."""
        row.sent.pop(node.broker, None)
        self._ask(row, node)

    def audit(self) -> None:
        """Request new confirmations for every tagged part of the tree.

        Repairs the tags that a notifier, lost in two crashes or sent past a broker, has left
        behind.
        """
        for row in list(self._table.tagged.values()):
            for node in self._sessions.usable():
                away = self._state.neighbourhood.direction(node.broker) != row.home_side
                if away and select_tags_under(row.tags, node.broker):
                    self.ask_about(row, node)
        self._set_audit()

    def watch(self, row: RoutedSubscription) -> None:
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
