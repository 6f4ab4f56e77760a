"""The subscription routing table (SRT): its rows, and searches in them.

The table has the audiences of publications, the path to every home broker, and the subscriptions
that every peer routes by. Rules about changes of rows are elsewhere: `subscriptions.py`,
`partition_tags.py`.

Paper: [DFT11] §V.
"""

from dataclasses import dataclass, field

from brokerd.errors import RemoteProtocolError
from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import BrokerNumber, SourceId, SubscriptionId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.protocols.delta_tree.messages import (
    Path,
    SubscriptionCopy,
    Tag,
    Tombstones,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.partition_table import PartitionTable
from brokerd.protocols.delta_tree.regions import Cut, Region, Replacement, is_plain_path, region
from brokerd.protocols.delta_tree.sessions import Node
from brokerd.protocols.delta_tree.state import LocalSubscription, State
from brokerd.protocols.delta_tree.tombstones import TombstoneTable


@dataclass(slots=True)
class Answer:
    """The tags and the cut of a broker's confirmation, for all brokers behind it."""

    tags: Region
    cut: Cut


@dataclass(slots=True, eq=False)
class RoutedSubscription:
    """A row of the subscription routing table (SRT).

    Attributes:
        path: home … here.
        accepted: this broker routes by the subscription.
        senders: brokers that sent a copy from the home side and await the confirmation.
        answers: brokers behind this broker that confirmed, for all brokers behind themselves.
        confirming: all brokers behind have the subscription; the write of this row is pending.
        confirmed: the confirmation is on disk.
        durable: the row itself is on disk.
        tags: the parts without confirmation, as notifiers have reduced the tags since.
        cut: the highest of all cuts in confirmations.
        source_paths: home … source broker, for the sources in the cut.
        replacements: replacements by notifiers before the last answer, for late answers.
        sent: broker → session of the copy.
        sent_upstream: the same for upstream copies.
    """

    subscription: SubscriptionId
    predicate: Predicate
    path: Path
    accepted: bool = False
    local: LocalSubscription | None = None
    senders: dict[BrokerNumber, None] = field(default_factory=dict)
    answers: dict[BrokerNumber, Answer] = field(default_factory=dict)
    confirming: bool = False
    confirmed: bool = False
    durable: bool = False
    tags: Region = ()
    cut: Cut = field(default_factory=dict)
    source_paths: dict[BrokerNumber, Path] = field(default_factory=dict)
    replacements: list[Replacement] = field(default_factory=list)
    sent: dict[BrokerNumber, int] = field(default_factory=dict)
    sent_upstream: dict[BrokerNumber, int] = field(default_factory=dict)

    @property
    def home_side(self) -> BrokerNumber:
        """The tree neighbour on the home side; -1 at home."""
        return self.path[-2] if self.local is None else -1

    @property
    def is_settled(self) -> bool:
        """True if the answers are complete, even if not on disk; tags only shrink after that."""
        return self.confirming or self.confirmed

    @property
    def pending_tags(self) -> Region:
        """The row's tags; while answers are awaited, the tags of the present answers.

        An answering broker may crash, and then loses the tags and does not withdraw them.
        """
        if self.is_settled:
            return self.tags
        return region(tag for answer in self.answers.values() for tag in answer.tags)

    def copy_for(self, node: Node, *, recovery: bool) -> SubscriptionCopy | None:
        """Return the copy of the subscription for a peer; None if sent on this session."""
        if self.sent.get(node.broker) == node.session:
            return None
        self.sent[node.broker] = node.session
        path = self.path + node.path[1:]
        return SubscriptionCopy(self.subscription, self.predicate, path, recovery)


@dataclass(slots=True, eq=False)
class Audience:
    """The receivers of publications with certain attributes.

    Attributes:
        homes: the home brokers, except this one, as a bit set.
        local: subscriptions of this broker's clients.
    """

    homes: int
    local: tuple[LocalSubscription, ...]


class RoutingTable:
    """The SRT of a broker.

    Attributes:
        rows: by subscription, in the order of arrival.
        unconfirmed: rows without confirmation.
        tagged: rows that wait for unreachable brokers.
        shared: peer → the subscriptions that the peer routes by.
        memo: attributes → the audience of publications with the attributes.
        paths_home: home broker → path from here; kept after the end of the home's last
            subscription, for publications under way.
        tombstones: of subscriptions that have ended permanently.
    """

    def __init__(
        self,
        state: State,
        partitions: PartitionTable,
        decode_attributes: DecodeAttributes,
    ) -> None:
        self._state = state
        self._partitions = partitions
        self.rows: dict[SubscriptionId, RoutedSubscription] = {}
        self.unconfirmed: dict[SubscriptionId, RoutedSubscription] = {}
        self.tagged: dict[SubscriptionId, RoutedSubscription] = {}
        self.shared: dict[BrokerNumber, set[SubscriptionId]] = {
            broker: set() for broker in state.neighbourhood.paths
        }
        self._index: MatchingIndex[SubscriptionId] = MatchingIndex()
        self.memo: MatchMemo[SubscriptionId, Audience] = MatchMemo(
            self._index, decode_attributes, conclude=self._audience
        )
        self._audiences: dict[tuple[int, tuple[LocalSubscription, ...]], Audience] = {}
        self.paths_home: dict[BrokerNumber, Path] = {}
        self._homes_behind: dict[BrokerNumber, int] = dict.fromkeys(
            state.neighbourhood.neighbours[state.broker], 0
        )
        self.tombstones = TombstoneTable()

    # ------------------------------------------------------------ brokers

    def homes_behind(self, neighbour: BrokerNumber) -> int:
        """Return the recorded home brokers on `neighbour`'s side, as a bit set."""
        return self._homes_behind[neighbour]

    def learn_home(self, path: Path) -> None:
        """Record the path from here to a home broker."""
        home = path[-1]
        if home not in self.paths_home:
            self.paths_home[home] = path
            self._homes_behind[path[1]] |= 1 << home

    def add_broker(self, broker: BrokerNumber) -> None:
        """Add a joined leaf of the neighbourhood, without subscriptions."""
        self.shared[broker] = set()
        if self._state.neighbourhood.direction(broker) == broker:
            self._homes_behind[broker] = 0

    def remove_broker(self, broker: BrokerNumber) -> None:
        """Remove a departed leaf, which has no subscriptions."""
        self.shared.pop(broker)
        if broker in self.paths_home:
            path = self.paths_home.pop(broker)
            self._homes_behind[path[1]] &= ~(1 << broker)
        self._homes_behind.pop(broker, None)

    def check_home_path(self, path: Path, peer: BrokerNumber) -> None:
        """Check that the path from here to a home broker equals the recorded path.

        Raises:
            RemoteProtocolError: it differs, or is impossible.
        """
        known = self.paths_home.get(path[-1], path)
        plain = len(path) < 2 or path[1] in self._homes_behind
        if known != path or not is_plain_path(path) or not plain:
            raise RemoteProtocolError(peer, f"two paths to broker {path[-1]}")

    def check_copy(self, peer: BrokerNumber, message: SubscriptionCopy | UpstreamCopy) -> None:
        """Check that an arriving subscription does not contradict the recorded row.

        Raises:
            RemoteProtocolError: it does; the fault of the peer that sent it.
        """
        self._state.check_path(message.path, peer)
        if message.path[0] != message.subscription.home:
            raise RemoteProtocolError(peer, f"{message.subscription} does not begin at its home")
        row = self.rows.get(message.subscription)
        path_home = self.paths_home.get(message.path[0])
        if path_home is not None and path_home != message.path[::-1]:
            raise RemoteProtocolError(peer, f"two paths to broker {message.path[0]}")
        if row is not None and row.predicate != message.predicate:
            raise RemoteProtocolError(peer, f"two predicates for {message.subscription}")

    # ------------------------------------------------------------ rows

    def row_of(self, message: SubscriptionCopy | UpstreamCopy) -> RoutedSubscription:
        """Return the row of an arriving subscription; create it if needed."""
        row = self.rows.get(message.subscription)
        if row is None:
            row = RoutedSubscription(message.subscription, message.predicate, message.path)
            self.put(row)
        return row

    def put(self, row: RoutedSubscription) -> None:
        """Add a new row."""
        self.rows[row.subscription] = row
        if not row.confirmed:
            self.unconfirmed[row.subscription] = row
        if row.local is None:
            self.learn_home(row.path[::-1])

    def accept(self, row: RoutedSubscription) -> None:
        """Route by a subscription from now on.

        Paper: [DFT11] §V lines 388-391.
        """
        if not row.accepted:
            row.accepted = True
            self._index.add(row.subscription, row.predicate)
            self._forget_matches()

    def set_tags(self, row: RoutedSubscription, tags: Region) -> None:
        """Set the tags of a row; own partitions stay in the table while a row names them."""
        self._partitions.hold(tags)
        self._partitions.release(row.tags)
        row.tags = tags

    def remove(self, row: RoutedSubscription) -> None:
        del self.rows[row.subscription]
        self.set_tags(row, ())
        self.unconfirmed.pop(row.subscription, None)
        self.tagged.pop(row.subscription, None)
        for known in self.shared.values():
            known.discard(row.subscription)
        if row.accepted:
            self._index.remove(row.subscription)
            self._forget_matches()

    def drop(self, statement: Tombstones) -> list[SubscriptionId]:
        """Remove other homes' subscriptions that a statement ends; return their ids.

        Queued publications for them run out: their home ignores and confirms them.
        """
        rows = self.rows
        listed = [
            SubscriptionId(statement.home, begin, first)
            for begin, first, end, last in statement.ranges
            if (begin, first) == (end, last)
        ]
        if statement.before or len(listed) < len(statement.ranges):
            table = TombstoneTable()
            table.add(statement)
            listed = [each for each in rows if each in table]
        dropped = [each for each in listed if each in rows and rows[each].local is None]
        for subscription in dropped:
            self.remove(rows[subscription])
        return dropped

    # ------------------------------------------------------------ matching

    def _audience(self, subscriptions: tuple[SubscriptionId, ...]) -> Audience:
        homes = 0
        local: list[LocalSubscription] = []
        for subscription in subscriptions:
            row = self.rows[subscription]
            if row.local is None:
                homes |= 1 << subscription.home
            else:
                local.append(row.local)
        # Whom it is for decides, not by which subscriptions: fewer audiences, fewer entries.
        return self._audiences.setdefault((homes, tuple(local)), Audience(homes, tuple(local)))

    def _forget_matches(self) -> None:
        self.memo.forget()
        self._audiences.clear()


def check_region(
    peer: BrokerNumber,
    onward: Path,
    tags: tuple[Tag, ...],
    cut: tuple[tuple[SourceId, int], ...],
    source_paths: tuple[Path, ...],
) -> None:
    """Check that tags and cut are only about brokers at or behind the end of `onward`.

    Args:
        onward: home … the sending broker.

    Raises:
        RemoteProtocolError: they are not; the fault of the peer that sent them.
    """
    for tag in tags:
        if tag.detector not in tag.path[len(onward) - 1 : -1] or not tag.number:
            raise RemoteProtocolError(peer, f"no partition: {tag}"[:300])
    for path in (*[tag.path for tag in tags], *source_paths):
        if path[: len(onward)] != onward or not is_plain_path(path):
            raise RemoteProtocolError(peer, f"{path[:20]} does not lead on from {onward[:20]}")
    known = dict.fromkeys(path[-1] for path in source_paths)
    for source, sequence in cut:
        if sequence < 0 or source.broker not in known:
            raise RemoteProtocolError(peer, f"impossible cut {sequence} of {source}")
