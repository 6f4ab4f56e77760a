"""What a client library decides: numbering, resubmission, duplicate check, acknowledgements.

The shell around it (trio client, simulator) says what happened to the session and which
messages came, carries `messages_to_send()` to the broker, and hands on what comes back. There
is no clock in here: pauses before a retry are the shell's.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    ClientMessage,
    Connect,
    Connected,
    Deliveries,
    Notice,
    Publish,
    PublishAcknowledged,
    Refused,
    Subscribe,
    Subscribed,
    SubscriptionState,
)
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import Buffer, PublicationRun, merge_runs, stretches

RUN_LIMIT_BYTES = 1 << 19
RUN_LIMIT_PUBLICATIONS = 8_192
SHORT_RUN = 32

_NOBODY = SourceId(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Attached:
    """The broker knows this client; `source` is None for one that only reads."""

    source: SourceId | None
    broker_incarnation: int


@dataclass(frozen=True, slots=True)
class SubscriptionAnswered:
    """The broker told the state of a subscription; said again after each attach."""

    number: int
    state: SubscriptionState


@dataclass(frozen=True, slots=True)
class PublicationsDone:
    """All publications numbered `first` to `last` are done, and had not been before."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Received:
    """Publications that the application has not had for the named subscriptions.

    The shell calls `take` with `serial` when the application has them.
    """

    deliveries: tuple[Deliveries, ...]
    serial: int


@dataclass(frozen=True, slots=True)
class Announced:
    """Matching publications that a partition keeps from a subscription, not announced before.

    The shell calls `take` with `serial` when the application knows.
    """

    notice: Notice
    serial: int


@dataclass(frozen=True, slots=True)
class Withheld:
    """Publications that the broker repeated and the application has had."""

    deliveries: Deliveries


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The broker will not do this, now or later."""

    refused: Refused


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The broker cannot do this yet.

    After a pause the shell calls `subscribe_again(refused.number)`, or, where the number is 0,
    ends the session and opens another.
    """

    refused: Refused


ClientEvent = (
    Attached
    | SubscriptionAnswered
    | PublicationsDone
    | Received
    | Announced
    | Withheld
    | RequestRefused
    | RetryLater
)


class ClientCore:
    """One client of one broker, across any number of sessions.

    What it publishes is numbered from 1 and kept until the broker says it is done; after each
    attach everything kept is sent again, in order. What it receives is given on once per
    subscription and in order, whatever the broker repeats.

    It relies on the broker delivering, within one session, the publications of a source in
    increasing order.

    Attributes:
        name: who it is at its broker.
        incarnation: of its publication counter.
        source: under which source its publications go; None until the first attach.
        attached: whether the current session is connected in the protocol's sense.
        duplicates: publications kept from the application because it had them.
        resubmitted: publications sent more than once.
    """

    def __init__(self, name: ClientId, *, publishes: bool, incarnation: int = 1) -> None:
        self.name = name
        self.source: SourceId | None = None
        self.attached = False
        self.duplicates = 0
        self.resubmitted = 0
        self._publishes = publishes
        self.incarnation = incarnation
        self._session = 0
        self._urgent: list[ClientMessage] = []
        # publishing
        self._next_sequence = 1
        self._highest_sent = 0
        self._window = _Window()
        self._unsent: list[PublicationRun] = []
        self._singles = _Singles()
        # subscribing
        self._predicates: dict[int, Predicate] = {}
        self._received: dict[tuple[int, SourceId], int] = {}
        self._taken: dict[tuple[int, SourceId], int] = {}
        self._serial = 0
        self._untaken: deque[_Untaken] = deque()
        self._acknowledgements: dict[SourceId, list[tuple[int, int]]] = {}

    # ------------------------------------------------------------ the session

    def on_established(self) -> None:
        """A session with the broker is up; the last one is over."""
        self.on_lost()
        self._session += 1
        resume: dict[int, list[tuple[SourceId, int]]] = {}
        for (number, source), sequence in self._taken.items():
            resume.setdefault(number, []).append((source, sequence))
        oldest = self._window.first() or self._oldest_unsent()
        positions = tuple((number, tuple(seen)) for number, seen in resume.items())
        highest = self._next_sequence - 1
        self._urgent.append(Connect(self._publishes, self.incarnation, oldest, highest, positions))

    def on_lost(self) -> None:
        """The session is over; nothing of it may be acknowledged any more."""
        self.attached = False
        self._urgent.clear()
        self._acknowledgements.clear()

    def on_message(self, message: ClientMessage) -> list[ClientEvent]:
        """Take the session's next message; return what the application should know.

        Raises:
            RemoteProtocolError: no broker may say that here; the session must be closed.
        """
        match message:
            case Deliveries():
                return self._on_deliveries(message)
            case Notice():
                return self._on_notice(message)
            case PublishAcknowledged(first, last):
                return self._on_acknowledged(first, last)
            case Connected():
                return [self._on_connected(message)]
            case Subscribed(number, state):
                self._check_number(number)
                return [SubscriptionAnswered(number, state)]
            case Refused():
                if message.number:
                    self._check_number(message.number)
                return [RetryLater(message) if message.retry else RequestRefused(message)]
        raise RemoteProtocolError("broker", f"{type(message).__name__} is not for a client")

    def messages_to_send(self) -> list[ClientMessage]:
        """Everything the broker should be told now, in order, once.

        Publications handed over one by one since the last call go as one run.
        """
        messages, self._urgent = self._urgent, []
        if not self.attached:
            return messages
        for source, ranges in self._acknowledgements.items():
            messages.extend(Acknowledge(source, first, last) for first, last in ranges)
        self._acknowledgements.clear()
        for run in self._take_unsent():
            self._window.add(run)
            messages.append(Publish(run))
        return messages

    # ------------------------------------------------------------ publishing

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""
        return self._next_sequence

    @property
    def outstanding(self) -> int:
        """How many publications are not known to be done."""
        return self._window.publications + self._next_sequence - self._oldest_unsent()

    def publish(self, blob: bytes, payload: Buffer) -> int:
        """Take one publication with encoded attributes; returns its number."""
        self._singles.add(blob, payload)
        self._next_sequence += 1
        return self._next_sequence - 1

    def publish_many(
        self,
        attribute_table: Sequence[bytes],
        attribute_index: Sequence[int],
        payload_lengths: int | tuple[int, ...],
        payload: Buffer,
    ) -> range:
        """Take consecutive publications; returns their numbers.

        Args:
            attribute_table: distinct encoded attribute maps; not all need be used.
            attribute_index: per publication, its place in the table; `bytes` is the fast kind.
            payload_lengths: of each payload, or one for all.
            payload: all payloads, one after the other; must not change afterwards.
        """
        count = len(attribute_index)
        size = payload_lengths * count if isinstance(payload_lengths, int) else sum(payload_lengths)
        assert count, "nothing to publish"
        assert size == len(payload), f"{count} payloads of {size} bytes: {len(payload)}"
        self._flush_singles()
        table, index = _used_attributes(attribute_table, attribute_index)
        first = self._next_sequence
        self._next_sequence += count
        sequences = range(first, first + count)
        source = self.source or _NOBODY
        pieces = (payload,) if size else ()
        run = PublicationRun(source, sequences, table, index, payload_lengths, pieces)
        self._unsent.extend(_of_bounded_size(run))
        return sequences

    def _oldest_unsent(self) -> int:
        if self._unsent:
            return self._unsent[0].first
        return self._next_sequence - len(self._singles)

    def _flush_singles(self) -> None:
        if self._singles:
            first = self._next_sequence - len(self._singles)
            run = self._singles.run(self.source or _NOBODY, first)
            self._singles = _Singles()
            self._unsent.extend(_of_bounded_size(run))

    def _take_unsent(self) -> list[PublicationRun]:
        self._flush_singles()
        runs, self._unsent = self._unsent, []
        if runs:
            self._highest_sent = runs[-1].last
        return _in_good_sizes(runs)

    def _on_connected(self, message: Connected) -> Attached:
        if self.attached:
            raise RemoteProtocolError("broker", "a second Connected on one session")
        if (message.source is not None) != self._publishes:
            raise RemoteProtocolError("broker", f"gave the source {message.source}")
        if self.source is None and message.source is not None:
            self._flush_singles()
            self._unsent = [replace(run, source=message.source) for run in self._unsent]
            self.source = message.source
        if self.source != message.source:
            # Another number would make old publications new ones to every subscriber.
            raise RemoteProtocolError("broker", f"{self.source} became {message.source}")
        self.attached = True
        for number, predicate in self._predicates.items():
            self._urgent.append(Subscribe(number, predicate))
        for run in _in_good_sizes(self._window.runs()):
            self.resubmitted += len(run)
            self._urgent.append(Publish(run))
        return Attached(message.source, message.broker_incarnation)

    def _on_acknowledged(self, first: int, last: int) -> list[ClientEvent]:
        if not self.attached or not 0 < first <= last <= self._highest_sent:
            raise RemoteProtocolError("broker", f"acknowledged {first} to {last}, never sent here")
        return [PublicationsDone(*done) for done in self._window.remove(first, last)]

    # ------------------------------------------------------------ subscribing

    def subscribe(self, predicate: Predicate) -> int:
        """Ask for publications, now and after each attach; returns the subscription's number."""
        number = len(self._predicates) + 1
        self._predicates[number] = predicate
        self.subscribe_again(number)
        return number

    def subscribe_again(self, number: int) -> None:
        """Repeat a request that was refused for the time being."""
        if self.attached:
            self._urgent.append(Subscribe(number, self._predicates[number]))

    def take(self, serial: int) -> None:
        """The application has everything received up to this serial; its broker may forget it."""
        while self._untaken and self._untaken[0].serial <= serial:
            taken = self._untaken.popleft()
            for number in taken.subscriptions:
                key = (number, taken.source)
                self._taken[key] = max(self._taken.get(key, 0), taken.last)
            if taken.session == self._session and self.attached:
                self._acknowledge(taken.source, taken.first, taken.last)

    def _acknowledge(self, source: SourceId, first: int, last: int) -> None:
        ranges = self._acknowledgements.setdefault(source, [])
        if ranges and ranges[-1][1] < first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))

    def _on_deliveries(self, message: Deliveries) -> list[ClientEvent]:
        if not self.attached:
            raise RemoteProtocolError("broker", "deliveries before Connected")
        run, numbers = message.run, message.subscriptions
        for number in numbers:
            self._check_number(number)
        fresh, repeated = self._sort_out_duplicates(message)
        if fresh:
            self._serial += 1
        # What was repeated only is acknowledged too, after all that was received before it.
        entry = _Untaken(self._serial, self._session, run.source, run.first, run.last, numbers)
        self._untaken.append(entry)
        events: list[ClientEvent] = [Withheld(item) for item in repeated]
        if fresh:
            events.append(Received(fresh, self._serial))
        elif len(self._untaken) == 1:
            self.take(self._serial)
        return events

    def _on_notice(self, message: Notice) -> list[ClientEvent]:
        if not self.attached:
            raise RemoteProtocolError("broker", "a notice before Connected")
        number, source, ranges = message.subscription, message.source, message.ranges
        self._check_number(number)
        numbers = [sequence for stretch in ranges for sequence in stretch]
        if not numbers or numbers[0] < 1 or numbers != sorted(numbers):
            raise RemoteProtocolError("broker", f"a notice of {ranges[:10]}")
        seen = self._received.get((number, source), 0)
        self._received[number, source] = max(seen, numbers[-1])
        fresh = tuple((max(first, seen + 1), last) for first, last in ranges if last > seen)
        if fresh:
            self._serial += 1
        entry = _Untaken(self._serial, self._session, source, numbers[0], numbers[-1], (number,))
        self._untaken.append(entry)
        if fresh:
            return [Announced(replace(message, ranges=fresh), self._serial)]
        if len(self._untaken) == 1:
            self.take(self._serial)
        return []

    def _sort_out_duplicates(
        self, message: Deliveries
    ) -> tuple[tuple[Deliveries, ...], list[Deliveries]]:
        """What was not received before, and what was, per subscription and source."""
        run, numbers = message.run, message.subscriptions
        source, first, last = run.source, run.first, run.last
        received = self._received
        seen = [received.get((number, source), 0) for number in numbers]
        for number, upto in zip(numbers, seen, strict=True):
            received[number, source] = max(upto, last)
        if max(seen) < first:
            return (message,), []
        # Between two positions the same subscriptions are missing the publications.
        fresh: list[Deliveries] = []
        repeated: list[Deliveries] = []
        rest: PublicationRun | None = run
        for upto in sorted({*seen, last}):
            stretch = rest.up_to(upto) if rest is not None else None
            rest = rest.after(upto) if rest is not None else None
            if stretch is None:
                continue
            missing: list[int] = []
            having: list[int] = []
            for number, position in zip(numbers, seen, strict=True):
                (missing if position < stretch.first else having).append(number)
            self.duplicates += len(stretch) * len(having)
            if missing:
                fresh.append(Deliveries(stretch, tuple(missing)))
            if having:
                repeated.append(Deliveries(stretch, tuple(having)))
        return tuple(fresh), repeated

    def _check_number(self, number: int) -> None:
        if number not in self._predicates:
            raise RemoteProtocolError("broker", f"there is no subscription {number}")


@dataclass(slots=True)
class _Untaken:
    """What one message delivered, until the application has it."""

    serial: int
    session: int
    source: SourceId
    first: int
    last: int
    subscriptions: tuple[int, ...]


class _Singles:
    """Publications handed over one by one, until they become a run."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._index: list[int] = []
        self._payloads: list[Buffer] = []

    def __len__(self) -> int:
        return len(self._index)

    def add(self, blob: bytes, payload: Buffer) -> None:
        self._index.append(self._places.setdefault(blob, len(self._places)))
        self._payloads.append(payload)

    def run(self, source: SourceId, first: int) -> PublicationRun:
        count = len(self._index)
        lengths = tuple(map(len, self._payloads))
        return PublicationRun(
            source,
            range(first, first + count),
            tuple(self._places),
            bytes(self._index) if len(self._places) <= 256 else tuple(self._index),
            lengths[0] if lengths.count(lengths[0]) == count else lengths,
            tuple(payload for payload in self._payloads if len(payload)),
        )


class _Window:
    """Runs that were sent and are not known to be done, in order of their numbers."""

    def __init__(self) -> None:
        self.publications = 0
        self._lasts: list[int] = []
        self._runs: list[PublicationRun] = []

    def first(self) -> int:
        """The lowest number held; 0 when there is none."""
        return self._runs[0].first if self._runs else 0

    def runs(self) -> list[PublicationRun]:
        return list(self._runs)

    def add(self, run: PublicationRun) -> None:
        self.publications += len(run)
        self._lasts.append(run.last)
        self._runs.append(run)

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Let go what is numbered from `first` to `last`; returns which that was, as ranges."""
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._lasts, last)
        if end < len(self._runs) and self._runs[end].first <= last:
            end += 1
        kept: list[PublicationRun] = []
        gone: list[tuple[int, int]] = []
        for run in self._runs[start:end]:
            before, rest = run.up_to(first - 1), run.after(first - 1)
            assert rest is not None, f"{run.last} is below {first}"
            inside, after = rest.up_to(last), rest.after(last)
            kept.extend(part for part in (before, after) if part is not None)
            if inside is None:
                continue
            self.publications -= len(inside)
            for stretch in stretches(inside.sequences):
                if gone and gone[-1][1] + 1 == stretch[0]:
                    gone[-1] = (gone[-1][0], stretch[1])
                else:
                    gone.append(stretch)
        self._runs[start:end] = kept
        self._lasts[start:end] = [run.last for run in kept]
        return gone


def _used_attributes(
    table: Sequence[bytes], index: Sequence[int]
) -> tuple[tuple[bytes, ...], Sequence[int]]:
    """The blobs that are used, in order of first use, and the index into them."""
    used = list(dict.fromkeys(index))
    if len(used) == len(table) and used == list(range(len(table))):
        return tuple(table), index
    blobs = tuple([table[place] for place in used])
    if isinstance(index, bytes):
        translation = bytearray(256)
        for new, old in enumerate(used):
            translation[old] = new
        return blobs, index.translate(translation)
    places = {old: new for new, old in enumerate(used)}
    moved = [places[place] for place in index]
    return blobs, bytes(moved) if len(blobs) <= 256 else tuple(moved)


def _weight(run: PublicationRun) -> int:
    """About how many bytes a run takes on the wire."""
    return run.payload_bytes() + 12 * len(run) + sum(map(len, run.attribute_table))


def _of_bounded_size(run: PublicationRun) -> list[PublicationRun]:
    """The run in parts that fit into a frame with room to spare, halved until they do."""
    if len(run) == 1 or (len(run) <= RUN_LIMIT_PUBLICATIONS and _weight(run) <= RUN_LIMIT_BYTES):
        return [run]
    half = len(run) // 2
    return [
        *_of_bounded_size(run.select(range(half))),
        *_of_bounded_size(run.select(range(half, len(run)))),
    ]


def _in_good_sizes(runs: list[PublicationRun]) -> list[PublicationRun]:
    """The same publications in fewer runs where many are short: a run costs as much as a frame."""
    if len(runs) < 2 or sum(map(len, runs)) >= SHORT_RUN * len(runs):
        return runs
    merged: list[PublicationRun] = []
    gathered: list[PublicationRun] = []
    publications = weight = 0
    for run in runs:
        size = _weight(run)
        if gathered and (
            publications + len(run) > RUN_LIMIT_PUBLICATIONS or weight + size > RUN_LIMIT_BYTES
        ):
            merged.append(merge_runs(gathered))
            gathered, publications, weight = [], 0, 0
        gathered.append(run)
        publications += len(run)
        weight += size
    merged.append(merge_runs(gathered))
    return merged
