"""Tests of a publisher's window against its twin, a dictionary, and of the window's size."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.client import outgoing
from brokerd.client.outgoing import Window, select_used_attributes
from brokerd.model.identity import SourceId
from brokerd.model.joined_runs import RunJoiner
from brokerd.model.publication import PublicationRun
from tests.model.test_publication import contents

SOURCE = SourceId(0, 0, 1)
PAYLOAD_BYTES = 250


def run(first: int, count: int = 1, size: int = 3) -> PublicationRun:
    """Return distinct publications in buffers of their own."""
    payload = b"".join(number.to_bytes(size, "big") for number in range(first, first + count))
    blob = bytes(bytearray(b"blob" + bytes([first % 100])))
    return PublicationRun(
        SOURCE, range(first, first + count), (blob,), bytes(count), size, (payload,)
    )


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(1, 9), min_size=4, max_size=40),
    done=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 30)), max_size=8),
)
def test_the_window_retains_exactly_the_unconfirmed_publications(
    counts: list[int], done: list[tuple[int, int]]
) -> None:
    twin: dict[int, tuple[int, bytes, bytes]] = {}
    window, first = Window(), 1
    due = list(done)
    with_small = outgoing.JOINED_RUNS
    outgoing.JOINED_RUNS = 4
    try:
        for count in counts:
            added = run(first, count)
            window.add(added)
            twin.update({each[0]: each for each in contents(added)})
            first += count
            while due and due[0][0] + due[0][1] < first:
                start, more = due.pop(0)
                gone = window.remove(start, start + more)
                numbers = [n for low, high in gone for n in range(low, high + 1)]
                assert numbers == [n for n in range(start, start + more + 1) if twin.pop(n, None)]
            assert [each for kept in window.runs() for each in contents(kept)] == [*twin.values()]
            assert window.publications == len(twin)
            assert window.first() == min(twin, default=0)
    finally:
        outgoing.JOINED_RUNS = with_small


def test_the_window_uses_at_most_half_again_the_size_of_its_payloads() -> None:
    window = Window()
    tracemalloc.start()
    try:
        for number in range(1, 8_001):
            window.add(run(number, size=PAYLOAD_BYTES))
            if number > 5_000:
                window.remove(1, number - 5_000)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert window.publications == 5_000
    assert kept_bytes <= 1.5 * window.publications * PAYLOAD_BYTES


@pytest.mark.parametrize("index", [bytes((0, 2)), (0, 2), (0, -1)])
def test_an_index_beyond_its_table_is_refused(index: bytes | tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a table of 2 blobs"):
        select_used_attributes((b"a", b"b"), index)


class CountedJoiner:
    """A joiner that counts its runs."""

    def __init__(self) -> None:
        self.seen = 0
        self._joiner = RunJoiner()

    def fewer(self, runs: list[PublicationRun]) -> list[PublicationRun]:
        self.seen += len(runs)
        return self._joiner.fewer(runs)


def test_a_run_is_joined_once_although_those_before_it_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outgoing, "JOINED_RUNS", 4)
    window, joiner = Window(), CountedJoiner()
    window._joiner = joiner  # type: ignore[assignment]
    for number in range(1, 101):
        window.add(run(number))
        if number % 3 == 0:
            window.remove(number // 3, number // 3)
    assert 0 < joiner.seen <= 100


@pytest.mark.parametrize("last", [40, 39, 25])
def test_a_window_whose_runs_were_acknowledged_joins_runs_like_a_new_one(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "JOINED_RUNS", 4)
    used, new = Window(), Window()
    for number in range(1, 41):
        used.add(run(number))
    used.remove(1, last)
    used.remove(last + 1, 40)
    for window in (used, new):
        for number in range(41, 81):
            window.add(run(number))
    assert [*map(len, used.runs())] == [*map(len, new.runs())]
