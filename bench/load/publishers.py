"""The publishers of one load generator: due, sent and acknowledged publications.

The clock offers publications to a publisher, which sends them through the client library as soon as
it is attached and its window has room. A waiting publication keeps its intended time. So a broker
can slow down sending, but never the schedule.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from bench.load.content import ContentBlock, ContentTables, SourceContent
from bench.load.pacing import Histogram
from bench.load.records import LatencySamples, publication_rows
from brokerd.history.records import ACKNOWLEDGED, ACKS, INTENTS
from brokerd.wire.attributes import EncodedAttributes

_LONGEST_RUN = 1024
SENT_TIMES_KEPT = 100_000
"""Number of intended times of sent publications that are removed together."""
_BATCH_SHARE = 8  # at rate `max`, a batch waits for this part of the window to be free


class PublishingClient(Protocol):
    """The part of the client library that a publisher needs."""

    @property
    def attached(self) -> bool:
        """True if a publication can be sent at once."""

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""

    @property
    def outstanding(self) -> int:
        """The number of publications without a known outcome."""

    def publish_many_nowait(
        self, attribute_table: Any, attribute_index: Any, payload_lengths: int, payload: Any
    ) -> range:
        """Accept consecutive publications, and return their numbers."""


@dataclass(frozen=True, slots=True)
class PublisherSetting:
    """The settings of one publisher, from the controller.

    Attributes:
        index: index in the content formula.
        name: name of the publisher in logs.
        client: name of the client at its broker; different in every run.
        broker, address: the broker of the publisher.
        rate: (numerator, denominator) per second; (0, 1) for the highest rate of the window; the
            peak of a shape.
        window: greatest number of unacknowledged publications.
        batch: greatest number of publications that the client receives at once.
        failover: addresses of further brokers, in this order, if the broker is unreachable.
        shape: the segments of a rate shape (`pacing.shaped_offsets`), warm-up included.
    """

    index: int
    name: str
    client: str
    broker: str
    address: str
    rate: tuple[int, int]
    size_bytes: int
    arrivals: str
    window: int
    batch: int = _LONGEST_RUN
    failover: tuple[str, ...] = ()
    shape: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings in the content of a control message."""
        numerator, denominator = values["rate"]
        failover = tuple(values.get("failover", ()))
        shape = tuple((length, above, below) for length, above, below in values.get("shape", ()))
        changes = {"rate": (numerator, denominator), "failover": failover, "shape": shape}
        return cls(**{**values, **changes})


@dataclass(slots=True)
class PublisherCounts:
    """The counts of a publisher so far.

    Attributes:
        offered: due publications.
        sent: publications passed to the client library, with fences.
        acknowledged, rejected: outcomes of sent publications.
        blocked_ns: time in which a due publication could not be sent. A fence does not count,
            because it is due when it is sent.
        lateness: time from intended publication to offer by this process, independent of the
            broker; since the last call of `take_lateness`.
        measured_lateness: lateness of all publications that were intended in the measure phase.
    """

    offered: int = 0
    sent: int = 0
    acknowledged: int = 0
    rejected: int = 0
    blocked_ns: int = 0
    lateness: Histogram = field(default_factory=Histogram)
    measured_lateness: Histogram = field(default_factory=Histogram)


class PublisherLoad:
    """One publisher.

    Attributes:
        counts: counts since the start.
        client: the client for publications, once it exists.
        fences: sequence numbers of its fences, in order.
        reserved: the highest sequence number reserved on disk.
        measure_from_ns: begin of the measure phase.
        is_flooding: True to publish at the highest rate of the window.
        identity: "<broker>/<publisher number>"; empty until the broker has assigned the number.
    """

    def __init__(
        self,
        setting: PublisherSetting,
        tables: ContentTables,
        fence_blob: bytes,
        record: Callable[[bytes | bytearray], None],
        samples: LatencySamples | None = None,
    ) -> None:
        self.setting = setting
        self.client: PublishingClient | None = None
        self.counts = PublisherCounts()
        self.fences: list[int] = []
        self.identity = ""
        self.incarnation = 0
        self.reserved = 0
        self.measure_from_ns = 0
        self.is_flooding = False
        self._tables = tables
        self._fence_blob = fence_blob
        self._record = record
        self._samples = samples
        self._sampled_as = ""
        self._number = 0
        self._content: SourceContent | None = None
        self._pending = array("q")
        self._pending_from = 0
        self._fence_due = False
        self._blocked_since = 0

    def on_identity(self, publisher: int, incarnation: int, number: int, seed: int) -> None:
        """Set the identity from the broker; `number` is the place in the tables of the process."""
        self.identity = f"{self.setting.broker}/{publisher}"
        self.incarnation = incarnation
        self._sampled_as = f"{self.identity}/{incarnation}"
        self._number = number
        self._content = SourceContent(
            self._tables, seed, self.setting.index, incarnation, with_digests=False
        )

    @property
    def backlog(self) -> int:
        """The number of due publications that were not sent."""
        return len(self._pending) - self._pending_from

    @property
    def is_fence_due(self) -> bool:
        """True if a fence waits."""
        return self._fence_due

    @property
    def open(self) -> int:
        """The number of due publications, with the fence, without a known outcome."""
        outstanding = self.client.outstanding if self.client is not None else 0
        return self.backlog + self._fence_due + outstanding

    def take_lateness(self) -> Histogram:
        """Return the lateness of all publications offered since the last call."""
        taken, self.counts.lateness = self.counts.lateness, Histogram()
        return taken

    def offer(self, intended_ns: "array[int]", now_ns: int) -> None:
        """Queue due publications for `pump`."""
        counts = self.counts
        counts.offered += len(intended_ns)
        for intended in intended_ns:
            counts.lateness.add(now_ns - intended)
            if intended >= self.measure_from_ns:
                counts.measured_lateness.add(now_ns - intended)
        if self._pending_from > SENT_TIMES_KEPT:
            del self._pending[: self._pending_from]
            self._pending_from = 0
        self._pending += intended_ns

    def offer_fence(self) -> None:
        """Queue a fence, after all due publications."""
        self._fence_due = True

    def pump(self, now_ns: int) -> None:
        """Send due publications, as far as session, window and reserved numbers allow."""
        client = self.client
        if client is not None and client.attached:
            self._hand_over(client, now_ns)
            if self._fence_due and self._room(client) > 0:  # no earlier publication waits
                self._hand_over_fence(client, now_ns)
        blocked = self.backlog > 0
        if blocked and not self._blocked_since:
            self._blocked_since = now_ns
        elif self._blocked_since and not blocked:
            self.counts.blocked_ns += now_ns - self._blocked_since
            self._blocked_since = 0

    def _hand_over(self, client: PublishingClient, now_ns: int) -> None:
        content = self._content
        assert content is not None, f"{self.setting.name} is attached and has no number"
        room = self._room(client)
        if self.is_flooding and room * _BATCH_SHARE < self.setting.window:
            return
        while room > 0 and (self.is_flooding or self.backlog):
            first = client.next_sequence
            block = content.block_of(first)
            low = first - block.first
            count = min(room, len(block) - low, self.setting.batch)
            if self.is_flooding:
                intended = array("q", [now_ns]) * count
                self.counts.offered += count
            else:
                count = min(count, self.backlog)
                intended = self._pending[self._pending_from : self._pending_from + count]
                self._pending_from += count
            size = content.tables.size_bytes
            table, index = _attributes(content.tables, block, low, low + count)
            payload = memoryview(content.payload_of(block))[low * size : (low + count) * size]
            sequences = client.publish_many_nowait(table, index, size, payload)
            assert sequences == range(first, first + count), (sequences, first, count)
            self._note_sent(sequences, intended, now_ns, block.sets[low : low + count])
            room -= count

    def _hand_over_fence(self, client: PublishingClient, now_ns: int) -> None:
        assert self._content is not None
        sequence = client.next_sequence
        _, payload_number = self._content.choice(sequence)
        payload = self._tables.payloads[payload_number]
        client.publish_many_nowait(
            EncodedAttributes((self._fence_blob,)), b"\0", len(payload), payload
        )
        fence_set = len(self._tables.blobs)
        sequences = range(sequence, sequence + 1)
        self._note_sent(sequences, array("q", [now_ns]), now_ns, [fence_set])
        self.fences.append(sequence)
        self._fence_due = False

    def _room(self, client: PublishingClient) -> int:
        within_window = self.setting.window - client.outstanding
        return min(within_window, self.reserved - client.next_sequence + 1)

    def _note_sent(
        self, sequences: range, intended: "array[int]", now_ns: int, sets: bytes | list[int]
    ) -> None:
        self.counts.sent += len(sequences)
        if self._samples is not None:
            self._samples.note(self._sampled_as, sequences, intended, now_ns)
        self._record(
            publication_rows(sequences, intended, now_ns, self._number, self.incarnation, sets)
        )

    def take_acknowledged_row(self, first: int, last: int, now_ns: int, outcome: int) -> bytes:
        """Count publications with an outcome, and return their row of acks.rec."""
        count = last - first + 1
        if outcome == ACKNOWLEDGED:
            self.counts.acknowledged += count
        else:
            self.counts.rejected += count
        return ACKS.row.pack(first, last, now_ns, self._number, self.incarnation, outcome)

    def wants_numbers(self) -> int:
        """Return the next sequence number to reserve up to; 0 while enough are reserved.

        No number is reserved for a publisher without an identity.
        """
        if not self.identity:
            return 0
        per_second = self.setting.rate[0] // self.setting.rate[1]
        block = min(1 << 20, max(1024, 4 * per_second)) if self.setting.rate[0] else 1 << 20
        ahead = self.reserved - (self.client.next_sequence if self.client is not None else 1) + 1
        return self.reserved + block if ahead < block // 2 else 0

    def intent_row(self, reserve_to: int, now_ns: int) -> bytes:
        """Return the row of intents.rec that reserves numbers; set `reserved` after the fsync."""
        return INTENTS.row.pack(reserve_to, now_ns, self._number, self.incarnation)


def _attributes(
    tables: ContentTables, block: ContentBlock, low: int, high: int
) -> tuple[Sequence[bytes], bytes | list[int]]:
    """Return an attribute table for a run, and the index into the table.

    Of a large table, the result contains only the used part.
    """
    if block.blobs:
        index = range(high - low)
        return EncodedAttributes(block.blobs[low:high]), bytes(index) if len(
            index
        ) <= 256 else list(index)
    places = block.blob_places[low:high]
    if isinstance(places, bytes):
        return tables.blobs, places
    position = {place: number for number, place in enumerate(dict.fromkeys(places))}
    blobs = EncodedAttributes(tables.blobs[place] for place in position)
    return blobs, [position[place] for place in places]
