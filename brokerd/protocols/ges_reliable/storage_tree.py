"""Storage trees: the places of storages, and all that a storage requests from other storages.

Every unit below the system has a storage, a root. Finer storages are for units inside: a finer
storage takes publications from its parent, the finest coarser storage around it, up to the root.
Roots take the publications of the other units from each other.

A storage fetches as access brokers do. The next fetch confirms the durable publications, which the
other storage may then release. After a restart a storage begins at the beginning of the other log:
repeated publications are recognized by epoch, or by the frontier of their publisher.

A finer storage also requests every predicate of its unit from its parent, once. The parent answers
with the epoch after which a predicate begins, when the predicate is registered up to the root:
everything stored there later reaches the interested storages below.

Paper: [GES] §4 (replication granularity; servicing storages; storage trees; acknowledgements
between system storages; receipts of finer storages; profiles of units).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun, stretches
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.units import hierarchy_of
from brokerd.protocols.ges_reliable.carriage import Carriage
from brokerd.protocols.ges_reliable.epochs import EpochLog
from brokerd.protocols.ges_reliable.messages import Begun, Events, Fetch, Fetched, Key, Wish
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.requests import SubscriptionRequests
from brokerd.protocols.interface import Change, Commit
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """The place of a storage among the others.

    Attributes:
        parent: the storage that it takes everything from; None for a root.
        siblings: the other roots, for a root.
        children: the storages with this parent.
    """

    parent: BrokerNumber | None
    siblings: tuple[BrokerNumber, ...]
    children: tuple[BrokerNumber, ...]


def root_of(hierarchy: Hierarchy, broker: BrokerNumber) -> BrokerNumber:
    """Return the root that stores the publications of a broker's publishers.

    Paper: [GES] §4 (the system storage of the publisher's own unit).
    """
    return _around(hierarchy, broker)[-1]


def storages_for(hierarchy: Hierarchy, broker: BrokerNumber) -> tuple[BrokerNumber, ...]:
    """Return all storages, first the finest around a broker, which stores for its clients.

    Retired storages are included: they still have their logs.

    Paper: [GES] §4 (servicing storage).
    """
    own = _around(hierarchy, broker)[0]
    return (own, *(each for each, _ in hierarchy.all_storages if each != own))


def roots_of(hierarchy: Hierarchy) -> dict[BrokerNumber, BrokerNumber]:
    """Return, by storage, the root of its epochs; storages with the same root are a tree."""
    return {each: root_of(hierarchy, each) for each, _ in hierarchy.all_storages}


def place_of(hierarchy: Hierarchy, storage: BrokerNumber) -> StoragePlace:
    """Return the place of a storage among the others."""
    parent = _parent(hierarchy, storage)
    siblings = [each for each, level in hierarchy.storages if level == hierarchy.top]
    return StoragePlace(
        parent,
        tuple(each for each in siblings if parent is None and each != storage),
        tuple(each for each, _ in hierarchy.all_storages if _parent(hierarchy, each) == storage),
    )


def _parent(hierarchy: Hierarchy, storage: BrokerNumber) -> BrokerNumber | None:
    """Return the finest coarser storage around a storage, as of its addition."""
    before = hierarchy.before(storage)
    levels = dict(hierarchy.all_storages)
    coarser = [each for each in _around(before, storage) if levels[each] > levels[storage]]
    return coarser[0] if coarser else None


def _around(hierarchy: Hierarchy, broker: BrokerNumber) -> list[BrokerNumber]:
    """Return the storages of units around a broker, the finest first, without retired ones."""
    address = hierarchy.addresses[broker]
    found = [
        (level, storage)
        for storage, level in hierarchy.all_storages
        if storage not in hierarchy.retired
        and _unit(hierarchy, storage, level) == address[: len(address) - level]
    ]
    return [storage for _, storage in sorted(found)]


def _unit(hierarchy: Hierarchy, storage: BrokerNumber, level: int) -> Address:
    address = hierarchy.addresses[storage]
    return address[: len(address) - level]


def check_storages(topology: Topology, where: str) -> None:
    """Check that there is a storage, and that none was retired before the finer ones.

    The topology file checks that all units below the system have a storage.

    Raises:
        ConfigError: there is no storage, or a storage takes publications from a retired one.
    """
    hierarchy = hierarchy_of(topology)
    if not hierarchy.storages:
        raise ConfigError(
            f"{where}: {topology.name} has no storage; give one broker of each unit of level "
            f"{hierarchy.top} that level in [hierarchy.storages]"
        )
    for storage, _ in hierarchy.all_storages:
        parent = _parent(hierarchy, storage)
        if parent in hierarchy.retired and storage not in hierarchy.retired:
            names = topology.brokers
            raise ConfigError(
                f"{where}: {names[parent]} is retired, and {names[storage]} takes what it stores "
                f"from it; retire {names[storage]} first"
            )


PROFILE: Final = "profile"
"""Purpose of the deadline of a repeated request; and per number, a predicate on disk."""


@dataclass(slots=True)
class PredicateRequest:
    """A predicate, by its number at the parent; `begins` is None while there is no answer."""

    number: int
    begins: int | None = None


class UnitProfile:
    """All requests of a storage to its parent.

    Args:
        on_begun: called when some predicate has begun.
    """

    def __init__(
        self,
        parent: BrokerNumber,
        machine: EventMachine,
        changes: SubscriptionRequests,
        on_begun: Callable[[], None],
    ) -> None:
        self.changes = changes
        self._parent = parent
        self._machine = machine
        self._on_begun = on_begun
        self._asked: dict[Predicate, PredicateRequest] = {}
        self._last = 0

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore and repeat the requests on disk; the later number of two counts."""
        rows = sorted((int(number), row) for number, row in recovered.get(PROFILE, {}).items())
        for number, row in rows:
            predicate = read_predicate(row)
            before = self._asked.pop(predicate, None)
            if before is not None:
                self._end(before)
            self._last = number
            self._asked[predicate] = PredicateRequest(number)
        for predicate, asked in self._asked.items():
            self._tell(predicate, asked)

    def begins(self, predicate: Predicate) -> int | None:
        """Return the epoch after which a predicate begins; None without an answer."""
        asked = self._asked.get(predicate)
        return asked.begins if asked is not None else None

    def ask(self, predicate: Predicate) -> None:
        """Request all publications that match a predicate from now on."""
        if predicate in self._asked:
            return
        self._last += 1
        asked = self._asked[predicate] = PredicateRequest(self._last)
        row = Change(PROFILE, str(asked.number), predicate_row(predicate))
        self._machine.emit(Commit((row,), None))
        self._tell(predicate, asked)

    def keep(self, wanted: Iterable[Predicate]) -> None:
        """End all requests but these."""
        left = dict.fromkeys(wanted)
        for predicate in [each for each in self._asked if each not in left]:
            self._end(self._asked.pop(predicate))

    def _tell(self, predicate: Predicate, asked: PredicateRequest) -> None:
        def begun(answer: Begun) -> None:
            asked.begins = answer.after
            self._on_begun()

        self.changes.tell(self._parent, Wish(Key("", asked.number), 0, predicate), begun)

    def _end(self, asked: PredicateRequest) -> None:
        def over(_answer: Begun) -> None:
            self._machine.emit(Commit((Change(PROFILE, str(asked.number), None),), None))

        self.changes.tell(self._parent, Wish(Key("", asked.number), 0, None), over)


INTAKE: Final = "intake"
"""Purpose of the deadline at which another storage is asked again."""


@dataclass(slots=True)
class OpenRange:
    """Epochs of another root from `epoch` on, with their source and numbers."""

    epoch: int
    source: SourceId
    first: int
    last: int


@dataclass(slots=True)
class Feed:
    """Another storage as a feed of this storage.

    Attributes:
        after: the epoch through which everything has arrived.
        open: publications of another root that are not on disk, in its order.
        number: of the last fetch.
    """

    storage: BrokerNumber
    after: int = 0
    open: deque[OpenRange] = field(default_factory=deque)
    number: int = 0
    waited_ns: int = 0


class StorageFeeds:
    """All feeds of a storage.

    Args:
        check: raises RemoteProtocolError for a malformed run.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        place: StoragePlace,
        log: EpochLog,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        carriage: Carriage,
        check: Callable[[PublicationRun], object],
    ) -> None:
        self._broker = broker
        self._place = place
        self._log = log
        self._machine = machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._carriage = carriage
        self._check = check
        self._incarnation = 0
        others = place.siblings if place.parent is None else (place.parent,)
        self._feeds = {storage: Feed(storage) for storage in others}

    def start(self, incarnation: int) -> None:
        """Start an incarnation; the log is not read yet."""
        self._incarnation = incarnation

    def begin(self) -> None:
        """Begin to fetch, after the log is read."""
        for feed in self._feeds.values():
            if feed.storage == self._place.parent:
                feed.after = self._log.assigned
            self._ask(feed)

    def due(self, storage: BrokerNumber) -> None:
        """Repeat a fetch that has not been answered."""
        feed = self._feeds[storage]
        self._ask(feed, min(2 * feed.waited_ns, self._parameters.retry_limit_ns))

    def on_events(self, peer: Peer, message: Events) -> None:
        """Take a part of an answer; drop publications that are known, or behind a gap.

        Raises:
            RemoteProtocolError: the run is malformed; the fault of the peer.
        """
        feed = self._feed_of(message)
        if feed is None or message.after > feed.after:
            return
        rest = message.run.after(feed.after)
        if rest is None:
            return
        self._check(rest)
        if feed.storage == self._place.parent:
            self._log.keep(rest, feed.storage)
        else:
            self._store(feed, rest)
        feed.after = rest.last

    def _store(self, feed: Feed, run: PublicationRun) -> None:
        """Take another root's publications from access brokers; out-of-order ones wait.

        A run of that root has gaps if a publisher was elsewhere meanwhile.
        """
        for whole in run.by_origin():
            for part in _without_holes(whole):
                assert part.place is not None, f"{part.source} is of no storage"
                epoch = part.place.positions[0]
                feed.open.append(OpenRange(epoch, part.source, part.first, part.last))
                self._log.store(replace(part, place=None), feed.storage)

    def on_fetched(self, peer: Peer, message: Fetched) -> None:
        """Take the end of an answer, and fetch missing publications again."""
        feed = self._feed_of(message)
        if feed is None:
            return
        is_whole = message.after <= feed.after
        if is_whole:
            feed.after = max(feed.after, message.through)
            if feed.storage == self._place.parent:
                self._log.reach(feed.after)
        if message.number == feed.number and is_whole and self._has_room(feed):
            self._ask(feed)

    def _feed_of(self, message: Events | Fetched) -> Feed | None:
        feed = self._feeds.get(message.storage)
        is_current = self._log.is_read and message.incarnation == self._incarnation
        return feed if is_current else None

    def _on_disk(self, feed: Feed) -> int:
        """Return the epoch of another storage through which everything is on this disk."""
        if feed.storage == self._place.parent:
            return self._log.durable
        while feed.open and self._log.stored(feed.open[0].source) >= feed.open[0].last:
            feed.open.popleft()
        return feed.open[0].epoch - 1 if feed.open else feed.after

    def _has_room(self, feed: Feed) -> bool:
        """Return True if out-of-order publications were stored.

        Otherwise the publications are fetched again after a while.
        """
        if not feed.open:
            return True
        oldest = feed.open[0]
        return self._log.has(oldest.source, oldest.first, oldest.last)

    def _ask(self, feed: Feed, waited_ns: int = 0) -> None:
        parameters, through = self._parameters, self._on_disk(feed)
        if not self._has_room(feed):
            feed.after = through
            feed.open.clear()
        feed.number += 1
        feed.waited_ns = waited_ns or parameters.timeout_ns
        due_ns = self._machine.now_ns + feed.waited_ns + parameters.fetch_wait_ns
        self._deadlines.set((INTAKE, feed.storage), due_ns)
        about = self._broker, self._incarnation, feed.number
        target, most = self._carriage.to(feed.storage), parameters.fetch_publications
        self._carriage.send(Fetch(target, 0, *about, feed.after, most, through, (), stores=True))


def _without_holes(run: PublicationRun) -> Iterator[PublicationRun]:
    """Yield the same publications in runs of consecutive numbers."""
    start = 0
    for first, last in stretches(run.sequences):
        yield run.select(range(start, start + last - first + 1))
        start += last - first + 1
