"""Lost publications: proof of the loss, and gaps for subscribers."""

from dataclasses import dataclass, field, replace

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import Connected, Deliveries, Gap, Publish, Refused
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.losses import LINEAGE_BITS, MARKER, STATE_LOST, has_marker, marker, stream_marker
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.interface import LOSS_PROVED, Deliver, Record
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.publishers import PublisherTable
from brokerd.wire.attributes import decode_attribute_table, decode_attributes, encode_attributes
from brokerd.wire.codec import decode, encode
from brokerd.wire.fast_path import _Like
from brokerd.wire.framing import FrameDecoder
from tests.protocols.parts.test_clients import PUBLISHER, SOURCE, Plain, World, run

LINEAGE = 1_700_000_000
STREAM = SourceId(3, 1, 0)


def restarted(world: World, durable: int, lineage: int = 0) -> tuple[World, Plain]:
    """Restart a broker with the rows of another, and with `durable` publications on disk."""
    again = World(world.rows())
    clients = again.clients
    clients.durable = {SOURCE: durable}
    clients.table.start(8, world.rows(), lineage)
    return again, clients


def continuing(next_sequence: int) -> object:
    return replace(
        PUBLISHER, source=SOURCE, next_sequence=next_sequence, highest_sequence=next_sequence - 1
    )


def first_publisher() -> World:
    world = World()
    world.connect("p", PUBLISHER)
    return world


def test_a_publisher_that_proves_a_loss_is_refused_with_the_cause() -> None:
    world, clients = restarted(first_publisher(), durable=50)
    clients.table.open_session("p", 1)
    clients.on_connect("p", continuing(101))  # type: ignore[arg-type]
    record, sent = world.effects()
    assert isinstance(record, Record)
    assert record.event == LOSS_PROVED
    assert isinstance(sent.message, Refused)  # type: ignore[union-attr]
    assert "publications 51 to 100 of 'p'" in sent.message.reason  # type: ignore[union-attr]


def test_a_publisher_of_which_all_is_on_disk_is_let_in() -> None:
    world, clients = restarted(first_publisher(), durable=100)
    assert world.connect("p", continuing(101)) == [Connected(SOURCE, 8)]  # type: ignore[arg-type]
    assert not clients.markers


def test_a_loss_proven_by_a_publisher_reaches_subscribers_as_a_gap() -> None:
    world, clients = restarted(first_publisher(), durable=50, lineage=LINEAGE)
    assert world.connect("p", continuing(101)) == [Connected(SOURCE, 8)]  # type: ignore[arg-type]
    assert clients.markers == [marker(SOURCE, 51, 100)]


def test_a_publisher_with_a_lost_row_continues_after_the_loss_is_accepted() -> None:
    world, clients = restarted(World(), durable=0, lineage=LINEAGE)
    assert world.connect("p", continuing(101)) == [Connected(SOURCE, 8)]  # type: ignore[arg-type]
    assert clients.markers == [marker(SOURCE, 1, 100)]
    (refused,) = world.connect("q", continuing(5))  # type: ignore[arg-type]
    assert isinstance(refused, Refused), "two clients are one source"


def test_a_source_of_another_broker_takes_no_number_after_a_loss() -> None:
    table = PublisherTable(SOURCE.broker)
    table.recover({}, LINEAGE)
    assert table.restore("q", SOURCE._replace(broker=1)) is None
    assert not table.objection_to("p", continuing(101))  # type: ignore[arg-type]
    source, _ = table.assign_source("q", PUBLISHER)
    assert source.publisher > LINEAGE


def test_new_sources_are_none_that_may_have_been_lost() -> None:
    world, _ = restarted(first_publisher(), durable=0, lineage=LINEAGE)
    (same,) = world.connect("p", replace(PUBLISHER, instance=b"another"))
    (other,) = world.connect("r", PUBLISHER)
    assert same.source.incarnation >= LINEAGE
    assert other.source.publisher >= LINEAGE << LINEAGE_BITS


def test_a_publisher_that_is_new_after_a_loss_has_a_small_incarnation() -> None:
    """Records hold 16 bits: a run on this broker ended its load generator."""
    world, _ = restarted(World(), durable=0, lineage=LINEAGE)
    (first,) = world.connect("r", PUBLISHER)
    (second,) = world.connect("r", replace(PUBLISHER, instance=b"another"))
    incarnations = [first.source.incarnation, second.source.incarnation]
    assert incarnations == [PUBLISHER.incarnation, PUBLISHER.incarnation + 1]
    unknown = SourceId(first.source.broker, first.source.publisher + 1, 1)
    (refused,) = world.connect("s", replace(PUBLISHER, source=unknown))
    assert isinstance(refused, Refused), "no loss explains the absence of its row"


def test_no_client_may_publish_a_loss_marker() -> None:
    world = first_publisher()
    with pytest.raises(RemoteProtocolError, match="loss marker"):
        world.say("p", Publish(replace(run(1, 2), attribute_table=(MARKER,))))


def numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "big") for value in values)


@pytest.mark.parametrize(
    "payload",
    [b"x", numbers(0, 0, 1, 3), numbers(0, 0, 1, 4, 3), numbers(0, 0, 1, 4, 1 << 63)],
    ids=["short", "a number missing", "reversed", "beyond 63 bits"],
)
def test_a_malformed_loss_marker_closes_the_session(payload: bytes) -> None:
    """It ended storages, servers and access brokers; also behind one that is well-formed."""
    sound = marker(SOURCE, 1, 4)
    forged = replace(sound, payload=(payload,), payload_lengths=len(payload))
    whole, cut = (b"".join(encode(Publish(each))) for each in (sound, forged))
    decoder = FrameDecoder(1 << 20)
    decoder.feed(whole)
    first = decoder.next_frame()
    assert first is not None
    assert decode(*first) == Publish(sound)
    assert _Like(Publish(sound), sound).read(cut) is None
    decoder.feed(cut)
    second = decoder.next_frame()
    assert second is not None
    with pytest.raises(RemoteProtocolError, match="a malformed loss marker"):
        decode(*second)


def test_a_loss_marker_matches_every_predicate() -> None:
    index: MatchingIndex[int] = MatchingIndex()
    for number, text in enumerate(("x = 1", "true", "y > 5 and z = 'a'")):
        index.add(number, parse_predicate(text))
    memo: MatchMemo[int, tuple[int, ...]] = MatchMemo(index, decode_attribute_table)
    other = encode_attributes({"x": 1})
    assert memo.match_all((other, MARKER)) == [(0, 1), (0, 1, 2)]
    assert memo.match(MARKER) == (0, 1, 2)
    assert decode_attributes(MARKER) == {"$lost": True}


@dataclass(eq=False)
class Entry:
    open: int = 1


@dataclass(eq=False)
class Local:
    client: ClientId = "s"
    number: int = 1
    is_over: bool = False
    begins_after: dict[SourceId, int] = field(default_factory=dict)


def delivered(part: PublicationRun) -> list[object]:
    """Return the deliveries and gaps that replace a run."""
    machine = EventMachine()
    counters = {"publications_delivered": 0}
    windows: DeliveryWindows[Entry, Local] = DeliveryWindows(machine, 100, counters)
    local = Local()
    assert not [*windows.claim(local)]
    windows.deliver("s", part, (local,), (Entry(),))
    return [each.item for each in machine.effects if isinstance(each, Deliver)]


def test_a_gap_stands_in_the_place_of_a_marker_between_publications() -> None:
    lost = marker(SOURCE, 51, 100)
    assert has_marker(lost)
    (payload,) = lost.payload
    mixed = PublicationRun(
        STREAM,
        range(7, 10),
        (b"a", MARKER),
        bytes((0, 1, 0)),
        (1, len(payload), 1),
        (b"x", payload, b"y"),
        (OriginRun(SOURCE, (50, 100, 101)),),
    )
    before, gap, after = delivered(mixed)
    assert isinstance(before, Deliveries)
    assert isinstance(after, Deliveries)
    assert (*before.run.sequences, *after.run.sequences) == (7, 9)
    assert gap == Gap((1,), STREAM, 8, 8, STATE_LOST, ((SOURCE, 51, 100),))


def test_a_gap_in_a_source_stream_uses_its_sequence_numbers() -> None:
    assert delivered(marker(SOURCE, 51, 100)) == [Gap((1,), SOURCE, 51, 100, STATE_LOST)]


@pytest.mark.parametrize("stream", range(4))
def test_the_marker_of_a_stream_is_of_no_publisher_and_of_that_stream(stream: int) -> None:
    made = stream_marker(3, LINEAGE, stream, 4)
    assert made.source.publisher % 4 == stream
    assert made.source.publisher > (LINEAGE << 20)
    placed = replace(made, source=STREAM, sequences=range(9, 10))
    assert delivered(placed) == [Gap((1,), STREAM, 9, 9, STATE_LOST)]
