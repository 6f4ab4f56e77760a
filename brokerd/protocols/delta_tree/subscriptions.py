"""The spreading, confirmation and start of subscriptions.

A subscription floods away from the home broker. Every broker routes by the subscription at once,
and confirms towards home when every broker behind has confirmed. At home the subscription starts
after all confirmations; the stream then begins, per source, after the *cut* that the
confirmations brought. Unreachable brokers are *tagged*: publications of sources there
are withheld until the tagged brokers, too, have confirmed, which a recovery notifier announces.

A broker that received a subscription past other brokers sends an *upstream copy* to the next hop
towards home, in front of any publication; the next hop routes by the subscription at once, and
forwards the copy in the same way.

With `accept` "late" a broker routes by a subscription after all confirmations from behind, as the
paper does. Such a broker may confirm matching publications before, so with `cut` "full" every
broker on the way raises the cut to the publications that have passed the broker.

Paper: [DFT11] §V, Figs. 5-6. Deviates: routable on arrival instead of on confirmation; the
start cut, without which the paper's safety condition still allows a gap.
"""

from collections.abc import Iterable

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.protocols.delta_tree.home_subscriptions import HomeSubscriptions
from brokerd.protocols.delta_tree.messages import (
    SubscriptionConfirmation,
    SubscriptionCopy,
    Tag,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.partition_tags import PartitionTags
from brokerd.protocols.delta_tree.regions import (
    Cut,
    join_paths,
    raise_cut,
    region,
    replace_tags,
    select_tags_under,
)
from brokerd.protocols.delta_tree.routing_table import (
    Answer,
    RoutedSubscription,
    RoutingTable,
    check_region,
)
from brokerd.protocols.delta_tree.sessions import Node, Reach, Sessions
from brokerd.protocols.delta_tree.state import (
    LocalSubscription,
    Rows,
    State,
    read_routing,
    routing_change,
    routing_removal,
)
from brokerd.protocols.delta_tree.tombstones import single_statement
from brokerd.protocols.interface import Change, Commit


class Subscriptions:
    """The handling of all subscriptions of the tree at a broker.

    Attributes:
        table: the SRT.
        tags: the tags of the table's rows.
    """

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        table: RoutingTable,
        tags: PartitionTags,
        home: HomeSubscriptions,
    ) -> None:
        self._state = state
        self._sessions = sessions
        self._sequences = state.sequences
        self.table = table
        self.tags = tags
        self._home = home
        self._accepts_late = state.parameters.accept == "late"
        self._cuts_fully = state.parameters.cut == "full"

    def __len__(self) -> int:
        """Return the number of subscriptions in the table."""
        return len(self.table.rows)

    @property
    def tagged_count(self) -> int:
        """Number of subscriptions with tags in this broker's table."""
        return sum(bool(row.tags) for row in self.table.rows.values())

    @property
    def own_client_count(self) -> int:
        """Number of subscriptions of this broker's own clients."""
        return sum(row.local is not None for row in self.table.rows.values())

    def all_ids(self) -> tuple[SubscriptionId, ...]:
        """Return every subscription that this broker routes by."""
        return tuple(row.subscription for row in self.table.rows.values() if row.accepted)

    def remove_broker(self, broker: BrokerNumber) -> None:
        """Remove a departed leaf without subscriptions; its answers are no longer awaited."""
        self.table.remove_broker(broker)
        for row in self.table.rows.values():
            for by_broker in (row.answers, row.senders, row.sent, row.sent_upstream):
                by_broker.pop(broker, None)
        self.tags.remove_broker(broker)

    def recover(self, recovered: Rows) -> None:
        """Restore the confirmed rows of an earlier incarnation."""
        removals: list[Change] = []
        for subscription, predicate, path in read_routing(recovered):
            if self._state.has_left(subscription.home):
                removals.append(routing_removal(subscription))  # it left while this broker was down
            elif subscription not in self.table.tombstones:
                row = RoutedSubscription(subscription, predicate, path, durable=True)
                self.table.put(row)
                self.table.accept(row)
        if removals:
            self._state.machine.emit(Commit(tuple(removals), None))

    def list_unwritten(self) -> list[Change]:
        """Return the rows that `persist_routing` requires on disk and that are not there yet."""
        if not self._state.parameters.persist_routing:
            return []
        return [
            routing_change(row.subscription, row.predicate, row.path)
            for row in self.table.rows.values()
            if row.local is None and not row.durable
        ]

    # ------------------------------------------------------------ at home

    def add_local(self, local: LocalSubscription, *, confirmed: bool) -> None:
        """Add a local client's subscription to the table; spread it unless it is confirmed."""
        row = RoutedSubscription(
            local.subscription, local.predicate, (self._state.broker,), local=local
        )
        row.confirmed = confirmed
        self.table.set_tags(row, local.tags)
        self.table.put(row)
        self.table.accept(row)
        self._spread(row)
        self.tags.audit_later(row)

    # ------------------------------------------------------------ from other brokers

    def on_copy(self, peer: BrokerNumber, message: SubscriptionCopy) -> None:
        """Route by a subscription from the home side, forward it, and confirm it.

        Paper: [DFT11] Fig. 5, lines 1-10; the duplicate branch is missing there.
        """
        self.table.check_copy(peer, message)
        if peer not in message.path[:-1]:
            raise RemoteProtocolError(peer, f"is not between {message.subscription} and here")
        if message.subscription in self.table.tombstones:
            self._reply_ended(peer, message.subscription)
            return
        row = self.table.row_of(message)
        row.senders[peer] = None
        self._route_by(peer, row)
        self._copy_upstream(row)
        if row.confirmed:
            self._confirm_to(peer, row)
        else:
            self._spread(row)

    def on_upstream_copy(self, peer: BrokerNumber, message: UpstreamCopy) -> None:
        """Route by a subscription of a broker that is about to route by it through this one.

        Paper: [DFT11] §V-B lines 445-465.
        """
        if message.tags:
            raise RemoteProtocolError(peer, "tags, which this version does not use")
        if message.subscription.home == self._state.broker:
            # This broker alone decides whether its subscription exists; an earlier incarnation may
            # have issued it.
            if message.subscription in self.table.tombstones:
                self._reply_ended(peer, message.subscription)
            return
        self.table.check_copy(peer, message)
        if message.subscription in self.table.tombstones:
            self._reply_ended(peer, message.subscription)
            return
        row = self.table.row_of(message)
        self.table.accept(row)
        self.table.shared[peer].add(row.subscription)
        self._spread(row)
        self._copy_upstream(row)

    def on_confirmation(self, peer: BrokerNumber, message: SubscriptionConfirmation) -> None:
        """Record that every broker behind the peer has a subscription.

        Paper: [DFT11] Fig. 5, lines 12-17.
        """
        row = self.table.rows.get(message.subscription)
        if row is None:
            self._state.counters["messages_ignored"] += 1
            return
        if self._state.neighbourhood.direction(peer) == row.home_side:
            raise RemoteProtocolError(peer, f"confirms {row.subscription} from its home side")
        onward = row.path + self._state.neighbourhood.paths[peer][1:]
        check_region(peer, onward, message.tags, message.cut, message.source_paths)
        self.table.shared[peer].add(row.subscription)
        if not row.is_settled:
            self._take_answer(peer, row, message)
            self._spread(row)
        else:
            self.tags.on_late_confirmation(peer, row, message)

    def set_shared(self, peer: BrokerNumber, accepted: Iterable[SubscriptionId]) -> None:
        """Replace the subscriptions that a peer has by the list in its Summary on a new session."""
        self.table.shared[peer] = {each for each in accepted if each not in self.table.tombstones}

    def synchronise(self, node: Node) -> None:
        """Send every subscription that a peer with a newly active session may lack.

        All later messages follow these in the same FIFO, so the peer never
        sees a publication before the subscription that this broker routed it by.

        Paper: [DFT11] §VIII-A lines 826-857.
        """
        known = self.table.shared[node.broker]
        for row in self.table.rows.values():
            if self._state.neighbourhood.direction(node.broker) != row.home_side:
                if select_tags_under(row.pending_tags, node.broker):
                    self.tags.request_confirmation(row, node)
                    continue
                if row.subscription in known:
                    continue
                self._send_copy(row, node, recovery=True)
            elif row.accepted and row.subscription not in known:
                self._send_upstream(row, node)

    def spread_unconfirmed(self) -> None:
        """Spread every unconfirmed subscription again."""
        for row in list(self.table.unconfirmed.values()):
            self._spread(row)

    # ------------------------------------------------------------ the rules

    def _route_by(self, peer: BrokerNumber, row: RoutedSubscription) -> None:
        """Route by a subscription from a peer that also routes by it.

        A peer that accepts late may not route by the subscription yet, unless it is the home.
        """
        if not self._accepts_late:
            self.table.accept(row)
        if not self._accepts_late or peer == row.subscription.home:
            self.table.shared[peer].add(row.subscription)

    def _reply_ended(self, peer: BrokerNumber, subscription: SubscriptionId) -> None:
        """Reply to a peer that spreads an ended subscription."""
        self._state.counters["messages_ignored"] += 1
        self._state.machine.send(peer, Unsubscription((single_statement(subscription),)))

    def _spread(self, row: RoutedSubscription) -> None:
        """Send a subscription to brokers without it; confirm after the last answer.

        The walk leads outward over the tree until every branch ends at a broker that answers for
        all brokers behind. An unreachable broker is bypassed, so that the brokers behind receive
        the subscription, and tagged.

        Paper: [DFT11] Fig. 5, lines 3-10 and 48-56. Deviates: a tag per unreachable broker on
        the walk, where the paper tags with every partition in the broker's table.
        """
        if row.is_settled:
            return
        complete = True
        tags: list[Tag] = []
        cut: Cut = {}
        neighbourhood = self._state.neighbourhood
        frontier = [
            broker
            for broker in neighbourhood.neighbours[self._state.broker]
            if broker != row.home_side
        ]
        for broker in frontier:
            answer = row.answers.get(broker)
            if answer is not None:
                tags.extend(answer.tags)
                raise_cut(cut, answer.cut.items())
                continue
            node = self._sessions.nodes[broker]
            if node.reach is Reach.UNREACHABLE:
                if len(node.path) - 1 < neighbourhood.radius:
                    frontier.extend(neighbourhood.beyond(broker))
                tags.append(self.tags.make_tag(row, node))
                continue
            if node.reach is Reach.ESTABLISHED and node.ready:
                self._send_copy(row, node, recovery=False)
            complete = False
        if complete and self._state.can_confirm:
            self.table.set_tags(row, region(tags))
            row.cut = cut
            row.answers.clear()
            self.tags.audit_later(row)
            self._confirm_when_durable(row)

    def _take_answer(
        self, peer: BrokerNumber, row: RoutedSubscription, message: SubscriptionConfirmation
    ) -> None:
        """Record a confirmation; notifiers that overtook it on another path still count."""
        tags, cut = region(message.tags), dict(message.cut)
        before = row.answers.get(peer)
        if before is not None:
            raise_cut(cut, before.cut.items())
        for replacement in row.replacements:
            tags, _ = replace_tags(tags, cut, replacement, self._state.newcomers)
        row.answers[peer] = Answer(tags, cut)
        row.source_paths.update((path[-1], path) for path in message.source_paths)

    def _confirm_when_durable(self, row: RoutedSubscription) -> None:
        """Confirm once the row is on disk.

        A receiver of the confirmation relies on it for the life of the subscription. If
        a crash lost the row, this broker might be brought up to date by a peer that lacks
        the subscription, and publish past it.
        """
        changes: list[Change] = []
        if row.local is None and not row.durable and self._state.parameters.persist_routing:
            changes.append(routing_change(row.subscription, row.predicate, row.path))
        row.confirming = True
        self._state.commit(changes, lambda: self._confirm(row))

    def _confirm(self, row: RoutedSubscription) -> None:
        if self.table.rows.get(row.subscription) is not row:
            return  # it has ended meanwhile
        if not row.accepted:
            self.table.accept(row)
            self._copy_upstream(row)
        row.confirmed = row.durable = True
        del self.table.unconfirmed[row.subscription]
        if row.local is None:
            for sender in row.senders:
                if self._sessions.current(sender):
                    self._confirm_to(sender, row)
            return
        cut = self._cut_from_here(row)
        raise_cut(cut, self._sequences.last.items())
        self._home.start(row.local, cut, row.tags)

    def _confirm_to(self, peer: BrokerNumber, row: RoutedSubscription) -> None:
        cut = tuple(self._cut_from_here(row).items())
        paths = {**row.source_paths, self._state.broker: row.path}
        brokers = dict.fromkeys(source.broker for source, _ in cut)
        self._state.machine.send(
            peer,
            SubscriptionConfirmation(
                row.subscription, row.tags, cut, tuple(paths[broker] for broker in brokers)
            ),
        )

    def _cut_from_here(self, row: RoutedSubscription) -> Cut:
        """Return the present cut: the cuts from behind, and the numbers of local publishers.

        Every broker had the subscription before forwarding it, so later publications of a local
        publisher meet only brokers with the subscription.
        """
        cut = dict(row.cut)
        raise_cut(cut, self._sequences.used.items())
        if self._cuts_fully:
            self._raise_to_received(row, cut)
        return cut

    def _raise_to_received(self, row: RoutedSubscription, cut: Cut) -> None:
        """Raise a cut to the publications received here, of sources not on the home's side."""
        for source, sequence in self._sequences.last.items():
            path = self._sequences.paths[source.broker]
            if len(path) == 1 or path[-2] != row.home_side:
                raise_cut(cut, ((source, sequence),))
                row.source_paths[source.broker] = row.path + path[-2::-1]

    # ------------------------------------------------------------ sending

    def _send_copy(self, row: RoutedSubscription, node: Node, *, recovery: bool) -> None:
        copy = row.copy_for(node, recovery=recovery)
        if copy is not None:
            self._state.machine.send(node.broker, copy)

    def _copy_upstream(self, row: RoutedSubscription) -> None:
        """Send a subscription to the next hop towards home, unless the hop has it.

        Paper: [DFT11] §V-B lines 445-465.
        """
        node = self._unaware_hop(row)
        if node is not None:
            self._send_upstream(row, node)

    def _unaware_hop(self, row: RoutedSubscription) -> Node | None:
        """Return the next hop towards home if it lacks the subscription."""
        if row.local is not None or not row.accepted:
            return None
        node = self._sessions.next_hop(row.path[::-1])
        if node is None or row.subscription in self.table.shared[node.broker]:
            return None
        return None if self._accepts_late and _can_accept(row, node.broker) else node

    def _send_upstream(self, row: RoutedSubscription, node: Node) -> None:
        """Send a subscription to a peer on the home side, once per session."""
        if row.sent_upstream.get(node.broker) == node.session:
            return
        row.sent_upstream[node.broker] = node.session
        path = join_paths(row.path, node.path)
        self._state.machine.send(
            node.broker, UpstreamCopy(row.subscription, row.predicate, path, ())
        )


def _can_accept(row: RoutedSubscription, sender: BrokerNumber) -> bool:
    """Return True if a sender of a subscription will route by it before the start.

    A broker that a broker nearer to the home bypassed may wait forever, and no broker waits for it.
    """
    place = row.path.index(sender)
    return sender in row.senders and not any(row.path.index(other) < place for other in row.senders)
