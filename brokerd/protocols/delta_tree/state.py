"""The state of a broker: what its parts share, its tables on disk, and what people see.

`State` has identity, parameters, timers and counters, and the actions that wait for the disk. The
duplicate table is volatile: a table that outlived the queue would count publications as duplicates
that were lost with the queue. The rows on disk are those of own clients, and of the subscriptions
that this broker has confirmed to other brokers.

Paper: [DFT11] §V (routing table), §VII lines 676-688 (duplicates by source), §VIII-B. Deviates:
detection by source is the default; the paper's vectors are in `vectors.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from brokerd.errors import RemoteProtocolError, StorageCorrupt
from brokerd.model.client_messages import Gap
from brokerd.model.identity import (
    BrokerNumber,
    ClientId,
    PartitionId,
    Peer,
    SourceId,
    SubscriptionId,
)
from brokerd.model.predicate import Predicate, PredicateError
from brokerd.overlay.tree import Neighbourhood
from brokerd.protocols.delta_tree.messages import Path, Tag
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.regions import Cut, Region, is_plain_path, region
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability
from brokerd.protocols.parts.records import predicate_row, read_predicate

Rows = Mapping[str, Mapping[str, Any]]
"""Recovered rows, by table and key."""


COUNTERS = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "duplicates_received",
    "confirmations_sent",
    "resent_publications",
    "messages_ignored",
    "publications_withheld",
    "notifiers_sent",
    "dedupe_disagreements",
    "legitimacy_held",
    "legitimacy_violating",
    "legitimacy_violated",
    "unsubscriptions_sent",
    "tags_missing",
    "tags_extra",
)


class SourceSequences:
    """The highest received, and the highest assigned sequence number of every source.

    Attributes:
        last: per source, the highest received sequence number.
        used: per local source, the highest sequence number in use, received or not.
        paths: source broker → path from there to here.
    """

    def __init__(self, broker: BrokerNumber) -> None:
        self._broker = broker
        self.last: dict[SourceId, int] = {}
        self.used: dict[SourceId, int] = {}
        self.paths: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {}

    def received(self, source: SourceId) -> int:
        """Return the highest received sequence number of `source`."""
        return self.last.get(source, 0)

    def receive(self, source: SourceId, last: int, path: tuple[BrokerNumber, ...]) -> None:
        """Record the receipt of publications of `source` up to `last`, along `path`."""
        self.paths[source.broker] = path
        if last > self.last.get(source, 0):
            self.last[source] = last
        if source.broker == self._broker:
            self.use(source, last)

    def use(self, source: SourceId, sequence: int) -> None:
        """Record that a local publisher has used the numbers up to `sequence`, received or not."""
        if sequence > self.used.get(source, 0):
            self.used[source] = sequence


@dataclass(slots=True)
class State(Durability):
    """The shared state of a broker.

    Attributes:
        restarted: this deployment has run on this disk before.
        recovering: restarted, and not yet brought up to date by neighbours.
        log_is_read: the publications of earlier incarnations are complete.
        missing_publishers: publishers from before a restart that have neither returned nor expired.
        deadlines: keyed by (purpose, peer).
        sequences: of the sources of publications.
    """

    broker: BrokerNumber
    neighbourhood: Neighbourhood
    parameters: DeltaTreeParameters
    incarnation: int = 0
    restarted: bool = False
    recovering: bool = False
    log_is_read: bool = True
    missing_publishers: dict[ClientId, None] = field(default_factory=dict)
    deadlines: DeadlineQueue[tuple[str, Peer]] = field(default_factory=DeadlineQueue)
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    sequences: SourceSequences = field(init=False)
    _checked_paths: dict[Path, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sequences = SourceSequences(self.broker)

    def change_neighbourhood(self, neighbourhood: Neighbourhood) -> None:
        """Replace the neighbourhood after a leaf has joined or left."""
        self.neighbourhood = neighbourhood
        self._checked_paths.clear()

    @property
    def can_confirm(self) -> bool:
        """True if the last numbers of all own publishers are known.

        Until then no subscription is confirmed: this broker could not determine the publications
        after which the streams begin.
        """
        return not self.missing_publishers and self.log_is_read

    def has_left(self, broker: BrokerNumber) -> bool:
        """Return True if the broker has left the tree; other brokers may still mention it."""
        return broker in self.neighbourhood.left

    @property
    def newcomers(self) -> BrokerNumber:
        """The first number of brokers that joined after the deployment.

        A newcomer lacks every subscription that the brokers before it lack.
        """
        return self.neighbourhood.newcomers

    def check_path(self, path: Path, peer: Peer) -> None:
        """Check that `path` can be the primary path from its first broker to this broker.

        Only the part inside the neighbourhood is checked. The places of departed brokers are
        unknown: their publications still arrive through remaining brokers.

        Raises:
            RemoteProtocolError: the path is impossible; the fault of the peer that sent it.
        """
        if path in self._checked_paths:
            return
        left = 0
        while left < len(path) - 1 and self.has_left(path[left]):
            left += 1
        backwards = path[left:][::-1]
        near = backwards[: self.neighbourhood.radius + 1]
        known = self.neighbourhood.paths.get(near[-1]) if near else None
        if len(path) < 2 or known != near or not is_plain_path(path):
            raise RemoteProtocolError(peer, f"{path[:20]} is no path to broker {self.broker}")
        if len(self._checked_paths) >= 10_000:
            self._checked_paths.clear()
        self._checked_paths[path] = None


# ---------------------------------------------------------------- own clients' subscriptions


Withheld = tuple[int, int, PartitionId]
"""First and last withheld sequence number of a source, and the partition."""


Opened = dict[SourceId, PartitionId]
"""Sources that a subscription has begun to receive from, with their former partition."""


class Phase(Enum):
    """The progress of a local client's subscription."""

    PENDING = "pending"
    STARTING = "starting"  # confirmed; that and the cut are on their way to disk
    STARTED = "started"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class LocalSubscription:
    """A subscription of a client of this broker.

    Attributes:
        begins_after: per source, the sequence number after which the stream begins here: the start
            cut, raised to the client's positions before this broker restarted.
        claimed: the client has requested the subscription on the current session.
        is_restarted: this broker may have lost the start; gaps are due on each session.
        tags: the part of the tree that withholds publications; only shrinks after the start.
        start_cut: `begins_after` at the start.
        late: per source tagged at the start, the announced withheld range: first and last sequence
            number, and the partition.
        acknowledged: per source, the last acknowledged number; a repeated notice below that
            changes nothing.
        former: per source, the last number acknowledged by an earlier process of the client, of
            which the present one has no memory.
        forgotten: gaps for a client that has acknowledged more than it stated, until its request.
    """

    client: ClientId
    number: int
    subscription: SubscriptionId
    predicate: Predicate
    phase: Phase = Phase.PENDING
    begins_after: Cut = field(default_factory=dict)
    claimed: bool = False
    is_restarted: bool = False
    tags: Region = ()
    start_cut: Cut = field(default_factory=dict)
    late: dict[SourceId, Withheld] = field(default_factory=dict)
    acknowledged: dict[SourceId, int] = field(default_factory=dict)
    former: Cut = field(default_factory=dict)
    forgotten: tuple[Gap, ...] = ()

    @property
    def is_over(self) -> bool:
        """True after the end of the subscription."""
        return self.phase is Phase.ENDED

    def advance(self, source: SourceId, last: int) -> bool:
        """Record an acknowledgement through `last`; return False if it is not new."""
        known = max(self.acknowledged.get(source, 0), self.former.get(source, 0))
        if last <= max(known, self.begins_after.get(source, 0)):
            return False
        self.acknowledged[source] = last
        return True

    def set_former(self, former: Cut) -> None:
        """Set the numbers that the present process of the client need not state."""
        self.former = former
        self.acknowledged = {
            source: last
            for source, last in self.acknowledged.items()
            if last > former.get(source, 0)
        }

    def withhold(self, source: SourceId, last: int, partition: PartitionId) -> Withheld | None:
        """Withhold a source through `last`; return the new range, None without one."""
        known = self.late.get(source)
        announced = known[1] if known else self.start_cut.get(source, 0)
        if last <= announced:
            return None
        self.late[source] = (known[0] if known else announced + 1, last, partition)
        return announced + 1, last, partition


# ---------------------------------------------------------------- rows on disk


ROUTING = "routing"


SUBSCRIPTIONS = "subscriptions"


POSITIONS = "positions"


FORMER = "former_positions"


ATTACHED = "attached_publishers"


_RESTARTED = 2
"""The start, in place of True, of a subscription that this broker had lost."""


@dataclass(slots=True)
class HomeTable:
    """The recovered rows about a restarted broker's clients.

    Attributes:
        subscriptions: of local clients; pending ones still under their old ids.
        attached: publishers that had a session when the broker ended, with their incarnation.
    """

    subscriptions: list[LocalSubscription]
    attached: dict[ClientId, int]


def subscription_change(local: LocalSubscription, *, started: bool) -> Change:
    """Return the present row of a subscription."""
    cut = [[*source, sequence] for source, sequence in local.begins_after.items()]
    late = local.late.items()
    value = [
        local.subscription.incarnation,
        local.subscription.number,
        predicate_row(local.predicate),
        _RESTARTED if started and local.is_restarted else started,
        cut if started else [],
        [_tag_row(tag) for tag in local.tags],
        [[*source, first, last, *partition] for source, (first, last, partition) in late],
    ]
    return Change(SUBSCRIPTIONS, f"{local.client}/{local.number}", value)


def former_change(local: LocalSubscription) -> Change:
    """Return the row of the numbers acknowledged by earlier processes of a client."""
    cut = [[*source, last] for source, last in local.former.items()]
    return Change(FORMER, f"{local.client}/{local.number}", cut)


def read_home_table(broker: BrokerNumber, recovered: Rows) -> HomeTable:
    """Return the contents of the rows.

    Raises:
        StorageCorrupt: a row is not one that this broker writes.
    """
    table = SUBSCRIPTIONS
    key = ""
    try:
        found: dict[tuple[ClientId, int], LocalSubscription] = {}
        for key, value in recovered.get(SUBSCRIPTIONS, {}).items():
            client, _, number = key.rpartition("/")
            incarnation, serial, predicate, started, cut, tags, late = value
            local = LocalSubscription(
                client,
                int(number),
                SubscriptionId(broker, incarnation, serial),
                read_predicate(predicate),
                Phase.STARTED if started else Phase.PENDING,
                read_cut(cut),
                tags=region(_read_tag(tag) for tag in tags),
                start_cut=read_cut(cut),
                late=dict(map(_read_late, late)),
                is_restarted=started == _RESTARTED,
            )
            found[client, local.number] = local
        table = POSITIONS
        for key, last in recovered.get(POSITIONS, {}).items():
            place, _, source_text = key.rpartition("/")
            client, _, number = place.rpartition("/")
            source = SourceId(*[int(part) for part in source_text.split(".")])
            owner = found.get((client, int(number)))
            if owner is not None and owner.phase is Phase.STARTED:
                begins = owner.begins_after
                begins[source] = max(begins.get(source, 0), last)
                owner.acknowledged[source] = last
        table = FORMER
        for key, cut in recovered.get(FORMER, {}).items():
            client, _, number = key.rpartition("/")
            owner = found.get((client, int(number)))
            if owner is not None:
                owner.set_former(read_cut(cut))
        table, key = ATTACHED, ""
        attached = dict(recovered.get(ATTACHED, {}))
    except (TypeError, ValueError, PredicateError) as error:
        raise StorageCorrupt(f"table {table}, row {key!r}: {error}") from error
    return HomeTable(list(found.values()), attached)


def _tag_row(tag: Tag) -> list[Any]:
    return [list(tag.path), tag.detector, tag.incarnation, tag.number, tag.beyond]


def _read_tag(row: Any) -> Tag:
    path, detector, incarnation, number, beyond = row
    return Tag(tuple(path), detector, incarnation, number, beyond)


def _read_late(row: Any) -> tuple[SourceId, Withheld]:
    broker, publisher, incarnation, first, last, detector, epoch, number, nodes = row
    partition = PartitionId(detector, epoch, number, tuple(nodes))
    return SourceId(broker, publisher, incarnation), (first, last, partition)


def read_cut(row: Any) -> Cut:
    """Return the cut in a row of `subscription_change`."""
    return {
        SourceId(broker, publisher, incarnation): sequence
        for broker, publisher, incarnation, sequence in row
    }


def position_key(client: ClientId, number: int, source: SourceId) -> str:
    """Return the key of a row of the positions table."""
    return f"{client}/{number}/{source.broker}.{source.publisher}.{source.incarnation}"


def routing_change(subscription: SubscriptionId, predicate: Predicate, path: Path) -> Change:
    """Return the row of a subscription of another broker's client; `path`: home … here."""
    key = f"{subscription.home}.{subscription.incarnation}.{subscription.number}"
    return Change(ROUTING, key, [predicate_row(predicate), list(path)])


def routing_removal(subscription: SubscriptionId) -> Change:
    key = f"{subscription.home}.{subscription.incarnation}.{subscription.number}"
    return Change(ROUTING, key, None)


def read_routing(recovered: Rows) -> list[tuple[SubscriptionId, Predicate, Path]]:
    """Return the rows of other brokers' subscriptions.

    Raises:
        StorageCorrupt: a row is not one that this broker writes.
    """
    found: list[tuple[SubscriptionId, Predicate, Path]] = []
    key = ""
    try:
        for key, (predicate, path) in recovered.get(ROUTING, {}).items():
            home, incarnation, number = [int(part) for part in key.split(".")]
            subscription = SubscriptionId(home, incarnation, number)
            found.append((subscription, read_predicate(predicate), tuple(path)))
    except (TypeError, ValueError, PredicateError) as error:
        raise StorageCorrupt(f"table {ROUTING}, row {key!r}: {error}") from error
    return found


# ---------------------------------------------------------------- printable state


@dataclass(frozen=True, slots=True)
class VolatileState:
    """The state in memory, for people.

    Attributes:
        profile: of the parameters.
        sessions: per broker of the neighbourhood, its reachability; "active" if messages travel
            over its session.
        partitions: the number of partitions in the partition table.
        detected: per partition that this broker detected, its brokers.
        unconfirmed: the number of subscriptions without confirmation here.
        tagged: the number of subscriptions with partition tags.
        own: the number of subscriptions of own clients, by progress.
        queued: per source with unfinished publications, their number.
        sent: per next hop, the number of transfers without confirmation.
        missing_publishers: the number of publishers that this broker waits for after a restart.
    """

    profile: str
    sessions: Mapping[BrokerNumber, str]
    partitions: int
    detected: Mapping[int, Path]
    unconfirmed: int
    tagged: int
    own: Mapping[str, int]
    queued: Mapping[SourceId, int]
    sent: Mapping[BrokerNumber, int]
    missing_publishers: int

    def to_mapping(self) -> dict[str, Any]:
        """Return the state with text keys, for JSON."""
        return {
            "profile": self.profile,
            "sessions": {str(broker): reach for broker, reach in self.sessions.items()},
            "partitions": self.partitions,
            "detected": {str(number): [*nodes] for number, nodes in self.detected.items()},
            "unconfirmed": self.unconfirmed,
            "tagged": self.tagged,
            "own": dict(self.own),
            "queued": {".".join(map(str, source)): count for source, count in self.queued.items()},
            "sent": {str(hop): count for hop, count in self.sent.items()},
            "missing_publishers": self.missing_publishers,
        }
