"""What a storage takes from other storages: a finer one from its parent, a root from other roots.

It fetches as homes do. What it has on its own disk is said with the next fetch, and may go where it
came from. After a restart it begins where the other one's log begins: what comes again is known by
its epoch, or by how far its publisher has come.

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
    """Epochs of another root from `epoch` on, and which numbers of which source they are."""

    epoch: int
    source: SourceId
    first: int
    last: int


@dataclass(slots=True)
class Feed:
    """Another storage, as this one takes from it.

    Attributes:
        after: what is up to this epoch of it has come.
        open: what has come of another root and is not on disk, in its order.
        number: of the last fetch.
    """

    storage: BrokerNumber
    after: int = 0
    open: deque[Taken] = field(default_factory=deque)
    number: int = 0
    waited_ns: int = 0


class Intake:
    """All of one storage.

    Args:
        check: raises RemoteProtocolError for a run that nobody can read.
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
        """This storage begins, and has not read its log."""
        self._incarnation = incarnation

    def begin(self) -> None:
        """The log is read."""
        for feed in self._feeds.values():
            if feed.storage == self._place.parent:
                feed.after = self._log.assigned
            self._ask(feed)

    def due(self, storage: BrokerNumber) -> None:
        """Another storage has not answered for a while."""
        feed = self._feeds[storage]
        self._ask(feed, min(2 * feed.waited_ns, self._parameters.retry_limit_ns))

    def on_events(self, peer: Peer, message: Events) -> None:
        """Part of an answer; what has come before, or lies behind a hole, is let go."""
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
        """Take what another root has from its homes; what is too early waits for its turn.

        Of a publisher that was elsewhere meanwhile that root has not all, in one run.
        """
        for whole in run.by_origin():
            for part in _without_holes(whole):
                assert part.place is not None, f"{part.source} is of no storage"
                epoch = part.place.positions[0]
                feed.open.append(Taken(epoch, part.source, part.first, part.last))
                self._log.store(replace(part, place=None), feed.storage)

    def on_fetched(self, peer: Peer, message: Fetched) -> None:
        """A fetch is answered; what is missing of it is asked for again."""
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
        """What is up to this epoch of another storage is on this one's disk."""
        if feed.storage == self._place.parent:
            return self._log.durable
        while feed.open and self._log.stored(feed.open[0].source) >= feed.open[0].last:
            feed.open.popleft()
        return feed.open[0].epoch - 1 if feed.open else feed.after

    def _has_room(self, feed: Feed) -> bool:
        """Whether what was too early was kept; else it is asked for again, after a while."""
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
    """The same in runs of numbers that follow each other."""
    start = 0
    for first, last in stretches(run.sequences):
        yield run.select(range(start, start + last - first + 1))
        start += last - first + 1
