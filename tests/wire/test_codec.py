"""Tests of the codec: exactly the messages make round trips, generically for every type."""

import hashlib
import struct
from dataclasses import fields, is_dataclass, replace
from io import BytesIO
from itertools import accumulate
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Deliveries,
    Detach,
    Publish,
    PublishAcknowledged,
    Refused,
    Subscribe,
)
from brokerd.model.identity import SourceId, SubscriptionId
from brokerd.model.predicate import Constraint, Predicate
from brokerd.model.publication import OriginRun, PublicationRun, merge_runs
from brokerd.protocols.delta_tree.messages import PublicationCopy, Summary
from brokerd.sessions.messages import WIRE_VERSION, Heartbeat
from brokerd.wire import codec
from brokerd.wire.framing import FrameDecoder
from brokerd.wire.strict_cbor import numbers
from tests.helpers.message_kinds import all_kinds
from tests.helpers.strategies import constraints, placed_runs, predicates, runs

integers = st.integers(0, 2**63 - 1)


@given(st.lists(st.one_of(st.integers(0, 1_030), integers), max_size=30))
def test_many_integers_are_written_as_a_general_encoder_writes_them(values: list[int]) -> None:
    assert numbers(values) == cbor2.dumps(values)


def tidy(run: PublicationRun) -> PublicationRun:
    """Return the run with the used attributes in order of first use, as the model defines."""
    blobs = [run.blob(position) for position in range(len(run))]
    table = tuple(dict.fromkeys(blobs))
    return replace(
        run, attribute_table=table, attribute_index=bytes(table.index(blob) for blob in blobs)
    )


tidy_runs = runs().map(tidy)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a field; independent of the codec's own walk."""
    plain = {
        int: integers,
        str: st.text(max_size=200),
        bytes: st.binary(max_size=9),
        bool: st.booleans(),
        PublicationRun: tidy_runs,
        Predicate: predicates,
        Constraint: constraints(),
    }
    if annotation in plain:
        return plain[annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return st.sampled_from(arguments)
    if get_origin(annotation) in (Union, UnionType):
        return st.one_of(
            *(st.none() if kind is NoneType else values_of(kind) for kind in arguments)
        )
    if get_origin(annotation) is tuple:
        if arguments[-1] is ...:
            return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
        return st.tuples(*map(values_of, arguments))
    hints = get_type_hints(annotation)
    names = (
        [field.name for field in fields(annotation)]
        if is_dataclass(annotation)
        else annotation._fields
    )
    return st.builds(annotation, **{name: values_of(hints[name]) for name in names})


def messages() -> st.SearchStrategy[Any]:
    return st.one_of(*map(values_of, all_kinds()))


def frame_of(message: Any) -> bytes:
    return b"".join(codec.encode(message))


def decode_frame(data: bytes) -> Any:
    """Decode a frame with the framing of a connection; refuse an incomplete frame."""
    decoder = FrameDecoder(1 << 20)
    decoder.feed(data)
    frame = decoder.next_frame()
    if frame is None or decoder.incomplete:
        raise RemoteProtocolError("test", "not one whole frame")
    return codec.decode(*frame)


def plain(message: Any) -> Any:
    """Return a message in a form in which equal contents are equal."""
    if isinstance(message, PublicationRun):
        return [
            message.source,
            [(sequence, blob, bytes(p)) for sequence, blob, p in message.publications()],
            message.attribute_table,
        ]
    if is_dataclass(message):
        return [type(message), *(plain(getattr(message, f.name)) for f in fields(message))]
    return message


def written_anew(message: Any) -> bytes:
    """Return the frame of a message after its run has dropped the received bytes."""
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, PublicationRun):
            message = replace(message, **{field.name: replace(value)})
    return frame_of(message)


@given(messages())
def test_every_message_survives_a_round_trip(message: Any) -> None:
    decoded = decode_frame(frame_of(message))
    assert plain(decoded) == plain(message)
    assert written_anew(decoded) == frame_of(decoded) == frame_of(message)


def items_of(annotation: Any, value: Any) -> list[Any]:
    """Return the items of a field by the wire's description, as a plain twin."""
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        (kind,) = (kind for kind in arguments if kind is not NoneType)
        return [0] if value is None else [1, *items_of(kind, value)]
    if get_origin(annotation) is tuple and arguments[-1] is ...:
        return [len(value), *(item for each in value for item in items_of(arguments[0], each))]
    if get_origin(annotation) is tuple:
        return [
            x for kind, each in zip(arguments, value, strict=True) for x in items_of(kind, each)
        ]
    if annotation is Constraint:
        listed = isinstance(value.value, tuple)
        return [value.attribute, value.operator, list(value.value) if listed else value.value]
    if isinstance(value, int | str | bytes):
        return [value]
    hints = get_type_hints(annotation)
    names = getattr(annotation, "_fields", None) or [field.name for field in fields(annotation)]
    return [x for name in names for x in items_of(hints[name], getattr(value, name))]


@given(messages())
def test_a_header_is_the_flat_array_of_its_fields_and_that_of_its_run(message: Any) -> None:
    kind, hints = type(message), get_type_hints(type(message))
    expected = [all_kinds()[kind].number]
    for field in fields(message):
        if hints[field.name] is not PublicationRun:
            expected += items_of(hints[field.name], getattr(message, field.name))
    header, _ = split(frame_of(message))
    rest = BytesIO(header)
    assert cbor2.load(rest) == expected
    run_items = rest.read()
    assert bool(run_items) == (PublicationRun in hints.values())
    assert not run_items or len(cbor2.loads(run_items)) >= 10


@given(messages(), st.data())
def test_an_item_too_few_or_too_many_is_refused(message: Any, data: st.DataObject) -> None:
    """At the end the refusal is certain; elsewhere the bytes may be another valid message."""
    header, payload = split(frame_of(message))
    rest = BytesIO(header)
    arrays = [cbor2.load(rest)]
    if rest.tell() < len(header):
        arrays.append(cbor2.load(rest))
    which = data.draw(st.integers(0, len(arrays) - 1))
    array = arrays[which]
    at = data.draw(st.integers(0, len(array)))
    strange = data.draw(st.one_of(st.sampled_from([*array, None, True, -1, 2**62, "", b"", []])))
    for changed, is_end in (
        ([*array, strange], True),
        (array[:-1], True),
        ([*array[:at], strange, *array[at:]], False),
        ([*array[:at], *array[at + 1 :]], False),
        ([*array[:at], strange, *array[at + 1 :]], False),
    ):
        arrays[which] = changed
        try:
            decoded = codec.decode(b"".join(map(cbor2.dumps, arrays)), memoryview(payload))
        except RemoteProtocolError:
            continue
        assert not is_end
        assert plain(decode_frame(written_anew(decoded))) == plain(decoded)


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.__name__)
@settings(max_examples=settings().max_examples // 4)  # of each, all truncations
@given(data=st.data())
def test_every_truncation_and_every_extra_byte_is_refused(kind: type, data: st.DataObject) -> None:
    header, payload = split(frame_of(data.draw(values_of(kind))))
    truncated = (header[:at] for at in range(len(header)))
    for wrong in (*truncated, header + b"\0", header + header):
        with pytest.raises(RemoteProtocolError):
            codec.decode(wrong, memoryview(payload))
    for wrong_payload in (payload + b"\0", payload[:-1]):
        if wrong_payload != payload:
            with pytest.raises(RemoteProtocolError):
                codec.decode(header, memoryview(wrong_payload))


def split(frame: bytes) -> tuple[bytes, bytes]:
    length, header = struct.unpack_from(">II", frame)
    assert length + 4 == len(frame)
    return frame[8 : 8 + header], frame[8 + header :]


@given(messages(), st.data())
def test_a_changed_byte_yields_a_message_or_a_refusal(message: Any, data: st.DataObject) -> None:
    header, payload = split(frame_of(message))
    at = data.draw(st.integers(0, len(header) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = header[:at] + bytes([byte]) + header[at + 1 :]
    try:
        decoded = codec.decode(changed, memoryview(payload))
    except RemoteProtocolError:
        return
    assert plain(decode_frame(written_anew(decoded))) == plain(decoded)


def test_type_numbers_are_unique_and_stable() -> None:
    """Sessions check the wire version, so a changed table would be a changed version."""
    assert {kind.number: kind.type.__name__ for kind in all_kinds().values()} == {
        1: "Hello", 2: "Heartbeat", 3: "Farewell", 4: "StateAdvanced",
        11: "Redirect",
        12: "Consume", 13: "Consuming", 14: "CommitConsumed", 15: "ConsumedCommitted",
        16: "Connect", 17: "Connected", 18: "Publish", 19: "PublishAcknowledged",
        20: "Subscribe", 21: "Subscribed", 22: "Deliveries", 23: "Acknowledge", 24: "Refused",
        25: "Notice", 26: "Unsubscribe", 27: "Unsubscribed", 28: "Detach",
        29: "Silence", 30: "Gap",
        32: "SubscriptionsOffered", 33: "SubscriptionsReached", 34: "SubscriptionsWithdrawn",
        35: "ForwardedPublications",
        48: "Summary", 49: "SyncEnd", 50: "RecoveryFlag", 51: "SubscriptionCopy",
        52: "UpstreamCopy", 53: "SubscriptionConfirmation", 54: "PublicationCopy",
        55: "PublicationConfirmation", 56: "RecoveryNotifier", 57: "Unsubscription",
        58: "PartitionNew", 59: "PartitionGone", 60: "Relay",
        61: "BranchRequest", 62: "BranchReply",
        64: "Events", 65: "Silent", 66: "Nack", 67: "Done", 68: "AckExpected", 69: "LinkStatus",
        70: "FilterVersions", 71: "FilterSet", 72: "FilterChange", 73: "Beginnings",
        74: "Join", 75: "Joined", 76: "WindowProbe", 77: "WindowUpdate",
        78: "Doubt", 79: "CopyState",
        80: "Released", 81: "Fetch", 82: "Fetched", 83: "NothingFetched",
        84: "Beyond", 85: "Decommissioned", 86: "Deferred",
        88: "Hold", 89: "Held", 90: "Moved", 91: "LetGo",
        96: "Servers", 97: "Put", 98: "Stored", 99: "Follow", 100: "Following", 101: "Get",
        102: "Messages", 103: "Answered", 104: "Owned", 105: "Locate", 106: "Claim",
        107: "Located", 108: "Assign", 109: "Assigned", 110: "Merge", 111: "Merged",
        112: "GraphStated", 113: "ProfileStated", 114: "ProfileChanged", 115: "ProfileReached",
        116: "RoutedPublications", 117: "Lost",
        118: "Change", 119: "Changed", 120: "Store", 121: "Stored", 122: "Fetch",
        123: "Events", 124: "Fetched", 125: "LossProof",
        128: "Periodic", 129: "Carry", 130: "Transfer", 131: "Transferred",
        132: "Decommissioned", 133: "Move", 134: "Give",
        135: "LoadProbe", 136: "LoadAnswered", 137: "ClientsCounted",
        138: "AddressStated", 139: "AddressTaken", 140: "DutyStated", 141: "UnitsAttested",
        150: "CopyWrites", 151: "CopyStored", 152: "CopyRequest",
    }  # fmt: skip


def test_a_field_that_is_added_or_changed_makes_another_wire_version() -> None:
    """Without a new version, old and new programs would start a session that fails later.

    Version 6 has the fields of 5 in flat arrays, and the messages within cells of several brokers;
    version 7 filters between brokers, and fetches of durable subscriptions; version 8 pubends that
    join a total order, and losses of durable subscriptions; version 9 reports about moving clients;
    version 10 consumers, whose broker stores their commits; version 11 windows between brokers,
    retired brokers, and topics at servers; version 12 owners of topics; version 13 requests of
    returning subscribers for retransmission; version 14 a topic with two owners, and windows per
    path in a cell; version 15 the incarnation behind a hold; version 16 messages of brokers of a
    hierarchy; version 17 released publications of servers; version 18 storages in a hierarchy,
    publishers that keep their source at another broker, and topic transfers between servers;
    version 19 the start of a transfer; version 20 several storages in a hierarchy; version 21
    retired edges; version 22 subscriptions that continue at another storage; version 23 topics that
    arbiters move; version 24 the attachment behind a hold; version 25 the duration of replies in a
    hierarchy, and subscriptions that continue at storages of another root; version 26 clients that
    are redirected to another broker, and the number of clients of a broker; version 27 brokers with
    another address than in the topology, and subscriptions of departed clients; version 28
    publishers that receive their incarnation from the broker, and signatures of operators' acts;
    version 29 inexact starts of subscriptions; version 30 generations of clients that storages
    report, acknowledged publications in receipts, duties of brokers of a hierarchy to keep
    profiles, attestations of these duties, released ticks of cells, doubts about streams, positions
    at which a departing client begins elsewhere, proofs of lost publications at a storage, pubends
    that publishers request, and requests for all subscriptions of a branch of a tree.
    """
    shapes = [(kind.number, shape(kind.type)) for kind in all_kinds().values()]
    digest = hashlib.blake2b(repr(shapes).encode(), digest_size=8).hexdigest()
    assert (WIRE_VERSION, digest) == (31, "bb9bd27b1ba68d7c")


def shape(kind: Any) -> Any:
    """Return the structure of a type, as plain names."""
    if get_args(kind):
        return [str(get_origin(kind)), *map(shape, get_args(kind))]
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        written = [item.name for item in fields(kind) if item.init] if is_dataclass(kind) else ()
        names = written or getattr(kind, "_fields", ())
        return [(name, shape(hints[name])) for name in names]
    return getattr(kind, "__name__", str(kind))


@pytest.mark.parametrize(
    "values", [[True], [True, 3], [True, -1, 0], [1, 3, 0], [True, 3, 4], [True, "3", 0]]
)
def test_a_detach_of_other_fields_is_refused(values: list[Any]) -> None:
    assert header_of(Detach(True, 3)) == [28, True, 3, 0]
    with pytest.raises(RemoteProtocolError):
        codec.decode(cbor2.dumps([28, *values]), memoryview(b""))


# ---------------------------------------------------------------- publication runs

SOURCE = SourceId(1, 2, 3)


def run(count: int, size: int = 1, **changes: Any) -> PublicationRun:
    values: dict[str, Any] = {
        "source": SOURCE,
        "sequences": range(1, count + 1),
        "attribute_table": (b"a",),
        "attribute_index": bytes(count),
        "payload_lengths": size,
        "payload": (bytes(count * size),) if size else (),
    }
    return PublicationRun(**(values | changes))


def header_of(message: Any) -> list[Any]:
    values: list[Any] = cbor2.loads(split(frame_of(message))[0])
    return values


def run_of(message: Any) -> list[Any]:
    """Return the items of the message's run, behind the items of the message."""
    rest = BytesIO(split(frame_of(message))[0])
    cbor2.load(rest)
    values: list[Any] = cbor2.load(rest)
    return values


def publish(run_items: Any) -> bytes:
    """Return the header of a Publish with a run of these items."""
    return cbor2.dumps([18]) + cbor2.dumps(run_items)


def test_a_plain_run_has_a_header_of_a_few_bytes() -> None:
    frame = frame_of(Publish(run(1000, 250)))
    assert len(frame) - 250_000 < 32
    assert run_of(Publish(run(3))) == [1, 2, 3, 1, 3, None, 1, None, 1, b"a"]


def test_gaps_mixed_attributes_and_lengths_are_encoded_explicitly() -> None:
    odd = run(
        3,
        sequences=(5, 7, 300),
        attribute_table=(b"a", b"b"),
        attribute_index=b"\0\1\0",
        payload_lengths=(1, 0, 2),
    )
    assert run_of(Publish(odd))[3:] == [5, 3, [2, 293], [1, 0, 2], b"\0\1\0", 2, b"a", b"b"]
    near = run(3, sequences=(5, 7, 9))
    assert run_of(Publish(near))[5] == b"\2\2"


def test_distinct_attributes_need_no_index_and_many_get_an_array() -> None:
    table = tuple(str(n).encode() for n in range(300))
    every = run(300, attribute_table=table, attribute_index=range(300))
    assert run_of(Publish(every))[7] is None
    assert list(decode_frame(frame_of(Publish(every))).run.attribute_index) == list(range(300))
    back = tuple(reversed(range(300)))
    turned = run(300, attribute_table=table, attribute_index=back)
    assert run_of(Publish(turned))[7] == list(back)
    assert decode_frame(frame_of(Publish(turned))).run.attribute_index == back


AROUND_A_BYTE = (23, 24, 254, 255, 256, 257, 1_023, 1_024, 65_535, 65_536)


def of_origins(step: int) -> PublicationRun:
    """Return a run of an ordered stream with numbers of two origins that lie a step apart."""
    origins = (
        OriginRun(SourceId(4, 5, 6), (7, 7 + step)),
        OriginRun(SourceId(8, 5, 6), (9, 9 + step, 10 + step)),
    )
    return run(5, origins=origins)


@pytest.mark.parametrize("step", AROUND_A_BYTE)
@pytest.mark.parametrize("behind", [(), (1,), (255,), (256,)])
def test_numbers_with_any_gap_are_decoded_unchanged(step: int, behind: tuple[int, ...]) -> None:
    steps = (2, step, *behind)
    sparse = run(len(steps) + 1, sequences=tuple(accumulate(steps, initial=1)))
    for each in (sparse, of_origins(step)):
        decoded = decode_frame(frame_of(Publish(each)))
        assert plain(decoded) == plain(Publish(each))


@pytest.mark.parametrize("places", [2, 23, 24, 255, 256, 257, 1_024, 1_025])
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_table_of_any_size_is_decoded_unchanged(places: int, is_plain: bool) -> None:
    table = tuple(str(n).encode() for n in range(places))
    index = tuple(range(places)) if is_plain else (*range(places - 1, -1, -1), 0)
    lengths = tuple(place % 3 for place in index)
    payload = (bytes(sum(lengths)),)
    each = run(
        len(index),
        attribute_table=table,
        attribute_index=bytes(index) if places <= 256 else index,
        payload_lengths=lengths,
        payload=payload,
    )
    assert plain(decode_frame(frame_of(Publish(each)))) == plain(Publish(each))


@pytest.mark.parametrize("size", AROUND_A_BYTE)
def test_payloads_of_any_length_are_decoded_unchanged(size: int) -> None:
    for lengths in ((size, size), (size, 0), (size, size - 1)):
        each = run(2, payload_lengths=lengths, payload=(bytes(sum(lengths)),))
        assert plain(decode_frame(frame_of(Publish(each)))) == plain(Publish(each))


def test_a_large_payload_stays_a_slice_and_a_small_one_lets_the_chunk_go() -> None:
    large, small = frame_of(Publish(run(100, 250))), frame_of(Publish(run(2, 250)))
    decoder = FrameDecoder(1 << 20)
    chunk = large + small
    decoder.feed(chunk)
    for kept in (True, False):
        frame = decoder.next_frame()
        assert frame is not None
        (piece,) = codec.decode(*frame).run.payload
        assert (isinstance(piece, memoryview) and piece.obj is chunk) == kept


GOOD = [1, 2, 3, 5, 3, None, 1, b"\0\1\0", 2, b"a", b"b"]


@pytest.mark.parametrize(
    "place, value, why",
    [
        (0, [1, 2, 3], "integers"),
        (2, -1, "integers"),
        (3, -1, "integers"),
        (3, 2**63, "integers"),
        (3, True, "integers"),
        (3, 2**63 - 2, "63 bits"),
        (4, 0, "1 to"),
        (4, 2**62, "1 to"),
        (4, 4, "index|lengths|payloads"),
        (5, [1], "steps"),
        (5, [1, 1], "steps"),
        (5, b"\1\1", "steps"),
        (5, [0, 5], "steps"),
        (5, [2, -1], "integers"),
        (5, [2, 2**63 - 1], "63 bits"),
        (5, "ab", "steps"),
        (6, [1, 1], "lengths"),
        (6, [1, 1, 1], "lengths"),
        (6, [1, 2, 1], "payloads"),
        (6, [1, -1, 3], "integers"),
        (6, 0, "payloads"),
        (6, 2, "payloads"),
        (6, 2**62, "payloads"),
        (6, None, "integer"),
        (7, None, "index|twice"),
        (7, b"\0\2\0", "beyond"),
        (7, b"\0\1", "index"),
        (7, [0, 1, 0], "index"),
        (8, 0, "table"),
        (8, 1, "index|origins"),
        (8, 3, "table"),
        (8, 4, "table"),
        (8, 2**62, "table"),
        (8, None, "integers"),
        (9, b"b", "twice"),
        (9, "a", "attributes"),
        (9, b"", "attributes"),
        (9, bytes(50_000), "attributes"),
        (9, [b"a"], "attributes"),
    ],
)
def test_a_run_that_does_not_add_up_is_refused(place: int, value: Any, why: str) -> None:
    assert len(codec.decode(publish(GOOD), memoryview(b"xyz")).run) == 3
    bad = publish([*GOOD[:place], value, *GOOD[place + 1 :]])
    with pytest.raises(RemoteProtocolError, match=why):
        codec.decode(bad, memoryview(b"xyz"))


@pytest.mark.parametrize(
    "header",
    [
        cbor2.dumps([18]),
        cbor2.dumps(GOOD),
        publish(None),
        publish([]),
        publish(GOOD[:9]),
        publish({}),
        cbor2.dumps([18, GOOD]),
        cbor2.dumps([18, *GOOD]),
        publish(GOOD) + cbor2.dumps(GOOD),
        cbor2.dumps([2]) + cbor2.dumps(GOOD),
    ],
)
def test_a_run_that_is_not_the_second_array_is_refused(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode(header, memoryview(b"xyz"))


def test_a_received_run_is_forwarded_unchanged_and_its_parts_are_encoded_again() -> None:
    """The run is forwarded byte for byte; its encoding is unusual, but has the same meaning."""
    long = b"\x8b\x18\x01" + publish(GOOD)[4:]
    received = codec.decode(b"\x81\x12" + long, memoryview(b"xyz")).run
    header, payload = split(frame_of(PublicationCopy(received, (1, 2))))
    assert header == cbor2.dumps([54, 2, 1, 2, 0, 0]) + long
    assert bytes(payload) == b"xyz"
    for part in (
        received.select([0, 1]),
        received.select([1]),
        received.after(5),
        received.select_through(6),
        replace(received, source=SourceId(9, 9, 9)),
        merge_runs([received, run(1, sequences=range(8, 9))]),
    ):
        assert plain(decode_frame(frame_of(Publish(part))).run) == plain(tidy(part))


PLACED = [1, 2, 3, 5, 3, b"\1\2", 1, None, 1, b"a", *(4, 0, 1, 7, 2, b"\2", 4, 1, 1, 1, 1, None)]


@given(placed_runs())
def test_a_run_with_separate_origins_round_trips_with_both(run: PublicationRun) -> None:
    deliveries = Deliveries(tidy(run), (1, 2))
    decoded = decode_frame(frame_of(deliveries))
    assert plain(decoded) == plain(deliveries)
    assert decoded.run.origins == run.origins


def test_only_a_run_with_origins_encodes_them() -> None:
    assert len(run_of(Deliveries(run(3), (1,)))) == 10
    placed = codec.decode(publish(PLACED), memoryview(b"xyz"))
    assert run_of(replace(placed, run=replace(placed.run))) == PLACED
    for part in placed.run.split_by_origin():
        assert len(run_of(Publish(part))) == 10


@pytest.mark.parametrize(
    "origins, why",
    [
        ([None], "not the origins"),
        ([4, 0, 1, 7, 2, None], "are not those of 3"),
        ([4, 0, 1, 7, 4, None], "an origin of 4"),
        ([4, 0, 1, 7, 3, b"\2"], "steps"),
        ([4, 0, 1, 7, 3], "not the origins"),
        ([4, 0, 1, 7, 3, None, 4], "not the origins"),
        ([4, 0, 1, 7, 0, None, 4, 0, 1, 7, 3, None], "an origin of 0"),
        ([4, 0, 1, -7, 3, None], "integers"),
        ([4, 0, 1, 7, 1, None] * 4, "not the origins"),
    ],
)
def test_origins_that_do_not_add_up_are_refused(origins: list[Any], why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        codec.decode(publish([*PLACED[:10], *origins]), memoryview(b"xyz"))


@given(tidy_runs, st.integers(70, 400))
def test_a_run_above_the_frame_limit_is_split_into_fitting_parts(
    whole: PublicationRun, limit: int
) -> None:
    frames = list(codec.frames(PublicationCopy(whole, (1, 2)), limit))
    sent = [decode_frame(b"".join(pieces)) for pieces, _ in frames]
    assert [one for part in sent for one in plain(part.run)[1]] == plain(whole)[1]
    assert {part.path for part in sent} == {(1, 2)}
    for pieces, size in frames:
        assert sum(map(len, pieces)) == size <= limit


def test_a_run_above_the_publication_limit_is_split() -> None:
    frames = codec.frames(Publish(run(40_000)), 1 << 20)
    lengths = [len(decode_frame(b"".join(pieces)).run) for pieces, _ in frames]
    assert sum(lengths) == 40_000
    assert max(lengths) <= codec.MAXIMUM_RUN_PUBLICATIONS


def test_a_message_without_a_run_is_never_cut() -> None:
    summary = Summary(tuple(SubscriptionId(1, 1, n) for n in range(1_000)), recovering=False)
    ((pieces, size),) = codec.frames(summary, 100)
    assert size > 100
    assert decode_frame(b"".join(pieces)) == summary


def test_a_publication_that_fits_no_frame_is_our_own_fault() -> None:
    with pytest.raises(ValueError, match="of 1000"):
        list(codec.frames(Publish(run(1, 2_000)), 1_000))


# ---------------------------------------------------------------- single refusals


@pytest.mark.parametrize(
    "values, why",
    [
        ([], "type number"),
        ({}, "type number"),
        ([True], "type number"),
        (["a"], "type number"),
        ([999], "999"),
        ([2**63], "no message"),
        ([2, 1], "2 items, too many"),
        ([19, 1], "only 2 items"),
        ([19], "only 1 items"),
        ([19, 1, 2, 3], "4 items, too many"),
        ([19, [1, 2]], "first: expected an integer"),
        ([55, 1, 1, 0, 1, 5], "only 6 items"),
        ([55, 2**62, 1, 0, 1, 5, 6], "only 7 items"),
        ([55, -1], "ranges: expected an integer"),
        ([55, 1, 1, 0, 1, 5, True], "ranges: expected integers"),
        ([17, 2, 1, 2, 3, 1], "source: neither 0 nor 1"),
        ([17, False, 1], "source: neither 0 nor 1"),
        ([17, 1, 1, 2, 1], "only 5 items"),
        ([19, 1, 1.0], "first: expected|last: expected"),
        ([21, 1, "over", 0], "state: expected one of"),
        ([24, "subscribe", 0, "x" * 1025, False], "reason: expected text"),
        ([24, "subscribe", 0, "ä" * 600, False], "reason: expected text"),
        ([24, "subscribe", 0, "", 0], "retry: expected a boolean"),
        ([20, 1, 1, 1, "a", "=", float("nan")], "NaN"),
        ([20, 1, 1, 1, "a", "=", 2**63], "64 bits"),
        ([20, 1, 1, 1, "a", "~", 1], "unknown operator"),
        ([20, 1, 1, 1, "a", "in", [[1]]], "list"),
        ([20, 1, 1, 1, "a", "=", {}], "cannot take"),
        ([20, 1, 1, 1, "a", 1, 1], "operator"),
        ([20, 1, 1, 1, "a" * 300, "=", 1], "longer"),
        ([20, 1, 65, *([1, "a", "=", 1] * 65)], "65 tests"),
    ],
)
def test_an_invalid_message_is_refused_with_a_reason(values: Any, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        codec.decode(cbor2.dumps(values), memoryview(b""))


def test_a_payload_behind_a_message_without_a_run_is_refused() -> None:
    header, _ = split(frame_of(Heartbeat()))
    with pytest.raises(RemoteProtocolError, match="payload"):
        codec.decode(header, memoryview(b"x"))


def test_the_refusal_names_the_peer() -> None:
    with pytest.raises(RemoteProtocolError, match="peer b3: ") as caught:
        codec.decode(b"\x80", memoryview(b""), "b3")
    assert caught.value.peer == "b3"


def test_infinities_and_negative_numbers_are_values_to_compare_with() -> None:
    predicate = Predicate(((Constraint("a", "<", float("inf")), Constraint("b", ">", -5)),))
    assert decode_frame(frame_of(Subscribe(1, predicate))) == Subscribe(1, predicate)


def test_small_messages_are_small() -> None:
    assert len(frame_of(Heartbeat())) == 10
    assert len(frame_of(PublishAcknowledged(1, 1000))) < 20
    assert decode_frame(frame_of(Refused("subscribe", 1, "ä" * 512, True))).reason == "ä" * 512
