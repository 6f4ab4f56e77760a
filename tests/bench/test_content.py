"""Tests of contents: contents follow from the seed, and the fast path equals the formula."""

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.content import (
    ContentTables,
    NumberedBlobs,
    SourceContent,
    choice_base,
    content_digest,
    draw_attribute_sets,
    draw_payloads,
)
from bench.load.splitmix import choices, splitmix64, splitmix64_series
from results.rules.expectation import encode_attributes

WORDS = st.integers(0, 2**64 - 1)


def test_splitmix64_produces_the_published_numbers() -> None:
    """The expected values are the first three outputs for seed 0 of the author's C code."""
    state, outputs = 0, []
    for _ in range(3):
        outputs.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(start=WORDS, count=st.integers(1, 70))
def test_a_series_is_splitmix64_number_by_number(start: int, count: int) -> None:
    expected = [splitmix64((start + place) % 2**64) for place in range(count)]
    assert splitmix64_series(start, count) == expected


@given(
    start=WORDS,
    count=st.integers(1, 70),
    set_count=st.sampled_from([1, 2, 7, 100, 127, 128, 129, 256, 257, 5000]),
    payload_count=st.sampled_from([1, 3, 64, 256]),
)
def test_choices_of_a_block_are_those_of_its_numbers(
    start: int, count: int, set_count: int, payload_count: int
) -> None:
    numbers = [splitmix64((start + place) % 2**64) for place in range(count)]
    sets, payloads = choices(start, count, set_count, payload_count)
    assert list(sets) == [number % set_count for number in numbers]
    assert isinstance(sets, bytes) == (set_count <= 256)
    assert list(payloads) == [(number >> 32) % payload_count for number in numbers]


def formula(seed: int, publisher: int, incarnation: int, sequence: int) -> int:
    """Return the value of the formula in the run directory's description."""
    total = seed + 0x9E3779B97F4A7C15 * (publisher + 1) + 0xBF58476D1CE4E5B9 * (incarnation + 1)
    return splitmix64((total + sequence) % 2**64)


@given(
    seed=st.integers(0, 2**63 - 1),
    publisher=st.integers(0, 1000),
    incarnation=st.integers(0, 50),
    sequence=st.integers(1, 5000),
)
def test_a_block_holds_the_number_of_the_formula(
    seed: int, publisher: int, incarnation: int, sequence: int
) -> None:
    sets = draw_attribute_sets(seed, {"symbol": {"choose": 3}}, sets=7)
    tables = ContentTables.build(seed, sets, 12, encode=lambda a: json.dumps(a).encode())
    content = SourceContent(tables, seed, publisher, incarnation)
    block = content.block_of(sequence)
    place = sequence - block.first
    hashed = formula(seed, publisher, incarnation, sequence)
    attribute_set, payload = hashed % 7, (hashed >> 32) % 64
    assert (block.sets[place], block.payload_numbers[place]) == (attribute_set, payload)
    assert content.choice(sequence) == (attribute_set, payload)
    assert content.payload_of(block)[12 * place : 12 * (place + 1)] == tables.payloads[payload]
    expected = zlib.crc32(tables.blobs[attribute_set] + tables.payloads[payload])
    assert block.digests[place] == expected
    assert content_digest(tables.blobs[attribute_set], tables.payloads[payload]) == expected


def test_many_attribute_sets_need_no_digest_table() -> None:
    sets = [{"n": number} for number in range(3000)]
    tables = ContentTables.build(9, sets, 8, encode=lambda a: json.dumps(a).encode())
    content = SourceContent(tables, 9, 0, 1)
    block = content.block_of(1)
    assert max(block.sets) > 255
    for place in range(len(block)):
        attribute_set, payload = content.choice(1 + place)
        assert block.digests[place] == content_digest(
            tables.blobs[attribute_set], tables.payloads[payload]
        )


@pytest.mark.parametrize("start", [0, 1, 20, 24, 250, 256, 65_530, 70_000, 2**32 - 2, 2**40])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_counting_attributes_have_the_blobs_of_their_numbers(start: int, count: int) -> None:
    sets = [{"n": 0, "side": "buy"}, {"n": 0, "side": "sell"}]
    blobs = NumberedBlobs(sets, "n", 5, encode_attributes)
    chosen = [number % 2 for number in range(count)]
    expected = [
        encode_attributes({**sets[place], "n": 4 + start + number})
        for number, place in enumerate(chosen)
    ]
    assert blobs.blobs(chosen, start) == expected
    assert [blobs.blob(place, start + n) for n, place in enumerate(chosen)] == expected


def test_a_block_computed_again_is_the_same() -> None:
    tables = ContentTables.build(4, [{"n": 1}, {"n": 2}], 30, lambda a: json.dumps(a).encode())
    content = SourceContent(tables, 4, 2, 0)
    before = content.block_of(1)
    sets, payload = before.sets, content.payload_of(before)
    for block in range(300):
        content.payload_of(content.block_of(1 + block * content.block_size))
    again = content.block_of(1)
    assert again is not before
    assert (again.sets, content.payload_of(again)) == (sets, payload)


def test_watchers_receive_each_block_once_in_order_unless_it_is_far_ahead() -> None:
    tables = ContentTables.build(4, [{"n": 1}, {"n": 2}], 30, lambda a: json.dumps(a).encode())
    content = SourceContent(tables, 4, 2, 0, block_size=16)
    seen: list[int] = []
    content.watch(lambda number, block: seen.append(number))
    for number in (0, 3, 2, 3, 7, 5):
        assert content.block_of(number * 16 + 1).first == number * 16 + 1
    assert seen == [*range(8)]
    for number in (10_007, 10_008, 10_010):
        content.block_of((number + 1) * 16)
    assert seen[8:] == [10_007, 10_008, 10_009, 10_010]
    late: list[int] = []
    content.watch(lambda number, block: late.append(number))
    assert late == seen
    content.block_of(10_011 * 16 + 1)
    assert (seen[12:], late[12:]) == ([10_011], [10_011])


def test_attributes_are_drawn_in_file_order_each_from_its_own_stream() -> None:
    seed, start = 77, splitmix64(77 ^ 0xA5A5)
    definitions = {
        "symbol": {"choose": 40},
        "side": {"choose": ["buy", "sell", True, 1, "1"]},
        "price": {"uniform": [-5, 500]},
        "yield": {"uniform": [0, 9.5]},
    }
    for number, drawn in enumerate(draw_attribute_sets(seed, definitions, sets=25)):
        random = [splitmix64((start + number * 1_000_003 + place) % 2**64) for place in range(4)]
        assert drawn == {
            "symbol": f"SYMBOL{random[0] % 40:03d}",
            "side": ["buy", "sell", True, 1, "1"][random[1] % 5],
            "price": -5 + random[2] % 506,
            "yield": round(9.5 * (random[3] >> 11) / 2**53, 2),
        }
        assert list(drawn) == list(definitions)


@pytest.mark.parametrize("size_bytes", [0, 1, 8, 100, 250])
def test_payloads_are_words_of_their_own_stream_cut_to_size(size_bytes: int) -> None:
    payloads = draw_payloads(3, size_bytes)
    assert len(payloads) == 64
    start = splitmix64(3 ^ 0x5A5A)
    for number, payload in enumerate(payloads):
        words = (splitmix64((start + number * 1_000_003 + i) % 2**64) for i in range(40))
        assert payload == b"".join(w.to_bytes(8, "little") for w in words)[:size_bytes]


def test_publishers_and_incarnations_have_contents_of_their_own() -> None:
    bases = {
        choice_base(1, publisher, incarnation)
        for publisher in range(50)
        for incarnation in range(9)
    }
    assert len(bases) == 450
