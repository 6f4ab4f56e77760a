"""Publications that a storage takes from other storages: from its parent, or from other roots.

A storage fetches as access brokers do. The next fetch confirms the durable publications, which the
other storage may then release. After a restart a storage begins at the beginning of the other log:
repeated publications are recognized by epoch, or by the frontier of their publisher.

Paper: [GES] §4 (acknowledgements between system storages; receipts of finer storages).
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun, stretches
from brokerd.protocols.ges_reliable.carriage import Carriage
from brokerd.protocols.ges_reliable.epoch_log import EpochLog
from brokerd.protocols.ges_reliable.messages import Events, Fetch, Fetched
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.places import StoragePlace
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

INTAKE: Final = "intake"
"""Purpose of the deadline at which another storage is asked again."""


@dataclass(slots=True)
class Taken:
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
    open: deque[Taken] = field(default_factory=deque)
    number: int = 0
    waited_ns: int = 0


class Intake:
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
                feed.open.append(Taken(epoch, part.source, part.first, part.last))
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
