"""The state of a broker with storages, and the facts that its parts report.

On disk, a storage has a log and the tables below. Any other broker has the numbers of its
publishers only, and may fail for ever: its volatile state is rebuilt from clients and storages.

A part never acts on another part. Its methods return messages, effects and facts, and the role that
the part belongs to (`clients.py`, `storage.py`) routes each fact to the part that it concerns, in
order. A request carries the step that follows its answer as data, not as a function, so the state
can be printed.

Paper: [GES] §4.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.ges_reliable.messages import (
    Key,
    RequestAnswer,
    Sequences,
    SubscriptionRequest,
)
from brokerd.protocols.interface import Change as Row
from brokerd.protocols.interface import LogRecord
from brokerd.protocols.parts.clients.own_subscriptions import OwnClient, OwnSubscription
from brokerd.protocols.parts.records import json_value

# ---------------------------------------------------------------- tables of a storage

REGISTERED: Final = "registered"
"""Per subscription: generation, access broker, first epoch, predicate, and more if set.

More are: successor, last epoch, previous storage, and publications from there.
"""
GENERATIONS: Final = "generations"
"""Per client, the latest attachment, with its access broker."""
RECEIPTS: Final = "receipts"
"""Per subscription, the receipt; a crash may lose the last ones."""
SUCCESSORS: Final = "heirs"
"""Per subscription that has moved to another storage, that storage. Disks have the older word."""
UNITS: Final = "units"
"""Per child and number: a predicate, and the epoch after which the predicate begins."""
PROFILE: Final = "profile"
"""Per number, a predicate requested from the parent; and the deadline of a repetition."""
HOMES: Final = "homes"
"""Per access broker, and per child, the incarnation and the number of the last Change."""
RELEASED: Final = "released"
"""A single row: the epoch through which publications may be missing in the log."""
FRONTIERS: Final = "frontiers"
"""Per source, the frontier among those."""
PROVED: Final = "proved"
"""The lineage in which a fetch proved a loss of this storage's state, until acceptance."""

TABLES: Final = (
    *(REGISTERED, GENERATIONS, RECEIPTS, SUCCESSORS),
    *(UNITS, PROFILE, HOMES, RELEASED, FRONTIERS, PROVED),
)

COUNTERS: Final = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "messages_carried",
    "messages_without_route",
)

# ---------------------------------------------------------------- subscriptions of clients here


@dataclass(slots=True)
class PendingEnd:
    """An end of subscriptions that awaits answers of storages.

    Attributes:
        missing: the number of missing answers.
        then: the report that follows; or another end, which lacks one answer less then.
    """

    missing: int
    then: "EndReport | PendingEnd | None"

    @property
    def report(self) -> "EndReport | None":
        """The report that follows in the end, if any."""
        return self.then.report if isinstance(self.then, PendingEnd) else self.then


class EndReport(NamedTuple):
    """A client that receives the end of a subscription, or of all for number 0, on its session."""

    client: "RoamingClient"
    session: int
    number: int


class EndStep(NamedTuple):
    """The step after a storage's answer to an end requested from all storages.

    Attributes:
        session, number: as in EndReport.
        is_new: True if no subscription of the client had started in this attachment.
        ended: the end of which this answer is a part.
    """

    client: "RoamingClient"
    session: int
    storage: BrokerNumber
    number: int
    is_new: bool
    ended: PendingEnd


@dataclass(slots=True, eq=False)
class StoredSubscription(OwnSubscription):
    """A subscription of a client of this broker.

    Attributes:
        storage: the storage of the subscription; None while unknown.
        generation: of the client's attachment to this broker.
        delivered_epoch: the epoch through which publications were forwarded to the client.
        unacknowledged: the epochs of its publications that may have no acknowledgement yet.
        acknowledged_epoch: that of the last publication with an acknowledgement; 0 for none.
        reported_epoch: the epoch through which the storage has the client's acknowledgement.
        reported_positions: the positions that the client reports, by storage.
        successor: the successor storage.
        until: the epoch after which everything is from the successor.
        successor_start: the start at the successor, with other epochs, and the publications
            received before.
        received_of: the last numbers received from other trees.
        awaits_handover: True until the previous storage has confirmed the handover.
        earlier: other storages that may have the subscription.
        pending_end: the end that awaits the storages of this subscription.
    """

    storage: BrokerNumber | None = None
    generation: int = 0
    delivered_epoch: int = 0
    unacknowledged: deque[int] = field(default_factory=deque)
    acknowledged_epoch: int = 0
    reported_epoch: int = 0
    successor: BrokerNumber | None = None
    until: int | None = None
    successor_start: tuple[int, Sequences] | None = None
    received_of: Sequences = ()
    awaits_handover: bool = False
    reported_positions: Mapping[BrokerNumber, int] = field(default_factory=dict)
    earlier: list[BrokerNumber] = field(default_factory=list)
    pending_end: PendingEnd | None = None

    @property
    def key(self) -> Key:
        """The key of the subscription at storages."""
        return Key(self.client, self.number)


@dataclass(slots=True, eq=False)
class RoamingClient(OwnClient[StoredSubscription]):
    """A client of this broker, for whose subscriptions storages store.

    Attributes:
        generation: of the attachment to this broker; increases with every move to another broker.
        brought: the positions that the client reports for its subscriptions.
        continues: True if the client continues a source.
    """

    generation: int = 0
    continues: bool = False
    brought: dict[int, dict[StreamId, int]] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        """Return True if no subscription has started in this attachment."""
        return not any(local.started for local in self.subscriptions.values())

    def raise_generation(self, later: int | None) -> bool:
        """Exceed the generation of a later attachment; return False if there is none.

        The client counts its attachments itself. A new process without the earlier one's memory,
        or with an older copy of it, has a generation that was used at another broker.
        """
        if later is None:
            return False
        self.generation = max(self.generation, later + 1)
        return True


# ---------------------------------------------------------------- facts of an access broker


@record
class Request:
    """A request for a storage, and the step that follows its answer; None: nothing follows."""

    storage: BrokerNumber
    request: SubscriptionRequest
    step: Any = None


@record
class Answer:
    """A storage's durable answer to a request, with the step that follows."""

    answer: RequestAnswer
    step: Any


@record
class Delivery:
    """Fetched publications for the clients here, and the entry that awaits acknowledgements."""

    run: PublicationRun
    delivered: Any


@record
class SubscriptionStart:
    """A storage that has answered for a subscription, which starts by its answer."""

    client: RoamingClient
    local: StoredSubscription
    answer: RequestAnswer


@record
class FetchStart:
    """The start of fetches for a subscription, after an epoch.

    Attributes:
        reported_epoch: the epoch through which the storage has the client's acknowledgement;
            None: through `after`.
    """

    local: StoredSubscription
    after: int
    reported_epoch: int | None = None


@record
class FetchStop:
    """The end of the fetches for a subscription."""

    local: StoredSubscription


@record
class ReceiptWait:
    """The wait of a subscription for the acknowledgement of the last epoch at a storage."""

    local: StoredSubscription


@record
class LastReceipt:
    """The client's acknowledgement of the last epoch of a subscription at a storage."""

    local: StoredSubscription


@record
class Displacement:
    """A client of this broker that has a later attachment to another broker, for a storage."""

    client: ClientId


@record
class EndConfirmation:
    """An answer that a pending end awaited."""

    end: PendingEnd


# ---------------------------------------------------------------- facts of a storage


class Event(NamedTuple):
    """Publications on disk.

    Attributes:
        run: numbered by epochs.
        root: the storage that received the publications from an access broker.
    """

    run: PublicationRun
    root: BrokerNumber


@record
class LogAppend:
    """Publications that a record of the log makes durable."""

    record: LogRecord
    event: Event


@record
class LogRelease:
    """Rows that must be durable before the log is truncated in front of a record."""

    rows: Sequence[Row]
    first: int


@record
class StorageLoss:
    """A storage that lost state, and the subscriptions here that it stores for."""

    locals: "tuple[StoredSubscription, ...]"


@record
class PredicateStart:
    """A predicate that begins at the parent from now on."""


# ---------------------------------------------------------------- printable state


@dataclass(frozen=True, slots=True)
class PersistentState:
    """The state on disk: the tables, and the logs, with rows or records of this broker."""

    tables: tuple[str, ...]
    logs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StorageState:
    """The volatile state of a storage.

    Attributes:
        parent: the storage that this one takes everything from; None for a root.
        assigned: the last epoch that was assigned or taken over.
        durable: everything to be stored through this epoch is on disk.
        released: publications through this epoch are not needed.
        retained: the number of publications that may still be needed.
        out_of_order: the number of publications that wait for earlier ones.
        publishers: the number of publishers with a frontier.
        subscriptions: the number of subscriptions of each access broker.
        receipts: the lowest receipt of a subscription.
        moved: the number of subscriptions that have moved to another storage.
        dependents: per child and other root, the epoch through which it has everything on disk.
        feeds: per storage that this one takes from, the epoch through which all has arrived.
    """

    parent: BrokerNumber | None
    assigned: int
    durable: int
    released: int
    retained: int
    out_of_order: int
    publishers: int
    subscriptions: Mapping[BrokerNumber, int]
    receipts: int
    moved: int
    dependents: Mapping[BrokerNumber, int]
    feeds: Mapping[BrokerNumber, int]


@dataclass(frozen=True, slots=True)
class FollowedState:
    """The volatile state of an access broker about a storage that it follows.

    Attributes:
        after: the epoch through which everything has arrived.
        acknowledged: the epoch through which all clients here have acknowledged.
        subscriptions: the number of subscriptions here that the storage stores for.
        departures: the number of those that continue at another storage after their last receipt.
    """

    after: int
    acknowledged: int
    subscriptions: int
    departures: int


@dataclass(frozen=True, slots=True)
class VolatileState:
    """The state in memory, for people.

    Attributes:
        units: the state of the unit router.
        undone: the number of arrived publications that clients have not acknowledged.
        unstored: the number of publications of clients here that no storage has acknowledged.
        unanswered: the storages that have not answered a change of subscriptions.
        followed: the storages that this broker follows.
        storage: the state of this broker as a storage; None if it is none.
    """

    units: Mapping[str, Any]
    undone: int
    unstored: int
    unanswered: tuple[BrokerNumber, ...]
    followed: Mapping[BrokerNumber, FollowedState]
    storage: StorageState | None

    def to_mapping(self) -> dict[str, Any]:
        """Return the state with text keys, for JSON."""
        found: dict[str, Any] = json_value(asdict(self))
        return {
            "role": "storage" if self.storage is not None else "access broker",
            "epoch": self.storage.durable if self.storage is not None else 0,
            **found,
        }
