"""Tests of subscribers: batches of publications become lines with a place among rows."""

import struct
from array import array
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from bench.load.content import ContentTables, SourceContent
from bench.load.load_clients import LoadClient
from bench.load.records import RESOLUTION_NS, Level, delivery_rows
from bench.load.subscribers import Receiver, SourceDirectory, SubscriberSetting
from brokerd.client.client import Client, ClientError
from brokerd.client.events import GapAnnounced
from brokerd.history.records import APPLICATION, DATA, FENCE, POSITIONS, REDELIVERED, STRETCH, WIRE
from brokerd.model.client_messages import Notice
from brokerd.model.identity import PartitionId, SourceId, StreamId
from brokerd.model.publication import Place, PublicationRun
from results.reference import row_counts
from results.rules.expectation import encode_attributes

SOURCE = SourceId(0, 3, 1)
SETS = ({"n": 0}, {"n": 1})
FENCE_BLOB = encode_attributes({"fence": "run-1"})


def test_an_attempt_that_ends_before_the_client_is_attached_ends_no_session() -> None:
    """A busy broker closes the connection before it answers, and the library tries again."""
    client, found = _client_with_sessions()
    for what in ("lost", "attached", "lost", "lost", "lost", "attached"):
        client._on_session(what, {"reason": "closed_by_peer", "source": None})
    assert found == [(1, "up", "a", ""), (1, "down", "a", "closed_by_peer"), (2, "up", "a", "")]
    assert client.attach_failure == "closed_by_peer"


def _client_with_sessions() -> tuple[LoadClient, list[tuple[int, str, str, str]]]:
    """Return a client of broker a, and the list of its session rows."""
    found: list[tuple[int, str, str, str]] = []

    def write(client: LoadClient, t_ns: int, event: str, reason: str) -> None:
        found.append((client.session, event, client.broker, reason))

    generator: Any = SimpleNamespace(
        files=SimpleNamespace(write_session=write),
        beginning=SimpleNamespace(release=lambda: None),
        setting=SimpleNamespace(addresses={"h:1": "a", "h:2": "b", "h:3": "c"}),
    )
    setting: Any = SimpleNamespace(
        name="a-sub-1", broker="a", client="a-sub-1", address="h:1", failover=()
    )
    return LoadClient(generator, setting), found


@pytest.mark.parametrize("is_refused", [False, True])
def test_each_session_is_recorded_with_its_broker_after_a_move(is_refused: bool) -> None:
    """A client that could not move stays, and may reach another broker by itself later."""
    client, found = _client_with_sessions()

    async def move(address: str) -> None:
        if is_refused:
            raise ClientError(f"{address} refuses it")
        client._on_session("moved", {"source": None, "address": address})

    client._client = cast(Client, SimpleNamespace(move=move))
    client._on_session("attached", {"source": None})
    for place in range(2):  # the second time like the first
        with pytest.raises(ClientError) if is_refused else nullcontext():
            trio.run(client.move, "b", "h:2")
        client._on_session("moved", {"source": None, "address": "h:3"})
        found.append((place, "", "", ""))
    moves = [(broker, reason) for _, event, broker, reason in found if event != "down"]
    steps = ["c"] if is_refused else ["b", "c"]
    assert [broker for broker, _ in moves] == ["a", *steps, "", *steps, ""]
    assert [reason for _, event, _, reason in found if event == "down"] == [
        f"moved to {broker}" for broker in (*steps, *steps)
    ]


class Load:
    """Subscribers at broker a; the publisher a/3 publishes the contents of seed 5."""

    def __init__(
        self,
        predicate: str = "true",
        ways: Any = None,
        *,
        count: int = 1,
        order: bool = False,
        level: Level = "full",
    ) -> None:
        tables = ContentTables.build(5, SETS, 8, encode_attributes, ways)
        directory = SourceDirectory(["a"], 5, {8: tables})
        directory.register("a/3", 0, 8)
        self.content = SourceContent(tables, 5, 0, 1)
        self.rows = b""
        self.positions: list[bytes | bytearray] = []
        self.lines: list[tuple[str, Any]] = []
        settings = [
            SubscriberSetting(f"a-sub-{n}", f"a-sub-{n}@1", "a", "", predicate)
            for n in range(1, count + 1)
        ]
        blobs = [encode_attributes(one) for one in SETS]
        self.receiver = Receiver(
            settings, SETS, blobs, FENCE_BLOB, directory, self._record,
            write_line=lambda name, line: self.lines.append((name, line)),
            record_positions=self.positions.append, in_total_order=order,
            level=level,
        )  # fmt: skip
        self.receiver.checker.add_fence("a/3", 1, 1)

    def _record(self, rows: bytes | bytearray) -> None:
        self.rows += rows

    def run(self, first: int, *others: int) -> PublicationRun:
        """Return the run between two numbers, or of more than two given numbers."""
        sequences = range(first, others[0] + 1) if len(others) == 1 else (first, *others)
        chosen = [self.content.choice(n) for n in sequences]
        tables = self.content.tables
        if tables.numbered is not None:
            blobs, index = tuple(map(self.content.blob, sequences)), range(len(sequences))
            payload = tuple(tables.payloads[number] for _, number in chosen)
            return PublicationRun(SOURCE, sequences, blobs, index, 8, payload)
        return PublicationRun(
            SOURCE, sequences, tuple(tables.blobs), [place for place, _ in chosen], 8,
            tuple(tables.payloads[number] for _, number in chosen),
        )  # fmt: skip

    @property
    def kinds(self) -> list[tuple[int, int]]:
        """Return sequence number and kind of every row."""
        rows = struct.iter_unpack("<qqIIHHBBH", self.rows)
        found = [(row[0], row[6], row[7]) for row in rows]
        assert all(layer == APPLICATION for _, _, layer in found)
        return [(sequence, kind) for sequence, kind, _ in found]


def test_a_gap_is_a_line_with_its_place_and_nothing_of_it_is_missing() -> None:
    load = Load()
    load.receiver.receive(0, load.run(2, 4), 10)
    load.receiver.note_gap(0, GapAnnounced(1, SOURCE, 5, 7, "released"), 11)
    load.receiver.receive(0, load.run(8, 9), 12)
    about = {"sub_id": "a-sub-1/1", "source": "a/3", "incarnation": 1}
    assert load.lines == [
        ("gaps", {"t_ns": 11, **about, "first": 5, "last": 7, "place": 3, "reason": "released"})
    ]
    totals = load.receiver.checker.report()["totals"]
    assert (totals["missing"], totals["withheld"], totals["withheld_late"]) == (0, 3, 0)


def test_a_commit_records_its_place_and_redeliveries_are_marked() -> None:
    load = Load()
    load.receiver.receive(0, load.run(2, 4), 10)
    load.receiver.note_commit(0, SOURCE, 1, 3, 11)
    load.receiver.note_redelivered(0, load.run(4, 4), 12)
    load.receiver.note_redelivered(0, load.run(2, 9), 12)
    ((name, line),) = load.lines
    assert name == "commits"
    assert (line["first"], line["last"], line["place"]) == (1, 3, 3)
    assert load.kinds[:3] == [(2, DATA), (3, DATA), (4, DATA)]
    assert load.kinds[3:] == [(4, REDELIVERED)] + [(n, REDELIVERED) for n in range(2, 10)]
    assert load.receiver.rows == 12
    report = load.receiver.checker.report()
    names = ("deliveries", "duplicate", "missing", "delivered")
    assert [report["totals"][name] for name in names] == [12, 0, 0, 8], "5 to 9 are new"
    assert report["lanes"][0]["high"] == 9


def test_each_kind_of_arrival_is_counted_and_placed_once() -> None:
    load = Load()
    receiver = load.receiver
    receiver.receive(0, load.run(2, 4), 10)
    receiver.note_redelivered(0, load.run(4, 6), 11)
    receiver.note_withheld(0, load.run(2, 3), 12)
    assert (receiver.delivered, receiver.withheld, receiver.rows) == (6, 2, 8)
    one, other = PartitionId(0, 1, 4, (0,)), PartitionId(0, 1, 5, (0,))
    for partition, ranges in ((one, ((9, 9), (11, 30))), (other, ((31, 31),)), (one, ((40, 41),))):
        receiver.note_notice(0, Notice(1, SOURCE, ranges, partition), 13)
    assert [each.number for each in receiver.partitions] == [4, 5]
    assert (receiver.notices, receiver.rows) == (4, 12)
    stranger = replace(load.run(1, 2), source=SourceId(0, 9, 1))
    receiver.receive(0, stranger, 14)
    receiver.note_gap(0, GapAnnounced(1, stranger.source, 3, 4, "released"), 15)
    receiver.note_redelivered(0, stranger, 16)
    assert receiver.checker.foreign == 4
    assert (receiver.delivered, receiver.rows) == (10, 16)
    (gap,) = load.lines
    assert (gap[1]["source"], gap[1]["place"]) == ("a/9", 14)
    assert len(load.rows) == 32 * receiver.rows


def test_places_without_publishers_are_rows_beside_those_of_the_deliveries() -> None:
    load = Load()
    load.receiver.receive(0, load.run(1, 2), 10)
    assert load.positions == []
    one, other = StreamId(0, 8, 1), StreamId(0, 9, 1)
    for stream, first, positions in ((one, 3, (70, 90)), (other, 5, (5, 6)), (one, 7, (95, 96))):
        run = replace(load.run(first, first + 1), place=Place(stream, positions))
        load.receiver.receive(0, run, 11)
    rows = [*POSITIONS.row.iter_unpack(b"".join(load.positions))]
    assert rows == [
        (2, 70, 11, 0), (3, 90, 11, 0), (4, 5, 11, 1),
        (5, 6, 11, 1), (6, 95, 11, 0), (7, 96, 11, 0),
    ]  # fmt: skip
    assert load.receiver.streams == ["0/8/1", "0/9/1"]
    assert load.receiver.rows == len(load.rows) // 32 == 8


def test_sums_of_positions_need_no_more_than_64_bits() -> None:
    """A position may be a tick of the clock; a stream has many of them."""
    load = Load()
    stream, last = StreamId(0, 8, 1), (1 << 63) - 1
    for first in (1, 3, 5):
        run = replace(load.run(first, first + 1), place=Place(stream, (last - 1, last)))
        load.receiver.receive(0, run, 11)
    ((name, (count, total)),) = load.receiver.positions_by_stream.items()
    assert (name, count) == ("0/8/1", 6)
    assert total == (3 * (2 * last - 1)) % (1 << 63)
    rows = [
        {"stream": 0, "position": row[1]}
        for row in POSITIONS.row.iter_unpack(b"".join(load.positions))
    ]
    plain = SimpleNamespace(tables={"streams": [name]}, rows=rows)
    assert row_counts._positions(plain) == {name: (count, total)}


def test_a_withheld_run_is_recorded_in_the_wire_layer() -> None:
    load = Load()
    load.receiver.receive(0, load.run(2, 4), 10)
    load.receiver.note_withheld(0, load.run(3, 4), 11)
    layers = [(row[0], row[7]) for row in struct.iter_unpack("<qqIIHHBBH", load.rows)]
    assert layers == [*((n, APPLICATION) for n in (2, 3, 4)), *((n, WIRE) for n in (3, 4))]
    assert (load.receiver.delivered, load.receiver.withheld) == (3, 2)


def test_a_commit_records_its_first_and_last_publication() -> None:
    load = Load()
    load.receiver.receive(0, load.run(2, 9), 10)
    load.receiver.note_commit(0, SOURCE, 5, 8, 11)
    ((_, line),) = load.lines
    assert (line["first"], line["last"]) == (5, 8)


def test_a_delivery_of_a_foreign_source_counts_as_a_phantom() -> None:
    load = Load()
    run = load.run(2, 4)
    load.receiver.receive(0, replace(run, source=SourceId(0, 8, 1)), 10)
    assert load.receiver.checker.report()["totals"]["phantom"] == 3
    assert load.receiver.delivered == 3


def test_a_skipped_fence_counts_as_missing() -> None:
    """Other skipped publications do not match; a fence always matches."""
    load = Load(predicate="n = 1")
    wanted = [n for n in range(2, 40) if load.content.choice(n)[0] == 1]
    fence = next(n for n in range(wanted[5], 40) if n not in wanted)
    load.receiver.checker.add_fence("a/3", 1, fence)
    load.receiver.receive(0, load.run(*wanted[:3]), 10)
    load.receiver.receive(0, load.run(*wanted[3:]), 11)
    totals = load.receiver.checker.report()["totals"]
    assert (totals["fence_missing"], totals["missing"]) == (2, 0), "the opening one, too"


def test_corruption_is_counted_in_the_middle_of_a_stream_too() -> None:
    load = Load()
    load.receiver.receive(0, load.run(2, 9), 10)
    run = load.run(10, 12)
    load.receiver.receive(0, replace(run, payload=(bytes(24),)), 11)
    assert load.receiver.checker.report()["totals"]["corrupted"] == 3


def test_attributes_that_count_are_held_against_each_number() -> None:
    load = Load(ways={"n": {"sequence": 0}})
    for run in (load.run(2, 9), load.run(10, 12, 14), load.run(15, 15)):
        load.receiver.receive(0, run, 10)
    totals = load.receiver.checker.report()["totals"]
    assert (totals["deliveries"], totals["corrupted"]) == (12, 0)
    for first, last in ((16, 20), (21, 21)):
        run, other = load.run(first, last), load.run(first + 1, last + 1)
        load.receiver.receive(0, replace(run, attribute_table=other.attribute_table), 11)
    assert load.receiver.checker.report()["totals"]["corrupted"] == 6


def test_the_rows_of_a_long_run_are_of_its_publications_one_by_one() -> None:
    rows = delivery_rows(range(5, 13), 70, array("I", range(8)), 3, 4, 6, fences=(2,))
    assert bytes(rows) == b"".join(
        struct.pack("<qqIIHHBBxx", 5 + n, 70, n, 3, 4, 6, FENCE if n == 2 else DATA, APPLICATION)
        for n in range(8)
    )


def test_two_subscribers_are_compared_where_all_must_have_one_order() -> None:
    for order in (False, True):
        load = Load(count=2, order=order)
        load.receiver.receive(0, load.run(1, 4), 10)
        load.receiver.receive(1, load.run(1, 2), 11)
        load.receiver.receive(1, load.run(4, 4), 12)
        load.receiver.receive(1, load.run(3, 3), 13)
        totals = load.receiver.checker.report()["totals"]
        assert totals.get("order_differs") == (1 if order else None)


def test_consecutive_deliveries_share_a_row_and_exceptions_have_their_own() -> None:
    """A gap, a repetition or a sampled delivery has a row; places count deliveries."""
    load = Load(level="sampled")
    start_ns = 10 * RESOLUTION_NS

    def receive(at: int, first: int, last: int) -> None:
        load.receiver.receive(0, load.run(first, last), start_ns + at)

    load.receiver.receive(0, load.run(1, 19), start_ns)
    receive(1, 20, 99)  # the first that comes next: it keeps its time
    receive(2, 100, 180)
    receive(3, 180, 181)  # 180 comes again
    receive(4, 182, 184)
    receive(5, 190, 193)  # 185 to 189 do not come
    receive(6, 194, 300)  # with 256 to 271, which are in the sample
    load.receiver.note_gap(0, GapAnnounced(1, SOURCE, 301, 310, "released"), start_ns + 7)
    folded = [row for row in load.kinds if row[1] == STRETCH]
    assert folded == [(n, STRETCH) for n in (180, 184, 255, 300)]
    singles = [sequence for sequence, kind in load.kinds if kind == DATA]
    assert singles == [*range(1, 100), 180, 181, *range(190, 194), *range(256, 272)]
    assert load.lines[0][1]["place"] == load.receiver.rows == load.receiver.delivered
    totals = load.receiver.checker.report()["totals"]
    assert (totals["duplicate"], totals["missing"]) == (1, 5)
