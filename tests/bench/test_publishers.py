"""Tests of a publisher: hand-overs, times and records.

The client is the library's own core; the test plays the broker and the clock.
"""

import struct
import zlib
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from bench.load.content import ContentTables
from bench.load.pacing import intended_offsets
from bench.load.publishers import PublisherLoad, PublisherSetting
from brokerd.client.core import ClientCore
from brokerd.client.events import PublicationsDone
from brokerd.history.records import ACKNOWLEDGED
from brokerd.model.client_messages import Connected, Publish, PublishAcknowledged
from brokerd.model.identity import SourceId
from brokerd.units import SECOND_NS
from results.rules.expectation import ExpectedContent, encode_attributes

SEED = 5
ATTRIBUTES = {"symbol": {"choose": 9}}
EXPECTED = ExpectedContent.from_workload(
    {
        "seed": SEED,
        "attributes": {"sets": 20, **ATTRIBUTES},
        "publishers": [{"at": "p1", "count": 1, "size": "30B"}],
    },
    "run-1",
)
FENCE_BLOB = encode_attributes({"fence": "run-1"})
Row = tuple[int, int, int, int, int, int]


class Core(ClientCore):
    """The library's core, called as its trio front end calls it."""

    def publish_many_nowait(self, *publications: Any) -> range:
        numbers = self.outgoing.publish_many(*publications)
        self.batches.append(len(numbers))
        return numbers

    @property
    def next_sequence(self) -> int:
        return self.outgoing.next_sequence

    @property
    def outstanding(self) -> int:
        return len(self.outgoing)


class World:
    """One publisher with the library's core, and a broker that answers on command."""

    def __init__(
        self, *, rate: int = 100, window: int = 1000, batch: int = 1024, reserved: int = 1 << 30
    ) -> None:
        setting = PublisherSetting(
            index=0, name="p1-pub-1", client="p1-pub-1.x", broker="p1", address="",
            rate=(rate, 1) if rate else (0, 1), size_bytes=30, arrivals="fixed", window=window,
            batch=batch,
        )  # fmt: skip
        self.core = Core("p1-pub-1.x", publishes=True)
        self.core.batches = []
        self.written: list[bytes | bytearray] = []
        tables = ContentTables.build(SEED, EXPECTED.attribute_sets, 30, encode_attributes)
        self.load = PublisherLoad(setting, tables, FENCE_BLOB, self.written.append)
        self.load.client = self.core
        self.load.reserved = reserved

    def attach(self) -> None:
        self.core.on_established()
        self.core.messages_to_send()
        self.core.on_message(Connected(SourceId(0, 7, 1), 1))
        if not self.load.identity:
            self.load.on_identity(7, 1, 0, SEED)

    def sent(self) -> list[tuple[int, bytes, bytes]]:
        """Return the messages that the library would send now."""
        return [
            (sequence, blob, bytes(payload))
            for message in self.core.messages_to_send()
            if isinstance(message, Publish)
            for sequence, blob, payload in message.run.publications()
        ]

    def acknowledge(self, first: int, last: int, now_ns: int) -> None:
        self.core.messages_to_send()
        for event in self.core.on_message(PublishAcknowledged(first, last)):
            assert isinstance(event, PublicationsDone)
            self.load.take_acknowledged_row(event.first, event.last, now_ns, ACKNOWLEDGED)

    def rows(self) -> list[Row]:
        unpacked: Iterator[Row] = struct.iter_unpack("<qqqHHI", b"".join(self.written))
        return list(unpacked)


def times(*instants: int) -> "array[int]":
    return array("q", instants)


def test_published_content_and_its_log_follow_from_the_seed() -> None:
    world = World()
    world.attach()
    world.load.offer(array("q", range(1000, 3500)), 3500)
    world.load.pump(3600)
    expected = EXPECTED.publishers["p1-pub-1"]
    digests = []
    for sequence, blob, payload in world.sent():
        attribute_set, _ = EXPECTED.choice(0, 1, sequence)
        assert blob == encode_attributes(EXPECTED.attribute_sets[attribute_set])
        digests.append((sequence, payload))
        assert len(payload) == expected.size_bytes
    assert [sequence for sequence, _ in digests] == list(range(1, 1001))
    world.acknowledge(1, 1000, 4000)
    world.load.pump(4000)
    rows = world.rows()
    assert [row[:3] for row in rows[:1000]] == [(n, 999 + n, 3600) for n in range(1, 1001)]
    assert [row[:3] for row in rows[1000:]] == [(n, 999 + n, 4000) for n in range(1001, 2001)]
    assert [row[5] for row in rows] == [EXPECTED.choice(0, 1, row[0])[0] for row in rows]


@pytest.mark.parametrize("kept", [0, 3, 7, 1 << 20])
def test_each_publication_is_sent_with_its_own_intended_time(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of sent publications are removed more than once, also while others wait."""
    monkeypatch.setattr("bench.load.publishers.SENT_TIMES_KEPT", kept)
    world = World(window=5)
    world.attach()
    due = iter(range(1_000, 2_000))
    offered = 0
    for count in (4, 8, 0, 3, 9, 0, 0, 0, 0):
        world.load.offer(array("q", [next(due) for _ in range(count)]), 2_000)
        offered += count
        world.load.pump(2_000)
        sent = len(world.rows())
        assert world.load.backlog == offered - sent
        if world.core.outstanding:
            world.acknowledge(sent - world.core.outstanding + 1, sent, 2_000)
    assert [row[:2] for row in world.rows()] == [(n, 999 + n) for n in range(1, 25)]
    assert world.load.open == 0


def test_a_batch_bounds_the_publications_that_a_client_receives_at_once() -> None:
    world = World(batch=7)
    world.attach()
    world.load.offer(array("q", range(20)), 20)
    world.load.pump(20)
    assert world.core.batches == [7, 7, 6]


def test_a_run_contains_only_the_used_part_of_a_large_table() -> None:
    world = World()
    sets = [{"n": number} for number in range(5000)]
    tables = ContentTables.build(SEED, sets, 30, encode_attributes)
    world.load = PublisherLoad(world.load.setting, tables, FENCE_BLOB, world.written.append)
    world.load.client, world.load.reserved = world.core, 10**9
    world.attach()
    world.load.offer(array("q", range(900)), 1000)
    world.load.pump(1000)
    runs = [m.run for m in world.core.messages_to_send() if isinstance(m, Publish)]
    assert max(len(run.attribute_table) for run in runs) <= 900
    blobs = [blob for run in runs for _, blob, _ in run.publications()]
    assert blobs == [encode_attributes(sets[row[5]]) for row in world.rows()]
    assert len(set(blobs)) > 700


def test_a_blob_with_a_counting_attribute_is_published_once() -> None:
    world = World()
    sets: list[dict[str, int | str]] = [{"n": 1, "side": side} for side in ("buy", "sell")]
    ways = {"n": {"sequence": 1}, "side": {"choose": ["buy", "sell"]}}
    tables = ContentTables.build(SEED, sets, 30, encode_attributes, ways)
    world.load = PublisherLoad(world.load.setting, tables, FENCE_BLOB, world.written.append)
    world.load.client, world.load.reserved = world.core, 10**9
    world.attach()
    world.load.offer(array("q", range(900)), 1000)
    world.load.pump(1000)
    runs = [m.run for m in world.core.messages_to_send() if isinstance(m, Publish)]
    handed_over = [(number, blob) for run in runs for number, blob, _ in run.publications()]
    assert handed_over == [
        (row[0], encode_attributes({**sets[row[5]], "n": row[0]})) for row in world.rows()
    ]


def test_a_fence_follows_all_due_publications() -> None:
    world = World(window=10)
    world.attach()
    world.load.offer(array("q", range(15)), 20)
    world.load.offer_fence()
    world.load.pump(20)
    assert len(world.sent()) == 10
    assert world.load.is_fence_due
    world.acknowledge(1, 10, 30)
    world.load.pump(30)
    sequence, blob, payload = world.sent()[-1]
    assert (sequence, blob) == (16, FENCE_BLOB)
    assert world.load.fences == [16]
    assert world.rows()[-1] == (16, 30, 30, 0, 1, 20)
    digest = EXPECTED.digest(EXPECTED.publishers["p1-pub-1"], 1, 16, fence=True)
    assert digest == zlib.crc32(payload, zlib.crc32(blob))
    assert world.load.open == 6


def test_nothing_is_transferred_before_its_number_is_reserved_on_disk() -> None:
    world = World(reserved=0)
    world.attach()
    world.load.offer(times(1, 2, 3), 5)
    world.load.pump(5)
    assert world.sent() == []
    up_to = world.load.wants_numbers()
    assert up_to >= 1000
    assert struct.unpack("<qqHH12x", world.load.intent_row(up_to, 6)) == (up_to, 6, 0, 1)
    world.load.reserved = 2
    world.load.pump(7)
    assert [sequence for sequence, _, _ in world.sent()] == [1, 2]
    assert world.load.backlog == 1


def test_the_schedule_advances_without_a_session() -> None:
    world = World()
    world.load.offer(times(10, 20), 25)
    world.load.pump(25)
    assert world.rows() == []
    world.attach()
    world.load.offer(times(30), 40)
    world.load.pump(40)
    assert [row[:3] for row in world.rows()] == [(1, 10, 40), (2, 20, 40), (3, 30, 40)]
    assert world.load.counts.blocked_ns == 15


def test_at_rate_max_the_window_is_kept_full_in_batches() -> None:
    world = World(rate=0, window=800)
    world.attach()
    world.load.is_flooding = True
    world.load.pump(10)
    assert len(world.core.outgoing) == 800
    world.acknowledge(1, 50, 20)
    world.load.pump(20)
    assert len(world.core.outgoing) == 750  # not worth a run yet
    world.acknowledge(51, 100, 30)
    world.load.pump(30)
    assert len(world.core.outgoing) == 800
    assert world.load.counts.offered == world.load.counts.sent == 900
    world.load.is_flooding = False
    world.acknowledge(101, 900, 40)
    world.load.pump(40)
    assert world.load.open == 0


@pytest.mark.parametrize("window", [1, 10, 50])
def test_a_stall_delays_all_that_was_meant_to_be_sent_in_it(window: int) -> None:
    """The broker is frozen from 4 s to 7 s: coordinated omission, and how to avoid the error.

    Publications are delivered and acknowledged 1 ms after arrival. Measured from the time of
    sending, only publications in flight show the stall, fewer with a smaller window. Measured from
    the due time, all publications of these 3 s do.
    """
    world = World(rate=100, window=window)
    world.attach()
    due = iter(
        offset
        for chunk in intended_offsets(
            numerator=100,
            denominator=1,
            arrivals="fixed",
            seed=SEED,
            index=0,
            duration_ns=10 * SECOND_NS,
        )
        for offset in chunk
    )
    at_broker: list[tuple[int, int]] = []
    received: dict[int, int] = {}
    next_due = next(due, None)
    for now_ns in range(0, 12 * SECOND_NS, 500_000):
        while next_due is not None and next_due <= now_ns:
            world.load.offer(times(next_due), now_ns)
            next_due = next(due, None)
        world.load.pump(now_ns)
        at_broker += [(sequence, now_ns + 1_000_000) for sequence, _, _ in world.sent()]
        if not 4 * SECOND_NS <= now_ns < 7 * SECOND_NS:
            done = [sequence for sequence, ready_ns in at_broker if ready_ns <= now_ns]
            for sequence in done:
                received[sequence] = now_ns
                world.acknowledge(sequence, sequence, now_ns)
            at_broker = [entry for entry in at_broker if entry[0] not in done]
    rows = world.rows()
    assert len(received) == len(rows) == 1000
    response = [received[row[0]] - row[1] for row in rows]
    service = [received[row[0]] - row[2] for row in rows]
    assert max(response) >= 2_990_000_000
    assert sum(latency > SECOND_NS for latency in response) >= 190
    assert sum(latency > SECOND_NS for latency in service) <= window
    assert world.load.counts.lateness.largest_ns < 1_000_000, "the generator itself was on time"


def test_each_run_carries_the_payloads_of_its_own_numbers() -> None:
    world = World()
    world.attach()
    for first in (1, 4):
        world.load.offer(array("q", range(3)), 5)
        world.load.pump(5)
        sent = world.sent()
        assert [sequence for sequence, _, _ in sent] == list(range(first, first + 3))
        for sequence, blob, payload in sent:
            digest = EXPECTED.digest(EXPECTED.publishers["p1-pub-1"], 1, sequence, fence=False)
            assert digest == zlib.crc32(payload, zlib.crc32(blob)), sequence


@pytest.mark.parametrize("at_once", [60_000, 100_001])
def test_the_schedule_of_a_long_run_stays_in_order(at_once: int) -> None:
    """Offers and hand-overs take turns, for more publications than the publisher retains."""
    world = World(window=1 << 20)
    world.attach()
    due: list[int] = []
    for turn in range(3):
        due += range(turn * at_once, (turn + 1) * at_once)
        world.load.offer(array("q", due[-at_once:]), len(due))
        world.load.pump(len(due))
        assert world.load.backlog == 0
        assert world.load.counts.sent == len(due)
    assert [row[1] for row in world.rows()] == due


def test_the_first_instant_of_the_measure_phase_is_within_it() -> None:
    world = World()
    world.load.measure_from_ns = 50
    world.load.offer(times(49, 50, 51), 70)
    assert world.load.counts.measured_lateness.total == 2
    assert world.load.counts.measured_lateness.largest_ns == 20


def test_lateness_is_of_the_measure_phase_by_when_it_was_due() -> None:
    world = World()
    world.load.measure_from_ns = 50
    world.load.offer(times(40, 60), 70)
    assert world.load.counts.measured_lateness.total == 1
    assert world.load.counts.measured_lateness.largest_ns == 10
    assert world.load.take_lateness().total == 2


def test_blocked_time_starts_at_the_first_publication_that_had_to_wait() -> None:
    world = World()
    world.load.offer(times(10), 25)
    for now_ns in (25, 30):
        world.load.pump(now_ns)
    world.attach()
    for now_ns in (40, 60):
        world.load.pump(now_ns)
    assert world.load.counts.blocked_ns == 15


def test_a_fence_that_waits_for_reserved_numbers_is_no_blocked_time() -> None:
    world = World(reserved=0)
    world.attach()
    world.load.offer_fence()
    world.load.pump(10)
    assert world.rows() == []
    world.load.reserved = 5
    for now_ns in (40, 60):
        world.load.pump(now_ns)
    assert [row[:3] for row in world.rows()] == [(1, 40, 40)]
    assert world.load.counts.blocked_ns == 0
