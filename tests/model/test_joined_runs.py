"""Tests of retained runs: joining and removal preserve the content, and retain nothing else."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from brokerd.model.identity import SourceId
from brokerd.model.joined_runs import MOST_BLOBS, SHARED_BYTES, RunJoiner, take
from brokerd.model.publication import PublicationRun
from tests.helpers.strategies import runs
from tests.model.test_publication import contents


def dealt(run: PublicationRun, data: st.DataObject, most: int = 3) -> list[PublicationRun]:
    """Divide the publications of a run among a few interleaved runs."""
    owners = st.lists(st.integers(0, most - 1), min_size=len(run), max_size=len(run))
    owner = data.draw(owners)
    return [
        run.select([place for place, part in enumerate(owner) if part == number])
        for number in dict.fromkeys(owner)
    ]


@given(run=runs(), data=st.data())
def test_joined_runs_equal_the_run_in_one_piece(run: PublicationRun, data: Any) -> None:
    joined = RunJoiner().join(dealt(run, data))
    assert contents(joined) == contents(run)
    assert len(joined.payload) <= 1
    assert all(type(piece) is bytes for piece in joined.payload)
    assert not joined.header


@given(run=runs(), data=st.data())
def test_an_extract_of_joined_runs_equals_the_result_of_a_search(
    run: PublicationRun, data: Any
) -> None:
    joined = [RunJoiner().join([part]) for part in dealt(run, data)]
    numbers = data.draw(st.lists(st.sampled_from(run.sequences), min_size=1, unique=True))
    part = take(joined, numbers)
    assert contents(part) == [each for each in contents(run) if each[0] in numbers]
    assert part.payload_bytes() == sum(map(len, part.payload))
    if len(part) == len(run):
        assert tuple(part.sequences) == tuple(run.sequences)


def test_an_extract_is_a_slice_and_a_whole_run_is_itself() -> None:
    index, payload = bytes(100), bytes(25_000)
    run = PublicationRun(SourceId(0, 0, 1), range(1, 101), (b"a",), index, 250, (payload,))
    assert take([run], range(1, 101)) is run
    part = take([run], [*range(1, 10), *range(20, 30)])
    assert [len(piece) for piece in part.payload] == [9 * 250, 10 * 250]
    assert all(isinstance(each, memoryview) and each.obj is payload for each in part.payload)


def test_runs_joined_one_by_one_share_attributes_of_which_few_are_cached() -> None:
    joiner = RunJoiner()

    def one(number: int, blob: bytes) -> PublicationRun:
        run = PublicationRun(SourceId(0, 0, 1), range(number, number + 1), (blob,), b"\0", 0, ())
        return joiner.join([run])

    first, second = one(1, bytes(bytearray(b"same"))), one(2, bytes(bytearray(b"same")))
    assert first.attribute_table[0] is second.attribute_table[0]
    for number in range(3, 3 * MOST_BLOBS):
        one(number, str(number).encode())
    assert len(joiner._blobs) <= MOST_BLOBS + 1
    one(4 * MOST_BLOBS, bytes(SHARED_BYTES + 1))
    assert max(map(len, joiner._blobs)) <= SHARED_BYTES
