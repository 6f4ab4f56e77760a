"""Tests of publication runs: selecting, splitting and merging never change a publication."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun, RunParts, merge_runs
from tests.helpers.strategies import placed_runs, runs
from tests.helpers.stream_runs import origin_runs


def contents(run):
    return [(sequence, blob, bytes(payload)) for sequence, blob, payload in run.publications()]


@given(run=runs(), data=st.data())
def test_a_selection_contains_exactly_the_chosen_publications(run, data):
    chosen = data.draw(st.lists(st.integers(0, len(run) - 1), min_size=1, unique=True).map(sorted))
    selected = run.select(chosen)
    assert contents(selected) == [contents(run)[position] for position in chosen]
    assert selected.payload_bytes() == sum(len(piece) for piece in selected.payload)


@given(run=runs(), data=st.data())
def test_parts_of_a_run_merge_back_into_it(run, data):
    owner = data.draw(st.lists(st.integers(0, 2), min_size=len(run), max_size=len(run)))
    parts = [
        run.select([place for place, part in enumerate(owner) if part == number])
        for number in dict.fromkeys(owner)
    ]
    merged = merge_runs(parts)
    assert contents(merged) == contents(run)
    assert tuple(merged.sequences) == tuple(run.sequences)


@given(run=runs(), sequence=st.integers(0, 40))
def test_a_run_splits_at_any_sequence(run, sequence):
    before, after = run.select_through(sequence), run.after(sequence)
    assert contents(run) == [
        *(contents(before) if before else []),
        *(contents(after) if after else []),
    ]
    assert before is None or before.last <= sequence
    assert after is None or after.first > sequence


def test_a_contiguous_selection_slices_the_payload_once_and_copies_nothing():
    payload = bytes(250 * 1000)
    run = PublicationRun(SourceId(0, 0, 1), range(1, 1001), (b"a",), bytes(1000), 250, (payload,))
    part = run.select(range(100, 900))
    assert [len(piece) for piece in part.payload] == [250 * 800]
    assert part.payload[0].obj is payload
    assert part.sequences == range(101, 901)


def test_a_part_below_two_thirds_does_not_keep_the_whole():
    payload = bytes(range(200)) * 1000
    run = PublicationRun(SourceId(0, 0, 1), range(1, 1001), (b"a",), bytes(1000), 200, (payload,))
    small = run.select(range(0, 1000, 2))
    (piece,) = small.payload
    assert isinstance(piece, bytes)
    assert piece == bytes(range(200)) * 500
    large = run.select(range(300, 1000))
    assert large.payload[0].obj is payload


def test_the_whole_run_is_selected_as_itself():
    run = PublicationRun(SourceId(0, 0, 1), range(1, 4), (b"a",), bytes(3), 0, ())
    assert run.select(range(3)) is run
    assert run.after(0) is run
    assert run.select_through(3) is run


def test_an_empty_run_does_not_exist():
    run = PublicationRun(SourceId(0, 0, 1), range(1, 4), (b"a",), bytes(3), 0, ())
    with pytest.raises(AssertionError, match="never empty"):
        run.select([])


# ---------------------------------------------------------------- places that are not origins


def origins(run):
    """Return position, source and sequence of each publication."""
    each = [(source, number) for source, numbers in run.origins for number in numbers]
    return list(zip(run.sequences, each, strict=True))


@given(run=placed_runs(), data=st.data())
def test_a_selection_retains_the_origins(run, data):
    chosen = data.draw(st.lists(st.integers(0, len(run) - 1), min_size=1, unique=True).map(sorted))
    assert origins(run.select(chosen)) == [origins(run)[position] for position in chosen]


@given(run=placed_runs(), data=st.data())
def test_parts_merge_back_with_their_origins(run, data):
    owner = data.draw(st.lists(st.integers(0, 2), min_size=len(run), max_size=len(run)))
    parts = [
        run.select([place for place, part in enumerate(owner) if part == number])
        for number in dict.fromkeys(owner)
    ]
    merged = merge_runs(parts)
    assert origins(merged) == origins(run)
    assert merged.origins == origin_runs([each for _, each in origins(run)])
    assert contents(merged) == contents(run)


@given(run=placed_runs())
def test_by_origin_pairs_each_publication_with_its_origin_and_its_position(run):
    found = []
    for part in run.split_by_origin():
        assert part.place.stream == run.source
        assert not part.origins
        for position, (sequence, blob, payload) in zip(
            part.place.positions, part.publications(), strict=True
        ):
            found.append((position, (part.source, sequence), blob, bytes(payload)))
    assert [each[:2] for each in found] == origins(run)
    assert [(place, *rest) for place, _, *rest in found] == contents(run)


@given(run=runs())
def test_by_origin_returns_a_run_without_origins_unchanged(run):
    assert list(run.split_by_origin()) == [run]


@given(run=st.one_of(runs(), placed_runs()), data=st.data())
def test_run_parts_select_the_same_publications_as_the_run(run, data):
    parts = RunParts(run)
    some = st.lists(st.integers(0, len(run) - 1), min_size=1, unique=True).map(sorted)
    for chosen in data.draw(st.lists(some, min_size=1, max_size=4)):
        part, alone = parts.select(chosen), run.select(chosen)
        assert replace(part, payload=()) == replace(alone, payload=())
        assert len(part.payload) == len(alone.payload)
        assert b"".join(part.payload) == b"".join(alone.payload)
