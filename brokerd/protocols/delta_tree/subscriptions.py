"""The subscription routing table: spreading subscriptions, confirming them, starting them.

A subscription floods away from its home broker. Every broker routes by it at once, and
confirms it towards home when every broker behind it has confirmed. At home it starts when all
confirmations are in; its stream then begins, per source, after the *cut* that the
confirmations brought. Brokers that nobody could reach meanwhile are *tagged*: sources there
are not heard until they, too, have confirmed, which a recovery notifier tells.

Paper: [DFT11] §V, Figs. 5-6. Deviates: routable on arrival instead of on confirmation; the
start cut, without which the paper's safety condition still allows a gap.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from brokerd.config import Mutant
from brokerd.errors import RemoteProtocolError
from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import (
    BrokerNumber,
    ClientId,
    PartitionId,
    SourceId,
    SubscriptionId,
)
from brokerd.model.predicate import Attributes, Predicate
from brokerd.protocols.delta_tree.duplicates import SourceSequences
from brokerd.protocols.delta_tree.ended import EndedTable
from brokerd.protocols.delta_tree.gates import (
    Cut,
    Replacement,
    raise_covered_cut,
    raise_cut,
    replaced,
    replacement_for,
)
from brokerd.protocols.delta_tree.messages import (
    EndedSubscriptions,
    SubscriptionConfirmation,
    SubscriptionCopy,
    Tag,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.partitions import PartitionTable
from brokerd.protocols.delta_tree.regions import Region, covering, covers, region, under
from brokerd.protocols.delta_tree.rows import Rows, read_routing, routing_change
from brokerd.protocols.delta_tree.sessions import Node, Reach, Sessions
from brokerd.protocols.delta_tree.state import Path, State, is_plain_path, onward_path
from brokerd.protocols.interface import Change

AUDIT = "audit"

Withheld = tuple[int, int, PartitionId]
"""First and last sequence of a source that a subscription does not get, and by which partition."""

Opened = dict[SourceId, PartitionId]
"""Sources that a subscription has begun to hear, with the partition that was in the way."""


class Phase(Enum):
    """How far a subscription of a local client is."""

    PENDING = "pending"
    STARTING = "starting"  # confirmed; that and the cut are on their way to disk
    STARTED = "started"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class LocalSubscription:
    """A subscription of a client of this broker.

    Attributes:
        begins_after: per source, the sequence after which its stream begins here: the start
            cut, raised by what the client had before this broker restarted.
        claimed: the client has asked for it on its current session.
        tags: the part of the tree that it does not hear; only shrinks after the start.
        start_cut: `begins_after` as it was at the start.
        late: per source that it did not hear at the start, what it has been told it does not
            get: first and last sequence, and by which partition.
    """

    client: ClientId
    number: int
    subscription: SubscriptionId
    predicate: Predicate
    phase: Phase = Phase.PENDING
    begins_after: Cut = field(default_factory=dict)
    claimed: bool = False
    tags: Region = ()
    start_cut: Cut = field(default_factory=dict)
    late: dict[SourceId, Withheld] = field(default_factory=dict)

    def withhold(self, source: SourceId, last: int, partition: PartitionId) -> Withheld | None:
        """Nothing of a source comes up to `last`: what of this is to be told; None if nothing."""
        known = self.late.get(source)
        told = known[1] if known else self.start_cut.get(source, 0)
        if last <= told:
            return None
        self.late[source] = (known[0] if known else told + 1, last, partition)
        return told + 1, last, partition


@dataclass(slots=True)
class Answer:
    """What one broker's confirmation said of everything behind it."""

    tags: Region
    cut: Cut


@dataclass(slots=True, eq=False)
class RoutedSubscription:
    """A row of the subscription routing table (SRT).

    Attributes:
        path: home … here.
        accepted: this broker routes by it.
        senders: who sent it from the home side and wants it confirmed.
        answers: brokers behind this one that confirmed, each for all behind itself.
        confirming: every broker behind this one has it; that this one has is going to disk.
        confirmed: it is on disk.
        durable: the row itself is.
        tags: what the confirmations did not speak for, as notifiers have reduced it since.
        cut: the highest of all cuts that came with confirmations.
        source_paths: home … source broker, for the sources in it.
        replacements: what notifiers said before it was confirmed here; late answers need it.
        sent: broker → session on which it was sent there.
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
    def towards_home(self) -> BrokerNumber:
        """The tree neighbour on the home side; -1 at home."""
        return self.path[-2] if self.local is None else -1

    @property
    def settled(self) -> bool:
        """Whether the answers are in, if not yet on disk; tags only shrink from then on."""
        return self.confirming or self.confirmed


@dataclass(slots=True, eq=False)
class Audience:
    """Who wants publications with certain attributes.

    Attributes:
        homes: the home brokers, this one excepted, as a bit set.
        local: subscriptions of this broker's clients.
    """

    homes: int
    local: tuple[LocalSubscription, ...]


class Subscriptions:
    """The SRT of one broker.

    Attributes:
        paths_home: home broker → path from here to it; kept when its last subscription ends,
            for publications under way.
        ended: subscriptions that are over for ever.
    """

    def __init__(
        self,
        state: State,
        sessions: Sessions,
        partitions: PartitionTable,
        sequences: SourceSequences,
        decode_attributes: Callable[[bytes], Attributes],
    ) -> None:
        self._state = state
        self._late = state.parameters.accept == "late"
        self._sessions = sessions
        self._partitions = partitions
        self._sequences = sequences
        self._rows: dict[SubscriptionId, RoutedSubscription] = {}
        self._unconfirmed: dict[SubscriptionId, RoutedSubscription] = {}
        self._known: dict[BrokerNumber, set[SubscriptionId]] = {
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
        self._tagged: dict[SubscriptionId, RoutedSubscription] = {}
        self.ended = EndedTable()
        self._on_confirmed_at_home: Callable[[LocalSubscription, Cut, Region], None] = _nobody_told
        self._on_opened_at_home: Callable[[LocalSubscription, Opened, Callable[[], None]], None]
        self._on_replaced: Callable[[RoutedSubscription, Replacement], None]
        self._may_confirm: Callable[[], bool] = lambda: True

    def connect(
        self,
        *,
        on_confirmed_at_home: Callable[[LocalSubscription, Cut, Region], None],
        on_opened_at_home: Callable[[LocalSubscription, Opened, Callable[[], None]], None],
        on_replaced: Callable[[RoutedSubscription, Replacement], None],
        may_confirm: Callable[[], bool],
    ) -> None:
        """Say whom to tell of local subscriptions, and what may hold confirming up."""
        self._on_confirmed_at_home = on_confirmed_at_home
        self._on_opened_at_home = on_opened_at_home
        self._on_replaced = on_replaced
        self._may_confirm = may_confirm

    def __len__(self) -> int:
        """How many subscriptions are in the table."""
        return len(self._rows)

    @property
    def tagged(self) -> int:
        """How many of them do not hear the whole tree, as far as this broker knows."""
        return sum(bool(row.tags) for row in self._rows.values())

    @property
    def of_own_clients(self) -> int:
        """How many of them are of this broker's own clients."""
        return sum(row.local is not None for row in self._rows.values())

    def all_ids(self) -> tuple[SubscriptionId, ...]:
        """Every subscription this broker routes by."""
        return tuple(row.subscription for row in self._rows.values() if row.accepted)

    @property
    def all_accepted(self) -> bool:
        """Whether this broker routes by all it knows of."""
        return all(row.accepted for row in self._unconfirmed.values())

    def tags_and_places(self) -> Iterator[tuple[Path, Tag]]:
        """The tags of all subscriptions that are tagged, each with the path home … here."""
        for row in self._tagged.values():
            for tag in row.tags:
                yield row.path, tag

    def homes_behind(self, neighbour: BrokerNumber) -> int:
        """The known home brokers on `neighbour`'s side, as a bit set."""
        return self._homes_behind[neighbour]

    def learn_home(self, path: Path) -> None:
        """Remember the way from here to a home broker."""
        home = path[-1]
        if home not in self.paths_home:
            self.paths_home[home] = path
            self._homes_behind[path[1]] |= 1 << home

    def add_broker(self, broker: BrokerNumber) -> None:
        """A leaf has joined within the neighbourhood; it knows nothing."""
        self._known[broker] = set()
        if self._state.neighbourhood.direction(broker) == broker:
            self._homes_behind[broker] = 0

    def remove_broker(self, broker: BrokerNumber) -> None:
        """A leaf has left, with nothing of its own: nobody need hear from it any more."""
        self._known.pop(broker)
        for row in list(self._rows.values()):
            if row.subscription.home == broker:
                # Its end has not come through yet; nobody is left who wants anything for it.
                self._remove(row)
                continue
            row.answers.pop(broker, None)
            row.senders.pop(broker, None)
            gone = region(tag for tag in row.tags if tag.node == broker)
            if gone or not row.settled:
                replacement = Replacement(gone or self._tags_in_answers(row, broker), (), (), ())
                if replacement.removed:
                    self._replace(row, replacement, _nothing)
                    if row.local is None:
                        self._on_replaced(row, replacement)
        if broker in self.paths_home:
            path = self.paths_home.pop(broker)
            self._homes_behind[path[1]] &= ~(1 << broker)
        self._homes_behind.pop(broker, None)

    def _tags_in_answers(self, row: RoutedSubscription, broker: BrokerNumber) -> Region:
        tags = [tag for answer in row.answers.values() for tag in answer.tags]
        return region(tag for tag in tags if tag.node == broker)

    def check_home_path(self, path: Path, peer: BrokerNumber) -> None:
        """Make sure that the way from here to a home broker is the known one.

        Raises:
            RemoteProtocolError: it is not, or cannot be one.
        """
        known = self.paths_home.get(path[-1], path)
        plain = len(path) < 2 or path[1] in self._homes_behind
        if known != path or not is_plain_path(path) or not plain:
            raise RemoteProtocolError(peer, f"two paths to broker {path[-1]}")

    def recover(self, recovered: Rows) -> None:
        """Route again by what an earlier incarnation had confirmed."""
        for subscription, predicate, path in read_routing(recovered):
            if subscription not in self.ended:
                row = RoutedSubscription(subscription, predicate, path, durable=True)
                self._put(row)
                self._accept(row)

    # ------------------------------------------------------------ at home

    def add_local(self, local: LocalSubscription, *, confirmed: bool) -> None:
        """Put a local client's subscription into the table; spread it unless it is confirmed."""
        row = RoutedSubscription(
            local.subscription, local.predicate, (self._state.broker,), local=local
        )
        row.confirmed = confirmed
        self._set_tags(row, local.tags)
        self._put(row)
        self._accept(row)
        self._evaluate(row)
        self._watch_tags(row)

    def remove_local(self, local: LocalSubscription) -> None:
        """Take a local subscription out of this broker's table; others keep theirs."""
        self._remove(self._rows[local.subscription])

    def drop(self, statement: EndedSubscriptions) -> list[SubscriptionId]:
        """Route no more by other homes' subscriptions that a statement ends; returns which.

        What is queued for them runs out: their home lets it pass, and confirms it.
        """
        rows = self._rows
        listed = [
            SubscriptionId(statement.home, incarnation, first)
            for incarnation, first, last in statement.ranges
            if first == last
        ]
        if statement.before or len(listed) < len(statement.ranges):
            table = EndedTable()
            table.add(statement)
            listed = [each for each in rows if each in table]
        over = [each for each in listed if each in rows and rows[each].local is None]
        for subscription in over:
            self._remove(rows[subscription])
        return over

    def _remove(self, row: RoutedSubscription) -> None:
        del self._rows[row.subscription]
        self._set_tags(row, ())
        self._unconfirmed.pop(row.subscription, None)
        self._tagged.pop(row.subscription, None)
        for known in self._known.values():
            known.discard(row.subscription)
        if row.accepted:
            self._index.remove(row.subscription)
            self._forget_matches()

    # ------------------------------------------------------------ from other brokers

    def on_copy(self, peer: BrokerNumber, message: SubscriptionCopy) -> None:
        """A subscription arrives from the home side: route by it, pass it on, confirm it.

        Paper: [DFT11] Fig. 5, lines 1-10; the duplicate branch is missing there.
        """
        self._check_copy(peer, message)
        if peer not in message.path[:-1]:
            raise RemoteProtocolError(peer, f"is not between {message.subscription} and here")
        if message.subscription in self.ended:
            self._say_over(peer, message.subscription)
            return
        row = self._row_of(message)
        row.senders[peer] = None
        if not self._late:
            self._accept(row)
        if not self._late or peer == row.subscription.home:
            self._known[peer].add(row.subscription)
        self._copy_upstream(row)
        if row.confirmed:
            self._confirm_to(peer, row)
        else:
            self._evaluate(row)

    def on_upstream_copy(self, peer: BrokerNumber, message: UpstreamCopy) -> None:
        """A subscription arrives from a broker that is about to route by it through this one.

        Paper: [DFT11] §V-B lines 445-465.
        """
        if message.tags:
            raise RemoteProtocolError(peer, "tags, of which this version knows none")
        if message.subscription.home == self._state.broker:
            # Ours alone to say whether it exists; a former incarnation may have issued it.
            if message.subscription in self.ended:
                self._say_over(peer, message.subscription)
            return
        self._check_copy(peer, message)
        if message.subscription in self.ended:
            self._say_over(peer, message.subscription)
            return
        row = self._row_of(message)
        self._accept(row)
        self._known[peer].add(row.subscription)
        self._evaluate(row)
        self._copy_upstream(row)

    def on_confirmation(self, peer: BrokerNumber, message: SubscriptionConfirmation) -> None:
        """Every broker behind the peer has a subscription.

        Paper: [DFT11] Fig. 5, lines 12-17.
        """
        row = self._rows.get(message.subscription)
        if row is None:
            self._state.counters["messages_ignored"] += 1
            return
        if self._state.neighbourhood.direction(peer) == row.towards_home:
            raise RemoteProtocolError(peer, f"confirms {row.subscription} from its home side")
        onward = row.path + self._state.neighbourhood.paths[peer][1:]
        check_region(peer, onward, message.tags, message.cut, message.source_paths)
        self._known[peer].add(row.subscription)
        if not row.settled:
            self._take_answer(peer, row, message)
            self._evaluate(row)
        elif Mutant.NO_NOTIFIERS not in self._state.mutants:
            replacement = replacement_for(row.tags, peer, message, self._state.mutants)
            if replacement is not None:
                self._replace(row, replacement, _nothing)
                if row.local is None:
                    self._on_replaced(row, replacement)

    def on_notifier(
        self, subscription: SubscriptionId, replacement: Replacement, done: Callable[[], None]
    ) -> None:
        """A part of the tree has become aware of a subscription; `done` when that is safe here.

        Paper: [DFT11] §VIII-A lines 859-900.
        """
        row = self._rows.get(subscription)
        if row is None:
            done()
        else:
            self._replace(row, replacement, done)

    def set_known(self, peer: BrokerNumber, accepted: Iterable[SubscriptionId]) -> None:
        """The peer's Summary on a new session: what it routes by, and nothing else."""
        self._known[peer] = {each for each in accepted if each not in self.ended}

    def synchronise(self, node: Node) -> None:
        """Send a peer whose session is now active every subscription it may lack.

        Whatever it then receives from here comes behind these in the same FIFO, so it never
        sees a publication before the subscription that this broker routed it by.

        Paper: [DFT11] §VIII-A lines 826-857.
        """
        known = self._known[node.broker]
        for row in self._rows.values():
            if self._state.neighbourhood.direction(node.broker) != row.towards_home:
                if row.tags and under(row.tags, node.broker):
                    self._ask_about_tags(row, node)
                    continue
                if row.subscription in known:
                    continue
                if not row.confirmed and Mutant.SUMMARY_MISSES_PENDING in self._state.mutants:
                    row.sent[node.broker] = node.session
                self._send_copy(row, node, recovery=True)
            elif row.subscription in known or not row.accepted:
                continue
            elif Mutant.NO_UPSTREAM_COPY_ON_ACTIVATION not in self._state.mutants:
                self._send_upstream_copy(row, node)

    def audit_tags(self) -> None:
        """Ask again about every part of the tree that a subscription does not hear.

        Heals what a notifier that died in two crashes, or went past a broker, has left behind.
        """
        for row in list(self._tagged.values()):
            for node in self._sessions.usable():
                away = self._state.neighbourhood.direction(node.broker) != row.towards_home
                if away and under(row.tags, node.broker):
                    self._ask_about_tags(row, node)
        self._set_audit()

    def evaluate_unconfirmed(self) -> None:
        """Look again at every subscription that is not confirmed."""
        for row in list(self._unconfirmed.values()):
            self._evaluate(row)

    # ------------------------------------------------------------ the rules

    def _check_copy(self, peer: BrokerNumber, message: SubscriptionCopy | UpstreamCopy) -> None:
        self._state.check_path(message.path, peer)
        if message.path[0] != message.subscription.home:
            raise RemoteProtocolError(peer, f"{message.subscription} does not begin at its home")
        row = self._rows.get(message.subscription)
        path_home = self.paths_home.get(message.path[0])
        if path_home is not None and path_home != message.path[::-1]:
            raise RemoteProtocolError(peer, f"two paths to broker {message.path[0]}")
        if row is not None and row.predicate != message.predicate:
            raise RemoteProtocolError(peer, f"two predicates for {message.subscription}")

    def _say_over(self, peer: BrokerNumber, subscription: SubscriptionId) -> None:
        """Answer a peer that spreads what is over."""
        self._state.counters["messages_ignored"] += 1
        home, incarnation, number = subscription
        over = EndedSubscriptions(home, 0, ((incarnation, number, number),))
        self._state.machine.send(peer, Unsubscription((over,)))

    def _row_of(self, message: SubscriptionCopy | UpstreamCopy) -> RoutedSubscription:
        row = self._rows.get(message.subscription)
        if row is None:
            row = RoutedSubscription(message.subscription, message.predicate, message.path)
            self._put(row)
        return row

    def _put(self, row: RoutedSubscription) -> None:
        self._rows[row.subscription] = row
        if not row.confirmed:
            self._unconfirmed[row.subscription] = row
        if row.local is None:
            self.learn_home(row.path[::-1])

    def _accept(self, row: RoutedSubscription) -> None:
        """Route by a subscription from now on.

        Paper: [DFT11] §V lines 388-391.
        """
        if not row.accepted:
            row.accepted = True
            self._index.add(row.subscription, row.predicate)
            self._forget_matches()

    def _evaluate(self, row: RoutedSubscription) -> None:
        """Send a subscription where it has to go; confirm it when nothing is outstanding.

        The walk goes outward over the tree until it meets brokers that answer for what lies
        behind them. One that cannot be reached is walked past, so that those behind it learn
        of the subscription, and tagged.

        Paper: [DFT11] Fig. 5, lines 3-10 and 48-56. Deviates: a tag per unreachable broker on
        the walk, where the paper tags with every partition that the broker knows.
        """
        if row.settled:
            return
        complete = True
        tags: list[Tag] = []
        cut: Cut = {}
        neighbourhood = self._state.neighbourhood
        frontier = [
            broker
            for broker in neighbourhood.neighbours[self._state.broker]
            if broker != row.towards_home
        ]
        if self._state.restarted and Mutant.RESTARTED_IS_EDGE in self._state.mutants:
            frontier = []
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
                tags.append(self._tag(row, node))
                continue
            if node.reach is Reach.ESTABLISHED and node.ready:
                self._send_copy(row, node, recovery=False)
            complete = False
        if row.local is not None and Mutant.START_BEFORE_CONFIRMED in self._state.mutants:
            complete = True
        if complete and self._may_confirm():
            if Mutant.NO_TAGS_UNREACHABLE_DONE not in self._state.mutants:
                self._set_tags(row, region([*tags, *self._tags_of_every_partition(row)]))
            row.cut = cut
            row.answers.clear()
            row.replacements.clear()
            self._watch_tags(row)
            self._make_durable(row)

    def _tag(self, row: RoutedSubscription, node: Node) -> Tag:
        """The tag for a broker that cannot be reached, and what nobody reaches behind it.

        Paper: [DFT11] §V-B, V-C.
        """
        assert node.partition, f"{node} is unreachable outside any partition"
        dead_end = len(node.path) - 1 == self._state.neighbourhood.radius
        return Tag(
            row.path + node.path[1:],
            self._state.broker,
            self._state.incarnation,
            node.partition,
            dead_end or Mutant.ISLANDS_AS_BARRIERS in self._state.mutants,
        )

    def _tags_of_every_partition(self, row: RoutedSubscription) -> list[Tag]:
        """What the paper tags besides: islands, and partitions behind whoever has confirmed.

        Paper: [DFT11] Fig. 5, lines 33-35.
        """
        if Mutant.EVERY_PARTITION_TAGGED not in self._state.mutants:
            return []
        return [
            replace(self._tag(row, node), beyond=True)
            for node in self._sessions.nodes.values()
            if node.partition
            and self._state.neighbourhood.direction(node.broker) != row.towards_home
        ]

    def _take_answer(
        self, peer: BrokerNumber, row: RoutedSubscription, message: SubscriptionConfirmation
    ) -> None:
        """Keep a confirmation; notifiers that overtook it on another way still count."""
        tags, cut = region(message.tags), dict(message.cut)
        before = row.answers.get(peer)
        if before is not None:
            raise_cut(cut, before.cut.items())
        for replacement in row.replacements:
            tags, _ = replaced(tags, cut, replacement, self._state.mutants)
        row.answers[peer] = Answer(tags, cut)
        row.source_paths.update((path[-1], path) for path in message.source_paths)

    def _replace(
        self, row: RoutedSubscription, replacement: Replacement, done: Callable[[], None]
    ) -> None:
        """Cut tags back by what a confirmation or a notifier says."""
        mutants = self._state.mutants
        row.source_paths.update((path[-1], path) for path in replacement.source_paths)
        if not row.settled:
            row.replacements.append(replacement)
            for answer in row.answers.values():
                answer.tags, _ = replaced(answer.tags, answer.cut, replacement, mutants)
            done()
            return
        local = row.local
        cut = row.cut if local is None else local.begins_after
        left, touched = replaced(row.tags, cut, replacement, mutants)
        self._set_tags(row, left)
        if not row.tags:
            self._tagged.pop(row.subscription, None)
        if local is None or not touched:
            done()
            return
        received = self._sequences.all_received().items()
        paths = [path[::-1] for path in self._sequences.paths.values()]
        raise_covered_cut(cut, touched, received, paths)
        local.tags = row.tags

        def is_on_disk() -> None:
            self._partitions.release(touched)
            done()

        self._partitions.hold(touched)
        self._on_opened_at_home(local, self._opened(row, local, touched), is_on_disk)

    def _set_tags(self, row: RoutedSubscription, tags: Region) -> None:
        """Give a row its tags; partitions of ours stay in the table while a row names them."""
        self._partitions.hold(tags)
        self._partitions.release(row.tags)
        row.tags = tags

    def _opened(self, row: RoutedSubscription, local: LocalSubscription, touched: Region) -> Opened:
        """The sources that are heard from now on, with the partition that was in the way."""
        opened: Opened = {}
        for source in local.begins_after:
            path = row.source_paths.get(source.broker)
            if path is None and source.broker in self._sequences.paths:
                path = self._sequences.paths[source.broker][::-1]
            if path is None or covers(row.tags, path):
                continue
            tag = covering(touched, path)
            if tag is not None:
                opened[source] = tag.partition
        return opened

    def _ask_about_tags(self, row: RoutedSubscription, node: Node) -> None:
        """Have a peer confirm anew; of the tags under it only what it names will stay."""
        if Mutant.NOTIFIER_BEFORE_TABLES in self._state.mutants:
            early = Replacement(under(row.tags, node.broker), (), (), ())
            self._replace(row, early, _nothing)
            if row.local is None:
                self._on_replaced(row, early)
        row.sent.pop(node.broker, None)
        self._send_copy(row, node, recovery=True)

    def _watch_tags(self, row: RoutedSubscription) -> None:
        if row.tags and Mutant.NO_NOTIFIERS not in self._state.mutants:
            self._tagged[row.subscription] = row
            self._set_audit()

    def _set_audit(self) -> None:
        key = (AUDIT, -1)
        if self._tagged and key not in self._state.deadlines:
            after_ns = self._state.parameters.audit_interval_ns
            self._state.deadlines.set(key, self._state.machine.now_ns + after_ns)

    def _make_durable(self, row: RoutedSubscription) -> None:
        """Confirm once the row is on disk.

        Whoever has the confirmation relies on it for as long as the subscription lives. Were
        the row lost in a crash, this broker might be brought up to date by a peer that has not
        had the subscription yet, and publish past it.
        """
        changes: list[Change] = []
        if row.local is None and not row.durable and self._state.parameters.persist_routing:
            changes.append(routing_change(row.subscription, row.predicate, row.path))
        row.confirming = True
        self._state.commit(changes, lambda: self._confirm(row))

    def _confirm(self, row: RoutedSubscription) -> None:
        if self._rows.get(row.subscription) is not row:
            return  # it has ended meanwhile
        row.confirmed = row.durable = True
        del self._unconfirmed[row.subscription]
        if not row.accepted:
            self._accept(row)
            self._copy_upstream(row)
        if row.local is None:
            for sender in row.senders:
                if self._sessions.current(sender):
                    self._confirm_to(sender, row)
            return
        cut = self._cut_from_here(row)
        if Mutant.NO_LAST_IN_CUT not in self._state.mutants:
            raise_cut(cut, self._sequences.all_received().items())
        self._on_confirmed_at_home(row.local, cut, row.tags)

    def _confirm_to(self, peer: BrokerNumber, row: RoutedSubscription) -> None:
        cut = tuple(self._cut_from_here(row).items())
        paths = {**row.source_paths, self._state.broker: row.path}
        brokers = dict.fromkeys(source.broker for source, _ in cut)
        tags = row.tags
        if Mutant.TAGS_DROPPED_FROM_CONFIRMATION in self._state.mutants:
            tags = ()
        self._state.machine.send(
            peer,
            SubscriptionConfirmation(
                row.subscription, tags, cut, tuple(paths[broker] for broker in brokers)
            ),
        )

    def _cut_from_here(self, row: RoutedSubscription) -> Cut:
        """The cut at this moment: what came from behind, and where local publishers are now.

        Every broker had the subscription before it passed it on, so what a local publisher
        sends after this moment meets only brokers that know it.
        """
        if Mutant.NO_CUT in self._state.mutants:
            return {}
        cut = dict(row.cut)
        raise_cut(cut, self._sequences.handed_out().items())
        if self._state.parameters.cut == "full":
            self._raise_to_received(row, cut)
        return cut

    def _raise_to_received(self, row: RoutedSubscription, cut: Cut) -> None:
        """Have a cut cover what this broker has let pass, of sources not on the home's side.

        Whoever routes by a subscription late may have called done what the subscription wants.
        """
        for source, sequence in self._sequences.all_received().items():
            path = self._sequences.paths[source.broker]
            if len(path) == 1 or path[-2] != row.towards_home:
                raise_cut(cut, ((source, sequence),))
                row.source_paths[source.broker] = row.path + path[-2::-1]

    def _copy_upstream(self, row: RoutedSubscription) -> None:
        """Make sure that the next hop towards home knows what this broker routes by.

        Paper: [DFT11] §V-B lines 445-465.
        """
        if row.local is not None or not row.accepted:
            return
        if Mutant.NO_UPSTREAM_COPY in self._state.mutants:
            return
        node = self._sessions.next_hop(row.path[::-1])
        if node is None or row.subscription in self._known[node.broker]:
            return
        if not (self._late and self._will_accept(row, node.broker)):
            self._send_upstream_copy(row, node)

    def _will_accept(self, row: RoutedSubscription, sender: BrokerNumber) -> bool:
        """Whether a broker that has sent a subscription will route by it before it starts.

        One that a broker nearer to the home got past may wait for ever, and nobody for it.
        """
        place = row.path.index(sender)
        return sender in row.senders and not any(
            row.path.index(other) < place for other in row.senders
        )

    def _send_copy(self, row: RoutedSubscription, node: Node, *, recovery: bool) -> None:
        if row.sent.get(node.broker) == node.session:
            return
        row.sent[node.broker] = node.session
        path = row.path + node.path[1:]
        self._state.machine.send(
            node.broker, SubscriptionCopy(row.subscription, row.predicate, path, recovery)
        )

    def _send_upstream_copy(self, row: RoutedSubscription, node: Node) -> None:
        if row.sent_upstream.get(node.broker) == node.session:
            return
        row.sent_upstream[node.broker] = node.session
        path = onward_path(row.path, node.path)
        self._state.machine.send(
            node.broker, UpstreamCopy(row.subscription, row.predicate, path, ())
        )

    def _audience(self, subscriptions: tuple[SubscriptionId, ...]) -> Audience:
        homes = 0
        local: list[LocalSubscription] = []
        for subscription in subscriptions:
            row = self._rows[subscription]
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
    """Make sure that tags and cut speak of what lies at or behind the end of `onward` only.

    Args:
        onward: home … the broker that speaks.

    Raises:
        RemoteProtocolError: they do not; the fault of the peer that sent them.
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


def _nothing() -> None:
    """What is to be done when there is nothing to be done."""


def _nobody_told(local: LocalSubscription, cut: Cut, tags: Region) -> None:
    raise AssertionError(f"{local} was confirmed before the parts were connected")
