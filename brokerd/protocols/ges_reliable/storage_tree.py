"""Storage trees: all that a storage requests from its parent, or from the other roots.

A storage fetches as access brokers do. The next fetch confirms the durable publications, which the
other storage may then release. After a restart a storage begins at the beginning of the other log:
repeated publications are recognized by epoch, or by the frontier of their publisher.

A finer storage also requests every predicate of its unit from its parent, once. The parent answers
with the epoch after which a predicate begins, when the predicate is registered up to the root:
everything stored there later reaches the interested storages below.

Paper: [GES] §4 (acknowledgements between system storages; receipts of finer storages; a unit's
profile is that of all in it; epochs of profile changes).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun, stretches
from brokerd.protocols.ges_reliable.definition import StoragePlace
from brokerd.protocols.ges_reliable.epochs import EpochLog
from brokerd.protocols.ges_reliable.messages import (
    Events,
    Fetch,
    Fetched,
    Key,
    RequestAnswer,
    SubscriptionRequest,
    Targets,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.state import PROFILE, LogAppend, PredicateStart, Request
from brokerd.protocols.interface import Change, Commit, Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.records import predicate_row, read_predicate


@dataclass(slots=True)
class PredicateRequest:
    """A predicate, by its number at the parent; `begins` is None while there is no answer."""

    number: int
    starts_after: int | None = None


class PredicateEnd(NamedTuple):
    """The step after the parent's answer to the end of a predicate."""

    number: int


class UnitProfile:
    """All predicates of a storage's unit, as requests to its parent."""

    def __init__(self, parent: BrokerNumber) -> None:
        self._parent = parent
        self._requests: dict[Predicate, PredicateRequest] = {}
        self._last = 0

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> Iterator[Request]:
        """Restore and repeat the requests on disk; the later number of two counts."""
        rows = sorted((int(number), row) for number, row in recovered.get(PROFILE, {}).items())
        for number, row in rows:
            predicate = read_predicate(row)
            before = self._requests.pop(predicate, None)
            if before is not None:
                yield self._end(before)
            self._last = number
            self._requests[predicate] = PredicateRequest(number)
        for predicate, request in self._requests.items():
            yield self._begin(predicate, request)

    def starts_after(self, predicate: Predicate) -> int | None:
        """Return the epoch after which a predicate begins; None without an answer."""
        request = self._requests.get(predicate)
        return request.starts_after if request is not None else None

    def request(self, predicate: Predicate) -> Iterator[Commit | Request]:
        """Request all publications that match a predicate from now on."""
        if predicate in self._requests:
            return
        self._last += 1
        request = self._requests[predicate] = PredicateRequest(self._last)
        row = Change(PROFILE, str(request.number), predicate_row(predicate))
        yield Commit((row,), None)
        yield self._begin(predicate, request)

    def keep(self, wanted: Iterable[Predicate]) -> Iterator[Request]:
        """End all requests but these."""
        left = dict.fromkeys(wanted)
        for predicate in [each for each in self._requests if each not in left]:
            yield self._end(self._requests.pop(predicate))

    def on_answer(
        self, step: PredicateRequest | PredicateEnd, answer: RequestAnswer
    ) -> Iterator[PredicateStart | Commit]:
        """Take the parent's answer to a request."""
        if isinstance(step, PredicateEnd):
            yield Commit((Change(PROFILE, str(step.number), None),), None)
            return
        step.starts_after = answer.after
        yield PredicateStart()

    def _begin(self, predicate: Predicate, request: PredicateRequest) -> Request:
        return Request(
            self._parent, SubscriptionRequest(Key("", request.number), 0, predicate), request
        )

    def _end(self, request: PredicateRequest) -> Request:
        end = SubscriptionRequest(Key("", request.number), 0, None)
        return Request(self._parent, end, PredicateEnd(request.number))


INTAKE: Final = "intake"
"""Purpose of the deadline of the next query to another storage."""


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
        reported: the epoch that the last fetch reports as on disk.
    """

    storage: BrokerNumber
    after: int = 0
    open: deque[OpenRange] = field(default_factory=deque)
    number: int = 0
    waited_ns: int = 0
    reported: int = 0


class StorageFeeds:
    """All feeds of a storage.

    Args:
        log: the log of this storage.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        place: StoragePlace,
        log: EpochLog,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        targets: Targets,
    ) -> None:
        self._broker = broker
        self._place = place
        self._log = log
        self._deadlines = deadlines
        self._parameters = parameters
        self._targets = targets
        self._incarnation = 0
        others = place.siblings if place.parent is None else (place.parent,)
        self._feeds = {storage: Feed(storage) for storage in others}

    def start(self, incarnation: int) -> None:
        """Start an incarnation; the log is not read yet."""
        self._incarnation = incarnation

    def begin(self, now_ns: Instant) -> Iterator[Fetch]:
        """Begin to fetch, after the log is read."""
        for feed in self._feeds.values():
            if feed.storage == self._place.parent:
                feed.after = self._log.assigned
            yield self._request(feed, now_ns)

    def due(self, storage: BrokerNumber, now_ns: Instant) -> Fetch:
        """Repeat a fetch that has not been answered."""
        feed = self._feeds[storage]
        return self._request(feed, now_ns, min(2 * feed.waited_ns, self._parameters.retry_limit_ns))

    def reached(self) -> dict[BrokerNumber, int]:
        """Return, by storage, the epoch through which everything has arrived."""
        return {storage: feed.after for storage, feed in self._feeds.items()}

    def rest_of(self, message: Events) -> PublicationRun | None:
        """Return the new publications of an answer; None if they are known, or behind a gap."""
        feed = self._feed_of(message)
        if feed is None or message.after > feed.after:
            return None
        return message.run.after(feed.after)

    def on_rest(self, storage: BrokerNumber, rest: PublicationRun) -> Iterator[LogAppend]:
        """Store new publications of an answer."""
        feed = self._feeds[storage]
        if feed.storage == self._place.parent:
            yield from self._log.keep(rest, feed.storage)
        else:
            yield from self._store(feed, rest)
        feed.after = rest.last

    def _store(self, feed: Feed, run: PublicationRun) -> Iterator[LogAppend]:
        """Take another root's publications from access brokers; out-of-order ones wait.

        A run of that root has gaps if a publisher was elsewhere meanwhile.
        """
        for whole in run.split_by_origin():
            for part in _without_holes(whole):
                assert part.place is not None, f"{part.source} is of no storage"
                epoch = part.place.positions[0]
                feed.open.append(OpenRange(epoch, part.source, part.first, part.last))
                yield from self._log.store(replace(part, place=None), feed.storage)

    def on_fetched(self, message: Fetched, now_ns: Instant) -> Iterator[Fetch]:
        """Take the end of an answer, and fetch missing publications again."""
        feed = self._feeds.get(message.storage)
        if message.is_request:
            if feed is not None and self._log.is_read:
                yield self._request(feed, now_ns)
            return
        feed = self._feed_of(message)
        if feed is None:
            return
        if message.waits:
            if message.number == feed.number and self._has_room(feed):
                self._deadlines.cancel((INTAKE, feed.storage))
                self.report(now_ns)
            return
        is_whole = message.after <= feed.after
        if is_whole:
            feed.after = max(feed.after, message.through)
            if feed.storage == self._place.parent:
                self._log.reach(feed.after)
        if message.number != feed.number:
            return
        if is_whole and self._has_room(feed):
            yield self._request(feed, now_ns)
        elif not self._parameters.fetch_wait_ns:
            self._deadlines.set((INTAKE, feed.storage), now_ns + self._parameters.timeout_ns)

    def report(self, now_ns: Instant) -> None:
        """Schedule a report of the epochs on disk; a storage may hold the last fetch for long."""
        if self._parameters.fetch_wait_ns:
            return
        for feed in self._feeds.values():
            is_scheduled = (INTAKE, feed.storage) in self._deadlines
            if not is_scheduled and self._on_disk(feed) > feed.reported:
                due_ns = now_ns + self._parameters.receipt_interval_ns
                self._deadlines.set((INTAKE, feed.storage), due_ns)

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

    def _request(self, feed: Feed, now_ns: Instant, waited_ns: int = 0) -> Fetch:
        parameters, through = self._parameters, self._on_disk(feed)
        if not self._has_room(feed):
            feed.after = through
            feed.open.clear()
        feed.number += 1
        feed.reported = through
        feed.waited_ns = waited_ns or parameters.timeout_ns
        due_ns = now_ns + feed.waited_ns + parameters.fetch_wait_ns
        self._deadlines.set((INTAKE, feed.storage), due_ns)
        about = self._broker, self._incarnation, feed.number
        target, most = self._targets.to(feed.storage), parameters.fetch_publications
        return Fetch(target, 0, *about, feed.after, most, through, (), stores=True)


def _without_holes(run: PublicationRun) -> Iterator[PublicationRun]:
    """Yield the same publications in runs of consecutive numbers."""
    start = 0
    for first, last in stretches(run.sequences):
        yield run.select(range(start, start + last - first + 1))
        start += last - first + 1
