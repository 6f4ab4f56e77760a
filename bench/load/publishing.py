"""The publishers of one load generator: what is due, what was handed over, what is done.

A publisher is offered publications by the clock and hands them to the client library as soon
as it is attached and its window has room. What has to wait keeps its intended time. So the
broker can slow down sending, never the schedule.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from bench.load.content import ContentBlock, ContentTables, SourceContent
from bench.load.latency_samples import LatencySamples
from bench.load.pacing import Histogram
from bench.load.recording import publication_rows
from brokerd.history.records import ACKNOWLEDGED, ACKS, INTENTS
from brokerd.wire.attributes import EncodedAttributes

_LONGEST_RUN = 1024
_BATCH_SHARE = 8  # at rate `max`, a batch waits for this part of the window to be free


class PublishingClient(Protocol):
    """What a publisher needs of the client library."""

    @property
    def attached(self) -> bool:
        """Whether what is published now can be sent at once."""

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""

    @property
    def outstanding(self) -> int:
        """How many publications are not known to be done."""

    def publish_many_nowait(
        self, attribute_table: Any, attribute_index: Any, payload_lengths: int, payload: Any
    ) -> range:
        """Take consecutive publications; returns their numbers."""


@dataclass(frozen=True, slots=True)
class PublisherSetting:
    """What the controller says about one publisher.

    Attributes:
        index: in the content formula.
        name: of the publisher, in logs.
        client: its name at its broker; another in every run.
        broker, address: where it publishes.
        rate: (numerator, denominator) per second; (0, 1) for as fast as the window lets it.
        window: publications it may have unacknowledged.
        failover: where it goes on, in this order, when that broker cannot be reached.
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
    failover: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """From a control message's content."""
        numerator, denominator = values["rate"]
        failover = tuple(values.get("failover", ()))
        return cls(**{**values, "rate": (numerator, denominator), "failover": failover})


@dataclass(slots=True)
class PublisherCounts:
    """What a publisher did so far.

    Attributes:
        offered: publications that were due.
        sent: handed to the client library, fences too.
        acknowledged, rejected: of those.
        blocked_ns: how long something was due and could not be handed over.
        lateness: from intended to when this process got to it, whatever the broker did; since
            `take_lateness` was last called.
        measured_lateness: the same, of all that was intended for the measure phase.
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
        counts: since the start.
        client: to hand publications over to, once there is one.
        fences: sequence numbers of its fences, in order.
        reserved: the highest sequence number reserved on disk.
        measure_from_ns: when the measure phase begins.
        is_flooding: whether to publish as fast as the window lets it.
        identity: "<broker>/<publisher number>"; empty until the broker has said the number.
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

    def identified(self, publisher: int, incarnation: int, number: int, seed: int) -> None:
        """The broker gave the publisher its number; `number` is its place in our tables."""
        self.identity = f"{self.setting.broker}/{publisher}"
        self.incarnation = incarnation
        self._sampled_as = f"{self.identity}/{incarnation}"
        self._number = number
        self._content = SourceContent(
            self._tables, seed, self.setting.index, incarnation, with_digests=False
        )

    @property
    def backlog(self) -> int:
        """Publications that were due and have not been handed over."""
        return len(self._pending) - self._pending_from

    @property
    def is_fence_due(self) -> bool:
        """Whether a fence waits to be handed over."""
        return self._fence_due

    @property
    def open(self) -> int:
        """Publications, the fence too, that are due and not known to be done."""
        outstanding = self.client.outstanding if self.client is not None else 0
        return self.backlog + self._fence_due + outstanding

    def take_lateness(self) -> Histogram:
        """The lateness of everything offered since the last call."""
        taken, self.counts.lateness = self.counts.lateness, Histogram()
        return taken

    def offer(self, intended_ns: "array[int]", now_ns: int) -> None:
        """These publications are due; `pump` hands them over."""
        counts = self.counts
        counts.offered += len(intended_ns)
        for intended in intended_ns:
            counts.lateness.add(now_ns - intended)
            if intended >= self.measure_from_ns:
                counts.measured_lateness.add(now_ns - intended)
        if self._pending_from > 100_000:
            del self._pending[: self._pending_from]
            self._pending_from = 0
        self._pending += intended_ns

    def offer_fence(self) -> None:
        """A fence is due, after everything that is due already."""
        self._fence_due = True

    def pump(self, now_ns: int) -> None:
        """Hand over what is due, as far as session, window and reserved numbers let us."""
        client = self.client
        blocked = False
        if client is not None and client.attached:
            self._hand_over(client, now_ns)
            if self._fence_due:  # where there is room for it, nothing that was due before waits
                blocked = self._hand_over_fence(client, now_ns)
        blocked = blocked or self.backlog > 0
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
            count = min(room, len(block) - low, _LONGEST_RUN)
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

    def _hand_over_fence(self, client: PublishingClient, now_ns: int) -> bool:
        """Hand over the fence; whether it has to wait."""
        assert self._content is not None
        if self._room(client) <= 0:
            return True
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
        return False

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

    def acknowledged_row(self, first: int, last: int, now_ns: int, outcome: int) -> bytes:
        """Count publications that are done; returns their row of acks.rec."""
        count = last - first + 1
        if outcome == ACKNOWLEDGED:
            self.counts.acknowledged += count
        else:
            self.counts.rejected += count
        return ACKS.row.pack(first, last, now_ns, self._number, self.incarnation, outcome)

    def wants_numbers(self) -> int:
        """Up to which sequence number to reserve next; 0 while enough are reserved.

        Nothing is reserved for a publisher that has no number yet.
        """
        if not self.identity:
            return 0
        per_second = self.setting.rate[0] // self.setting.rate[1]
        block = min(1 << 20, max(1024, 4 * per_second)) if self.setting.rate[0] else 1 << 20
        ahead = self.reserved - (self.client.next_sequence if self.client is not None else 1) + 1
        return self.reserved + block if ahead < block // 2 else 0

    def intent_row(self, reserve_to: int, now_ns: int) -> bytes:
        """The row of intents.rec that reserves numbers; `reserved` follows once it is on disk."""
        return INTENTS.row.pack(reserve_to, now_ns, self._number, self.incarnation)


def _attributes(
    tables: ContentTables, block: ContentBlock, low: int, high: int
) -> tuple[Sequence[bytes], bytes | list[int]]:
    """A table to hand over with a run, and the index into it: of a large one, what is used."""
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
